"""What a person types wrong, or a system refuses, ends in a sentence, a cure and an exit code, never in a traceback."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import envbuilder
from envbuilder.cli import COMMANDS, run
from envbuilder.data import builtin_root, names


def test_a_reader_that_goes_away_is_no_fault() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "envbuilder", "stacks", "show", "p40"], stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_behind_the_output_is_named() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-m", "envbuilder", "stacks"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 6
    assert b"no space left on device" in done.stderr
    assert b"Free some space" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_file_where_the_output_folder_must_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    code = run(["data", "gsm8k", "--from", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "taken")])
    assert code == 6
    shown = capsys.readouterr().err
    assert f"{tmp_path / 'taken'}: the system refused: file exists" in shown
    assert "do: Name another path" in shown


@pytest.mark.parametrize("name", ["", "../stacks/p40", ".hidden"])
def test_what_is_no_name_finds_no_file_and_suggests_none(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stacks", "show", name]) == 2
    shown = capsys.readouterr().err
    assert f"there is no stack named {name!r}" in shown
    assert "Known: p40, p40-debian." in shown
    assert "Your own goes" not in shown


def test_a_folder_named_like_a_stack_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stacks" / "mine.toml").mkdir(parents=True)
    monkeypatch.setattr("envbuilder.data.roots", lambda: [tmp_path])
    assert names("stacks", ".toml") == []


def test_no_card_has_an_index_below_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--gpu", "-1"]) == 2
    assert "no index" in capsys.readouterr().err


def test_a_lock_that_is_not_there_has_a_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lock", "diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "do: Name a lock file" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"\xff\xfe", b'name = "mine\n'])
def test_a_file_that_is_no_toml_has_a_cure(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_bytes(content)
    assert run(["stacks", "show", str(tmp_path / "mine.toml")]) == 2
    assert "do: " in capsys.readouterr().err


def test_a_lock_that_is_no_text_names_the_command_that_locks_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stacks").mkdir()
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "p40-debian.requirements.txt").write_bytes(b"\xff")
    assert run(["lock", "--check", "p40-debian"]) == 2
    assert "do: Take the file back out of version control, or lock anew: envbuilder lock p40-debian" in (
        capsys.readouterr().err
    )


def test_every_command_that_a_cure_names_is_there() -> None:
    package = Path(envbuilder.__file__).parent
    told = {
        command
        for file in package.rglob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if "cure" in line
        for command in re.findall(r": envbuilder ([a-z]+)", line)
    }
    assert "build" in told
    assert told <= set(COMMANDS)


def test_a_file_without_a_known_ending_is_called_what_it_is_read_as(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows").write_bytes(bytes(range(256)) * 4)
    assert run(["data", "gsm8k", "--from", str(tmp_path / "rows"), "--out", str(tmp_path / "out")]) == 2
    assert "cannot be read as an Arrow stream:" in capsys.readouterr().err


def test_a_project_whose_lock_is_gone_is_told_that_the_built_in_one_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["lock", "p40-debian", "--check"]) == 0
    assert capsys.readouterr().err == "", "a folder that is no project has nothing of its own to miss"
    locks = tmp_path / "locks"
    locks.mkdir()
    for command in (["lock", "p40-debian", "--check"], ["render", "p40-debian"]):
        assert run(command) == 0
        shown = capsys.readouterr().err
        assert "note: this project has no lock of p40-debian; the one that came with envbuilder serves" in shown
        assert "envbuilder lock p40-debian" in shown
    for path in (builtin_root() / "locks").glob("p40-debian.*"):
        shutil.copyfile(path, locks / path.name)
    assert run(["render", "p40-debian"]) == 0
    assert capsys.readouterr().err == ""
