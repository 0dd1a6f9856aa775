"""Many PPO steps: does memory grow? A regression over the steps says so, with its confidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envbuilder.smoke.check import Need, Outcome, Spec, failed, passed, unknown
from envbuilder.smoke.checks.guard import told
from envbuilder.smoke.checks.placed import evidence, offload_fault
from envbuilder.smoke.checks.ppo import record
from envbuilder.smoke.context import Context
from envbuilder.smoke.regression import LEAST, trend

# Growth that matters: over the 14,946 steps of two GSM8K epochs at batch 1, 0.064 MiB a step are 0.9 GiB. The resident
# memory of a CPU process wanders by more than a GPU's allocator, which counts exactly.
TOLERATED_MIB = {"cuda": 0.064, "cpu": 1.0}
_DEFAULT_STEPS = 50


def judge_growth(memory_mib: Sequence[float], device: str) -> Outcome:
    """The verdict on MiB in use, one value a step: grows, does not, or cannot be told."""
    found = trend(memory_mib)
    if found is None:
        return unknown(f"{len(memory_mib)} steps are too few to tell", f"Give --steps {LEAST * 2} or more.")
    allowed = TOLERATED_MIB[device]
    interval = f"{found.slope:+.3f} MiB a step, 95 % within {found.low:+.3f} to {found.high:+.3f}"
    evidence = {
        "slope MiB a step": round(found.slope, 4), "low": round(found.low, 4), "high": round(found.high, 4),
        "steps judged": found.count, "warm-up steps left out": found.skipped, "tolerated MiB a step": allowed,
    }  # fmt: skip
    if found.low > allowed:
        return failed(
            f"memory grows: {interval} over {found.count} steps",
            "Something keeps tensors of earlier steps: look for tensors put into lists or metrics without .item() or "
            ".detach().",
            **evidence,
        )
    if found.high > allowed:
        return unknown(f"growth cannot be ruled out: {interval}", "Give more --steps.", **evidence)
    return passed(f"no growth: {interval} over {found.count} steps", **evidence)


def run(context: Context) -> Outcome:
    """PPO steps under the guard, as many as --steps says: of Qwen2.5-0.5B's shape on a card, of a toy on a CPU."""
    from envbuilder.smoke.guard import Guard
    from envbuilder.smoke.loop import PpoLoop, standard
    from envbuilder.smoke.loop import run as run_steps
    from envbuilder.smoke.shapes import encode

    shape, sizes = standard(context.on_gpu)
    questions = Path(context.options.questions) if context.options.questions else None
    with Guard(dict(context.manifest.gpu)) as guard:
        loop = PpoLoop(context, shape, sizes, encode(questions, shape.vocab_size) if questions else None)
        steps = run_steps(loop, context.options.steps or _DEFAULT_STEPS, "soak")
    record(context, loop, steps, "soak")
    if (fault := told(guard.findings)) is not None:
        return fault
    placement = guard.facts["placement"]
    if (fault := offload_fault([placement])) is not None:
        return fault
    growth = judge_growth([s.memory_bytes / 2**20 for s in steps], context.device)
    return Outcome(growth.status, growth.message, {**growth.evidence, **evidence([placement])}, growth.cure)


SOAK = Spec(
    "soak",
    "memory over many steps",
    "memory does not grow from step to step",
    run,
    limit_s=7200,
    needs=frozenset({Need.SOAK}),
)
