"""push, pull, save and load as they are typed."""

import json
from pathlib import Path
from typing import Any

import pytest

from envbuilder.cli import run, verify
from envbuilder.image import choose
from envbuilder.publish import evidence
from envbuilder.report.model import Report, Verdict
from envbuilder.smoke import nvml
from envbuilder.smoke.facts import Card, HostFacts
from tests.fake_registry import FakeRegistry
from tests.unit.publish.stand_ins import StandInEngine

NAME = "localhost/envbuilder/p40-debian:runtime"
LABELS = {"io.envbuilder.stack": "p40-debian", "io.envbuilder.target": "runtime"}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> StandInEngine:
    """The engine of this host; what is said of its images is another's business."""
    found = StandInEngine()
    found.make(NAME, [b"base" * 1000, b"verl"], LABELS)
    monkeypatch.setattr(choose, "choose_engine", lambda name: found)
    monkeypatch.setattr(evidence, "lay_evidence", lambda *given: None)
    return found


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: StandInEngine) -> None:
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "other host"))
    engine.images.clear()
    engine.names.clear()


def test_there_and_back(
    engine: StandInEngine, registry: FakeRegistry, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    assert run(["push", "p40-debian", f"{registry.host}/team/p40:1", "--json"]) == 0
    pushed = said(capsys)
    assert (pushed["image"], pushed["bytes_skipped"]) == (NAME, 0)
    assert run(["push", "p40-debian", f"{registry.host}/team/p40:1"]) == 0
    assert f"\n  envbuilder pull {pushed['pinned']}\n" in capsys.readouterr().out
    elsewhere(monkeypatch, tmp_path, engine)
    assert run(["pull", pushed["pinned"], "--json"]) == 0
    pulled = said(capsys)
    assert (pulled["image"], pulled["digest"], pulled["pulled"]) == (NAME, pushed["digest"], True)
    assert pulled["bytes_moved"] == pushed["bytes_moved"]
    assert run(["pull", pushed["pinned"]]) == 0
    assert "up to date" in capsys.readouterr().out


def test_a_file_instead(engine: StandInEngine, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    file = tmp_path / "p40.tar"
    assert run(["save", "p40-debian", str(file), "--json"]) == 0
    saved = said(capsys)
    assert saved["bytes"] == file.stat().st_size
    elsewhere(monkeypatch, tmp_path, engine)
    assert run(["load", str(file), "--json"]) == 0
    loaded = said(capsys)
    assert (loaded["image"], loaded["digest"], loaded["loaded"]) == (NAME, saved["digest"], True)
    assert run(["load", str(tmp_path / "missing.tar")]) == 2


def test_a_tag_wants_to_be_asked_for(engine: StandInEngine, registry: FakeRegistry, capsys: Any) -> None:
    where = f"{registry.host}/team/p40:1"
    assert run(["push", "p40-debian", where, "--json"]) == 0
    digest = said(capsys)["digest"]
    assert run(["pull", where]) == 2
    assert f"@{digest}" in capsys.readouterr().err
    assert run(["pull", where, "--allow-tag"]) == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["push", "p40-debian", f"host.example/x@sha256:{'a' * 64}"], 2),
        (["push", "p40-debian", "No Name!"], 2),
        (["push", "no-such-stack", "host.example/x:1"], 2),
        (["push", "p40-debian", "host.example/x:1", "--target", "devel"], 6),
        (["push", "p40-debian", "ssh://-oProxyCommand=x"], 2),
        (["push", "p40-debian", "127.0.0.1:1/x:1"], 4),
        (["pull", f"127.0.0.1:1/x@sha256:{'a' * 64}"], 4),
        (["pull", "x@sha256:12"], 2),
        (["pull", f"host.example/x@sha256:{'a' * 64}", "--gpu", "all"], 2),
        (["save", "p40-debian", "/no/such/folder/x.tar"], 6),
    ],
)
def test_what_is_wrong_has_its_exit_code(engine: StandInEngine, words: list[str], code: int) -> None:
    assert run(words) == code


def test_every_card_is_proven_after_a_pull(
    engine: StandInEngine, registry: FakeRegistry, monkeypatch: Any, capsys: Any
) -> None:
    facts = HostFacts(cards=(Card(index=0), Card(index=1), Card(index=2)))
    proven = []

    def prove(wanted: Any, engine: Any, stack: str, facts: HostFacts) -> Report:
        proven.append((wanted.image, wanted.gpu, stack))
        verdict = (Verdict.YES, Verdict.NO, Verdict.UNKNOWN)[wanted.gpu]
        return Report("verify", wanted.image, verdict, f"GPU {wanted.gpu}")

    monkeypatch.setattr(nvml, "collect", lambda: facts)
    monkeypatch.setattr(verify, "_prove", prove)
    assert run(["push", "p40-debian", f"{registry.host}/team/p40:1", "--json"]) == 0
    pinned = said(capsys)["pinned"]
    with pytest.raises(SystemExit) as left:
        run(["pull", pinned, "--verify", "--gpu", "all", "--json"])
    assert left.value.code == 1
    assert proven == [(NAME, index, "p40-debian") for index in range(3)]
    assert [report["summary"] for report in said(capsys)["verify"]] == ["GPU 0", "GPU 1", "GPU 2"]
    with pytest.raises(SystemExit) as left:
        run(["pull", pinned, "--verify"])
    assert left.value.code == 0


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:x"])
def test_what_is_no_address_of_a_cluster_is_told_without_pythons_words(address: str, capsys: Any) -> None:
    assert run(["verify", "--ray", address]) == 6
    said_so = capsys.readouterr().err
    assert f"nothing answers at {address}: that is no HOST:PORT\n" in said_so
