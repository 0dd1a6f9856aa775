"""Where the time of one decoded token goes: each kernel of the captured graph, the gaps between them, the floor."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

_COPIED = 2**31  # bytes of the copy that the bandwidth is taken from


def bandwidth() -> float:
    """Bytes a second of a device-to-device copy, read and written counted."""
    source = torch.empty(_COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        target.copy_(source)
    torch.cuda.synchronize()
    return 20 * _COPIED / (time.perf_counter() - begin)


def breakdown(generate: Callable[[], Any], tokens: int, weight_bytes: int) -> dict[str, Any]:
    """Microseconds a token of ``generate``, which makes ``tokens`` tokens and was called before.

    ``kernels``: by name, device time and how many a token, the longest first. ``gaps``: what the wall clock of an
    unprofiled call holds beyond them. ``floor``: reading ``weight_bytes`` once at the speed of a copy.
    """
    torch.cuda.synchronize()
    begin = time.perf_counter()
    generate()
    torch.cuda.synchronize()
    wall = (time.perf_counter() - begin) * 1e6 / tokens
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        generate()
        torch.cuda.synchronize()
    rows = []
    for event in profiler.key_averages():
        spent = getattr(event, "self_device_time_total", None) or getattr(event, "self_cuda_time_total", 0)
        if spent:
            rows.append((spent / tokens, event.count / tokens, event.key))
    rows.sort(reverse=True)
    busy = sum(spent for spent, _, _ in rows)
    return {
        "wall": round(wall, 1),
        "busy": round(busy, 1),
        "gaps": round(wall - busy, 1),
        "floor": round(weight_bytes / bandwidth() * 1e6, 1),
        "kernels": [[name[:60], round(spent, 2), round(count, 2)] for spent, count, name in rows[:16]],
        "launches": round(sum(count for _, count, _ in rows), 1),
    }
