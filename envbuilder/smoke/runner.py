"""Runs the checks in a worker process and watches it: one bad check never hides the others.

A check that raises is a failed check. One that outlives its limit, or takes its process down with it, is a failed check
too: the worker is ended and a new one goes on with the next. A worker is shared by all checks otherwise, because
importing torch and verl takes ten seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from envbuilder.report.model import Check, Status, check_from_dict
from envbuilder.smoke.check import Need, Spec
from envbuilder.smoke.context import Options

Emit = Callable[[dict[str, Any]], None]


@dataclass
class Result:
    """What a run of the suite gave: the checks in order, what they measured, and the facts of the host."""

    checks: list[Check] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What to run and with what. ``gpu`` is what CUDA_VISIBLE_DEVICES is set to, None leaves it alone.

    ``registry`` is the module whose CHECKS the worker takes them from.
    """

    specs: Sequence[Spec]
    options: Options
    profile: Path
    host: Path | None = None
    gpu: str | None = None
    registry: str = "envbuilder.smoke.registry"


def run_suite(plan: Plan, emit: Emit) -> Result:
    """Run every check of the plan that can run here; the others are "not proven here"."""
    result = Result()
    able = [spec for spec in plan.specs if missing(spec, plan.options) is None]
    done: dict[str, Check] = {}
    waiting = list(able)
    while waiting:
        for check in _one_worker(plan, waiting, result, emit):
            done[check.id] = check
        waiting = [spec for spec in waiting if spec.id not in done]
    for spec in plan.specs:
        need = missing(spec, plan.options)
        if need is not None:
            done[spec.id] = Check(spec.id, spec.title, spec.proves, Status.NOT_PROVEN, message=f"needs {need}")
            emit({"event": "check", "check": asdict(done[spec.id]) | {"status": Status.NOT_PROVEN.value}})
    result.checks = [done[spec.id] for spec in plan.specs]
    return result


def missing(spec: Spec, options: Options) -> str | None:
    """What the check needs and this run does not have."""
    if Need.TRAINER in spec.needs and not options.trainer:
        return Need.TRAINER.value
    if Need.SOAK in spec.needs and not options.soak:
        return Need.SOAK.value
    if Need.GPU in spec.needs and options.device != "cuda":
        return Need.GPU.value
    return None


def _one_worker(plan: Plan, specs: Sequence[Spec], result: Result, emit: Emit) -> list[Check]:
    """Start a worker on ``specs`` and follow it until it ends or has to be ended. At least one check comes back."""
    options = {
        "options": asdict(plan.options),
        "profile": str(plan.profile),
        "host": str(plan.host) if plan.host else "",
        "checks": [spec.id for spec in specs],
        "measured": result.measured,
        "registry": plan.registry,
    }
    by_id = {spec.id: spec for spec in specs}
    checks: list[Check] = []
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "envbuilder.smoke.worker", str(writing), json.dumps(options)],
            pass_fds=[writing], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=_environment(plan),
            start_new_session=True,
        )  # fmt: skip
        os.close(writing)
        current, started = specs[0], time.monotonic()
        try:
            with os.fdopen(reading, "rb", buffering=0) as pipe:
                lines = _Lines(pipe)
                while True:
                    left = current.limit_s - (time.monotonic() - started)
                    event = lines.next(left)
                    if event is None:
                        break
                    if event["event"] == "begin":
                        current, started = by_id[event["id"]], time.monotonic()
                        emit(event)
                    elif event["event"] == "check":
                        checks.append(check_from_dict(event["check"]))
                        emit(event)
                    elif event["event"] == "measured":
                        result.measured, result.facts = event["measured"], event["facts"]
                    else:
                        emit(event)
                late = not lines.ended
        finally:
            _end(worker)
        if current.id not in {check.id for check in checks}:
            check = _lost(current, late, worker.returncode, time.monotonic() - started, _tail(output))
            checks.append(check)
            emit({"event": "check", "check": asdict(check) | {"status": check.status.value}})
    return checks


def _lost(spec: Spec, late: bool, code: int | None, seconds: float, tail: list[str]) -> Check:
    if late:
        message = f"not done after its {spec.limit_s:.0f} s and ended"
        cure = "Something hangs: on a GPU see dmesg | grep NVRM; run it alone with --only."
    else:
        how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        message = f"its process died ({how})"
        cure = "SIGKILL is most often the host running out of memory (dmesg). The last lines are in the JSON."
    return Check(
        spec.id, spec.title, spec.proves, Status.FAILED, round(seconds, 3), {"last lines": tail}, message, cure
    )


def _environment(plan: Plan) -> dict[str, str]:
    env = {**os.environ, "ENVBUILDER_STACK": str(plan.profile), "TOKENIZERS_PARALLELISM": "false",
           "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "disabled", "PYTHONFAULTHANDLER": "1",
           "RAY_USAGE_STATS_ENABLED": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # fmt: skip
    if plan.options.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    elif plan.gpu is not None:
        env["CUDA_VISIBLE_DEVICES"] = plan.gpu
    return env


class _Lines:
    """Events from a pipe, each waited for until a deadline."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._rest = b""
        self.ended = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(pipe, selectors.EVENT_READ)

    def next(self, seconds: float) -> dict[str, Any] | None:
        """The next event; None at the end of the pipe (``ended``) or when the time is up."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                return None
            data = self._pipe.read(65536)
            if not data:
                self.ended = True
                return None
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        event: dict[str, Any] = json.loads(line)
        return event


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Let the worker leave by itself; end it and all it started when it does not."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(timeout=0.5 if worker.poll() is None else 0)
    # What a check started (Ray's processes) is in the worker's session and goes with it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(timeout=5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def _tail(output: Any) -> list[str]:
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - 8192))
    text: str = output.read().decode(errors="replace")
    return text.splitlines()[-20:]
