"""The plan is asked first: which micro batch, with or without checkpointing, fits the card and costs least time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from envbuilder.stack.gpu import GpuProfile
from envbuilder.train.decoder_config import DecoderConfig
from envbuilder.train.plan import GIB, Plan, Setting, make_plan
from envbuilder.train.settings import Wanted

# The rollout decodes so many sequences at a time (envbuilder.train.rollout.decoder.MAX_BATCH; that module needs torch).
DECODED_AT_ONCE = 8
# Every measured peak was within 10 % of the planned one (tests/data/memory).
_PRECISION = 1.1


@dataclass(frozen=True)
class Choice:
    """What was chosen, and whether it fits. ``tried`` are the peaks in bytes of what was looked at before it."""

    setting: Setting
    plan: Plan
    peak: int
    limit: int
    tried: tuple[tuple[str, int], ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the peak stays within what the card leaves to a program."""
        return self.peak <= self.limit

    @property
    def told(self) -> str:
        """The choice in words."""
        parts = [f"micro batch {self.setting.batch}"]
        parts.append("gradient checkpointing" if self.setting.checkpointing else "no checkpointing")
        parts += ["optimiser states in host memory"] if self.setting.offload_optimiser else []
        parts += ["the reference in host memory"] if self.setting.offload_reference else []
        return ", ".join(parts)

    @property
    def summary(self) -> str:
        """Peak against limit, in one line."""
        return f"{self.told}: peak {self.peak / GIB:.1f} of {self.limit / GIB:.1f} GiB"


def choose(model: DecoderConfig, wanted: Wanted, gpu: GpuProfile, attention: str) -> Choice:
    """The first that fits of: large micro batches before small ones, without checkpointing before with it.

    One that fits with room for the plan's own error comes before any that just fits. The arithmetic of a step is the
    same for every micro batch, and checkpointing computes a forward twice, so a smaller micro batch comes before it.
    What the user named is not varied. When nothing fits, the smallest peak is given.
    """
    limit = int(gpu.usable_memory_gib.value * GIB)
    choices = [
        _planned(model, wanted, gpu, attention, micro, checkpointing)
        for checkpointing in ((False, True) if wanted.checkpointing is None else (wanted.checkpointing,))
        for micro in (_divisors(wanted.batch) if wanted.micro_batch is None else (wanted.micro_batch,))
    ]
    tried = [(Choice(setting, plan, peak, limit).told, peak) for setting, plan, peak in choices]
    for most in (limit / _PRECISION, limit):
        for number, (setting, plan, peak) in enumerate(choices):
            if peak <= most:
                return Choice(setting, plan, peak, limit, tuple(tried[:number]))
    setting, plan, peak = min(choices, key=lambda c: c[2])
    return Choice(setting, plan, peak, limit, tuple(tried))


def what_would_fit(model: DecoderConfig, wanted: Wanted, gpu: GpuProfile, attention: str) -> list[str]:
    """What to change, each as options of the command, that makes the run fit; the least painful first."""
    free = replace(wanted, micro_batch=None, checkpointing=None)
    ways = []
    if free != wanted and choose(model, free, gpu, attention).fits:
        ways.append("leave --micro-batch and --checkpointing to the plan")
    offloads = [o for o in (("reference",), ("optimiser",), ("optimiser", "reference")) if set(o) > set(wanted.offload)]
    for part in (1, 2, 4, 8):
        prompt, response = max(1, wanted.prompt // part), max(1, wanted.response // part)
        for offload in (wanted.offload, *offloads):
            changed = replace(free, prompt=prompt, response=response, offload=offload)
            if changed != free and choose(model, changed, gpu, attention).fits:
                options = [f"--prompt {prompt} --response {response}"] if part > 1 else []
                ways.append(" ".join([*options, *(f"--offload {name}" for name in offload)]))
                break
    return ways[:3]


def _planned(
    model: DecoderConfig, wanted: Wanted, gpu: GpuProfile, attention: str, micro: int, checkpointing: bool
) -> tuple[Setting, Plan, int]:
    setting = Setting(
        wanted.prompt,
        wanted.response,
        micro,
        checkpointing,
        attention,
        offload_optimiser="optimiser" in wanted.offload,
        offload_reference="reference" in wanted.offload,
        accumulates=micro < wanted.batch,
    )
    plan = make_plan(model, setting, gpu)
    rollout = make_plan(model, replace(setting, batch=min(wanted.batch, DECODED_AT_ONCE)), gpu)
    return setting, plan, max(plan.peak, rollout.phases["rollout"])


def _divisors(batch: int) -> list[int]:
    return [size for size in range(batch, 0, -1) if batch % size == 0]
