"""What build and verify add when something failed: the cause and the cure, out of their own log."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envbuilder.report.model import Report
    from envbuilder.stack.gpu import GpuProfile
    from envbuilder.stack.model import Stack


def explain_log(path: Path, gpu: GpuProfile, stack: Stack) -> None:
    """Print to standard error what explain finds in the log of a failed build; nothing where it finds nothing."""
    from envbuilder.diagnose.context import Known
    from envbuilder.diagnose.explain import explain_streams

    with path.open("rb") as stream:
        _show(explain_streams([stream], Known(gpu, stack), subject=str(path)))


def explain_checks(report: Report) -> None:
    """Print to standard error what explain finds in the messages of failed checks."""
    from envbuilder.diagnose.explain import explain_text
    from envbuilder.report.model import Status

    failed = [check for check in report.checks if check.status is Status.FAILED]
    lines: Iterable[str] = (f"{check.message}\n{' '.join(map(str, check.evidence.values()))}" for check in failed)
    _show(explain_text([line for text in lines for line in text.splitlines()], subject="failed checks"))


def _show(report: Report) -> None:
    from envbuilder.report.present import print_text

    if report.findings:
        print_text(report, sys.stderr)
