"""Does a lock still fit its stack? And what changed between two locks."""

import json
from pathlib import Path

import pytest

from envbuilder.cli import run
from envbuilder.data import builtin_root
from envbuilder.errors import InputError, IntegrityError
from envbuilder.lock.check import check_lock
from envbuilder.lock.compare import compare, read_entries
from envbuilder.report.model import Severity, Verdict
from envbuilder.stack.loading import load_stack

LOCKS = builtin_root() / "locks"
P40 = (builtin_root() / "stacks" / "p40.toml").read_text()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in LOCKS.glob("p40.*"):
        (tmp_path / "locks").mkdir(exist_ok=True)
        (tmp_path / "locks" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "p40.toml").write_text(P40)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["p40", "p40-debian"])
def test_the_committed_locks_fit_their_stacks(name: str) -> None:
    report = check_lock(load_stack(name)[0])
    assert report.verdict is Verdict.YES
    assert all(finding.severity is Severity.ADVICE for finding in report.findings)


@pytest.mark.parametrize(
    ("old", "new", "rule", "says"),
    [
        ('version = "0.5.0"', 'version = "0.4.1"', "lock-pin-moved", "verl is pinned to 0.4.1, the lock has 0.5.0"),
        ("cutoff = 2025-09-08", "cutoff = 2025-10-08", "lock-target", "cut-off 2025-10-08"),
        ('version = "3.10"', 'version = "3.11"', "lock-target", "Python 3.11"),
        ('index = "pytorch-cu118"\nwhy = "The newest', 'why = "The newest', "lock-index-moved", "the default index"),
        ('version = "8.9.7.29"', 'version = "8.8.0.121"', "lock-pin-moved", "cudnn is pinned to 8.8.0.121"),
        ('__cuda = "11.8"', '__cuda = "11.7"', "lock-conda-inputs", "virtual packages"),
        (
            'channels = ["nvidia/label/cuda-11.8.0", "conda-forge"]',
            'channels = ["conda-forge"]',
            "lock-conda-inputs",
            "",
        ),
        ('commit = "379937e1', 'commit = "479937e1', "lock-source-moved", "apex"),
        ("11.8.0-devel-ubuntu22.04", "11.8.0-devel-ubuntu20.04", "lock-image-moved", "base images"),
        (
            "[python.packages.verl]",
            '[python.packages.peft]\nversion = "9.9"\nwhy = ""\n\n[python.packages.verl]',
            "lock-pin-moved",
            "peft is pinned to 9.9",
        ),
        (
            "[python.packages.verl]",
            '[python.packages.vllm]\nversion = "9.9"\nwhy = ""\n\n[python.packages.verl]',
            "lock-pin-missing",
            "vllm 9.9 is pinned",
        ),
    ],
)
def test_a_stack_that_moved_on_is_noticed(project: Path, old: str, new: str, rule: str, says: str) -> None:
    assert old in P40
    (project / "stacks" / "p40.toml").write_text(P40.replace(old, new, 1))
    report = check_lock(load_stack("p40")[0])
    assert report.verdict is Verdict.NO
    found = [finding for finding in report.findings if finding.rule == rule]
    assert found
    assert says in found[0].title
    assert run(["lock", "p40", "--check"]) == 1


def test_a_lock_edited_by_hand_is_no_answer(project: Path) -> None:
    path = project / "locks" / "p40.conda-lock.yml"
    path.write_text(path.read_text().replace("8.9.7.29", "8.9.7.30"))
    with pytest.raises(IntegrityError):
        check_lock(load_stack("p40")[0])
    assert run(["lock", "p40", "--check"]) == 5


def test_no_lock_is_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "mine.toml").write_text(P40.replace('name = "p40"', 'name = "mine"', 1))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no lock of mine"):
        check_lock(load_stack("mine")[0])


def changed(project: Path, name: str, old: str, new: str) -> tuple[Path, Path]:
    text = (LOCKS / name).read_text()
    assert old in text
    after = project / name
    after.write_text(text.replace(old, new))
    return LOCKS / name, after


def test_a_moved_version_other_bytes_added_and_removed(tmp_path: Path) -> None:
    before, after = tmp_path / "a.requirements.txt", tmp_path / "b.requirements.txt"
    line = "# {0}-{1}-py3-none-any.whl, {2} bytes\n{0}=={1} --hash=sha256:{3}\n"
    before.write_text(
        line.format("gone", "1.0", 1_000_000, "1" * 64)
        + line.format("moved", "1.0", 1_000_000, "2" * 64)
        + line.format("swapped", "1.0", 5, "3" * 64)
        + line.format("same", "1.0", 5, "4" * 64)
    )
    after.write_text(
        line.format("moved", "2.0", 3_000_000, "5" * 64)
        + line.format("new", "1.0", 7_000_000, "6" * 64)
        + line.format("swapped", "1.0", 5, "7" * 64)
        + line.format("same", "1.0", 5, "4" * 64)
    )
    found = compare(read_entries(before), read_entries(after))
    assert {c.name: c.what for c in found.changes} == {
        "gone": "removed",
        "moved": "version",
        "new": "added",
        "swapped": "bytes",
    }
    assert found.size_after - found.size_before == 8_000_000


def test_a_lock_is_the_same_as_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("p40.requirements.txt", "p40.conda-lock.yml", "p40.sources.toml", "p40-debian.sources.toml"):
        assert run(["lock", "diff", str(LOCKS / name), str(LOCKS / name)]) == 0
        assert "the same packages, the same bytes" in capsys.readouterr().out


def test_the_difference_as_text_json_and_markdown(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = changed(project, "p40.conda-lock.yml", "hbc23b4c_3", "h092f7fd_3")
    assert run(["lock", "diff", str(before), str(after)]) == 0
    assert "~ conda   cudnn  8.9.7.29 hbc23b4c_3 -> 8.9.7.29 h092f7fd_3" in capsys.readouterr().out
    run(["lock", "diff", "--json", str(before), str(after)])
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert (change["what"], change["name"]) == ("version", "cudnn")
    run(["lock", "diff", "--markdown", str(before), str(after)])
    assert "| conda | `cudnn` | 8.9.7.29 hbc23b4c_3 -> 8.9.7.29 h092f7fd_3 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("missing.requirements.txt", None, "no such file"),
        ("x.requirements.txt", "alpha\n", "not a line of a lock"),
        ("x.txt", "", "none of a stack's lock files"),
        ("x.conda-lock.yml", "[]", "not a conda-lock file"),
    ],
)
def test_what_is_no_lock_cannot_be_compared(tmp_path: Path, name: str, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        read_entries(tmp_path / name)
    assert says in caught.value.message


def test_folders_of_one_stack_are_compared_whole(project: Path) -> None:
    entries = read_entries(project / "locks")
    assert {entry.kind for entry in entries} == {"Python", "conda", "source", "image"}
    with pytest.raises(InputError, match="2 stacks"):
        read_entries(LOCKS)
