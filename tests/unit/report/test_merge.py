"""The reports of many cards as one."""

import json

import pytest
from click.testing import CliRunner

from envbuilder.cli.verify import command
from envbuilder.errors import InputError
from envbuilder.report.html import as_html
from envbuilder.report.merge import CardReport, card_of, merge
from envbuilder.report.model import Status, Verdict
from envbuilder.report.present import print_text


def report(verdict="yes", node="alpha", gpu="0", checks=(), **passport):
    passport = {"card": "Tesla P40", "driver": "550.54.14", "uuid": f"GPU-{node}-{gpu}", "lock": "sha256:1", **passport}
    return {
        "command": "verify", "subject": "p40", "verdict": verdict, "summary": f"said {verdict}.", "findings": [],
        "checks": list(checks), "facts": {"passport": passport, "node": node, "gpu": gpu},
    }  # fmt: skip


FAULT = {
    "id": "matmul", "title": "FP32 matrix product", "proves": "float32 is float32", "status": "failed", "seconds": 1.0,
    "evidence": {}, "message": "NaN in the product", "cure": "See dmesg.",
}  # fmt: skip


def merged(*reports, **more):
    return merge([card_of(r, "here") for r in reports], "hosts", **more)


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        (["yes", "yes"], Verdict.YES),
        (["yes", "not enough to tell"], Verdict.UNKNOWN),
        (["yes", "not enough to tell", "no"], Verdict.NO),
        ([], Verdict.UNKNOWN),
    ],
)
def test_the_worst_card_decides(verdicts, whole):
    assert merged(*(report(v, f"host{i}") for i, v in enumerate(verdicts))).verdict is whole


def test_a_fault_is_named_with_its_host_and_card():
    whole = merged(report(), report("no", "beta", "1", [FAULT]))
    assert whole.summary == "1 of 2 cards proven, 1 failed. Failed: beta GPU 1."
    assert [check.title for check in whole.checks] == ["alpha GPU 0", "beta GPU 1", "beta GPU 1: FP32 matrix product"]
    assert whole.checks[2].cure == "See dmesg."
    assert whole.facts["hosts"][1]["report"]["checks"] == [FAULT]


def test_what_differs_between_hosts_is_said_and_what_must_differ_is_not():
    whole = merged(report(), report(node="beta"), report(node="gamma", driver="535.183.01", lock="sha256:2"))
    assert [finding.title.split(":")[0] for finding in whole.findings] == ["driver", "lock"]
    assert whole.findings[0].evidence == ("550.54.14: alpha GPU 0, beta GPU 0", "535.183.01: gamma GPU 0")
    assert whole.verdict is Verdict.YES


def test_a_host_that_died_fails_and_one_without_a_stack_leaves_it_open():
    dead = CardReport("beta", "0", problem="the node died", cure="See dmesg.", failed=True)
    bare = CardReport("gamma", "0", problem="no stack here", cure="Start Ray in the image.")
    assert (dead.status, bare.status) == (Status.FAILED, Status.UNKNOWN)
    whole = merge([card_of(report(), "here"), dead, bare], "hosts", ["delta has no card"])
    assert whole.verdict is Verdict.NO
    assert [check.message for check in whole.checks] == ["said yes.", "the node died", "no stack here"]
    assert whole.facts["nodes"] == ["delta has no card"]


def test_every_presenter_takes_it(capsys):
    dead = CardReport("beta<script>", "0", problem="the node died", failed=True)
    whole = merge([card_of(report(driver="1"), "here"), card_of(report(node="b", driver="2"), "here"), dead], "hosts")
    print_text(whole)
    told = capsys.readouterr().out
    assert "alpha GPU 0" in told
    assert "driver: not the same on every host" in told
    page = as_html(whole)
    assert "<h2>Hosts</h2>" in page
    assert "<script>" not in page
    assert json.loads(json.dumps(whole.to_dict()))["facts"]["differences"]["driver"] == {
        "1": ["alpha GPU 0"],
        "2": ["b GPU 0"],
    }


def test_the_command_merges_files_and_its_exit_code_is_the_verdict(tmp_path):
    for name, verdict in (("one", "yes"), ("two", "no")):
        (tmp_path / f"{name}.json").write_text(json.dumps(report(verdict, name)))
    files = [str(path) for path in sorted(tmp_path.glob("*.json"))]
    done = CliRunner().invoke(command, ["merge", *files, "--json"])
    assert done.exit_code == 1
    assert json.loads(done.output)["summary"] == "1 of 2 cards proven, 1 failed. Failed: two GPU 0."


def test_a_report_that_names_no_host_is_called_after_its_file():
    plain = report()
    del plain["facts"]["node"]
    assert card_of(plain, "mine").name == "mine GPU 0"


def test_a_file_named_twice_is_one_card(tmp_path):
    path = tmp_path / "one.json"
    path.write_text(json.dumps(report()))
    (tmp_path / "link.json").symlink_to(path)
    done = CliRunner().invoke(command, ["merge", str(path), str(path), str(tmp_path / "link.json"), "--json"])
    assert json.loads(done.output)["summary"] == "1 of 1 cards proven."


def test_two_reports_of_one_card_are_not_two_cards(tmp_path):
    for name in ("one", "copy"):
        (tmp_path / f"{name}.json").write_text(json.dumps(report(node=name, uuid="GPU-1")))
    done = CliRunner().invoke(command, ["merge", str(tmp_path / "one.json"), str(tmp_path / "copy.json")])
    assert isinstance(done.exception, InputError)
    assert "one.json are of one card (GPU-1)" in done.exception.message


@pytest.mark.parametrize(
    "part",
    [
        {"facts": 7}, {"facts": {"passport": "x"}}, {"facts": {"measured": []}}, {"checks": [1]}, {"checks": 1},
        {"facts": {"measured": {"ppo": 3}}}, {"facts": {"measured": {"soak": {"phases s": 3}}}},
        {"checks": [{"id": 3}]}, {"checks": [{**FAULT, "status": "?"}]}, {"verdict": "perhaps"}, {"verdict": []},
        {"summary": 1}, {"command": "audit"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("arguments", [["merge"], ["compare", "good.json"]])
def test_a_damaged_report_is_refused(tmp_path, monkeypatch, part, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.json").write_text(json.dumps(report(checks=[FAULT])))
    (tmp_path / "bad.json").write_text(json.dumps({**report(), **part}))
    assert CliRunner().invoke(command, [*arguments, "good.json"]).exit_code in (0, 1, 3)
    done = CliRunner().invoke(command, [*arguments, "bad.json"])
    assert (type(done.exception), getattr(done.exception, "message", "")) == (InputError, "this is no report of verify")
