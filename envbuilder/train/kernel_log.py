"""What the kernel said while a run went on: the OOM killer and the driver speak there, not in the trainer's log."""

from __future__ import annotations

import re
import subprocess
import time

_STAMP = re.compile(r"^(?:<\d+>)?\[ *(\d+\.\d+)\]")


def uptime() -> float:
    """Seconds since boot, as the kernel stamps its lines."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def kernel_lines(since: float) -> str:
    """The kernel's lines from ``since`` (seconds since boot) on; empty where this user may not read them."""
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "".join(
        line for line in done.stdout.splitlines(keepends=True) if (m := _STAMP.match(line)) and float(m[1]) >= since
    )
