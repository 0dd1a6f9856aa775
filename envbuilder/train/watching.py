"""What the lines of a running trainer tell: steps, notes, growing memory, numbers that are none.

Every event is JSON-typed, with its kind under ``event``: they are shown live, kept in ``metrics.jsonl`` and printed as
they are with ``--json``.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from envbuilder.smoke.checks.soak import TOLERATED_MIB, judge_growth
from envbuilder.smoke.regression import trend
from envbuilder.smoke.trainer_log import TrainerStep, add_memory, read_step

MIB = 2**20
_NOTE = re.compile(r"\brollout: .*")
# Of the card's memory; beyond it the allocator has no room left for what a step's lengths vary by.
_NEARLY_FULL = 0.95
_TREND_STEPS = 500
_SPEED_STEPS = 20
_LOSSES = ("actor/pg_loss", "critic/vf_loss")


class Watch:
    """Follows one start of the trainer: ``total`` steps in all, ``begun`` of them done before.

    ``samples`` is the folder of the workers' memory samples, ``limit`` the bytes that the card leaves to a program
    (None on a CPU).
    """

    def __init__(self, total: int, begun: int, samples: Path, limit: int | None) -> None:
        self.total, self.done = total, begun
        self._samples, self._limit = samples, limit
        self._seconds: deque[float] = deque(maxlen=_SPEED_STEPS)
        self._memory: deque[float] = deque(maxlen=_TREND_STEPS)
        self._said: set[str] = set()

    @property
    def growth(self) -> str:
        """Whether memory grew over the steps seen, in a sentence."""
        return judge_growth(list(self._memory), "cpu" if self._limit is None else "cuda").message

    def line(self, text: str, now: float) -> Iterator[dict[str, Any]]:
        """The events that a line tells of; ``now`` in seconds since 1970."""
        if (note := _NOTE.search(text)) and note[0] not in self._said:
            self._said.add(note[0])
            yield {"event": "note", "text": note[0].strip()}
        step = read_step(text, now)
        if step is not None:
            yield from self._step(step)

    def _step(self, step: TrainerStep) -> Iterator[dict[str, Any]]:
        add_memory([step], self._samples, recent=True)
        self.done = step.number
        self._seconds.append(step.metrics.get("timing_s/step", 0.0))
        if step.memory_bytes:
            self._memory.append(step.memory_bytes / MIB)
        yield self._told(step)
        bad = [name for name in _LOSSES if not math.isfinite(step.metrics.get(name, 0.0))]
        if bad:
            yield {"event": "not finite", "step": step.number, "names": bad}
        yield from self._memory_warnings(step)

    def _told(self, step: TrainerStep) -> dict[str, Any]:
        numbers = step.metrics
        left = max(0, self.total - step.number) * median(self._seconds)
        return {
            "event": "step",
            "step": step.number,
            "of": self.total,
            "score": _number(numbers.get("critic/score/mean")),
            "kl": _number(numbers.get("actor/reward_kl_penalty")),
            "policy_loss": _number(numbers.get("actor/pg_loss")),
            "value_loss": _number(numbers.get("critic/vf_loss")),
            "seconds": {name: round(value, 3) for name, value in step.seconds.items()},
            "step_s": round(numbers.get("timing_s/step", 0.0), 3),
            "tokens_s": _number(numbers.get("perf/throughput")),
            "memory_bytes": step.memory_bytes,
            "peak_bytes": step.peak_bytes,
            "left_s": round(left, 1),
            "metrics": {name: _number(value) for name, value in sorted(numbers.items())},
        }

    def _memory_warnings(self, step: TrainerStep) -> Iterator[dict[str, Any]]:
        if self._limit and step.peak_bytes > _NEARLY_FULL * self._limit and "full" not in self._said:
            self._said.add("full")
            yield {
                "event": "warning",
                "text": f"step {step.number} used {step.peak_bytes / self._limit:.0%} of what the card leaves to a "
                "program: a smaller --micro-batch or a shorter --response leaves more",
            }
        if "grows" in self._said or (found := trend(list(self._memory))) is None:
            return
        if found.low > TOLERATED_MIB["cpu" if self._limit is None else "cuda"]:
            self._said.add("grows")
            text = f"memory grows by {found.slope:.2f} MiB a step"
            if self._limit and step.peak_bytes:
                left = max(0.0, (self._limit - step.peak_bytes) / MIB / found.slope)
                text += f": the card would be full in {left:.0f} steps"
            yield {"event": "warning", "text": text}


def _number(value: float | None) -> float | None:
    """JSON has no word for what is not finite."""
    return None if value is None or not math.isfinite(value) else value
