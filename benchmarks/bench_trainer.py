"""Real verl.trainer.main_ppo under Ray, stock and ours, in one run: seconds a step by phase, memory, guard.

    python benchmarks/bench_trainer.py --out results.jsonl [--questions gsm8k.jsonl] [--device cuda] [--shape 0.5b]

Each step is a JSON line as soon as it ends, each run a line when it ends, and the ratios come last: what is cut short
keeps what it has. Needs what an image of envbuilder holds; ENVBUILDER_STACK names the stack's description outside one.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from envbuilder.smoke import training
from envbuilder.smoke.loop import PHASES
from envbuilder.smoke.regression import trend
from envbuilder.smoke.shapes import SHAPES, read_questions, write_model

_STOCK = training.overrides
# By kind, what verl's workers import. `flat` is ours but for the actor's FSDP, which is one unit as in verl.
_LIBRARIES = {"ours": "envbuilder.train.external_lib", "flat": "benchmarks.flat_actor"}
_FLAG = re.compile(r"checkpointing|unguarded|micro[1-9]\d*")
_DEFAULT = (
    "ours:256:256:1:12",
    "stock:256:256:1:4",
    "ours:256:256:8:12:checkpointing",
    "stock:256:256:8:4:checkpointing",
)


@dataclass(frozen=True)
class Run:
    """One run of --runs: ``KIND:PROMPT:RESPONSE:BATCH:STEPS[:FLAG...]``, KIND stock, ours or flat.

    Flags: ``checkpointing``, ``unguarded``, ``microN`` for N sequences of one forward.
    """

    text: str
    kind: str
    prompt: int
    response: int
    batch: int
    steps: int
    flags: tuple[str, ...]

    @staticmethod
    def parse(text: str) -> Run:
        """Raises ArgumentTypeError for anything else."""
        kind, *rest = text.split(":")
        flags = tuple(rest[4:])
        try:
            prompt, response, batch, steps = map(int, rest[:4])
        except ValueError:
            kind = ""
        if kind not in ("stock", *_LIBRARIES) or not all(map(_FLAG.fullmatch, flags)):
            raise argparse.ArgumentTypeError(f"{text!r} is not KIND:PROMPT:RESPONSE:BATCH:STEPS[:FLAG...]")
        return Run(text, kind, prompt, response, batch, steps, flags)

    @property
    def setting(self) -> tuple[Any, ...]:
        """What two runs must share to be compared; how each fits into memory is its own business."""
        return self.prompt, self.response, self.batch, "unguarded" in self.flags

    @property
    def micro(self) -> int:
        """Sequences of one forward; 0 for all."""
        return next((int(flag[5:]) for flag in self.flags if flag.startswith("micro")), 0)


def _with_library(library: str, setup: training.Setup, folder: Path) -> list[str]:
    return [
        *_STOCK(setup, folder),
        f"actor_rollout_ref.model.external_lib={library}",
        f"critic.model.external_lib={library}",
    ]


class Journal:
    """JSON lines to a file and to the screen, each at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("")

    def write(self, row: dict[str, Any]) -> None:
        """Append one line."""
        text = json.dumps(row)
        print(text, flush=True)
        with self._path.open("a") as stream:
            stream.write(text + "\n")


def train(run: Run, setup: training.Setup, journal: Journal) -> dict[str, Any]:
    """Train and sum up: medians without the first step, which compiles and captures."""
    training.overrides = functools.partial(_with_library, _LIBRARIES[run.kind]) if run.kind in _LIBRARIES else _STOCK
    began = time.monotonic()

    def told(step: training.TrainerStep) -> None:
        journal.write(
            {
                "run": run.text,
                "step": step.number,
                "step_s": round(step.metrics["timing_s/step"], 3),
                "phases_s": {phase: round(seconds, 3) for phase, seconds in step.seconds.items()},
                "peak_gib": round(step.metrics.get("perf/max_memory_allocated_gb", 0.0), 3),
                "reserved_gib": round(step.metrics.get("perf/max_memory_reserved_gb", 0.0), 3),
                "response_mean": step.metrics.get("response_length/mean"),
                "at_s": round(time.monotonic() - began, 1),
            }
        )

    result = training.train(setup, told)
    steps = result.steps[1:]
    if result.code or not steps:
        return {"run": run.text, "code": result.code, "steps": len(result.steps), "tail": result.tail[-25:]}
    growth = trend([s.memory_bytes / 2**20 for s in result.steps])
    last = result.steps[-1].metrics
    return {
        "run": run.text,
        "steps": len(result.steps),
        "start_s": round(result.startup_s, 1),
        "first_step_s": round(result.steps[0].metrics["timing_s/step"], 3),
        "step_s": round(median(s.metrics["timing_s/step"] for s in steps), 3),
        "samples_per_s": round(run.batch / median(s.metrics["timing_s/step"] for s in steps), 3),
        "phases_s": {p: round(median(s.seconds[p] for s in steps), 3) for p in PHASES},
        "response_mean": sorted({s.metrics.get("response_length/mean") for s in result.steps}, key=str),
        "peak_gib": round(last.get("perf/max_memory_allocated_gb", 0.0), 3),
        "reserved_gib": round(result.reserved_peak_bytes / 2**30, 3),
        "growth_mib_a_step": None if growth is None else [round(v, 4) for v in (growth.slope, growth.low, growth.high)],
        "guard_findings": [str(f.title) for f in result.findings],
        "guarded": [
            {k: g.get(k) for k in ("role", "operations watched", "faults", "memory cap bytes")} for g in result.guarded
        ],
        "notes": sorted(set(result.notes)),
    }


def ratios(runs: list[Run], done: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Stock and flat over ours, for every setting that both have figures of."""
    rows = []
    for stock in (r for r in runs if r.kind != "ours"):
        for ours in (r for r in runs if r.kind == "ours" and r.setting == stock.setting):
            a, b = done[stock.text], done[ours.text]
            if "step_s" not in a or "step_s" not in b:
                continue
            rollout = a["phases_s"]["rollout"], b["phases_s"]["rollout"]
            row = {
                "step": a["step_s"] / b["step_s"],
                "samples a second": b["samples_per_s"] / a["samples_per_s"],
                "rollout": rollout[0] / max(1e-9, rollout[1]),
                f"peak, ours / {stock.kind}": b["peak_gib"] / max(1e-9, a["peak_gib"]),
            }
            rows.append({"ratios": [stock.text, ours.text], **{k: round(v, 2) for k, v in row.items()}})
    return rows


def main() -> int:
    """0 when every run gave figures, 1 otherwise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--limit", type=float, default=0.0, help="seconds a run may go on after its first step")
    parser.add_argument("--runs", nargs="+", type=Run.parse, default=[Run.parse(text) for text in _DEFAULT])
    args = parser.parse_args()
    journal = Journal(args.out)
    done: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="envbuilder-model-") as name:
        model = Path(name)
        write_model(model, SHAPES[args.shape], [question for question, _ in read_questions(args.questions)])
        for run in args.runs:
            setup = training.Setup(
                SHAPES[args.shape],
                args.device,
                run.steps,
                run.prompt,
                run.response,
                run.batch,
                args.questions,
                checkpointing="checkpointing" in run.flags,
                guarded="unguarded" not in run.flags,
                model=model,
                limit_s=args.limit,
                micro=run.micro,
            )
            done[run.text] = train(run, setup, journal)
            journal.write(done[run.text])
    for row in ratios(args.runs, done):
        journal.write(row)
    return 0 if all("step_s" in row for row in done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
