"""A failed build or check is explained where it failed."""

from pathlib import Path
from typing import Any

import pytest

from envbuilder.cli import run
from envbuilder.cli.why import explain_checks
from envbuilder.errors import BuildError
from envbuilder.report import Check, Report, Status, Verdict


def test_a_failed_build_explains_its_own_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*given: Any, **_: Any) -> None:
        given[4].log("OSError: [Errno 28] No space left on device")
        raise BuildError("the step RUN pip install failed")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("envbuilder.image.building.build_stack", fails)
    monkeypatch.setattr("envbuilder.image.choose.choose_engine", lambda _: None)
    assert run(["build", "p40-debian"]) == 7
    said = capsys.readouterr().err
    assert "disk-full" in said
    assert "full log:" in said
    assert "the step RUN pip install failed" in said


def test_a_failed_check_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    text = "CUDA error: no kernel image is available for execution on the device"
    check = Check("matmul", "matmul", "a kernel runs", Status.FAILED, message=text)
    explain_checks(Report("verify", "image", Verdict.NO, "1 check failed", checks=(check,)))
    assert "no-kernel-image" in capsys.readouterr().err
