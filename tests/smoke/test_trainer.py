"""verl's real main_ppo under Ray on a CPU, and what is read out of its console."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuilder.report.model import Status
from envbuilder.smoke import trainer_log, training
from envbuilder.smoke.checks import trainer
from envbuilder.smoke.context import Context, Options
from envbuilder.smoke.facts import HostFacts
from envbuilder.smoke.loop import PHASES
from envbuilder.smoke.manifest import load_manifest
from envbuilder.smoke.shapes import TOY
from envbuilder.smoke.trainer_log import TrainerStep, add_memory, read_step
from envbuilder.smoke.training import Setup, Training, _run, overrides
from tests.smoke.manifests import write_manifest

LINE = "(TaskRunner pid=1) step:7 - " + " - ".join(
    (
        *("actor/pg_loss:7.4e-09", "critic/vf_loss:0.02", "actor/grad_norm:3.3", "critic/grad_norm:1.2"),
        *("perf/max_memory_allocated_gb:np.float64(16.6)", "timing_s/gen:1.5", "timing_s/reward:0.01"),
        *("timing_s/old_log_prob:0.2", "timing_s/ref:0.3", "timing_s/values:0.1", "timing_s/adv:0.02"),
        *("timing_s/update_critic:0.4", "timing_s/update_actor:0.5", "timing_s/step:3.03"),
    )
)


def steps(count: int, **metrics: float) -> list[TrainerStep]:
    made = []
    for number in range(1, count + 1):
        step = read_step(LINE, 100.0 + 3.03 * number)
        assert step is not None
        step.number, step.memory_bytes = number, 13 * 2**30
        step.metrics |= metrics
        made.append(step)
    return made


def test_a_console_line_is_read_by_phase() -> None:
    step = read_step(LINE, 1.0)
    assert step is not None
    assert step.number == 7
    assert step.metrics["perf/max_memory_allocated_gb"] == 16.6
    assert step.seconds == pytest.approx(dict(zip(PHASES, (1.5, 0.5, 0.13, 0.5, 0.4), strict=True)))
    assert read_step("step 7 of 9", 1.0) is None


def test_memory_is_the_least_within_a_step_of_the_worker_that_uses_most(tmp_path: Path) -> None:
    rows = [(100.5, 5, 9), (101.0, 8, 9), (103.5, 6, 9), (104.0, 9, 9)]
    (tmp_path / "memory-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "[104.5, 1")
    (tmp_path / "memory-2.jsonl").write_text("[100.5, 1, 1]\n")
    series = steps(2)
    add_memory(series, tmp_path)
    assert [(step.memory_bytes, step.peak_bytes) for step in series] == [(5, 8), (6, 9)]


def test_a_step_that_has_just_ended_is_read_from_the_end_of_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(90.0 + number / 10, number, 0) for number in range(170)]
    (tmp_path / "memory-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(trainer_log, "_RECENT_BYTES", 808)
    step = steps(2)[1]  # from 103.03 to 106.06
    add_memory([step], tmp_path, recent=True)
    assert (step.memory_bytes, step.peak_bytes) == (131, 160)


def test_a_run_is_ended_some_time_after_its_first_step_with_the_steps_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the launcher prints a step every 0.2 s without end."""
    launcher = tmp_path / "launcher"
    launcher.write_text(f'#!/bin/sh\necho "rollout: a note"\nwhile true; do echo "{LINE}"; sleep 0.2; done\n')
    launcher.chmod(0o755)
    monkeypatch.setattr("envbuilder.smoke.training.sys.executable", str(launcher))
    result = _run(Setup(TOY, "cpu", 1000, limit_s=0.7), tmp_path, lambda step: None)
    assert result.code == 0
    assert 1 < len(result.steps) < 20
    assert result.notes == ["rollout: a note"]


