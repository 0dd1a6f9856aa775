"""No false alarms: logs in which nothing is wrong give no finding."""

from pathlib import Path

import pytest

from envbuilder.diagnose.explain import explain_streams
from envbuilder.report import Verdict

HEALTHY = sorted((Path(__file__).parents[2] / "data" / "logs" / "healthy").glob("*.log"))


def test_there_are_at_least_forty() -> None:
    assert len(HEALTHY) >= 40


@pytest.mark.parametrize("path", HEALTHY, ids=[path.stem for path in HEALTHY])
def test_a_healthy_log_gives_no_finding(path: Path) -> None:
    with path.open("rb") as stream:
        report = explain_streams([stream], subject=path.name)
    assert not report.findings, [(f.rule, f.evidence) for f in report.findings]
    assert report.verdict is Verdict.YES, report.summary
