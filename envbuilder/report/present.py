"""The one presenter: a report as text for people, as JSON, SARIF, workflow annotations and JUnit XML."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from envbuilder.files import write_bytes
from envbuilder.report.model import Check, Finding, Report, Severity, Status, Verdict

if TYPE_CHECKING:
    from rich.console import Console

_SEVERITY_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.ADVICE: "cyan"}
_STATUS_STYLE = {
    Status.PASSED: "green",
    Status.FAILED: "bold red",
    Status.NOT_PROVEN: "yellow",
    Status.UNKNOWN: "yellow",
}
# The labels of the text, by language. The English ones are what they name.
_LABELS: Mapping[str, Mapping[str, str]] = {
    "en": {},
    "zh": {
        "cause": "原因",
        "cure": "解决办法",
        "will not help": "无济于事",
        "source": "来源",
        "error": "错误",
        "warning": "警告",
        "advice": "建议",
        "yes": "没有问题",
        "no": "有问题",
        "not enough to tell": "无法判断",
        "measured": "实测",
        "sourced": "有出处",
        "inferred": "推断",
        "unresolved": "未有定论",
    },
}
_VERDICT_STYLE = {Verdict.YES: "bold green", Verdict.NO: "bold red", Verdict.UNKNOWN: "bold yellow"}


def as_json(report: Report) -> str:
    """The report as indented JSON with a final newline."""
    return json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n"


def as_sarif(report: Report) -> str:
    """The findings as SARIF 2.1.0 with a final newline."""
    from envbuilder import __version__

    levels = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "note"}
    rules: dict[str, dict[str, object]] = {}
    results: list[dict[str, object]] = []
    for finding in report.findings:
        rules.setdefault(
            finding.rule, {"id": finding.rule, "defaultConfiguration": {"level": levels[finding.severity]}}
        )
        text = "\n".join(part for part in (finding.title, finding.cause, finding.cure) if part)
        result: dict[str, object] = {
            "ruleId": finding.rule, "level": levels[finding.severity], "message": {"text": text},
        }  # fmt: skip
        if finding.place.file:
            place: dict[str, object] = {"artifactLocation": {"uri": quote(Path(finding.place.file).as_posix())}}
            if finding.place.line:
                place["region"] = {"startLine": finding.place.line}
            result["locations"] = [{"physicalLocation": place}]
        results.append(result)
    driver = {"name": "envbuilder", "version": __version__, "rules": list(rules.values())}
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_github(report: Report) -> str:
    """The findings as annotations of a GitHub workflow, one a line."""
    levels = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "notice"}

    def escaped(text: str, *, value: bool = False) -> str:
        for raw, coded in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
            text = text.replace(raw, coded)
        return text.replace(":", "%3A").replace(",", "%2C") if value else text

    lines = []
    for finding in report.findings:
        place = [f"file={escaped(finding.place.file, value=True)}"] if finding.place.file else []
        place += [f"line={finding.place.line}"] if finding.place.line else []
        place.append(f"title={escaped(finding.rule, value=True)}")
        text = "\n".join(part for part in (finding.title, finding.cause, finding.cure) if part)
        lines.append(f"::{levels[finding.severity]} {','.join(place)}::{escaped(text)}\n")
    return "".join(lines)


def print_text(report: Report, stream: IO[str] | None = None, lang: str = "en") -> None:
    """Print checks, findings and the verdict with rich, to standard output unless ``stream`` is given.

    ``lang`` is the language of the labels; the texts of the findings are in the language they were made in.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(file=stream, highlight=False)
    _print_checks(console, report.checks)
    for rows in report.tables:
        table = Table(title=rows.title or None, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for column in rows.columns:
            table.add_column(column, overflow="fold")
        for row in rows.rows:
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
    for finding in report.findings:
        _print_finding(console.print, finding, _LABELS[lang])
    style = _VERDICT_STYLE[report.verdict]
    said = _LABELS[lang].get(report.verdict.value, report.verdict.value)
    console.print(f"\n[{style}]{said}[/]: {escape(report.summary)}", soft_wrap=True)


def _print_checks(console: Console, checks: Sequence[Check]) -> None:
    """What was decided as a table, the cure of what failed below it, what was not proven in a line a reason."""
    from rich.markup import escape
    from rich.table import Table

    decided = [check for check in checks if check.status is not Status.NOT_PROVEN]
    if decided:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column, least in (("check", 22), ("result", 6), ("time", 7), ("evidence", 30)):
            table.add_column(column, overflow="fold", min_width=least)
        for check in decided:
            told = ", ".join(f"{k} {_short(v)}" for k, v in check.evidence.items() if _short(v) is not None)
            shown = f"{check.message}; {told}" if check.message and told and check.seconds else check.message or told
            style = _STATUS_STYLE[check.status]
            time = f"{check.seconds:.1f} s" if check.seconds else ""
            table.add_row(escape(check.title), f"[{style}]{check.status.value}[/]", time, escape(shown))
        console.print(table)
    for check in decided:
        if check.status is not Status.PASSED and check.cure:
            console.print(f"\n[{_STATUS_STYLE[check.status]}]{escape(check.title)}[/]", soft_wrap=True)
            console.print(f"  [bold]do:[/] {escape(check.cure)}", soft_wrap=True)
    reasons: dict[str, list[str]] = {}
    for check in checks:
        if check.status is Status.NOT_PROVEN:
            reasons.setdefault(check.message, []).append(check.title)
    if reasons:
        console.print("\n[yellow]not proven here[/]")
        for reason, titles in reasons.items():
            console.print(f"  {escape(', '.join(titles))}: {escape(reason)}", soft_wrap=True)


def _short(value: Any) -> str | None:
    """A value of the evidence for the table; what is long stands in the JSON alone."""
    if isinstance(value, (list, dict)):
        return None
    return str(value)


def _print_finding(out: Callable[..., None], finding: Finding, labels: Mapping[str, str]) -> None:
    from rich.markup import escape

    def label(name: str) -> str:
        return labels.get(name, name)

    style = _SEVERITY_STYLE[finding.severity]
    place = str(finding.place)
    head = f"{place}: " if place else ""
    said = label(finding.severity.value)
    out(f"\n{escape(head)}[{style}]{said}[/] {escape(finding.title)} [dim]({finding.rule})[/]", soft_wrap=True)
    for line in finding.evidence:
        out(f"  [dim]>[/] {escape(line)}", soft_wrap=True)
    if finding.cause:
        out(f"  [bold]{label('cause')}:[/] {escape(finding.cause)}", soft_wrap=True)
    if finding.cure:
        out(f"  [bold]{label('cure')}:[/] {escape(finding.cure)}", soft_wrap=True)
    for line in finding.not_help:
        out(f"  [bold]{label('will not help')}:[/] {escape(line)}", soft_wrap=True)
    if finding.sources:
        known = label(finding.confidence.value)
        out(f"  [dim]{label('source')} ({known}): {escape('; '.join(finding.sources))}[/]", soft_wrap=True)


def write_junit(report: Report, path: Path) -> None:
    """Write the report as JUnit XML. A check that is not proven, or a question left open, is a skipped case."""
    from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

    suite = TestSuite(f"envbuilder {report.command}")
    for check in report.checks:
        case = TestCase(check.title, classname=check.id, time=check.seconds)
        if check.status is Status.FAILED:
            case.result = [Failure(check.message)]
        elif check.status is not Status.PASSED:
            case.result = [Skipped(f"{check.status.value}: {check.message}")]
        case.system_out = json.dumps(dict(check.evidence), ensure_ascii=False)
        suite.add_testcase(case)
    for finding in report.findings:
        case = TestCase(f"{finding.place} {finding.title}".strip(), classname=finding.rule)
        if finding.severity is not Severity.ADVICE:
            case.result = [Failure(f"{finding.cause}\n{finding.cure}")]
        suite.add_testcase(case)
    verdict = TestCase(report.summary, classname="verdict")
    if report.verdict is Verdict.NO:
        verdict.result = [Failure(report.summary)]
    elif report.verdict is Verdict.UNKNOWN:
        verdict.result = [Error(report.summary)]
    suite.add_testcase(verdict)
    xml = JUnitXml()
    xml.add_testsuite(suite)
    data: bytes = xml.tostring()  # type: ignore[no-untyped-call]  # junitparser leaves this one untyped
    write_bytes(path, data)
