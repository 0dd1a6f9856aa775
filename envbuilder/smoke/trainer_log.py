"""What verl's console logger and the workers' memory samples say of a training run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuilder.smoke.loop import PHASES

# verl's timers, by the phase they belong to; what is in none of them is left out.
_TIMERS = {
    "gen": "rollout", "old_log_prob": "log-probs", "ref": "log-probs", "values": "advantage", "adv": "advantage",
    "reward": "advantage", "update_actor": "actor", "update_critic": "critic",
}  # fmt: skip
_NUMBER = r"(?:np\.\w+\()?(-?(?:\d[\d.]*(?:e[+-]?\d+)?|nan|inf))"
# Some half an hour of a worker's samples, which take about 45 bytes each.
_RECENT_BYTES = 2**20
_STEP = re.compile(r"step:(\d+) - ")
_VALUE = re.compile(rf"([A-Za-z_][\w/@.-]*):{_NUMBER}")


@dataclass
class TrainerStep:
    """One step of the trainer: when its line came (seconds since 1970), verl's metrics, memory in bytes."""

    number: int
    ended: float
    metrics: dict[str, float] = field(default_factory=dict)
    memory_bytes: int = 0
    peak_bytes: int = 0

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase."""
        out = dict.fromkeys(PHASES, 0.0)
        for timer, phase in _TIMERS.items():
            out[phase] += self.metrics.get(f"timing_s/{timer}", 0.0)
        return out

    def to_dict(self) -> dict[str, Any]:
        """JSON-typed, as the steps of the in-process loop are."""
        return {
            "number": self.number, "seconds": {k: round(v, 4) for k, v in self.seconds.items()},
            "memory_bytes": self.memory_bytes, "peak_bytes": self.peak_bytes,
            "step s": round(self.metrics.get("timing_s/step", 0.0), 4),
        }  # fmt: skip


def read_step(line: str, now: float) -> TrainerStep | None:
    """The step that a line of the console tells of, or None."""
    found = _STEP.search(line)
    if found is None:
        return None
    values = {name: float(number) for name, number in _VALUE.findall(line[found.end() :])}
    return TrainerStep(int(found.group(1)), now, values)


def add_memory(steps: Sequence[TrainerStep], folder: Path, *, recent: bool = False) -> None:
    """Give each step the least and the most that the workers used in it.

    The least is what stays allocated between the phases: weights and optimiser states, and anything that leaks. The
    worker that uses most counts. ``recent``: read only the end of what was sampled, for a step that has just ended.
    """
    last = _RECENT_BYTES if recent else None
    series = [_samples(path, last) for path in sorted(folder.glob("memory-*.jsonl"))]
    series = [rows for rows in series if rows]
    if not series or not steps:
        return
    rows = max(series, key=lambda s: max(used for _, used, _ in s))
    begin = steps[0].ended - steps[0].metrics.get("timing_s/step", 0.0)
    for step in steps:
        within = [used for at, used, _ in rows if begin <= at < step.ended]
        if within:
            step.memory_bytes, step.peak_bytes = min(within), max(within)
        begin = step.ended


def reserved_peak(folder: Path) -> int:
    """The most that a worker's allocator reserved, in bytes."""
    return max((r for path in folder.glob("memory-*.jsonl") for _, _, r in _samples(path)), default=0)


def _samples(path: Path, last_bytes: int | None = None) -> list[tuple[float, int, int]]:
    with path.open("rb") as stream:
        if last_bytes is not None and path.stat().st_size > last_bytes:
            stream.seek(-last_bytes, os.SEEK_END)
        text = stream.read().decode("ascii")
    rows = []
    for line in text.splitlines():
        try:
            at, used, reserved = json.loads(line)
        except (ValueError, TypeError):
            continue  # cut: the first line, or the last one of a worker that was ended
        rows.append((at, used, reserved))
    return rows
