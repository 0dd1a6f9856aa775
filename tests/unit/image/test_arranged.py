"""A layer as different storages write it, brought into one order; the bytes are those of Python's own tar writer."""

import base64
import contextlib
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.errors import HostError, IntegrityError
from envbuilder.image.arranged import Archive, arranged, published_config, read_split
from envbuilder.image.containers_store import StoredContents

FILES = {
    "opt": None,
    "opt/idna": None,
    "opt/idna/core.py": b"core" * 700,
    "opt/idna/zz": b"",
    "opt/idna-3.10.dist-info": None,
    "opt/idna-3.10.dist-info/RECORD": b"lines",
    "opt/ü": b"u",
}
# The order of folders, and that of whole paths: '-' comes before '/'.
BY_FOLDER = list(FILES)
BY_PATH = sorted(FILES)


def member(name: str, body: bytes | None, xattrs: dict[str, str]) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.DIRTYPE if body is None else tarfile.REGTYPE
    entry.size = len(body or b"")
    entry.pax_headers = {f"SCHILY.xattr.{key}": value for key, value in xattrs.items()}
    return entry


def tar_of(names: Iterable[str], xattrs: dict[str, str] | None = None, others: Iterable[tarfile.TarInfo] = ()) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            tar.addfile(member(name, FILES[name], xattrs or {}), io.BytesIO(FILES[name] or b""))
        for other in others:
            tar.addfile(other)
        size = tar.offset
    # As Go ends an archive: two blocks, and not filled up to a record of 10240 bytes.
    return out.getvalue()[:size] + bytes(1024)


def split(layer: bytes) -> list[bytes]:
    """What tar-split writes of a layer: what is between the files, and their names."""
    rows: list[dict[str, Any]] = []
    at = 0
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        for entry in tar:
            rows.append({"type": 2, "payload": base64.b64encode(layer[at : entry.offset_data]).decode()})
            rows.append({"type": 1, "name": entry.name, **({"size": entry.size} if entry.size else {})})
            at = entry.offset_data + entry.size
            # The padding is a row of its own.
            rows.append({"type": 2, "payload": base64.b64encode(bytes(-entry.size % 512)).decode()})
            at += -entry.size % 512
    rows.append({"type": 2, "payload": base64.b64encode(layer[at:]).decode()})
    return [json.dumps(row).encode() for row in rows]


def bytes_of(archive: Archive) -> bytes:
    body = b""
    for entry in archive.entries:
        content = FILES.get(entry.name.decode(), b"") or b""
        body += entry.head + content + bytes(entry.padding)
    return body + archive.end


def test_what_was_taken_apart_is_put_together_again() -> None:
    for order in (BY_FOLDER, BY_PATH):
        layer = tar_of(order, {"user.mine": "1"})
        assert bytes_of(read_split(split(layer))) == layer


def test_folder_by_folder_is_left_as_it_is() -> None:
    archive = read_split(split(tar_of(BY_FOLDER)))
    assert arranged(archive) == archive


@given(st.permutations(BY_FOLDER))
def test_every_order_is_arranged_into_the_same_bytes(order: list[str]) -> None:
    assert bytes_of(arranged(read_split(split(tar_of(order))))) == tar_of(BY_FOLDER)


@pytest.mark.parametrize("mark", ["user.overlay.origin", "user.overlay.impure", "user.fuseoverlayfs.opaque"])
def test_marks_of_a_store_go_without_a_trace(mark: str) -> None:
    found = arranged(read_split(split(tar_of(BY_PATH, {mark: "y"}))))
    assert bytes_of(found) == tar_of(BY_FOLDER)


def test_other_attributes_stay() -> None:
    marked = {"user.overlay.origin": "", "security.capability": "x" * 90, "user.overlay.impure": "y"}
    found = arranged(read_split(split(tar_of(BY_FOLDER, marked))))
    assert bytes_of(found) == tar_of(BY_FOLDER, {"security.capability": "x" * 90})
    with tarfile.open(fileobj=io.BytesIO(bytes_of(found))) as tar:
        assert {key for entry in tar for key in entry.pax_headers} - {"path"} == {"SCHILY.xattr.security.capability"}


