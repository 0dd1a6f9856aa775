"""Error texts of every subject: the right rule is named first, and pairs that look alike are told apart."""

from pathlib import Path
from typing import Any

import pytest
import tomli

from envbuilder.diagnose.explain import explain_streams, explain_text
from envbuilder.diagnose.model import LANGS, Lang
from envbuilder.diagnose.rulebook import rules
from envbuilder.report import Verdict

DATA = Path(__file__).parents[2] / "data"
FAULTS = tomli.loads((DATA / "logs" / "faults.toml").read_text())["fault"]


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{n}-{f['rule']}" for n, f in enumerate(FAULTS)])
def test_the_right_rule_is_named_first(fault: dict[str, Any]) -> None:
    report = explain_text(fault["log"].splitlines())
    named = [finding.rule for finding in report.findings]
    assert named[:1] == ([fault["rule"]] if fault["rule"] else []), named
    assert report.verdict is {"unknown": Verdict.UNKNOWN, "advice": Verdict.YES}.get(
        fault.get("verdict", ""), Verdict.NO
    )


@pytest.mark.parametrize("lang", LANGS)
def test_no_text_says_that_something_in_it_is_not_known(lang: Lang) -> None:
    for fault in FAULTS:
        for found in explain_text(fault["log"].splitlines(), lang=lang).findings:
            said = " ".join([found.title, found.cause, found.cure, *found.not_help])
            assert "(not known)" not in said, (found.rule, said)
            assert "（未知）" not in said, (found.rule, said)


def test_every_rule_that_reads_logs_is_named_by_a_fault_or_a_case() -> None:
    named = {fault["rule"] for fault in FAULTS}
    for path in (DATA / "cases" / "inputs").iterdir():
        with path.open("rb") as stream:
            named.update(finding.rule for finding in explain_streams([stream], subject=path.name).findings)
    missing = [rule.id for rule in rules().values() if rule.kind == "log" and rule.id not in named]
    assert not missing
