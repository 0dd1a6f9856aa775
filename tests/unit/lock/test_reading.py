"""Lock files: what is written is read back, and an edit by hand is noticed."""

import contextlib
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.data import builtin_root
from envbuilder.errors import EnvbuilderError, InputError, IntegrityError
from envbuilder.lock.checksum import check_seal, seal
from envbuilder.lock.model import DebArtifact, DebianBase, GitArtifact, PythonArtifact
from envbuilder.lock.reading import load_lock
from envbuilder.lock.requirements_file import parse_requirements, requirements_text
from envbuilder.lock.sources_file import Sources, parse_sources, sources_text
from envbuilder.stack.loading import load_stack
from envbuilder.stack.model import Stack

LOCKS = builtin_root() / "locks"
SHA = "0123456789abcdef" * 4
P40_DEBIAN = load_stack("p40-debian")[0]
names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,12}", fullmatch=True)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
python_artifacts = st.builds(
    PythonArtifact,
    name=names,
    version=st.from_regex(r"[0-9]{1,3}\.[0-9]{1,3}(\+cu[0-9]{3})?", fullmatch=True),
    filename=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,30}\.(whl|tar\.gz)", fullmatch=True),
    sha256=digests,
    size=st.none() | st.integers(0, 10**12),
    index=st.none() | names,
    group=st.none() | names,
)
debs = st.builds(
    DebArtifact,
    name=names,
    version=st.from_regex(r"([0-9]:)?[0-9][0-9.+~a-z-]{0,10}", fullmatch=True),
    architecture=st.sampled_from(["amd64", "all"]),
    suite=names,
    component=names,
    path=st.from_regex(r"pool/main/[a-z]/[a-z]{1,9}_[0-9.+~]{1,9}_amd64\.deb", fullmatch=True),
    sha256=digests,
    size=st.integers(0, 10**12),
    target=st.sampled_from(["runtime", "devel"]),
)


@pytest.fixture
def stack() -> Stack:
    return P40_DEBIAN


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder holding a copy of the committed lock."""
    (tmp_path / "locks").mkdir()
    for path in LOCKS.glob("p40-debian.*"):
        (tmp_path / "locks" / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_committed_lock_holds_the_stack(stack: Stack) -> None:
    lock = load_lock(stack)
    versions = {a.name: a.version for a in lock.python}
    assert {name: versions[name] for name in stack.python.packages} == {
        name: pin.version for name, pin in stack.python.packages.items()
    }
    assert (versions["transformers"], versions["ray"]) == ("4.56.1", "2.49.1")
    assert (versions["numpy"], versions["tensordict"]) == ("1.26.4", "0.9.1")
    assert len({a.name for a in lock.python}) == len(lock.python)
    assert {a.name for a in lock.python if a.is_sdist} == {"antlr4-python3-runtime", "pylatexenc"}
    assert lock.debian is not None
    assert stack.debian is not None
    assert lock.debian.release == stack.debian.point_release
    targets = {d.name: d.target for d in lock.debs}
    assert {targets[name] for name in stack.debian.packages} == {"runtime"}
    assert {targets[name] for name in stack.debian.devel} == {"devel"}
    assert {d.suite for d in lock.debs} == {"bookworm"}
    assert {d.component for d in lock.debs if d.target == "runtime"} == {"main"}
    assert len({(d.name, d.architecture) for d in lock.debs}) == len(lock.debs)


def test_no_address_stands_in_the_committed_lock() -> None:
    for path in LOCKS.glob("p40-debian.*"):
        assert "://" not in path.read_text()


@pytest.mark.parametrize("suffix", ["requirements.txt", "sources.toml"])
@pytest.mark.parametrize("edit", [("a", "b"), ("0", "1"), ("\n", "\n\n"), ("# checksum", "# check")])
def test_an_edit_by_hand_is_noticed(project: Path, stack: Stack, suffix: str, edit: tuple[str, str]) -> None:
    path = project / "locks" / f"p40-debian.{suffix}"
    path.write_text(path.read_text().replace(*edit, 1))
    with pytest.raises(IntegrityError) as caught:
        load_lock(stack)
    assert caught.value.place is not None
    assert caught.value.place.file == str(path)
    assert caught.value.cure is not None
    assert "envbuilder lock p40-debian" in caught.value.cure


def test_the_digest_follows_every_file(project: Path, stack: Stack) -> None:
    before = load_lock(stack).digest
    assert before == load_lock(stack).digest
    (project / "locks" / "p40-debian.sources.toml").unlink()
    assert load_lock(stack).digest != before


def test_a_stack_without_a_lock_says_how_to_make_one(stack: Stack) -> None:
    with pytest.raises(InputError, match="no lock of other") as caught:
        load_lock(stack.model_copy(update={"name": "other"}))
    assert caught.value.cure == "Make one: envbuilder lock other"


@given(artifacts=st.lists(python_artifacts, unique_by=lambda a: a.name, max_size=6))
def test_requirements_are_read_as_written(artifacts: list[PythonArtifact]) -> None:
    text = requirements_text(P40_DEBIAN, tuple(artifacts))
    check_seal(text, "f", P40_DEBIAN.name)
    assert parse_requirements(text, "f") == tuple(sorted(artifacts, key=lambda a: a.name))
    assert text == requirements_text(P40_DEBIAN, tuple(reversed(artifacts)))


@given(packages=st.lists(debs, unique_by=lambda d: (d.target, d.name), max_size=6))
def test_sources_are_read_as_written(packages: list[DebArtifact]) -> None:
    git = GitArtifact(name="apex", repository="https://example.org/a", tag="25.05", commit="0" * 40)
    base = DebianBase(suite="bookworm", release="12.15", security=False, packages=tuple(packages))
    text = sources_text(Sources(stack="s", debian=base, git=(git,)))
    check_seal(text, "f", "s")
    read = parse_sources(text, "f")
    assert read.git == (git,)
    assert read.debian is not None
    assert sorted(read.debian.packages, key=repr) == sorted(packages, key=repr)


@given(text=st.text(string.printable, max_size=300))
def test_any_text_is_refused_for_people_or_read(text: str) -> None:
    for parse in (parse_requirements, parse_sources):
        with contextlib.suppress(EnvbuilderError):
            parse(text, "f")


@given(body=st.text(max_size=200), position=st.integers(0, 10**6), character=st.characters())
def test_a_sealed_text_cannot_change_unnoticed(body: str, position: int, character: str) -> None:
    text = seal(["about"], body)
    check_seal(text, "f", "s")
    place = position % len(text)
    changed = text[:place] + character + text[place + 1 :]
    if changed != text:
        with pytest.raises(IntegrityError):
            check_seal(changed, "f", "s")


@pytest.mark.parametrize(
    "line", ["torch==2.6.0", f"torch>=2 --hash=sha256:{SHA}", f"torch==2.6.0 --hash=sha256:{SHA[:-1]}x", "-e ."]
)
def test_a_line_that_is_no_lock_is_named(line: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_requirements(f"# about\n# torch-2.6.0-py3-none-any.whl, 3 bytes\n{line}\n", "f")
    assert caught.value.place is not None
    assert caught.value.place.line == 3
