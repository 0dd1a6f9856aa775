"""Proves every card of a host in turn: ``python -m envbuilder.smoke.cards --count N [OPTIONS OF THE SUITE]``.

What a job file runs before it trains. A line a card on standard output, a report a card in the folder of ``--reports``.
Exit: 0 when every card was proven, 1 when a check failed, 3 when something was left open.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from envbuilder.errors import FAILED, NOT_ENOUGH
from envbuilder.report.model import Verdict

HOST_ENVIRONMENT = "ENVBUILDER_HOST"


def main(arguments: list[str] | None = None) -> int:
    """Prove the cards; the exit code is the worst of theirs."""
    parser = argparse.ArgumentParser(prog="python -m envbuilder.smoke.cards", description="Prove every card of a host.")
    parser.add_argument("--count", type=int, required=True, help="how many cards the job was given here")
    parser.add_argument("--reports", type=Path, required=True, help="folder for HOST-gpuN.json")
    given, suite = parser.parse_known_args(arguments)
    # A scheduler ends a job with SIGTERM: leave by the ordinary way, so that the suite is ended too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    host = os.environ.get(HOST_ENVIRONMENT) or platform.node()
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    cards = visible or [str(index) for index in range(given.count)]
    if len(cards) < given.count:
        print(f"{host}: the job was to have {given.count} cards here and has {len(cards)}", flush=True)
        return FAILED
    given.reports.mkdir(parents=True, exist_ok=True)
    codes = [_prove(host, card, suite, given.reports) for card in cards]
    return next((code for code in codes if code not in (0, NOT_ENOUGH)), max(codes))


def _prove(host: str, card: str, suite: list[str], folder: Path) -> int:
    """Run the suite on one card, keep its report, and say how it went."""
    last: dict[str, Any] = {}
    process = subprocess.Popen(
        [sys.executable, "-m", "envbuilder.smoke", "--gpu", card, *suite], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                last = json.loads(line)
            except json.JSONDecodeError:
                continue  # something else wrote to standard output
        code = process.wait()
    finally:
        process.terminate()
        process.wait()
    if last.get("command") != "verify":
        print(f"{host} GPU {card}: the suite ended without a report (exit code {code})", flush=True)
        return code or FAILED
    path = folder / f"{host}-gpu{card}.json"
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({**last, "facts": {**last["facts"], "node": host, "gpu": card}}), encoding="utf-8")
    part.replace(path)
    print(f"{host} GPU {card}: {last['verdict']}: {last['summary']}", flush=True)
    for check in last["checks"]:
        if check["status"] == "failed":
            print(f"  {check['title']}: {check['message']}\n    do: {check['cure']}", flush=True)
    return Verdict(last["verdict"]).exit_code


if __name__ == "__main__":
    sys.exit(main())
