"""A small stack locked and fetched whole from an index and a mirror on loopback, by the command line."""

import json
import shutil
from pathlib import Path

import pytest

from envbuilder.cli import run
from envbuilder.data import builtin_root
from envbuilder.errors import IntegrityError, SourceError
from envbuilder.fetch.fetching import fetch
from envbuilder.fetch.view import folder_of
from envbuilder.lock.reading import load_lock
from envbuilder.report.progress import Silent
from envbuilder.stack.loading import load_stack
from envbuilder.stack.model import Stack
from tests.debian_mirror import DebianMirror
from tests.python_index import Index, sdist, wheel

STACK = (builtin_root() / "stacks" / "p40-debian.toml").read_text()


@pytest.fixture
def project(tmp_path: Path, index: Index, debian_mirror: DebianMirror, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose stack ``small`` is p40-debian in little, with stand-ins for torch and the rest."""
    project = tmp_path / "project"
    (project / "stacks").mkdir(parents=True)
    text = STACK.replace('name = "p40-debian"', 'name = "small"', 1)
    text = text.replace('"nvidia-cuda-toolkit", "g++-11", "make", "python3-dev"', '"nvidia-cuda-toolkit", "make"')
    (project / "stacks" / "small.toml").write_text(text)
    (project / "envbuilder.toml").write_text(
        f'[debian]\nmirror = "{debian_mirror.url()}"\nsecurity_mirror = "{debian_mirror.url("security")}"\n'
    )
    monkeypatch.chdir(project)
    for name, version in (("torchvision", "0.21.0"), ("torchaudio", "2.6.0"), ("setuptools", "80.9.0")):
        index.add(f"{name}-{version}-py3-none-any.whl", wheel(name, version))
    index.add("torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl", wheel("torch", "2.6.0"))
    index.add("verl-0.5.0-py3-none-any.whl", wheel("verl", "0.5.0", "antlr==4.9.3"))
    index.add("antlr-4.9.3.tar.gz", sdist("antlr", "4.9.3"))
    return project


@pytest.fixture
def stack(project: Path) -> Stack:
    assert run(["lock", "small"]) == 0
    return load_stack("small")[0]


def test_lock_and_fetch_from_the_command_line(
    project: Path, index: Index, debian_mirror: DebianMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lock", "small"]) == 0
    assert "wrote" in capsys.readouterr().out
    assert run(["lock", "small"]) == 0
    assert "nothing changed" in capsys.readouterr().out
    for path in (project / "locks").iterdir():
        assert "localhost" not in path.read_text()
    assert run(["fetch", "small", "--target", "runtime", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["python"], first["debian"]) == (6, 10)
    assert first["downloaded"] == first["bytes"] > 0
    assert run(["fetch", "small", "--json"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["debian"] == 13
    assert second["downloaded"] == second["bytes"] - first["bytes"]
    # With all of it there, nobody is asked.
    index.asked.clear()
    shutil.rmtree(debian_mirror.folder)
    assert run(["fetch", "small"]) == 0
    assert "everything was there" in capsys.readouterr().out
    assert index.asked == []


def test_a_build_context_holds_the_files_under_their_names(stack: Stack, tmp_path: Path) -> None:
    done = fetch(stack, load_lock(stack), Silent())
    wheels = folder_of(done.python, tmp_path / "wheels")
    assert sorted(p.name for p in wheels.iterdir()) == [
        "antlr-4.9.3.tar.gz",
        "setuptools-80.9.0-py3-none-any.whl",
        "torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl",
        "torchaudio-2.6.0-py3-none-any.whl",
        "torchvision-0.21.0-py3-none-any.whl",
        "verl-0.5.0-py3-none-any.whl",
    ]
    debs = folder_of(done.debs, tmp_path / "debs")
    assert (debs / "login_1%3a4.13+dfsg1-1+deb12u2_amd64.deb").read_text() == "login_4.13+dfsg1-1+deb12u2_amd64.deb"


def test_a_package_the_mirror_no_longer_serves_names_it_and_the_command(
    stack: Stack, debian_mirror: DebianMirror
) -> None:
    debian_mirror.gone.add("openssl_3.0.20-1~deb12u2_amd64.deb")
    with pytest.raises(SourceError, match=r"no longer serves openssl 3\.0\.20-1~deb12u2") as caught:
        fetch(stack, load_lock(stack), Silent())
    assert caught.value.cure == "Lock the base anew and see what changes: envbuilder lock small"


def test_a_file_the_index_no_longer_lists_is_a_source_error(stack: Stack, index: Index) -> None:
    data, uploaded, hashed = index.files["torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl"]
    index.files["torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl"] = (data + b"other", uploaded, hashed)
    shutil.rmtree(Path.home().parent / "uv cache")
    with pytest.raises(SourceError, match="does not list torch-2"):
        fetch(stack, load_lock(stack), Silent())
    del index.files["torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl"]
    shutil.rmtree(Path.home().parent / "uv cache")
    with pytest.raises(SourceError, match="no longer lists all that the lock names") as caught:
        fetch(stack, load_lock(stack), Silent())
    assert "torch" in (caught.value.detail or "")


def test_an_index_that_needs_no_upload_times_to_fetch_from(stack: Stack, index: Index) -> None:
    index.files = {name: (data, None, hashed) for name, (data, _, hashed) in index.files.items()}
    shutil.rmtree(Path.home().parent / "uv cache")
    assert len(fetch(stack, load_lock(stack), Silent()).python) == 6


def test_an_edited_lock_is_not_fetched(stack: Stack, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project / "locks" / "small.requirements.txt"
    whole = path.read_text()
    path.write_text(whole.replace("sha256:", "sha256:0", 2))
    assert run(["fetch", "small"]) == IntegrityError.exit_code
    said = capsys.readouterr().err
    assert "changed by hand" in said
    assert "envbuilder lock small" in said
    assert run(["lock", "small"]) == 0
    assert path.read_text() == whole


def test_security_stays_as_it_was_until_said_otherwise(
    stack: Stack, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def openssl() -> str:
        return next(d.version for d in load_lock(stack).debs if d.name == "openssl")

    assert openssl() == "3.0.20-1~deb12u2"
    assert run(["lock", "small", "--security"]) == 0
    assert "~ Debian  openssl  3.0.20-1~deb12u2 -> 3.0.20-1~deb12u3" in capsys.readouterr().out
    assert openssl() == "3.0.20-1~deb12u3"
    assert run(["lock", "small"]) == 0
    assert openssl() == "3.0.20-1~deb12u3"
    assert len(fetch(stack, load_lock(stack), Silent()).debs) == 13
    assert run(["lock", "small", "--no-security"]) == 0
    assert openssl() == "3.0.20-1~deb12u2"


def test_a_half_that_fails_leaves_the_lock_as_it_was(
    stack: Stack, project: Path, debian_mirror: DebianMirror, index: Index
) -> None:
    before = {path.name: path.read_bytes() for path in (project / "locks").iterdir()}
    index.add("setuptools-80.9.0-1-py3-none-any.whl", wheel("setuptools", "80.9.0", content="newer build"))
    shutil.rmtree(debian_mirror.folder)
    assert run(["lock", "small"]) == SourceError.exit_code
    assert {path.name: path.read_bytes() for path in (project / "locks").iterdir()} == before
