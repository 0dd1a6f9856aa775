"""Waits until a Ray cluster has its hosts: ``python -m envbuilder.smoke.ray_wait HOSTS CARDS SECONDS``; 1 if late."""

from __future__ import annotations

import sys
import time

from envbuilder.errors import FAILED


def main(hosts: int, cards: int, seconds: float) -> int:
    """Wait for ``hosts`` hosts with ``cards`` cards each, and say who has come."""
    import ray

    ray.init(log_to_driver=False, logging_level="ERROR")
    deadline = time.monotonic() + seconds
    known: set[str] = set()
    while True:
        ready = {n["NodeID"]: n for n in ray.nodes() if n["Alive"] and n["Resources"].get("GPU", 0) >= cards}
        for node in ready.keys() - known:
            print(f"host {ready[node]['NodeManagerAddress']} has come ({len(ready)} of {hosts})", flush=True)
        known = set(ready)
        if len(ready) >= hosts:
            return 0
        if time.monotonic() >= deadline:
            print(f"error: {len(ready)} of {hosts} hosts came within {seconds:.0f} s", file=sys.stderr)
            return FAILED
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
