"""What a job runs on each host: every card in turn, and the part of a host in a run over several."""

import json
import socket
import subprocess
import sys
import threading
import time

import pytest

from envbuilder.report.model import Status
from envbuilder.smoke import cards, nvml, ray_host
from envbuilder.smoke.facts import Card, HostFacts, Torch
from envbuilder.smoke.judge.identity import judge_visible

CODES = {"yes": 0, "no": 1, "not enough to tell": 3}


@pytest.fixture
def suite(monkeypatch):
    """A stand-in for the suite: says of each card what it is told, and notes how it was started."""
    verdicts, started = {}, []
    real = subprocess.Popen

    def start(command, **named):
        started.append(command[1:])
        verdict = verdicts[command[command.index("--gpu") + 1]]
        report = {"command": "verify", "verdict": verdict, "summary": "as told", "checks": [], "facts": {}}
        text = json.dumps(report) if verdict in CODES else "Segmentation fault"
        script = f"print({text!r}); raise SystemExit({CODES.get(verdict, 139)})"
        return real([sys.executable, "-c", script], **named)

    monkeypatch.setattr(cards.subprocess, "Popen", start)
    monkeypatch.setenv("ENVBUILDER_HOST", "alpha")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return verdicts, started


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (["yes", "yes"], 0),
        (["yes", "not enough to tell"], 3),
        (["no", "not enough to tell"], 1),
        (["yes", "dies"], 139),
    ],
)
def test_the_worst_card_is_the_exit_code(suite, tmp_path, said, code):
    verdicts, started = suite
    verdicts.update({str(number): verdict for number, verdict in enumerate(said)})
    assert cards.main(["--count", "2", "--reports", str(tmp_path), "--skip", "nccl"]) == code
    assert [command[-4:] for command in started] == [["--gpu", str(n), "--skip", "nccl"] for n in range(2)]
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {f"alpha-gpu{n}.json" for n, verdict in enumerate(said) if verdict in CODES}


def test_a_report_names_its_host_and_card(suite, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    suite[0]["3"] = "yes"
    assert cards.main(["--count", "1", "--reports", str(tmp_path)]) == 0
    facts = json.loads((tmp_path / "alpha-gpu3.json").read_text())["facts"]
    assert facts == {"node": "alpha", "gpu": "3"}


def test_fewer_cards_than_asked_for_is_a_fault(suite, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert cards.main(["--count", "2", "--reports", str(tmp_path)]) == 1
    assert "was to have 2 cards here and has 1" in capsys.readouterr().out


@pytest.mark.parametrize("named", ["1", "GPU-b", "GPU-bbbb"])
def test_a_card_is_found_by_index_or_uuid(monkeypatch, named):
    both = HostFacts(cards=(Card(index=0, uuid="GPU-aaaa"), Card(index=1, uuid="GPU-bbbb")))
    monkeypatch.setattr(nvml, "collect", lambda: both)
    assert [card.index for card in nvml.of_card(named).cards] == [1]


def test_a_host_without_its_number_is_wrong_use(monkeypatch, capsys):
    monkeypatch.delenv("NO_NUMBER", raising=False)
    assert ray_host.main(["--hosts", "2", "--head", "a", "--rank-from", "NO_NUMBER", "--", "true"]) == 2
    assert ray_host.main(["--hosts", "2", "--", "true"]) == 2
    assert "NO_NUMBER" in capsys.readouterr().err


def test_a_first_host_that_never_comes_is_said(capsys):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    given = ["--hosts", "2", "--head", "127.0.0.1", "--port", str(port), "--rank", "1", "--wait", "1", "--", "true"]
    assert ray_host.main(given) == 1
    assert "did not answer within 1 s" in capsys.readouterr().err


def test_the_others_leave_when_the_door_closes(monkeypatch):
    monkeypatch.setattr(ray_host, "_EVERY_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with ray_host._door(port):
        assert ray_host._answers("127.0.0.1", port)
        waiting = threading.Thread(target=ray_host._stay, args=("127.0.0.1", port))
        waiting.start()
        time.sleep(0.3)
        assert waiting.is_alive()
    waiting.join(timeout=5)
    assert not waiting.is_alive()
    assert ray_host._answers("127.0.0.1", port) is False


def test_a_host_that_knows_itself_as_the_loopback_gives_another_address(monkeypatch):
    monkeypatch.setattr(ray_host.socket, "gethostbyname", lambda name: "127.0.1.1" if name == "head" else name)
    monkeypatch.setattr(ray_host, "_towards", lambda address: "10.0.0.5")
    assert ray_host._own_address("head") == "10.0.0.5"
    assert ray_host._own_address("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize(("visible", "status"), [("1", Status.PASSED), ("2", Status.FAILED)])
def test_the_second_card_of_a_host_is_known_by_its_own_index(monkeypatch, visible, status):
    both = tuple(Card(number, "Tesla P40", f"GPU-{number}") for number in range(2))
    monkeypatch.setattr(nvml, "collect", lambda: HostFacts(cards=both))
    mine = nvml.of_card("1")
    facts = HostFacts(cards=mine.cards, torch=Torch(device_count=1), env={"CUDA_VISIBLE_DEVICES": visible})
    assert judge_visible(facts, mine.cards[0]).status is status