SETUP = Setup(TOY, "cpu", 12)
PLACED = {"weights_bytes": 2**20, "optimiser_bytes": 0, "off_device_bytes": 0, "fsdp_offloads": False, "looks": 60}
ROLES = {"actor": PLACED, "reference": PLACED, "critic": PLACED}
GUARDED = [{"operations watched": 9000, "placement": {"device": "cuda", "roles": ROLES}}]
OFFLOADED = {**ROLES, "reference": {**PLACED, "off_device_bytes": 2**20}}


@pytest.mark.parametrize(
    ("training", "status", "says"),
    [
        (Training(steps(12), guarded=GUARDED), Status.PASSED, "no growth"),
        (Training(steps(12)), Status.FAILED, "no worker was guarded"),
        (Training(steps(12), guarded=[{"operations watched": 9000}]), Status.FAILED, "nobody looked where the actor"),
        (
            Training(steps(12), guarded=[{**GUARDED[0], "placement": {"device": "cuda", "roles": OFFLOADED}}]),
            Status.FAILED,
            "1.0 MiB of the reference lay off the device",
        ),
        (Training(steps(9), code=1, tail=["died"], guarded=GUARDED), Status.FAILED, "9 of 12 steps"),
        (Training(steps(12, **{"critic/vf_loss": float("nan")}), guarded=GUARDED), Status.FAILED, "critic/vf_loss"),
    ],
)  # fmt: skip
def test_the_verdict_over_a_run(training: Training, status: Status, says: str) -> None:
    outcome = trainer.judge(training, SETUP, "cpu")
    assert outcome.status is status
    assert says in outcome.message


def test_a_leak_in_the_trainer_is_caught() -> None:
    leaking = steps(12)
    for step in leaking:
        step.memory_bytes += step.number * 10_000_000
    assert trainer.judge(Training(leaking, guarded=GUARDED), SETUP, "cuda").status is Status.FAILED


def test_every_override_exists_in_verl(tmp_path: Path) -> None:
    import verl.trainer
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(Path(verl.trainer.__file__).with_name("config")), version_base=None):
        config = compose("ppo_trainer", overrides=list(overrides(SETUP, tmp_path)))
    assert config.actor_rollout_ref.actor.fsdp_config.model_dtype == "fp32"
    assert config.actor_rollout_ref.actor.fsdp_config.param_offload is False
    assert config.trainer.total_training_steps == 12


@pytest.mark.e2e
def test_main_ppo_trains_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = write_manifest(tmp_path / "stack.json")
    for name, value in (("ENVBUILDER_STACK", str(profile)), ("CUDA_VISIBLE_DEVICES", ""), ("HF_HUB_OFFLINE", "1")):
        monkeypatch.setenv(name, value)
    context = Context(Options("cpu", trainer=True, steps=12), load_manifest(profile), HostFacts(), lambda event: None)
    outcome = trainer.run(context)
    assert outcome.status is not Status.FAILED, outcome
    assert "actor 0.4 + 0.8, reference 0.4, critic 0.4 + 0.8" in outcome.evidence["nothing off the device"]
    measured = context.measured["trainer"]
    assert [step["number"] for step in measured["steps"]] == list(range(1, 13))
    assert max(process["operations watched"] for process in measured["guarded"]) > 12 * 3000


@pytest.mark.e2e
def test_an_offloaded_reference_in_main_ppo_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = write_manifest(tmp_path / "stack.json")
    for name, value in (("ENVBUILDER_STACK", str(profile)), ("CUDA_VISIBLE_DEVICES", ""), ("HF_HUB_OFFLINE", "1")):
        monkeypatch.setenv(name, value)
    offload = "actor_rollout_ref.ref.fsdp_config.param_offload=True"
    monkeypatch.setattr(training, "overrides", lambda setup, folder: [*overrides(setup, folder), offload])
    context = Context(Options("cpu", trainer=True, steps=2), load_manifest(profile), HostFacts(), lambda event: None)
    outcome = trainer.run(context)
    assert outcome.status is Status.FAILED
    assert outcome.message.startswith("FSDP offloads the reference to the CPU")
