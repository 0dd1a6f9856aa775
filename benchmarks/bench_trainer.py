"""Real verl.trainer.main_ppo under Ray, stock and ours, in one run: seconds a step by phase, memory, guard.

    python benchmarks/bench_trainer.py --out results.json [--questions gsm8k.jsonl] [--device cuda] [--shape 0.5b]

Needs what an image of envbuilder holds; ENVBUILDER_STACK names the stack's description outside one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from envbuilder.smoke import training
from envbuilder.smoke.loop import PHASES
from envbuilder.smoke.regression import trend
from envbuilder.smoke.shapes import SHAPES

_STOCK = training.overrides
_LIBRARY = "envbuilder.train.external_lib"


def _ours(setup: training.Setup, folder: Path) -> list[str]:
    return [
        *_STOCK(setup, folder),
        f"actor_rollout_ref.model.external_lib={_LIBRARY}",
        f"critic.model.external_lib={_LIBRARY}",
    ]


def run(setup: training.Setup, ours: bool) -> dict[str, Any]:
    """Train and sum up: medians without the first step, which compiles and captures."""
    training.overrides = _ours if ours else _STOCK
    result = training.train(setup, lambda step: print(f"  step {step.number}", flush=True))
    steps = result.steps[1:]
    if result.code or not steps:
        return {"code": result.code, "tail": result.tail[-25:]}
    growth = trend([s.memory_bytes / 2**20 for s in result.steps])
    return {
        "sizes": [setup.prompt, setup.response, setup.batch],
        "steps": len(result.steps),
        "step_s": round(median(s.metrics["timing_s/step"] for s in steps), 3),
        "phases_s": {p: round(median(s.seconds[p] for s in steps), 3) for p in PHASES},
        "startup_s": round(result.startup_s, 1),
        "peak_mib": round(max(s.peak_bytes for s in steps) / 2**20, 1),
        "reserved_mib": round(result.reserved_peak_bytes / 2**20, 1),
        "growth_mib_a_step": None if growth is None else [round(v, 4) for v in (growth.slope, growth.low, growth.high)],
        "guard_findings": [str(f.title) for f in result.findings],
        "guarded": [{k: g.get(k) for k in ("role", "operations watched", "faults")} for g in result.guarded],
        "fallbacks": [line for line in result.tail if "generate is used" in line],
    }


def main() -> None:
    """Each of --runs is KIND:PROMPT:RESPONSE:BATCH:STEPS with KIND stock or ours."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--runs", nargs="+", default=["stock:256:256:2:6", "ours:256:256:2:10"])
    args = parser.parse_args()
    results = {}
    for name in args.runs:
        kind, prompt, response, batch, steps = name.split(":")
        setup = training.Setup(
            SHAPES[args.shape], args.device, int(steps), int(prompt), int(response), int(batch), args.questions
        )
        results[name] = run(setup, kind == "ours")
        print(json.dumps({name: results[name]}), flush=True)
        args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
