"""One bad check never hides the others: it raises, hangs, dies or talks, and the rest still runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from envbuilder.errors import InputError
from envbuilder.report.model import Check, Status, Verdict
from envbuilder.smoke.check import Outcome, Spec
from envbuilder.smoke.context import Context, Options
from envbuilder.smoke.facts import HostFacts
from envbuilder.smoke.manifest import load_manifest
from envbuilder.smoke.registry import CHECKS, select
from envbuilder.smoke.runner import Plan, Result, run_suite
from envbuilder.smoke.verdict import judge
from envbuilder.smoke.worker import run_check
from envbuilder.stack.loading import load_stack
from envbuilder.stack.manifest import image_manifest_text
from tests.unit.smoke import stand_in_checks


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stack") / "stack.json"
    path.write_text(image_manifest_text(*load_stack("p40-debian"), lock_digest="sha256:0"))
    return path


@pytest.fixture(scope="module")
def run(profile: Path) -> tuple[Result, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    plan = Plan(stand_in_checks.CHECKS, Options(device="cpu"), profile, registry=stand_in_checks.__name__)
    return run_suite(plan, events.append), events


def test_every_check_has_its_own_outcome(run: tuple[Result, list[dict[str, Any]]]) -> None:
    result, _ = run
    assert [(check.id, check.status) for check in result.checks] == [
        ("first", Status.PASSED),
        ("raising", Status.FAILED),
        ("hanging", Status.FAILED),
        ("dying", Status.FAILED),
        ("noisy", Status.PASSED),
        ("last", Status.PASSED),
        ("card", Status.NOT_PROVEN),
    ]
    by_id = {check.id: check for check in result.checks}
    assert by_id["raising"].message == "RuntimeError: it went wrong"
    assert any("raising" in line for line in by_id["raising"].evidence["traceback"])
    assert "not done after its 1 s" in by_id["hanging"].message
    assert "SIGSEGV" in by_id["dying"].message
    assert "last words" in by_id["dying"].evidence["last lines"]
    assert by_id["card"].message == "needs a GPU"


def test_a_worker_is_shared_until_one_breaks_and_measures_survive(run: tuple[Result, list[dict[str, Any]]]) -> None:
    result, _ = run
    by_id = {check.id: check for check in result.checks}
    assert by_id["first"].evidence["pid"] != by_id["last"].evidence["pid"]
    assert result.measured["fine"] == {"seen": ["fine"]}  # what the first worker measured reached the last one


def test_what_a_hanging_check_started_is_ended_too(run: tuple[Result, list[dict[str, Any]]]) -> None:
    _, events = run
    pid = next(event["pid"] for event in events if event["event"] == "child")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.1)
    os.kill(pid, 9)
    pytest.fail("the child outlived its check")


def test_select_names_the_near_id() -> None:
    assert [spec.id for spec in select(only=["ppo", "matmul"])] == ["matmul", "ppo"]
    assert "ppo" not in {spec.id for spec in select(skip=["ppo"])}
    with pytest.raises(InputError) as caught:
        select(only=["matmull"])
    assert caught.value.cure == "Did you mean 'matmul'?"
    with pytest.raises(InputError):
        select(only=["ppo"], skip=["ppo"])


def test_ids_are_unique_and_every_check_says_what_it_proves() -> None:
    assert len({spec.id for spec in CHECKS}) == len(CHECKS)
    assert all(spec.proves and spec.title and spec.limit_s > 0 for spec in CHECKS)


def check(status: Status) -> Check:
    return Check("x", "x", "x", status)


@pytest.mark.parametrize(
    ("statuses", "on_gpu", "verdict"),
    [
        ([Status.PASSED, Status.NOT_PROVEN], True, Verdict.YES),
        ([Status.PASSED, Status.FAILED], True, Verdict.NO),
        ([Status.PASSED, Status.UNKNOWN], True, Verdict.UNKNOWN),
        ([Status.NOT_PROVEN], True, Verdict.UNKNOWN),
        ([Status.PASSED], False, Verdict.UNKNOWN),
        ([Status.PASSED, Status.FAILED], False, Verdict.NO),
    ],
)
def test_the_verdict(statuses: list[Status], on_gpu: bool, verdict: Verdict) -> None:
    found, summary = judge([check(status) for status in statuses], on_gpu, "Tesla P40")
    assert found is verdict
    assert on_gpu or verdict is Verdict.NO or "nothing is proven" in summary


def test_memory_that_runs_out_is_told_with_what_the_profile_allows(profile: Path) -> None:
    class OutOfMemoryError(RuntimeError):
        """By the name of torch's own."""

    def run(context: Context) -> Outcome:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 520.00 MiB. GPU 0 has 22 GiB.")

    context = Context(Options(device="cpu"), load_manifest(profile), HostFacts(), lambda event: None)
    check = run_check(Spec("x", "x", "x", run), context)
    assert check.status is Status.FAILED
    assert check.message.startswith("CUDA out of memory. Tried to allocate 520.00 MiB. ")
    assert check.message.endswith("held to 22.5 GiB of the card")
    assert "nvidia-smi" in check.cure
