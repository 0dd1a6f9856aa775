"""Stand-in checks for the runner: one that passes, and one for each way a check can go wrong. They need no torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from envbuilder.smoke.check import Need, Outcome, Spec, passed
from envbuilder.smoke.context import Context


def fine(context: Context) -> Outcome:
    context.measured["fine"] = {"seen": sorted(context.measured)}
    return passed("fine", pid=os.getpid())


def raising(context: Context) -> Outcome:
    raise RuntimeError("it went wrong\nand more")


def hanging(context: Context) -> Outcome:
    # What a check started has to go with it.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    context.emit({"event": "child", "pid": child.pid})
    time.sleep(60)
    return passed()


def dying(context: Context) -> Outcome:
    print("last words")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGSEGV)
    return passed()


def noisy(context: Context) -> Outcome:
    print("not JSON" * 100_000)
    return passed()


CHECKS = (
    Spec("first", "first", "", fine),
    Spec("raising", "raising", "", raising),
    Spec("hanging", "hanging", "", hanging, limit_s=1.0),
    Spec("dying", "dying", "", dying),
    Spec("noisy", "noisy", "", noisy),
    Spec("last", "last", "", fine),
    Spec("card", "card", "", fine, needs=frozenset({Need.GPU})),
)
