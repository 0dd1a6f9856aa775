"""``ref.fsdp_config.param_offload`` decides where the reference lies: verl's workers on a CPU, both kinds of FSDP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.errors import HostError
from envbuilder.smoke import reference
from tests.smoke.manifests import ROOT, write_manifest

# FSDP of the first kind syncs weights at its start through a GPU only; in a group of one there is nothing to sync.
_WORKERS = """
import envbuilder.smoke.external_lib, json, os, sys
from pathlib import Path
from envbuilder.smoke.ray_worker import stand_in_for_gpu
stand_in_for_gpu()
import torch, verl.trainer, verl.workers.fsdp_workers as workers
from hydra import compose, initialize_config_dir
from verl import DataProto
from envbuilder.smoke.placement import PlacementWatch
from envbuilder.smoke.shapes import TOY, write_model
from envbuilder.smoke.training import Setup, overrides

fsdp = workers.FSDP
workers.FSDP = lambda module, **given: fsdp(module, **{**given, "sync_module_states": False})
folder = Path(sys.argv[1])
write_model(folder / "model", TOY)
ids = torch.randint(3, 500, (2, 12), generator=torch.Generator().manual_seed(1))
positions = torch.arange(12).repeat(2, 1)

def batch():
    tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": positions}
    return DataProto.from_dict({**tensors, "responses": ids[:, -4:], "response_mask": torch.ones(2, 4)})

from transformers import AutoModelForCausalLM
plain = AutoModelForCausalLM.from_pretrained(folder / "model")
with torch.no_grad():
    logits = plain(input_ids=ids).logits[:, -5:-1]
expected = torch.log_softmax(logits, -1).gather(-1, ids[:, -4:, None]).squeeze(-1)

seen = {}
for strategy in ("fsdp", "fsdp2"):
    for offload in (False, True):
        chosen = [*overrides(Setup(TOY, "cpu", 1), folder), f"actor_rollout_ref.actor.strategy={strategy}",
                  f"critic.strategy={strategy}", f"actor_rollout_ref.ref.fsdp_config.param_offload={offload}"]
        with initialize_config_dir(str(Path(verl.trainer.__file__).with_name("config")), version_base=None):
            config = compose("ppo_trainer", overrides=chosen)
        reference = workers.ActorRolloutRefWorker(config.actor_rollout_ref, role="ref")
        reference.init_model()
        critic = workers.CriticWorker(config.critic)
        critic.init_model()
        watch = PlacementWatch()
        watch.start()
        got = reference.compute_ref_log_prob(batch()).batch["ref_log_prob"]
        torch.testing.assert_close(got, expected)
        assert torch.isfinite(critic.compute_values(batch()).batch["values"]).all()
        seen[f"{strategy} {offload}"] = {role: p["fsdp_offloads"] for role, p in watch.facts["roles"].items()}
print("SEEN", json.dumps(seen))
"""


def test_the_setting_takes_effect_and_the_reference_computes_the_same(tmp_path: Path) -> None:
    environment = {
        **os.environ, "ENVBUILDER_STACK": str(write_manifest(tmp_path / "stack.json")), "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "", "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _WORKERS, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.rsplit("SEEN ", 1)[1])
    assert seen == {
        "fsdp False": {"reference": False, "critic": False},
        "fsdp True": {"reference": True, "critic": False},
        "fsdp2 False": {"reference": False, "critic": False},
        "fsdp2 True": {"reference": True, "critic": False},
    }


class StandInWithoutOffload:
    def _build_model_optimizer(self, fsdp_config: dict[str, Any], role: str) -> str:
        return f"built {role}"


class StandInOfAnotherForm:
    def _build_model_optimizer(self, fsdp_config: dict[str, Any], role: str) -> str:
        policy = "CPUOffload, decided somewhere else"
        return f"built {role}, {policy}"


def test_a_verl_that_forces_no_offload_is_left_alone() -> None:
    original = StandInWithoutOffload._build_model_optimizer
    reference.adapt(SimpleNamespace(ActorRolloutRefWorker=StandInWithoutOffload))  # type: ignore[arg-type]
    assert StandInWithoutOffload._build_model_optimizer is original


def test_a_verl_that_offloads_in_another_way_refuses_only_a_reference_that_is_to_stay() -> None:
    reference.adapt(SimpleNamespace(ActorRolloutRefWorker=StandInOfAnotherForm))  # type: ignore[arg-type]
    worker = StandInOfAnotherForm()
    assert worker._build_model_optimizer(fsdp_config={}, role="actor").startswith("built actor")
    assert worker._build_model_optimizer(fsdp_config={"param_offload": True}, role="ref").startswith("built ref")
    with pytest.raises(HostError, match="not known here"):
        worker._build_model_optimizer(fsdp_config={"param_offload": False}, role="ref")
