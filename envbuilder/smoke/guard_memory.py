"""The card's memory: torch's allocator is held to it, and the peak is compared with it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from envbuilder.smoke.guard_place import Spot, spot_of_error
from envbuilder.smoke.guard_rules import Limits


class MemoryWatch:
    """Caps what torch's CUDA allocator may reserve on every visible GPU, and reports a peak above the cap.

    The cap acts in this process only, and only on torch's allocator: the CUDA context, NCCL and libraries that
    allocate for themselves come on top (``facts`` gives what the device as a whole had in use). Without CUDA
    nothing is measured, and ``facts`` says so.
    """

    def __init__(self, limits: Limits, record: Callable[..., None], *, cap: bool) -> None:
        self._limits = limits
        self._record = record
        self._cap = cap
        self._devices = range(0)

    @property
    def facts(self) -> dict[str, Any]:
        """The cap, the peak so far and what the device has in use, in bytes; without CUDA, that nothing is watched."""
        if not self._devices:
            return {"memory": "not watched: no CUDA device"}
        in_use = (total - free for free, total in (torch.cuda.mem_get_info(device) for device in self._devices))
        return {
            "memory": "watched",
            "memory cap bytes": self._limits.memory if self._cap else None,
            "memory peak reserved bytes": self._peak(),
            "memory in use on the device bytes": max(in_use),
        }

    def start(self) -> None:
        """Set the cap and start the peak anew."""
        if not torch.cuda.is_available():
            return
        self._devices = range(torch.cuda.device_count())
        for device in self._devices:
            total = torch.cuda.get_device_properties(device).total_memory
            if self._cap:
                torch.cuda.set_per_process_memory_fraction(min(1.0, self._limits.memory / total), device)
            torch.cuda.reset_peak_memory_stats(device)

    def stop(self, error: BaseException | None) -> None:
        """Compare the peak, take an out-of-memory error for what it is, and lift the cap."""
        if self._cap:
            for device in self._devices:
                torch.cuda.set_per_process_memory_fraction(1.0, device)
        peak = self._peak()
        if isinstance(error, torch.OutOfMemoryError):
            self._report(str(error).partition("\n")[0], spot_of_error(error))
        elif peak > self._limits.memory:
            self._report(f"torch reserved {peak / 2**30:.2f} GiB at its peak")

    def _peak(self) -> int:
        return max((torch.cuda.max_memory_reserved(device) for device in self._devices), default=0)

    def _report(self, what: str, spot: Spot | None = None) -> None:
        self._record(
            "guard-memory",
            "memory",
            f"more memory than {self._limits.title} has: {what}",
            f"{self._limits.memory / 2**30:.1f} GiB are usable on the card.",
            spot=spot,
        )
