"""Images as engines give them out: docker save of every age, and containers storage with its archives taken apart."""

import base64
import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from envbuilder.errors import HostError
from envbuilder.image.containers_store import StoredContents
from envbuilder.image.docker_stream import SavedContents


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, body in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
    return out.getvalue()


LAYERS = [tar_of({"a": b"one" * 5000}), tar_of({"b": b"two" * 5000, "c": b""})]
HEX = [hashlib.sha256(layer).hexdigest() for layer in LAYERS]
CONFIG = json.dumps({"rootfs": {"diff_ids": [f"sha256:{digest}" for digest in HEX]}}, indent=2).encode()


def old() -> dict[str, bytes]:
    listed = [{"Config": "c.json", "RepoTags": None, "Layers": ["id0/layer.tar", "id1/layer.tar"]}]
    layers = {f"id{n}/{name}": body for n in (0, 1) for name, body in (("VERSION", b"1.0"), ("layer.tar", LAYERS[n]))}
    return {"c.json": CONFIG, **layers, "manifest.json": json.dumps(listed).encode()}


def new(pack: Any = lambda body: body) -> dict[str, bytes]:
    packed = [pack(layer) for layer in LAYERS]
    names = [f"blobs/sha256/{hashlib.sha256(body).hexdigest()}" for body in packed]
    config = f"blobs/sha256/{hashlib.sha256(CONFIG).hexdigest()}"
    listed = json.dumps([{"Config": config, "Layers": names}]).encode()
    return {**dict(zip(names, packed, strict=True)), config: CONFIG, "index.json": b"{}", "manifest.json": listed}


def saved(members: dict[str, bytes], size: int = 1000) -> SavedContents:
    whole = tar_of(members)
    chunks = (whole[start : start + size] for start in range(0, len(whole), size))
    return SavedContents(chunks, {f"sha256:{digest}": len(layer) for digest, layer in zip(HEX, LAYERS, strict=True)})


def everything(contents: Any) -> bytes:
    layers = b"".join(chunk for _, chunks in contents.layers(lambda digest: True) for chunk in chunks)
    return layers + bytes(contents.config())


@pytest.mark.parametrize(
    ("members", "named"),
    [
        (old(), False),
        (new(), True),
        (new(gzip.compress), False),
        (new(lambda body: zstandard.ZstdCompressor().compress(body)), False),
    ],
)
def test_every_age_of_docker_save_gives_the_layers_unpacked(members: dict[str, bytes], named: bool) -> None:
    contents = saved(members)
    assert contents.size(lambda digest: digest.endswith(HEX[1])) == len(LAYERS[1])
    found = [(digest, b"".join(chunks)) for digest, chunks in contents.layers(lambda digest: True)]
    assert [body for _, body in found] == LAYERS
    assert [digest for digest, _ in found] == ([f"sha256:{digest}" for digest in HEX] if named else [None, None])
    assert contents.config() == CONFIG


def test_layers_that_nobody_wants_are_passed_over() -> None:
    contents = saved(new())
    wanted = [digest for digest, _ in contents.layers(lambda digest: digest.endswith(HEX[1]))]
    assert wanted == [f"sha256:{HEX[1]}"]
    assert contents.config() == CONFIG


def test_a_stream_that_breaks_is_told() -> None:
    whole = tar_of(new())
    for size in (0, 700, 5000, len(whole) // 2):
        contents = SavedContents(iter([whole[:size]]), {})
        with pytest.raises(HostError, match="did not write the image whole"):
            everything(contents)


def split(layer: bytes, folder: Path) -> bytes:
    """What tar-split writes of a layer, whose files go into ``folder``."""
    lines: list[dict[str, Any]] = []
    at = 0
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        for member in tar:
            lines.append({"type": 2, "payload": base64.b64encode(layer[at : member.offset_data]).decode()})
            lines.append({"type": 1, "name": member.name, "size": member.size})
            (folder / member.name).write_bytes(layer[member.offset_data : member.offset_data + member.size])
            at = member.offset_data + member.size
    lines.append({"type": 2, "payload": base64.b64encode(layer[at:]).decode()})
    return gzip.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode())


@pytest.fixture(params=["overlay", "vfs"])
def root(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    driver = request.param
    rows = []
    for number, layer in enumerate(LAYERS):
        folder = tmp_path / (f"overlay/l{number}/diff" if driver == "overlay" else f"vfs/dir/l{number}")
        folder.mkdir(parents=True)
        notes = tmp_path / f"{driver}-layers"
        notes.mkdir(exist_ok=True)
        (notes / f"l{number}.tar-split.gz").write_bytes(split(layer, folder))
        rows.append({"id": f"l{number}", "diff-digest": f"sha256:{HEX[number]}", "diff-size": len(layer)})
    rows[1]["parent"] = "l0"
    (tmp_path / f"{driver}-layers" / "layers.json").write_text(json.dumps(rows))
    (tmp_path / f"{driver}-images").mkdir()
    (tmp_path / f"{driver}-images" / "images.json").write_text(json.dumps([{"id": "it", "layer": "l1"}]))
    return tmp_path


def test_a_store_gives_back_the_archives_it_took_apart(root: Path) -> None:
    contents = StoredContents(root, "it", CONFIG)
    assert contents.size(lambda digest: True) == sum(map(len, LAYERS))
    found = {digest: b"".join(chunks) for digest, chunks in contents.layers(lambda digest: True)}
    assert found == {f"sha256:{digest}": layer for digest, layer in zip(HEX, LAYERS, strict=True)}
    assert [d for d, _ in contents.layers(lambda digest: digest.endswith(HEX[1]))] == [f"sha256:{HEX[1]}"]
    assert contents.config() == CONFIG


def test_a_damaged_store_is_told(root: Path) -> None:
    with pytest.raises(HostError, match="cannot be read"):
        StoredContents(root, "another", CONFIG)
    for path in root.rglob("a"):
        path.write_bytes(b"short")
    contents = StoredContents(root, "it", CONFIG)
    with pytest.raises(HostError, match="too short"):
        everything(contents)
