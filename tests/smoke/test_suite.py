"""The suite with the real torch, transformers and verl on a CPU, and the faults it is there to catch, each planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from envbuilder.report.model import Status
from envbuilder.smoke.check import Outcome
from envbuilder.smoke.checks import generate, guard, host, numerics, ppo, soak
from envbuilder.smoke.context import Context, Options
from envbuilder.smoke.facts import HostFacts
from envbuilder.smoke.manifest import Manifest, load_manifest
from tests.smoke.manifests import write_manifest


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_manifest(tmp_path_factory.mktemp("stack") / "stack.json")


@pytest.fixture(scope="session")
def manifest(profile: Path) -> Manifest:
    os.environ["ENVBUILDER_STACK"] = str(profile)
    return load_manifest(profile)


@pytest.fixture
def context(manifest: Manifest) -> Context:
    return Context(Options(device="cpu", soak=True, steps=24), manifest, HostFacts(), lambda event: None)


def judged(name: str, context: Context) -> Outcome:
    return next(spec for spec in host.HOST if spec.id == name).run(context)


def test_clean_checks_pass(context: Context) -> None:
    for run in (numerics.matmul, numerics.convolution, guard.run, generate.run):
        outcome = run(context)
        assert outcome.status is Status.PASSED, outcome


def test_a_nan_in_a_product_is_caught(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.Tensor.__matmul__

    def faulty(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result = original(a, b)
        if result.dtype is torch.float32:
            result[-1, -1] = float("nan")  # outside the rows that are held against float64
        return result

    monkeypatch.setattr(torch.Tensor, "__matmul__", faulty)
    outcome = numerics.matmul(context)
    assert outcome.status is Status.FAILED
    assert "NaN" in outcome.message


def test_a_product_as_rough_as_tf32_is_caught(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.Tensor.__matmul__

    def rough(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        # TF32 keeps 10 bits of the fraction of a float32.
        cut = [(t.view(torch.int32) & ~0x1FFF).view(torch.float32) if t.dtype is torch.float32 else t for t in (a, b)]
        return original(*cut)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rough)
    outcome = numerics.matmul(context)
    assert outcome.status is Status.FAILED
    assert "TF32" in outcome.message


def test_a_wrong_arch_list_is_caught(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged("arch", context).status is Status.PASSED
    context.facts = HostFacts()
    monkeypatch.setattr(torch._C, "_cuda_getArchFlags", lambda: "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120")
    outcome = judged("arch", context)
    assert outcome.status is Status.FAILED
    assert "sm_60 or sm_61" in outcome.message
    assert "2.6.0+cu118" in outcome.cure


def test_a_missing_cudnn_is_caught(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "9.1.0" in judged("cudnn", context).message

    def missing() -> int:
        raise RuntimeError("libcudnn.so.9: cannot open shared object file: No such file or directory")

    context.facts = HostFacts()
    monkeypatch.setattr(torch.backends.cudnn, "version", missing)
    outcome = judged("cudnn", context)
    assert outcome.status is Status.FAILED
    assert "no cuDNN" in outcome.message


def test_a_ppo_step_passes_and_is_measured(context: Context) -> None:
    outcome = ppo.step(context)
    assert outcome.status is Status.PASSED, outcome
    measured = context.measured["ppo"]
    assert set(measured["phases s"]) == {"rollout", "log-probs", "advantage", "actor", "critic"}
    assert all(seconds > 0 for seconds in measured["phases s"].values())
    # 2 layers, hidden 64, tied embeddings of 512 tokens: counted by hand from the shape.
    memory = measured["memory by module MiB"]
    assert memory["actor weights"] == pytest.approx(0.41, abs=0.05)
    assert memory["optimiser states"] == pytest.approx(
        2 * (memory["actor weights"] + memory["critic weights"]), rel=0.1
    )


def test_a_bfloat16_cast_in_the_actor_is_caught(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP

    original = Qwen2MLP.forward

    def narrow(self: Any, x: torch.Tensor) -> torch.Tensor:
        return original(self, x.to(torch.bfloat16).to(torch.float32))

    monkeypatch.setattr(Qwen2MLP, "forward", narrow)
    outcome = ppo.step(context)
    assert outcome.status is Status.FAILED
    assert "bfloat16" in outcome.message


def test_one_token_ends_no_run_and_would_without_the_adaptation(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ppo.one_token(context).status is Status.PASSED
    import verl.utils.torch_functional as functional

    monkeypatch.setattr(functional, "masked_var", functional.masked_var.__wrapped__)
    outcome = ppo.one_token(context)
    assert outcome.status is Status.FAILED
    assert "sum of the mask is one" in outcome.message


def test_no_leak_is_no_growth(context: Context) -> None:
    outcome = soak.run(context)
    assert outcome.status is not Status.FAILED, outcome.message
    assert len(context.measured["soak"]["steps"]) == 24


def test_a_leak_of_10_mb_a_step_is_caught(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.workers.critic import DataParallelPPOCritic

    kept: list[torch.Tensor] = []
    original = DataParallelPPOCritic.update_critic

    def leaking(self: Any, data: Any) -> Any:
        kept.append(torch.ones(2_500_000))
        return original(self, data)

    monkeypatch.setattr(DataParallelPPOCritic, "update_critic", leaking)
    outcome = soak.run(context)
    assert outcome.status is Status.FAILED, outcome
    assert outcome.evidence["slope MiB a step"] == pytest.approx(9.5, abs=2.0)


def test_the_whole_suite_on_a_cpu(profile: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "envbuilder.smoke", "--device", "cpu", "--profile", str(profile)],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    events = [json.loads(line) for line in done.stdout.splitlines()]
    report = events[-1]
    failed = [check for check in report["checks"] if check["status"] == "failed"]
    assert failed == []
    assert done.returncode == 3
    assert report["verdict"] == "not enough to tell"
    passed = {check["id"] for check in report["checks"] if check["status"] == "passed"}
    assert passed >= {"imports", "arch", "cudnn", "guard", "matmul", "convolution", "generate", "one-token", "ppo"}
    assert {"driver", "card", "nccl", "bandwidth"} <= {
        check["id"] for check in report["checks"] if check["status"] == "not proven here"
    }
    assert report["facts"]["passport"]["torch"].startswith("2.6.0")


def test_a_missing_profile_and_an_unknown_check_are_wrong_use(profile: Path) -> None:
    for arguments, says in (
        (["--profile", "/nowhere.json"], "no description of the stack"),
        (["--profile", str(profile), "--only", "ppoo"], "Did you mean 'ppo'?"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "envbuilder.smoke", "--device", "cpu", *arguments],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert says in done.stderr
        assert "Traceback" not in done.stderr
