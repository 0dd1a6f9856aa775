"""What verl 0.5.0 does to save memory, done to the in-process loop: LoRA, states and reference in host memory."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch

from envbuilder.smoke.loop import PpoLoop


def add_adapters(loop: PpoLoop, rank: int) -> None:
    """Train LoRA adapters on every projection of the actor; the reference is the actor without them.

    The critic is trained whole: verl's own way to give it adapters does not start (docs/train.md).
    """
    from peft import LoraConfig, TaskType, get_peft_model
    from verl.workers.actor import DataParallelPPOActor
    from verl.workers.rollout.hf_rollout import HFRollout

    config = LoraConfig(task_type=TaskType.CAUSAL_LM, r=rank, lora_alpha=16, target_modules="all-linear", bias="none")
    loop.modules["actor"].enable_input_require_grads()
    actor = get_peft_model(loop.modules["actor"], config)
    loop.modules = {"actor": actor, "critic": loop.modules["critic"]}
    loop.optimisers[0] = torch.optim.AdamW([p for p in actor.parameters() if p.requires_grad], lr=1e-6)
    roles = loop.config.actor_rollout_ref
    loop.actor = DataParallelPPOActor(roles.actor, actor, loop.optimisers[0])
    loop.rollout = HFRollout(actor, roles.rollout)

    def without(data: Any) -> Any:
        with actor.disable_adapter():
            return loop.actor.compute_log_prob(data)

    loop.reference = SimpleNamespace(compute_log_prob=without)


def offload_optimiser(loop: PpoLoop) -> None:
    """Optimiser states in host memory except while their model is updated, by verl's own functions."""
    from verl.utils.fsdp_utils import load_fsdp_optimizer, offload_fsdp_optimizer

    def during(call: Any, optimiser: Any) -> Any:
        @functools.wraps(call)
        def update(data: Any) -> Any:
            load_fsdp_optimizer(optimiser, loop.context.device)
            result = call(data)
            offload_fsdp_optimizer(optimiser)
            return result

        return update

    loop.actor.update_policy = during(loop.actor.update_policy, loop.optimisers[0])
    loop.critic.update_critic = during(loop.critic.update_critic, loop.optimisers[1])


def offload_reference(loop: PpoLoop) -> None:
    """The reference's weights in host memory except for its log-probabilities."""
    module, call = loop.modules["reference"], loop.reference.compute_log_prob
    module.to("cpu")

    def compute(data: Any) -> Any:
        module.to(loop.context.device)
        result = call(data)
        module.to("cpu")
        return result

    loop.reference.compute_log_prob = compute


def apply(loop: PpoLoop, saving: str) -> None:
    """``saving``: ``lora RANK``, ``optimiser``, ``reference``, or several with a comma between."""
    for name in saving.split(", "):
        if name.startswith("lora"):
            add_adapters(loop, int(name.split()[1]))
        else:
            {"optimiser": offload_optimiser, "reference": offload_reference}[name](loop)
