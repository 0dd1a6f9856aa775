"""The real verl.trainer.main_ppo under Ray, with the HF rollout, for as many steps as asked."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from envbuilder.smoke.check import Need, Outcome, Spec, failed, passed
from envbuilder.smoke.checks.guard import told
from envbuilder.smoke.checks.placed import evidence as placed
from envbuilder.smoke.checks.placed import offload_fault
from envbuilder.smoke.context import Context
from envbuilder.smoke.regression import LEAST, warm_up

if TYPE_CHECKING:
    from envbuilder.smoke.training import Setup, Training

_DEFAULT_STEPS = 2


def run(context: Context) -> Outcome:
    """Train; the steps are verl's own, the memory is sampled in its workers."""
    from envbuilder.smoke.loop import standard
    from envbuilder.smoke.trainer_log import TrainerStep
    from envbuilder.smoke.training import Setup, train

    def tell(step: TrainerStep) -> None:
        context.emit(
            {"event": "step", "id": "trainer", "step": step.number,
             "seconds": round(step.metrics.get("timing_s/step", 0.0), 3),
             "memory_mib": round(step.memory_bytes / 2**20, 1)}
        )  # fmt: skip

    attention = str(context.manifest.stack["compute"]["attention"])
    shape, sizes = standard(context.on_gpu)
    questions = Path(context.options.questions) if context.options.questions else None
    steps = context.options.steps or _DEFAULT_STEPS
    prompt = max(sizes.prompt, 96)  # room for a question; what is longer is cut
    setup = Setup(shape, context.device, steps, prompt, sizes.response, sizes.batch, questions, attention)
    result = train(setup, tell)
    context.measured["trainer"] = measured(result, setup)
    return judge(result, setup, context.device)


def judge(result: Training, setup: Setup, device: str) -> Outcome:
    """Did it end well, with every step, finite losses, nothing that the card lacks, no offload, and no growth?"""
    from envbuilder.smoke.checks.soak import judge_growth

    evidence: dict[str, object] = {"steps": len(result.steps), "start s": round(result.startup_s, 1)}
    if result.code != 0 or len(result.steps) != setup.steps:
        return failed(
            f"the trainer ended with exit code {result.code} after {len(result.steps)} of {setup.steps} steps",
            "Its last lines are in the JSON.",
            last_lines=result.tail,
            **evidence,
        )
    if (fault := told(result.findings)) is not None:
        return fault
    if not any(process.get("operations watched") for process in result.guarded):
        return failed(
            "no worker was guarded, so the run proves nothing of the card", "Report it with the JSON.", **evidence
        )
    placements = [process["placement"] for process in result.guarded if process.get("placement")]
    if (fault := offload_fault(placements)) is not None:
        return fault
    evidence |= placed(placements)
    losses = ("actor/pg_loss", "critic/vf_loss", "actor/grad_norm", "critic/grad_norm")
    for step in result.steps:
        bad = [name for name in losses if not math.isfinite(step.metrics.get(name, math.nan))]
        if bad:
            return failed(
                f"step {step.number}: {', '.join(bad)} not finite or not reported", "See the FP32 checks.", **evidence
            )
    seconds = median(step.metrics["timing_s/step"] for step in result.steps)
    evidence |= {"median step s": round(seconds, 2)}
    if len(result.steps) - warm_up(len(result.steps)) < LEAST:
        return passed(f"{len(result.steps)} steps; to judge growth takes {LEAST} after the warm-up", **evidence)
    growth = judge_growth([step.memory_bytes / 2**20 for step in result.steps], device)
    message = f"{len(result.steps)} steps; {growth.message}"
    return Outcome(growth.status, message, {**evidence, **growth.evidence}, growth.cure)


def measured(result: Training, setup: Setup) -> dict[str, object]:
    """What goes into the report's facts."""
    from envbuilder.smoke.loop import PHASES

    steps = [step.to_dict() for step in result.steps]
    return {
        "device": setup.device,
        "shape": {
            "hidden": setup.shape.hidden_size,
            "layers": setup.shape.num_hidden_layers,
            "vocabulary": setup.shape.vocab_size,
        },
        "sizes": {"prompt": setup.prompt, "response": setup.response, "batch": setup.batch},
        "startup s": round(result.startup_s, 2),
        "phases s": {p: round(median(s.seconds[p] for s in result.steps), 4) for p in PHASES} if result.steps else {},
        "reserved peak MiB": round(result.reserved_peak_bytes / 2**20, 1),
        "guarded": result.guarded,
        "steps": steps,
    }


TRAINER = Spec(
    "trainer",
    "verl.trainer.main_ppo",
    "the whole trainer runs: Ray, FSDP, HF rollout, every step of PPO",
    run,
    limit_s=7200,
    needs=frozenset({Need.TRAINER}),
)
