"""Bundles: whole, the same bytes for the same lock, and nothing hostile gets out of one."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from envbuilder import data
from envbuilder.cli import run
from envbuilder.errors import InputError, IntegrityError
from envbuilder.fetch.cache import path_of
from envbuilder.fetch.fetching import item_of
from envbuilder.image.bundling import unpack_bundle, write_bundle
from envbuilder.lock.model import Lock, PythonArtifact
from envbuilder.lock.reading import load_lock
from envbuilder.lock.requirements_file import requirements_text
from envbuilder.report.progress import Silent
from envbuilder.stack.gpu import GpuProfile
from envbuilder.stack.loading import load_stack
from envbuilder.stack.model import Stack

BYTES = b"a wheel" * 1000
NAME = "alpha-1.0-py3-none-any.whl"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Stack, GpuProfile, Lock]:
    """A project whose lock names one wheel, which is in the cache."""
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    stack, gpu = load_stack("p40-debian")
    wheel = PythonArtifact(
        name="alpha", version="1.0", filename=NAME, sha256=hashlib.sha256(BYTES).hexdigest(), size=len(BYTES)
    )
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "p40-debian.requirements.txt").write_text(requirements_text(stack, (wheel,)))
    path = path_of(item_of(wheel))
    path.parent.mkdir(parents=True)
    path.write_bytes(BYTES)
    return stack, gpu, load_lock(stack)


def test_it_holds_stack_lock_dockerfile_and_files_and_unpacks_elsewhere(
    made: tuple[Stack, GpuProfile, Lock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "one.bundle", tmp_path / "two.bundle"
    write_bundle(*made, first, Silent())
    write_bundle(*made, second, Silent())
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as tar:
        names = tar.getnames()
    assert names[0] == "bundle.json"
    for name in (
        "stacks/p40-debian.toml",
        "gpus/p40.toml",
        "locks/p40-debian.requirements.txt",
        "Dockerfile.p40-debian",
    ):
        assert f"project/{name}" in names
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("ENVBUILDER_CACHE", str(elsewhere / "cache"))
    unpacked = unpack_bundle(first, Silent())
    assert unpacked.digest == made[2].digest
    with data.reading_from(unpacked.project):
        lock = load_lock(load_stack(unpacked.stack)[0])
    assert lock == made[2]
    assert path_of(item_of(lock.python[0])).read_bytes() == BYTES
    # A second time finds everything there.
    assert unpack_bundle(first, Silent()) == unpacked


def rewritten(path: Path, change: dict[str, bytes], target: Path) -> Path:
    with tarfile.open(path) as source, tarfile.open(target, "w") as tar:
        for member in source:
            content = source.extractfile(member)
            assert content is not None
            body = content.read()
            for part, new in change.items():
                body = new if part in member.name else body
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return target


def test_a_changed_byte_is_noticed(
    made: tuple[Stack, GpuProfile, Lock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.bundle"
    write_bundle(*made, path, Silent())
    bad = rewritten(path, {"cache/sha256": BYTES[:-1] + b"!"}, tmp_path / "bad.bundle")
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "other"))
    with pytest.raises(IntegrityError, match="not those of its name"):
        unpack_bundle(bad, Silent())
    assert not [p for p in (tmp_path / "other").rglob("*") if p.is_file() and p.parent.name == p.name[:2]]


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/evil", "project/../../evil", "cache/sha256/ab/../../evil", "project/stacks/../../x", "other/file",
     "cache/git/ab/" + "a" * 40 + "/../../../evil", "project/locks/sub/file"],
)  # fmt: skip
def test_nothing_gets_out_of_a_hostile_bundle(made: tuple[Stack, GpuProfile, Lock], tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.bundle"
    write_bundle(*made, path, Silent())
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo(name)
        member.size = 4
        tar.addfile(member, io.BytesIO(b"evil"))
    with pytest.raises(InputError, match="does not belong"):
        unpack_bundle(path, Silent())
    assert not list(tmp_path.rglob("evil"))


def test_links_are_refused(made: tuple[Stack, GpuProfile, Lock], tmp_path: Path) -> None:
    path = tmp_path / "x.bundle"
    write_bundle(*made, path, Silent())
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo("project/link")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    with pytest.raises(InputError, match="not a plain file"):
        unpack_bundle(path, Silent())


@pytest.mark.parametrize("keep", [0, 100, 512, 3000])
def test_what_was_cut_short_is_no_bundle(made: tuple[Stack, GpuProfile, Lock], tmp_path: Path, keep: int) -> None:
    path = tmp_path / "x.bundle"
    write_bundle(*made, path, Silent())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError):
        unpack_bundle(path, Silent())


@pytest.mark.parametrize("content", [b"", b"not a tar", b"\0" * 10240])
def test_any_other_file_is_no_bundle(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.bundle"
    path.write_bytes(content)
    assert run(["build", "--bundle", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_stack_or_a_bundle(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["build"]) == 2
    assert "either STACK or --bundle" in capsys.readouterr().err
    assert run(["build", "--bundle", str(tmp_path / "missing")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_full_disk_leaves_no_half_bundle(
    made: tuple[Stack, GpuProfile, Lock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    assert run(["bundle", "p40-debian", str(tmp_path / "out" / "x.bundle")]) == 6
    assert list((tmp_path / "out").iterdir()) == []