def hard_link(name: str, to: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.LNKTYPE, to
    return entry


@pytest.mark.parametrize("target", ["opt/idna/core.py", "opt/ü"])
def test_a_link_stays_behind_its_file(target: str) -> None:
    layer = tar_of(BY_PATH, others=[hard_link("opt/a", target)])
    names = [entry.name.decode() for entry in arranged(read_split(split(layer))).entries]
    assert sorted(names) == sorted([*BY_FOLDER, "opt/a"])
    assert names.index("opt/a") == names.index(target) + 1


def test_what_is_deleted_stands_where_it_stood() -> None:
    names = ["opt/.wh..wh..opq", "opt/.wh.bin", "opt/a", "opt/z"]
    layer = tar_of(["opt"], others=[tarfile.TarInfo(name) for name in reversed(names)])
    found = [entry.name.decode() for entry in arranged(read_split(split(layer))).entries]
    assert found == ["opt", "opt/.wh..wh..opq", "opt/a", "opt/.wh.bin", "opt/z"]


@given(st.lists(st.binary(max_size=1200), max_size=4))
def test_no_bytes_do_more_than_be_refused(heads: list[bytes]) -> None:
    rows: list[dict[str, Any]] = []
    for number, head in enumerate(heads):
        rows.append({"type": 2, "payload": base64.b64encode(head[:156] + b"x" + head[157:]).decode()})
        rows.append({"type": 1, "name": f"f{number}", "size": 3})
    with contextlib.suppress(ValueError, LookupError, TypeError, tarfile.TarError):
        arranged(read_split(json.dumps(row).encode() for row in rows))


def config(diff_ids: list[str], comment: str = "") -> bytes:
    steps = [{"created_by": "ADD"}, {"created_by": "RUN x", **({"comment": comment} if comment else {})}]
    return json.dumps(
        {"rootfs": {"type": "layers", "diff_ids": diff_ids}, "history": steps}, separators=(",", ":")
    ).encode()


def test_a_configuration_leaves_without_the_names_of_its_store() -> None:
    wanted = config(["sha256:b"])
    for comment in ("FROM 7a875c6980f6", "FROM localhost/x:1"):
        assert published_config(config(["sha256:a"], comment), ["sha256:b"]) == wanted
    assert published_config(wanted, ["sha256:b"]) == wanted


def test_a_configuration_with_nothing_to_change_keeps_its_very_bytes() -> None:
    body = json.dumps(json.loads(config(["sha256:a"], "buildkit.dockerfile.v0")), indent=3).encode()
    assert published_config(body, ["sha256:a"]) == body
    for body in (b'{"rootfs": {"diff_ids": []}}', b'{"rootfs": {"diff_ids": []}, "history": [{"comment": null}]}'):
        assert published_config(body, []) == body


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"rootfs": {"diff_ids": []}, "history": [3]}', b"[" * 100_000, b"{"])
def test_a_configuration_that_is_none_is_told(tmp_path: Path, body: bytes) -> None:
    store(tmp_path, tar_of(BY_FOLDER))
    with pytest.raises(HostError, match="cannot be read"):
        StoredContents(tmp_path, "it", body).config()


def store(root: Path, layer: bytes) -> StoredContents:
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    for name, body in FILES.items():
        path = root / "overlay" / "l0" / "diff" / name
        path.mkdir(parents=True) if body is None else path.write_bytes(body)
    notes = root / "overlay-layers"
    notes.mkdir()
    (notes / "l0.tar-split.gz").write_bytes(gzip.compress(b"\n".join(split(layer)) + b"\n"))
    (notes / "layers.json").write_text(json.dumps([{"id": "l0", "diff-digest": digest, "diff-size": len(layer)}]))
    (root / "overlay-images").mkdir()
    (root / "overlay-images" / "images.json").write_text(json.dumps([{"id": "it", "layer": "l0"}]))
    return StoredContents(root, "it", config([digest], "FROM 0123456789ab"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_image_leaves_every_storage_the_same(tmp_path: Path) -> None:
    layers = [tar_of(BY_FOLDER), tar_of(BY_PATH), tar_of(BY_PATH, {"user.overlay.origin": ""})]
    wanted = f"sha256:{hashlib.sha256(layers[0]).hexdigest()}"
    for number, layer in enumerate(layers):
        contents = store(tmp_path / str(number), layer)
        assert contents.unknown() == (len(layer) if number else 0)
        assert contents.config() == config([wanted])
        assert contents.unknown() == 0, "and now it is known"
        [(digest, chunks)] = contents.layers(lambda diff_id: diff_id == wanted)
        assert (digest, b"".join(chunks)) == (wanted, layers[0])


def test_a_damaged_layer_is_not_arranged_into_a_good_one(tmp_path: Path, cache: Path) -> None:
    contents = store(tmp_path, tar_of(BY_PATH))
    path = tmp_path / "overlay" / "l0" / "diff" / "opt" / "ü"
    path.write_bytes(b"v")
    with pytest.raises(IntegrityError, match="is not what the image says"):
        contents.config()
    assert not list(cache.rglob("arranged*/*"))
    path.write_bytes(b"")
    with pytest.raises(HostError, match="too short"):
        contents.config()
