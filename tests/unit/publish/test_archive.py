"""An image as one file: the same bytes twice, and whatever is not what it says is refused before an engine sees it."""

import gzip
import io
import json
import resource
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuilder.errors import EnvbuilderError, HostError, InputError, IntegrityError
from envbuilder.image.names import image_tag
from envbuilder.publish.archive import Content, load, save
from envbuilder.publish.archive_reading import read_archive
from envbuilder.publish.export import Exported, export
from envbuilder.publish.layout import EMPTY, MANIFEST, canonical, describe
from envbuilder.report.progress import Silent
from tests.unit.publish.stand_ins import StandInEngine, digest_of

LAYERS = [b"base" * 50_000, bytes(range(256)) * 2000, b"verl 1", b"verl 1"]
NAME = image_tag("small")
LABELS = {"io.envbuilder.stack": "small", "io.envbuilder.target": "runtime"}


def exported(labels: dict[str, str] = LABELS) -> Exported:
    engine: Any = StandInEngine()
    engine.make(NAME, LAYERS, labels)
    return export(engine, NAME, Silent())


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    made = exported()
    attach(made, b'{"spdxVersion":"SPDX-2.3"}')
    return save(made, tmp_path / "small.tar", Silent()).path


def attach(made: Exported, document: bytes, subject: Any = None) -> None:
    layer = made.layout.add(document, "application/spdx+json")
    empty = made.layout.add(b"{}", EMPTY)
    parts = {"config": empty.to_dict(), "layers": [layer.to_dict()], "subject": subject or made.manifest.to_dict()}
    body = canonical({"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": "application/spdx+json", **parts})
    made.layout.tag(made.layout.add(body, MANIFEST, artifact_type="application/spdx+json"), "")


def members_of(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]


def write(path: Path, members: dict[str, bytes], change: Callable[[tarfile.TarFile], None] | None = None) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, body in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
        if change:
            change(tar)
    return path


def test_an_image_comes_back_with_what_is_attached(archive: Path, tmp_path: Path, monkeypatch: Any) -> None:
    published = exported().digest
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "other host"))
    engine: Any = StandInEngine()
    seen: list[Content] = []
    loaded = load(archive, engine, Silent(), seen.append)
    assert (loaded.name, loaded.digest, loaded.referrers, loaded.anew) == (NAME, published, 1, True)
    assert engine.images[loaded.image.id][1] == LAYERS
    assert seen[0].published.digest == published
    again = load(archive, engine, Silent())
    assert (again.anew, engine.loaded) == (False, 1)
    # From here it travels on: the same digest, the same documents, the same file.
    onward = export(engine, NAME, Silent())
    assert onward.digest == published
    assert [entry.artifact_type for entry in onward.layout.referrers(published)] == ["application/spdx+json"]
    assert save(onward, tmp_path / "again.tar", Silent()).path.read_bytes() == archive.read_bytes()


def test_the_same_image_gives_the_same_file(tmp_path: Path) -> None:
    first, second = (save(exported(), tmp_path / name, Silent()) for name in ("a.tar", "b.tar"))
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.sha256 == digest_of(first.path.read_bytes()).removeprefix("sha256:")
    assert first.size == first.path.stat().st_size
    assert first.path.stat().st_mode & 0o777 == 0o644


def test_docker_and_oci_name_the_same_blobs(archive: Path) -> None:
    members = members_of(archive)
    listed = json.loads(members["manifest.json"])[0]
    index = json.loads(members["index.json"])["manifests"]
    manifest = json.loads(members[f"blobs/sha256/{index[0]['digest'][7:]}"])
    assert [f"blobs/sha256/{layer['digest'][7:]}" for layer in manifest["layers"]] == listed["Layers"]
    assert listed["RepoTags"] == [NAME]
    assert len(index) == 1, "engines take every manifest of the index for an image"
    assert [members[name] for name in listed["Layers"]] == LAYERS


@pytest.mark.parametrize("pack", [gzip.compress, lambda body: zstandard.ZstdCompressor().compress(body)])
def test_a_packed_archive_is_unpacked_as_it_is_read(archive: Path, pack: Callable[[bytes], bytes]) -> None:
    archive.write_bytes(pack(archive.read_bytes()))
    engine: Any = StandInEngine()
    assert load(archive, engine, Silent()).anew


