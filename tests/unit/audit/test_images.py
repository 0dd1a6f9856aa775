"""Images as they lie on disk: every form says the same, whiteouts hide, hostile ones are refused."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import zstandard

from envbuilder.audit.arch import Arch
from envbuilder.audit.assemble import Assembly
from envbuilder.audit.collect import Collection
from envbuilder.audit.image import collect_archive, collect_layout
from envbuilder.audit.layers import FolderLayer, take_layers
from envbuilder.audit.target import collect
from envbuilder.errors import InputError
from envbuilder.report.progress import Silent

DATA = Path(__file__).parents[2] / "data" / "fatbin"
CARDS = [Arch(6, 1)]
SITE = "opt/venv/lib/python3.11/site-packages"

# From the bottom up. The second layer replaces one library, deletes another and empties a folder.
LAYERS: list[dict[str, bytes]] = [
    {
        f"{SITE}/a/kept.so": (DATA / "sm61.so").read_bytes(),
        f"{SITE}/a/replaced.so": (DATA / "sm70.so").read_bytes(),
        f"{SITE}/a/deleted.so": (DATA / "sm70.so").read_bytes(),
        f"{SITE}/b/emptied.so": (DATA / "sm70.so").read_bytes(),
        f"{SITE}/c/folder/gone.so": (DATA / "sm70.so").read_bytes(),
        f"{SITE}/a-1.0.dist-info/RECORD": b"a/kept.so,,\na/replaced.so,,\n",
    },
    {
        f"{SITE}/a/replaced.so": (DATA / "sm60.so").read_bytes(),
        f"{SITE}/a/.wh.deleted.so": b"",
        f"{SITE}/b/.wh..wh..opq": b"",
        f"{SITE}/b/new.so": (DATA / "ptx61.so").read_bytes(),
        f"{SITE}/c/.wh.folder": b"",
    },
]
CONFIG = b'{"architecture": "amd64", "os": "linux"}'
SEEN = {"a 1.0": ["kept.so", "replaced.so"], "": ["new.so"]}


def tar_of(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def layout_files(pack: str) -> dict[str, bytes]:
    packers = {"gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress, "none": bytes}
    blobs: dict[str, bytes] = {}

    def add(data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return f"sha256:{digest}"

    layers = [{"digest": add(packers[pack](tar_of(layer)))} for layer in LAYERS]
    config = {"digest": add(CONFIG)}
    manifest = add(json.dumps({"schemaVersion": 2, "config": config, "layers": layers}).encode())
    signature = {"digest": add(b"{}"), "artifactType": "application/vnd.dsse.envelope.v1+json"}
    image = {"digest": manifest, "platform": {"architecture": "amd64", "os": "linux"}}
    index = {"manifests": [signature, image]}
    return {"oci-layout": b"{}", "index.json": json.dumps(index).encode(), **blobs}


def said(collection: Collection) -> dict[str, list[str]]:
    return {
        f"{p.name} {p.version}".strip(): sorted(b.path.rsplit("/", 1)[-1] for b in p.binaries)
        for p in collection.packages
    }


@pytest.mark.parametrize("pack", ["gzip", "zstd", "none"])
def test_an_oci_layout_as_folder_and_as_archive(tmp_path: Path, pack: str) -> None:
    for name, data in layout_files(pack).items():
        (tmp_path / "layout" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "layout" / name).write_bytes(data)
    (tmp_path / "layout.tar").write_bytes(tar_of(layout_files(pack)))
    assert said(collect_layout(tmp_path / "layout", CARDS)) == SEEN
    assert said(collect_archive(tmp_path / "layout.tar", CARDS)) == SEEN
    assert collect(str(tmp_path / "layout"), CARDS).kind == "image"


def test_a_docker_archive(tmp_path: Path) -> None:
    files = {f"{n}/layer.tar": tar_of(layer) for n, layer in enumerate(LAYERS)}
    files["manifest.json"] = json.dumps([{"Config": "c.json", "Layers": list(files)}]).encode()
    files["c.json"] = CONFIG
    (tmp_path / "image.tar").write_bytes(tar_of(files))
    assert said(collect(str(tmp_path / "image.tar"), CARDS)) == SEEN


def test_the_folders_of_an_overlay_store(tmp_path: Path) -> None:
    for number, layer in enumerate(LAYERS):
        for name, data in layer.items():
            path = tmp_path / str(number) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.name == ".wh..wh..opq":
                os.setxattr(path.parent, "user.overlay.opaque", b"y")
            elif path.name.startswith(".wh."):
                os.mknod(path.with_name(path.name.removeprefix(".wh.")), 0o600 | 0o020000, os.makedev(0, 0))
            else:
                path.write_bytes(data)
    assembly = Assembly("store", "image", CARDS)
    take_layers([FolderLayer(tmp_path / "0"), FolderLayer(tmp_path / "1")], assembly, Silent())
    assert said(assembly.done()) == SEEN


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"manifest.json": b"[]"}, "damaged"),
        ({"manifest.json": b"{"}, "damaged"),
        ({"manifest.json": b'[{"Config": "c", "Layers": ["missing.tar"]}]'}, "damaged"),
        ({"manifest.json": b'[{"Config": "c", "Layers": ["x"]}]', "x": b"no tar" * 1000}, "damaged"),
        ({"index.json": b'{"manifests": [{"digest": "sha256:../../etc/passwd"}]}'}, "damaged"),
        ({"index.json": b"[" * 100_000}, "damaged"),
        ({"other": b""}, "no image"),
    ],
)
def test_a_damaged_or_hostile_image_is_refused(tmp_path: Path, files: dict[str, bytes], says: str) -> None:
    (tmp_path / "image.tar").write_bytes(tar_of(files))
    with pytest.raises(InputError, match=says):
        collect_archive(tmp_path / "image.tar", CARDS)


def test_paths_that_climb_out_of_a_layer_are_passed_over(tmp_path: Path) -> None:
    layer = tar_of({"../../evil.so": (DATA / "sm70.so").read_bytes(), "good.so": (DATA / "sm61.so").read_bytes()})
    files = {"l.tar": layer, "c": CONFIG, "manifest.json": b'[{"Config": "c", "Layers": ["l.tar"]}]'}
    (tmp_path / "image.tar").write_bytes(tar_of(files))
    assert said(collect_archive(tmp_path / "image.tar", CARDS)) == {"": ["good.so"]}


def test_an_unknown_name_lists_what_can_be_given() -> None:
    with pytest.raises(InputError) as caught:
        collect("no/such/thing", CARDS)
    assert "wheel" in (caught.value.cure or "")
