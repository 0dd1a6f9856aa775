"""The plan is asked first: which micro batch, with or without checkpointing, fits the card and costs least time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from envbuilder.stack.gpu import GpuProfile
from envbuilder.train.decoder_config import DecoderConfig
from envbuilder.train.plan import GIB, Plan, Setting, make_plan
from envbuilder.train.settings import Wanted

# The rollout decodes so many sequences at a time (envbuilder.train.rollout.decoder.MAX_BATCH; that module needs torch).
DECODED_AT_ONCE = 8


@dataclass(frozen=True)
class Choice:
    """What was chosen, and whether it fits. ``tried`` are the peaks in bytes of what was looked at before it."""

    setting: Setting
    plan: Plan
    peak: int
    limit: int
    tried: tuple[tuple[str, int], ...]

    @property
    def fits(self) -> bool:
        """Whether the peak stays within what the card leaves to a program."""
        return self.peak <= self.limit

    @property
    def told(self) -> str:
        """The choice in words."""
        parts = [f"micro batch {self.setting.batch}"]
        parts.append("gradient checkpointing" if self.setting.checkpointing else "no checkpointing")
        return ", ".join([*parts, *(["optimiser states in host memory"] if self.setting.offload_optimiser else [])])

    @property
    def summary(self) -> str:
        """Peak against limit, in one line."""
        return f"{self.told}: peak {self.peak / GIB:.1f} of {self.limit / GIB:.1f} GiB"


def choose(model: DecoderConfig, wanted: Wanted, gpu: GpuProfile, attention: str) -> Choice:
    """The first that fits of: large micro batches before small ones, without checkpointing before with it.

    The arithmetic of a step is the same for every micro batch, and checkpointing computes a forward twice, so a smaller
    micro batch comes before it. What the user named is not varied. When nothing fits, the smallest peak is given.
    """
    limit = int(gpu.usable_memory_gib.value * GIB)
    choices = [
        _planned(model, wanted, gpu, attention, micro, checkpointing)
        for checkpointing in ((False, True) if wanted.checkpointing is None else (wanted.checkpointing,))
        for micro in (_divisors(wanted.batch) if wanted.micro_batch is None else (wanted.micro_batch,))
    ]
    tried: list[tuple[str, int]] = []
    for setting, plan, peak in choices:
        choice = Choice(setting, plan, peak, limit, tuple(tried))
        if choice.fits:
            return choice
        tried.append((choice.told, peak))
    setting, plan, peak = min(choices, key=lambda c: c[2])
    return Choice(setting, plan, peak, limit, tuple(tried))


def what_would_fit(model: DecoderConfig, wanted: Wanted, gpu: GpuProfile, attention: str) -> list[str]:
    """What to change, each as options of the command, that makes the run fit; the least painful first."""
    ways: list[tuple[str, Wanted]] = []
    if wanted.micro_batch is not None or wanted.checkpointing is not None:
        ways.append(
            (
                "leave --micro-batch and --checkpointing to the plan",
                replace(wanted, micro_batch=None, checkpointing=None),
            )
        )
    free = replace(wanted, micro_batch=None, checkpointing=None)
    if not wanted.offload:
        ways.append(("--offload (optimiser states in host memory, slow)", replace(free, offload=True)))
    for response, prompt in ((wanted.response // 2, wanted.prompt), (wanted.response // 2, wanted.prompt // 2)):
        if response >= 1 and prompt >= 1:
            for offload in (False, True):
                ways.append(
                    (
                        f"--prompt {prompt} --response {response}" + (" --offload" if offload else ""),
                        replace(free, prompt=prompt, response=response, offload=offload),
                    )
                )
    return [text for text, changed in ways if choose(model, changed, gpu, attention).fits]


def _planned(
    model: DecoderConfig, wanted: Wanted, gpu: GpuProfile, attention: str, micro: int, checkpointing: bool
) -> tuple[Setting, Plan, int]:
    setting = Setting(wanted.prompt, wanted.response, micro, checkpointing, attention, offload_optimiser=wanted.offload)
    plan = make_plan(model, setting, gpu)
    rollout = make_plan(model, replace(setting, batch=min(wanted.batch, DECODED_AT_ONCE)), gpu)
    return setting, plan, max(plan.peak, rollout.phases["rollout"])


def _divisors(batch: int) -> list[int]:
    return [size for size in range(batch, 0, -1) if batch % size == 0]
