"""An FSDP unit a layer in the actor: verl's own worker on one rank, the first FSDP on the CPU, with and without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from envbuilder.smoke.shapes import TOY, write_model
from tests.smoke.manifests import ROOT, write_manifest

# In a process of its own: verl, transformers and FSDP are adapted for good.
WORKERS = """
import json, sys
import torch
import envbuilder.smoke.external_lib
from envbuilder.smoke.ray_worker import stand_in_for_gpu
stand_in_for_gpu()
from pathlib import Path
import verl.trainer
from hydra import compose, initialize_config_dir
from torch.distributed.fsdp import FullyShardedDataParallel
from verl import DataProto
from verl.workers import fsdp_workers
from envbuilder.smoke.verl_overrides import verl_overrides
from envbuilder.train.rollout import verl_rollout
from envbuilder.train.rollout.decoder import Decoder
from envbuilder.train.step import actor, wrapping

def on_cpu(*args, **kwargs):
    return FullyShardedDataParallel(*args, **kwargs | {"device_id": torch.device("cpu"), "sync_module_states": False})

fsdp_workers.FSDP = on_cpu
fsdp_workers.get_device_id = lambda: torch.device("cpu")
model, checkpoints = sys.argv[1:]
verl_rollout.install()
actor.install()

def start(lora=0):
    settings = [
        *verl_overrides("float32", "envbuilder.smoke.external_lib"), f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2", "actor_rollout_ref.rollout.n=1",
        "actor_rollout_ref.rollout.do_sample=False", "actor_rollout_ref.rollout.response_length=6",
        "actor_rollout_ref.actor.optim.lr=1e-3", f"actor_rollout_ref.model.lora_rank={lora}",
        "actor_rollout_ref.model.enable_gradient_checkpointing=True", "actor_rollout_ref.rollout.top_k=0",
        f"+actor_rollout_ref.actor.fsdp_config.use_orig_params={bool(lora)}",
    ]
    with initialize_config_dir(str(Path(verl.trainer.__file__).with_name("config")), version_base=None):
        config = compose("ppo_trainer", overrides=settings).actor_rollout_ref
    worker = fsdp_workers.ActorRolloutRefWorker(config, role="actor_rollout")
    worker.init_model()
    return worker

def prompts():
    ids = torch.randint(3, 512, (2, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return DataProto.from_dict({"input_ids": ids, "attention_mask": mask, "position_ids": positions})

def weights(module):
    with FullyShardedDataParallel.summon_full_params(module, writeback=False):
        named = module._fsdp_wrapped_module.named_parameters()
        return {name.replace("_fsdp_wrapped_module.", ""): value.detach().clone() for name, value in named}

def step(worker, number):
    data = worker.generate_sequences(prompts())
    data.batch["response_mask"] = data.batch["attention_mask"][:, -6:]
    data = data.union(worker.compute_log_prob(data))
    data.batch["advantages"] = torch.randn(2, 6, generator=torch.Generator().manual_seed(number))
    data.meta_info |= {"temperature": 1.0, "global_token_num": [12, 12], "multi_turn": False}
    metrics = worker.update_actor(data).meta_info["metrics"]
    return {
        "responses": data.batch["responses"].tolist(), "log_probs": data.batch["old_log_probs"].tolist(),
        "loss": metrics["actor/pg_loss"], "norm": metrics["actor/grad_norm"],
    }

def seen(module):
    # What the decoder would read, as verl calls it: addresses, and whether they hold the weights.
    with FullyShardedDataParallel.summon_full_params(module, writeback=False, recurse=False):
        found = Decoder._collect(None, module._fsdp_wrapped_module)
        first = found["layers"][1]["q"]
        return [first.data_ptr(), found["embed"].data_ptr()], first.clone()

def story(folder):
    worker = start()
    module = worker.actor_module_fsdp
    told = {"units": len(FullyShardedDataParallel.fsdp_modules(module)), "steps": [step(worker, 1)]}
    before, _ = seen(module)
    told["steps"].append(step(worker, 2))
    after, read = seen(module)
    told["same addresses"] = before == after
    told["reads the weights"] = torch.equal(read, weights(module)["model.layers.1.self_attn.q_proj.weight"])
    told["fallback"] = list(module.generate.reasons)
    worker.save_checkpoint(folder, global_step=2)
    saved = torch.load(f"{folder}/model_world_size_1_rank_0.pt", weights_only=False)
    told["saved"] = {name: list(value.shape) for name, value in saved.items()}
    told["steps"].append(step(worker, 3))
    told["weights"] = {name: value.flatten().tolist()[:40] for name, value in weights(module).items()}
    worker.load_checkpoint(folder)
    told["again"] = step(worker, 3)
    return told

told = {"flat": story(checkpoints + "/flat")}
wrapping.install()
wrapping.install()
told["wrapped"] = story(checkpoints + "/wrapped")
told["units with adapters"] = len(FullyShardedDataParallel.fsdp_modules(start(lora=4).actor_module_fsdp))
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("wrapping")
    write_model(folder / "model", TOY)
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "ENVBUILDER_STACK": str(write_manifest(folder / "stack.json")),
        "CUDA_VISIBLE_DEVICES": "", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WORKERS, str(folder / "model"), str(folder)],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_a_unit_a_layer_computes_the_same(told: dict[str, Any]) -> None:
    flat, wrapped = told["flat"], told["wrapped"]
    # The root's (embedding, last norm, the tied head) and one a layer.
    assert (flat["units"], wrapped["units"]) == (1, 1 + TOY.num_hidden_layers)
    for one, other in zip(flat["steps"], wrapped["steps"], strict=True):
        assert one["responses"] == other["responses"]
        for key in ("loss", "norm"):
            assert one[key] == pytest.approx(other[key], rel=1e-5, abs=1e-6)
        for row, its in zip(one["log_probs"], other["log_probs"], strict=True):
            assert row == pytest.approx(its, rel=1e-5)
    assert flat["weights"].keys() == wrapped["weights"].keys()
    for name, values in wrapped["weights"].items():
        # Adam turns the rounding of a gradient near zero into a whole step of lr: a few such weights may differ.
        assert sum(abs(a - b) > 1e-5 for a, b in zip(values, flat["weights"][name], strict=True)) <= 2


def test_the_decoder_reads_the_weights_where_they_lie(told: dict[str, Any]) -> None:
    assert told["wrapped"]["same addresses"]
    assert told["wrapped"]["reads the weights"]
    assert told["wrapped"]["fallback"], "on a CPU, Hugging Face's generate answers"


def test_a_checkpoint_goes_on_and_is_the_same_to_whoever_reads_it(told: dict[str, Any]) -> None:
    wrapped = told["wrapped"]
    assert wrapped["saved"] == told["flat"]["saved"]
    assert wrapped["again"]["responses"] == wrapped["steps"][2]["responses"]
    assert wrapped["again"]["norm"] == pytest.approx(wrapped["steps"][2]["norm"], rel=1e-5)


def test_adapters_keep_verls_one_unit(told: dict[str, Any]) -> None:
    assert told["units with adapters"] == 1
