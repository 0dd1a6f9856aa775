"""PPO steps with verl's own classes under the guard, and a response of one token, which stops verl 0.5.0 as it is."""

from __future__ import annotations

import math
from statistics import median

from envbuilder.smoke.check import Outcome, Spec, failed, passed
from envbuilder.smoke.checks.guard import told
from envbuilder.smoke.checks.placed import evidence, offload_fault
from envbuilder.smoke.context import Context
from envbuilder.smoke.loop import PHASES, PpoLoop, Sizes, Step, run
from envbuilder.smoke.shapes import TOY


def step(context: Context) -> Outcome:
    """Two steps of a toy Qwen2; the second is the one that counts, since the first warms up."""
    from envbuilder.smoke.guard import Guard

    with Guard(dict(context.manifest.gpu)) as guard:
        loop = PpoLoop(context, TOY, Sizes())
        before = [p.detach().clone() for m in ("actor", "critic") for p in loop.modules[m].parameters()]
        steps = run(loop, 2, "ppo")
        after = [p for m in ("actor", "critic") for p in loop.modules[m].parameters()]
        moved = sum(bool((a != b).any()) for a, b in zip(before, after, strict=True))
    if (fault := told(guard.findings)) is not None:
        return fault
    placement = guard.facts["placement"]
    if (fault := offload_fault([placement])) is not None:
        return fault
    bad = {name: value for s in steps for name, value in s.metrics.items() if not math.isfinite(value)}
    if bad:
        return failed(f"not finite: {bad}", "See whether the FP32 checks pass; else report it with the JSON.")
    if not moved:
        return failed("no parameter of actor or critic moved", "Report it with the JSON.")
    record(context, loop, steps)
    return passed(
        f"two steps, {moved} of {len(after)} tensors moved, no guard finding",
        **{
            "step s": round(sum(steps[-1].seconds.values()), 3),
            **{f"{p} s": round(steps[-1].seconds[p], 3) for p in PHASES},
            **evidence([placement]),
        },
    )


def one_token(context: Context) -> Outcome:
    """A batch of one whose response is a single token: EOS at once."""
    loop = PpoLoop(context, TOY, Sizes(prompt=8, response=1, batch=1))
    try:
        done = loop.step()
    except ValueError as error:
        return failed(
            f"a response of one token ends the run: {error}",
            "verl's masked_var is not adapted here: import envbuilder.smoke.external_lib first, or patch verl.",
        )
    bad = [name for name, value in done.metrics.items() if not math.isfinite(value)]
    if bad:
        return failed(f"a response of one token gives {', '.join(bad)} that are not finite", "Report it with the JSON.")
    return passed("the step ends with finite losses")


def record(context: Context, loop: PpoLoop, steps: list[Step], part: str = "ppo") -> None:
    """Put phases, memory and every step into the report's facts, as ``part``."""
    cold = context.measured.setdefault("cold start", {})
    cold.update({name: round(seconds, 3) for name, seconds in loop.cold.items()})
    context.measured[part] = {
        "device": context.device,
        "shape": loop.shape.told,
        "sizes": {"prompt": loop.sizes.prompt, "response": loop.sizes.response, "batch": loop.sizes.batch},
        "phases s": {p: round(median(s.seconds[p] for s in steps[1:] or steps), 4) for p in PHASES},
        "memory by module MiB": loop.memory_by_module(max(s.peak_bytes for s in steps)),
        "steps": [s.to_dict() for s in steps],
    }


STEP = Spec(
    "ppo",
    "PPO step with verl's classes",
    "verl's actor, critic, HF rollout, advantage and losses run in the stack's dtype, with nothing that the card lacks",
    step,
    limit_s=180,
)
ONE_TOKEN = Spec(
    "one-token", "a response of one token", "a run at batch 1 does not end when the model says EOS at once", one_token,
    limit_s=180,
)  # fmt: skip
