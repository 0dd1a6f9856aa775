"""The command as a user meets it: exit codes, languages, JSON, JUnit, stdin, mistakes."""

import contextlib
import io
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from envbuilder.cli import run

FAULT = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text(FAULT)
    return path


def test_a_fault_is_exit_1_and_names_the_card_of_the_option(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(log), "--gpu", "p40"]) == 1
    said = capsys.readouterr().out
    assert "sm_61" in said
    assert "cause:" in said


def test_a_stack_gives_its_card_and_its_torch(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(log), "--stack", "p40", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["facts"]["read"]["stack_torch"] == ["2.6.0+cu118"]
    assert report["findings"][0]["rule"] == "no-kernel-image"


def test_chinese_labels_and_texts(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(log), "--lang", "zh"]) == 1
    said = capsys.readouterr().out
    assert "原因" in said
    assert "cause:" not in said


def test_nothing_wrong_is_exit_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ok.log"
    path.write_text("epoch 1 loss 0.5\n")
    assert run(["explain", str(path)]) == 0
    assert "nothing wrong" in capsys.readouterr().out


def test_an_unknown_failure_is_exit_3_and_shows_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.log"
    path.write_text("Traceback (most recent call last):\nFooError: nobody knows this\n")
    assert run(["explain", str(path)]) == 3
    assert "FooError: nobody knows this" in capsys.readouterr().out


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(FAULT.encode())))
    assert run(["explain", "-"]) == 1
    assert "standard input" in capsys.readouterr().out


def test_junit_is_written(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(log), "--junit", str(tmp_path / "r.xml")]) == 1
    assert "no-kernel-image" in (tmp_path / "r.xml").read_text()


@pytest.mark.parametrize("words", [["nowhere.log"], ["."], ["--gpu", "p4000", "nowhere.log"], ["--stack", "nope", "x"]])
def test_mistakes_are_told_without_a_traceback(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["explain", *words]) == 2
    error = capsys.readouterr().err
    assert "do:" in error
    assert "Traceback" not in error


def test_a_binary_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "libx.so"
    path.write_bytes(b"\x7fELF" + bytes(100))
    assert run(["explain", str(path)]) == 2
    assert "libx.so" in capsys.readouterr().err


def test_a_full_disk_behind_the_output_is_said_without_traceback(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert run(["explain", str(log), "--json"]) == 6
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
    assert "no space left" in capsys.readouterr().err


def test_random_bytes_are_refused_as_binary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "core"
    path.write_bytes(random.Random(8).randbytes(100_000))
    assert run(["explain", str(path)]) == 2
    assert "binary" in capsys.readouterr().err


def test_a_driver_that_is_no_version_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compat", "--gpu", "p40", "--driver", "abc"]) == 2
    assert "no driver version" in capsys.readouterr().err
