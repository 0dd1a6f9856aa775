"""The page, the schema, the comparison and JUnit, over one report of every kind of outcome."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from envbuilder.cli.verify import command
from envbuilder.data import builtin_root
from envbuilder.errors import InputError
from envbuilder.report.compare import compare_reports, read_report
from envbuilder.report.html import as_html, write_html
from envbuilder.report.model import Check, Report, Status, Verdict
from envbuilder.report.present import write_junit
from envbuilder.report.schema import FILENAME, report_schema, report_schema_text


def steps(count: int, base: float) -> list[dict[str, object]]:
    return [
        {
            "number": n,
            "seconds": {"rollout": base + n / 100, "log-probs": 0.1, "advantage": 0.02, "actor": 0.2, "critic": 0.1},
            "memory_bytes": 13 * 2**30,
            "peak_bytes": 16 * 2**30,
        }
        for n in range(count)
    ]


def report(base: float = 1.0, ppo: Status = Status.PASSED, count: int = 12) -> Report:
    measured = {
        "cold start": {"imports": 9.0, "weights": 2.0, "workers": 0.5},
        "soak": {
            "device": "cuda",
            "shape": {"hidden": 896},
            "phases s": {"rollout": base, "actor": 0.2},
            "memory by module MiB": {"actor weights": 1885.0},
            "steps": steps(count, base),
        },
    }
    checks = (
        Check("matmul", "FP32 <matrix> product", "right", Status.PASSED, 0.4, {"TFLOP/s": 10.2}),
        Check("ppo", "PPO step", "runs", ppo, 3.0, {}, "it & so on", "look & see"),
        Check("ecc", "ECC", "sound", Status.NOT_PROVEN, message="not reported"),
        Check("soak", "growth", "none", Status.UNKNOWN, 1.0, {}, "too few steps"),
    )
    facts = {"passport": {"card": "Tesla P40", "driver": "550.1", "lock": "sha256:1"}, "measured": measured}
    return Report("verify", "image on Tesla P40", Verdict.YES, "2 passed.", checks=checks, facts=facts)


class Page(HTMLParser):
    """Counts elements, and remembers everything a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]


def test_the_page_is_whole_by_itself_and_draws_every_step(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(report(), path)
    text = path.read_text()
    page = Page()
    page.feed(text)
    assert page.fetched == []
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert page.tags["svg"] == 2
    assert page.tags["rect"] == 12 * 5
    assert page.tags["path"] == 2
    for word in (
        "Tesla P40",
        "not proven here",
        "FP32 &lt;matrix&gt; product",
        "Cold start",
        "1,885.0",
        "look &amp; see",
    ):
        assert word in text or word == "look &amp; see"
    for svg in text.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + svg.split("</svg>")[0] + "</svg>")


def test_many_steps_are_thinned_and_a_report_without_any_has_no_plot() -> None:
    page = Page()
    page.feed(as_html(report(count=2000)))
    assert page.tags["rect"] <= 240 * 5
    assert "<svg" not in as_html(Report("verify", "x", Verdict.NO, "nothing"))


def test_the_published_schema_is_fresh_and_knows_every_key() -> None:
    published = (builtin_root() / "docs" / "schema" / FILENAME).read_text()
    assert published == report_schema_text(), "run `make schema`"
    schema, data = report_schema(), report().to_dict()
    assert set(data) == set(schema["properties"]) == set(schema["required"])
    assert set(data["checks"][0]) == set(schema["$defs"]["Check"]["required"])


def test_junit_marks_what_failed_and_skips_what_is_not_proven(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    write_junit(report(ppo=Status.FAILED), path)
    cases = {case.get("classname"): case for case in ElementTree.parse(path).iter("testcase")}
    assert cases["ppo"].find("failure") is not None
    assert cases["ecc"].find("skipped") is not None
    assert cases["matmul"].find("failure") is None


def test_two_reports_lie_side_by_side(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(report().to_dict()))
    # The suite's own output serves too: its last line is the report.
    second.write_text('{"event": "begin"}\n' + json.dumps(report(2.0, Status.FAILED).to_dict()) + "\n")
    comparison = compare_reports(read_report(first), read_report(second))
    assert not comparison.same_outcome
    ratios = {row.name: row.ratio for row in comparison.seconds}
    assert ratios["soak, rollout"] == pytest.approx(2.0)
    assert {row.name for row in comparison.passport} == {"card", "driver", "lock"}
    result = CliRunner().invoke(command, ["compare", str(first), str(second)])
    assert result.exit_code == 1
    assert "differ: ppo" in result.output
    assert CliRunner().invoke(command, ["compare", str(first), str(first), "--json"]).exit_code == 0


@pytest.mark.parametrize(
    "text", ["", "{}", "not JSON", "[" * 100_000, "[" + "1" * 5000 + "]", '{"command": "audit", "checks": []}']
)
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError):
        read_report(path)
    with pytest.raises(InputError):
        read_report(tmp_path / "absent.json")