def test_every_single_byte_is_held_against_a_digest(archive: Path) -> None:
    """One bit of each file in it turned over, its length kept."""
    members = members_of(archive)
    engine: Any = StandInEngine()
    for name, body in members.items():
        for at in {0, len(body) // 2, len(body) - 1}:
            changed = bytearray(body)
            changed[at] ^= 1
            write(archive, {**members, name: bytes(changed)})
            with pytest.raises((IntegrityError, InputError)):
                load(archive, engine, Silent())
    assert engine.loaded == 0


def test_nothing_may_be_missing_or_too_much(archive: Path) -> None:
    members = members_of(archive)
    engine: Any = StandInEngine()
    for name in members:
        write(archive, {key: body for key, body in members.items() if key != name})
        with pytest.raises((IntegrityError, InputError)):
            load(archive, engine, Silent())
    for name in (
        f"blobs/sha256/{digest_of(b'x')[7:]}",
        "repositories",
        "../../etc/passwd",
        "/etc/passwd",
        "a/layer.tar",
    ):
        write(archive, {**members, name: b"x"})
        with pytest.raises(IntegrityError):
            load(archive, engine, Silent())
    assert engine.loaded == 0


def _entry(kind: bytes, name: str, link: str = "") -> Callable[[tarfile.TarFile], None]:
    def change(tar: tarfile.TarFile) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, link
        tar.addfile(entry)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _entry(tarfile.SYMTYPE, "blobs/sha256/" + "a" * 64, "/etc/passwd"),
        _entry(tarfile.LNKTYPE, "blobs/sha256/" + "a" * 64, "manifest.json"),
        _entry(tarfile.CHRTYPE, "blobs/sha256/" + "a" * 64),
        _entry(tarfile.FIFOTYPE, "index.json"),
        _entry(tarfile.DIRTYPE, "blobs"),
        _entry(tarfile.REGTYPE, "manifest.json"),
    ],
)
def test_links_devices_folders_and_doubles_are_refused(
    archive: Path, change: Callable[[tarfile.TarFile], None]
) -> None:
    write(archive, members_of(archive), change)
    with pytest.raises(IntegrityError, match="does not belong"):
        read_archive(archive, Silent())


def test_another_name_for_the_image_is_refused(archive: Path) -> None:
    """It would take the name of an image that is there already."""
    members = members_of(archive)
    listed = json.loads(members["manifest.json"])
    listed[0]["RepoTags"].append("docker.io/library/debian:12")
    write(archive, {**members, "manifest.json": canonical(listed)})
    with pytest.raises(IntegrityError, match="names something else"):
        read_archive(archive, Silent())


def test_a_document_of_another_image_is_refused(tmp_path: Path) -> None:
    made = exported()
    attach(made, b"{}")
    path = save(made, tmp_path / "a.tar", Silent()).path
    members = members_of(path)
    about = json.loads(members["envbuilder.json"])
    other = describe(b"other", MANIFEST).to_dict()
    body = canonical({"config": other, "layers": [], "subject": other})
    about["referrers"] = [describe(body, MANIFEST, artifact_type="a/b").to_dict()]
    write(path, {**members, "envbuilder.json": canonical(about), f"blobs/sha256/{digest_of(body)[7:]}": body})
    with pytest.raises(IntegrityError, match="attached to another image"):
        read_archive(path, Silent())


def test_what_others_wrote_is_told_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "docker.tar", {"manifest.json": b"[]"})
    with pytest.raises(InputError, match="not written by envbuilder save"):
        read_archive(path, Silent())
    path.write_bytes(b"no tar at all" * 100)
    with pytest.raises(InputError, match="no archive of an image"):
        read_archive(path, Silent())
    path.write_bytes(b"")
    with pytest.raises((InputError, IntegrityError)):
        read_archive(path, Silent())
    with pytest.raises(InputError, match="no such file"):
        read_archive(tmp_path / "missing.tar", Silent())
    with pytest.raises(HostError):
        read_archive(tmp_path, Silent())


def test_an_image_of_no_stack_is_refused(tmp_path: Path) -> None:
    path = save(exported({}), tmp_path / "a.tar", Silent()).path
    with pytest.raises(InputError, match="none of a stack"):
        read_archive(path, Silent())


def test_a_copy_cut_short_is_refused(archive: Path) -> None:
    whole = archive.read_bytes()
    for size in (100, 512, 5000, len(whole) // 2, len(whole) - 1024 - 512):
        archive.write_bytes(whole[:size])
        with pytest.raises((InputError, IntegrityError)):
            read_archive(archive, Silent())


def test_what_the_policy_refuses_no_engine_sees(archive: Path) -> None:
    engine: Any = StandInEngine()

    def refuse(content: Content) -> None:
        raise IntegrityError("it is not signed")

    with pytest.raises(IntegrityError, match="not signed"):
        load(archive, engine, Silent(), refuse)
    assert engine.loaded == 0


def test_a_file_that_cannot_be_written_whole_leaves_nothing_behind(tmp_path: Path) -> None:
    made = exported()
    folder = tmp_path / "folder"
    folder.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        with pytest.raises(HostError, match="nothing of it is left") as caught:
            save(made, folder / "small.tar", Silent())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "It needs" in str(caught.value.cure)
    assert list(folder.iterdir()) == []
    with pytest.raises(HostError):
        save(made, tmp_path / "no folder" / "small.tar", Silent())


def test_an_interrupted_save_leaves_what_was_there(archive: Path) -> None:
    class Interrupted(Silent):
        def advance(self, done: int, total: int | None = None) -> None:
            raise KeyboardInterrupt

    before = archive.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        save(exported(), archive, Interrupted())
    assert archive.read_bytes() == before
    assert [path.name for path in archive.parent.glob("*small*")] == ["small.tar"]
    assert list(archive.parent.glob(".*")) == []


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_archive_never_brings_another_error(archive: Path, data: st.DataObject) -> None:
    whole = bytearray(archive.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        # The beginning, where the names and the documents are.
        at = data.draw(st.integers(0, 6000))
        whole[at] = data.draw(st.integers(0, 255))
    path = archive.with_name("changed.tar")
    path.write_bytes(whole)
    engine: Any = StandInEngine()
    try:
        loaded = load(path, engine, Silent())
    except EnvbuilderError:
        assert engine.loaded == 0
    else:
        assert engine.images[loaded.image.id][1] == LAYERS
