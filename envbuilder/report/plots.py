"""Geometry of the report's two plots, in SVG pixels: step time by phase as stacked bars, memory by step as lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 36
# Bars and points beyond this many only overlap: steps are then taken at even distances.
_MOST = 240


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where, and what it says."""

    at: float
    text: str


@dataclass(frozen=True)
class Bar:
    """One phase of one step, with the text a pointer shows."""

    x: float
    y: float
    width: float
    height: float
    series: int
    text: str


@dataclass(frozen=True)
class Line:
    """One series as an SVG path."""

    path: str
    series: int


@dataclass(frozen=True)
class Plot:
    """A plot ready to be drawn."""

    title: str
    unit: str
    names: tuple[str, ...]
    ticks_x: tuple[Tick, ...]
    ticks_y: tuple[Tick, ...]
    bars: tuple[Bar, ...] = ()
    lines: tuple[Line, ...] = ()
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def step_times(title: str, steps: Sequence[Mapping[str, Any]]) -> Plot:
    """Seconds of every step, stacked by phase. ``steps`` hold ``number`` and ``seconds`` by phase."""
    steps = _thinned(steps)
    phases = list(dict.fromkeys(phase for step in steps for phase in step["seconds"]))
    highest = max(sum(step["seconds"].values()) for step in steps)
    top, ticks = _axis(highest)
    slot = (WIDTH - LEFT - RIGHT) / len(steps)
    width = min(slot * 0.84, 32.0)
    bars = []
    for position, step in enumerate(steps):
        base = float(HEIGHT - BOTTOM)
        for series, phase in enumerate(phases):
            seconds = float(step["seconds"].get(phase, 0.0))
            height = seconds / top * (HEIGHT - TOP - BOTTOM)
            base -= height
            text = f"step {step['number']}, {phase}: {seconds:.3f} s"
            left = LEFT + slot * (position + 0.5) - width / 2
            bars.append(Bar(left, base, width, height, series, text))
    return Plot(title, "s", tuple(phases), _steps_axis(steps, slot), ticks, bars=tuple(bars))


def memory(title: str, steps: Sequence[Mapping[str, Any]]) -> Plot:
    """MiB in use after every step, and at its peak. ``steps`` hold ``number``, ``memory_bytes`` and ``peak_bytes``."""
    steps = _thinned(steps)
    names = ("after the step", "at its peak")
    values = [[step[key] / 2**20 for step in steps] for key in ("memory_bytes", "peak_bytes")]
    top, ticks = _axis(max(max(series) for series in values))
    slot = (WIDTH - LEFT - RIGHT) / len(steps)
    lines = tuple(Line(_path(series, slot, top), number) for number, series in enumerate(values))
    return Plot(title, "MiB", names, _steps_axis(steps, slot), ticks, lines=lines)


def _path(values: Sequence[float], slot: float, top: float) -> str:
    points = [
        f"{LEFT + slot * (i + 0.5):.1f},{HEIGHT - BOTTOM - v / top * (HEIGHT - TOP - BOTTOM):.1f}"
        for i, v in enumerate(values)
    ]
    return "M" + " L".join(points)


def _axis(highest: float) -> tuple[float, tuple[Tick, ...]]:
    """The top of an axis from 0 that holds ``highest``, and round marks on it."""
    highest = highest if highest > 0 else 1.0
    rough = highest / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    count = math.ceil(highest / step)
    scale = (HEIGHT - TOP - BOTTOM) / (count * step)
    ticks = tuple(Tick(HEIGHT - BOTTOM - i * step * scale, f"{i * step:g}") for i in range(count + 1))
    return count * step, ticks


def _steps_axis(steps: Sequence[Mapping[str, Any]], slot: float) -> tuple[Tick, ...]:
    every = max(1, math.ceil(len(steps) / 10))
    return tuple(
        Tick(LEFT + slot * (position + 0.5), str(step["number"]))
        for position, step in enumerate(steps)
        if position % every == 0
    )


def _thinned(steps: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    every = max(1, math.ceil(len(steps) / _MOST))
    return steps[::every]
