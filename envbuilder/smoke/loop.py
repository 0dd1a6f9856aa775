"""PPO steps in one process with verl's own classes: actor, critic, reference, HF rollout, advantage, losses.

No Ray, no FSDP: plain torch modules and a process group of one. Each step is timed by phase and its memory measured.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from envbuilder.smoke import footprint
from envbuilder.smoke.shapes import QWEN_0_5B, TOY, Shape, config

if TYPE_CHECKING:
    from envbuilder.smoke.context import Context

PHASES = ("rollout", "log-probs", "advantage", "actor", "critic")


@dataclass(frozen=True)
class Sizes:
    """Sizes of one step, in tokens and sequences."""

    prompt: int = 24
    response: int = 8
    batch: int = 2


@dataclass
class Step:
    """What one step did: seconds by phase, memory in bytes after it and at its peak, and verl's own metrics."""

    number: int
    seconds: dict[str, float] = field(default_factory=dict)
    memory_bytes: int = 0
    peak_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-typed."""
        return asdict(self)


# On a card, what people train first, so that memory and step times mean something; elsewhere, what is done in seconds.
ON_GPU = (QWEN_0_5B, Sizes(prompt=128, response=16, batch=2))
ON_CPU = (TOY, Sizes())


def standard(on_gpu: bool) -> tuple[Shape, Sizes]:
    """The model and the sizes that many steps are run with."""
    return ON_GPU if on_gpu else ON_CPU


class PpoLoop:
    """Builds the models once and steps as often as asked.

    ``shape`` and ``sizes`` say how large; ``attention`` is the stack's. ``prompts`` are token ids; random ones are
    drawn without them. Raises whatever verl or torch raises.
    """

    def __init__(
        self, context: Context, shape: Shape, sizes: Sizes, prompts: list[list[int]] | None = None, eos: int = 2
    ) -> None:
        import envbuilder.smoke.external_lib  # noqa: F401  # adapts this process to the stack, before verl is imported

        footprint.stand_in_for_cpu_memory(context.on_gpu)
        self.context, self.shape, self.sizes, self.eos = context, shape, sizes, eos
        self._prompts = prompts
        self.cold: dict[str, float] = {}
        with context.timed(self.cold, "workers"):
            _process_group()
            self.config = _verl_config(context, sizes)
        with context.timed(self.cold, "weights"):
            self._build(str(context.manifest.stack["compute"]["attention"]))
        self.number = 0

    def _build(self, attention: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoModelForTokenClassification
        from verl.workers.actor import DataParallelPPOActor
        from verl.workers.critic import DataParallelPPOCritic
        from verl.workers.rollout.hf_rollout import HFRollout

        device = torch.device(self.context.device)
        torch.manual_seed(0)
        with device:
            actor = AutoModelForCausalLM.from_config(config(self.shape, attention))
            reference = AutoModelForCausalLM.from_config(config(self.shape, attention))
            made = config(self.shape, attention)
            made.num_labels, made.classifier_dropout, made.hidden_dropout = 1, 0.0, 0.0
            critic = AutoModelForTokenClassification.from_config(made)
        reference.load_state_dict(actor.state_dict())
        reference.requires_grad_(False)
        self.modules = {"actor": actor, "critic": critic, "reference": reference}
        self.optimisers = [torch.optim.AdamW(m.parameters(), lr=1e-6) for m in (actor, critic)]
        roles = self.config.actor_rollout_ref
        self.actor = DataParallelPPOActor(roles.actor, actor, self.optimisers[0])
        self.reference = DataParallelPPOActor(roles.ref, reference)
        self.critic = DataParallelPPOCritic(self.config.critic, critic, self.optimisers[1])
        self.rollout = HFRollout(actor, roles.rollout)

    def step(self) -> Step:
        """One PPO step: rollout, log-probs, advantage (values included), update of the actor, update of the critic."""
        import torch

        step = Step(self.number)
        footprint.reset_peak(self.context.on_gpu)
        times = step.seconds
        with self.context.timed(times, "rollout"):
            data = self.rollout.generate_sequences(self._batch())
        self._check_rollout(data)
        data.batch["response_mask"] = data.batch["attention_mask"][:, -self.sizes.response :]
        data.meta_info = {"micro_batch_size": self.sizes.batch, "temperature": 1.0, "use_dynamic_bsz": False}
        with self.context.timed(times, "log-probs"):
            data.batch["old_log_probs"], _ = self.actor.compute_log_prob(data)
            data.batch["ref_log_prob"], _ = self.reference.compute_log_prob(data)
        with self.context.timed(times, "advantage"):
            data = self._advantage(data)
        data.meta_info = {"temperature": 1.0, "multi_turn": False}
        with self.context.timed(times, "actor"):
            metrics = self.actor.update_policy(data)
        with self.context.timed(times, "critic"):
            metrics |= self.critic.update_critic(data)
        step.metrics = {name: float(torch.tensor(values).mean()) for name, values in metrics.items()}
        step.metrics["response tokens"] = float(data.batch["response_mask"].sum())
        step.metrics["reward"] = float(data.batch["token_level_scores"].sum(-1).mean())
        del data
        step.memory_bytes, step.peak_bytes = footprint.used(self.context.on_gpu), footprint.peak(self.context.on_gpu)
        self.number += 1
        return step

    def _batch(self) -> Any:
        import torch
        from verl import DataProto

        size, length, device = self.sizes.batch, self.sizes.prompt, self.context.device
        ids = torch.zeros(size, length, dtype=torch.long)
        mask = torch.zeros(size, length, dtype=torch.long)
        generator = torch.Generator().manual_seed(self.number)
        for row in range(size):
            if self._prompts:
                tokens = torch.tensor(self._prompts[(self.number * size + row) % len(self._prompts)][-length:])
            else:
                short = int(torch.randint(length // 2, length + 1, (1,), generator=generator))
                tokens = torch.randint(3, self.shape.vocab_size, (short,), generator=generator)
            ids[row, length - len(tokens) :] = tokens
            mask[row, length - len(tokens) :] = 1
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        tensors = {"input_ids": ids.to(device), "attention_mask": mask.to(device), "position_ids": positions.to(device)}
        meta = {"eos_token_id": self.eos, "pad_token_id": 0, "do_sample": True}
        return DataProto.from_dict(tensors, meta_info=meta)

    def _check_rollout(self, data: Any) -> None:
        width = self.sizes.prompt + self.sizes.response
        if tuple(data.batch["input_ids"].shape) != (self.sizes.batch, width):
            raise ValueError(
                f"the rollout has shape {tuple(data.batch['input_ids'].shape)}, not {(self.sizes.batch, width)}"
            )

    def _advantage(self, data: Any) -> Any:
        import torch
        from verl.trainer.ppo.core_algos import AdvantageEstimator, kl_penalty
        from verl.trainer.ppo.ray_trainer import compute_advantage

        mask = data.batch["response_mask"]
        data.batch["values"] = self.critic.compute_values(data)
        # The reward: the share of the response's tokens in the upper half of the vocabulary, on its last token. Any
        # rule serves; this one differs from response to response.
        upper = ((data.batch["responses"] >= self.shape.vocab_size // 2) * mask).sum(-1) / mask.sum(-1).clamp(min=1)
        rewards = torch.zeros_like(data.batch["old_log_probs"])
        rewards[torch.arange(len(mask)), (mask.sum(-1) - 1).clamp(min=0)] = upper.to(rewards.dtype)
        penalty = kl_penalty(data.batch["old_log_probs"], data.batch["ref_log_prob"], "kl")
        data.batch["token_level_scores"] = rewards
        data.batch["token_level_rewards"] = rewards - 0.001 * penalty * mask
        return compute_advantage(
            data, AdvantageEstimator.GAE, gamma=1.0, lam=1.0, num_repeat=1, config=self.config.algorithm
        )

    def memory_by_module(self, peak_bytes: int) -> dict[str, float]:
        """MiB by module. Activations are what the peak holds beyond everything else, gradients among the rest."""
        sizes = {f"{name} weights": footprint.of_module(module) for name, module in self.modules.items()}
        sizes["optimiser states"] = sum(footprint.of_optimiser(o) for o in self.optimisers)
        tokens = self.sizes.prompt + self.sizes.response
        at_rest = sum(sizes.values())
        sizes["key-value cache"] = self.shape.cache_bytes(tokens, self.sizes.batch)
        # One model's gradients live at a time: the actor's are freed before the critic's update begins.
        sizes["gradients"] = max(footprint.of_module(self.modules[name]) for name in ("actor", "critic"))
        if self.context.on_gpu:
            sizes["activations and work space"] = max(0, peak_bytes - at_rest - sizes["gradients"])
        return {name: round(size / 2**20, 2) for name, size in sizes.items()}


def _process_group() -> None:
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def _verl_config(context: Context, sizes: Sizes) -> Any:
    """verl's own configuration, composed by hydra from its installed files, with what the card needs."""
    from pathlib import Path

    import verl.trainer
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    folder = Path(verl.trainer.__file__).with_name("config")
    with initialize_config_dir(str(folder), version_base=None):
        made = compose(
            "ppo_trainer",
            overrides=[
                "algorithm.adv_estimator=gae",
                "actor_rollout_ref.actor.use_torch_compile=False",
                "actor_rollout_ref.ref.use_torch_compile=False",
                f"actor_rollout_ref.actor.ppo_mini_batch_size={sizes.batch}",
                f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={sizes.batch}",
                f"critic.ppo_mini_batch_size={sizes.batch}",
                f"critic.ppo_micro_batch_size_per_gpu={sizes.batch}",
                "actor_rollout_ref.rollout.name=hf",
                "actor_rollout_ref.rollout.dtype=float32",
                "actor_rollout_ref.rollout.n=1",
                f"actor_rollout_ref.rollout.prompt_length={sizes.prompt}",
                f"actor_rollout_ref.rollout.response_length={sizes.response}",
                "actor_rollout_ref.rollout.top_k=0",
            ],
        )
    return made


def run(loop: PpoLoop, steps: int, check: str) -> list[Step]:
    """``steps`` steps, each told to whoever watches as it ends."""
    done = []
    for _ in range(steps):
        begin = time.perf_counter()
        step = loop.step()
        loop.context.emit(
            {"event": "step", "id": check, "step": step.number, "seconds": round(time.perf_counter() - begin, 3),
             "memory_mib": round(step.memory_bytes / 2**20, 1)}
        )  # fmt: skip
        done.append(step)
    return done
