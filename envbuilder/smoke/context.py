"""What a check is given to run with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from envbuilder.smoke.facts import HostFacts
from envbuilder.smoke.manifest import Manifest


@dataclass(frozen=True)
class Options:
    """What the user asked for. ``steps`` and ``questions`` (GSM8K's JSON lines) are for --trainer and --soak."""

    device: str = "cuda"
    trainer: bool = False
    soak: bool = False
    steps: int = 0
    questions: str = ""


@dataclass
class Context:
    """One worker's state: the options, the image's manifest, what the host reported, and what checks measured.

    ``emit`` sends an event (a JSON object) to whoever watches. ``facts`` is what NVML said on the host, completed
    in here by what torch says. ``measured`` goes into the report's facts under the check's id.
    """

    options: Options
    manifest: Manifest
    facts: HostFacts
    emit: Callable[[dict[str, Any]], None]
    measured: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda``."""
        return self.options.device

    @property
    def on_gpu(self) -> bool:
        """Whether the checks run on a GPU."""
        return self.options.device == "cuda"

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read afterwards means something."""
        if self.on_gpu:
            import torch

            torch.cuda.synchronize()

    @contextmanager
    def timed(self, times: dict[str, float], name: str) -> Iterator[None]:
        """Add the seconds of the block, device work included, to ``times[name]``."""
        self.synchronize()
        begin = time.perf_counter()
        yield
        self.synchronize()
        times[name] = times.get(name, 0.0) + time.perf_counter() - begin
