"""The card's memory: how fast it is, beside what the data sheet says."""

from __future__ import annotations

import time

from envbuilder.smoke.check import Need, Outcome, Spec, failed, passed
from envbuilder.smoke.context import Context


def run(context: Context) -> Outcome:
    """Copy 1 GiB within the card several times, and check that it arrived."""
    import torch

    count = 2**28
    source = torch.arange(count, dtype=torch.float32, device=context.device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(8):
        context.synchronize()
        begin = time.perf_counter()
        target.copy_(source)
        context.synchronize()
        best = min(best, time.perf_counter() - begin)
    rate = 2 * source.nbytes / best / 1e9
    roof = float(context.manifest.fact("memory_bandwidth_gb_s"))
    if not torch.equal(source, target):
        return failed(
            "a copy within the card's memory differs from its source",
            "A memory fault: see `nvidia-smi -q -d ECC`.",
        )
    return passed(**{"GB/s": round(rate, 1), "of the profile's GB/s": roof, "share": f"{rate / roof:.0%}"})


BANDWIDTH = Spec(
    "bandwidth",
    "memory bandwidth",
    "the card's memory holds what is written, and how fast it is",
    run,
    needs=frozenset({Need.GPU}),
)
