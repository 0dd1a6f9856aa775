"""A run in the image: what the engine is asked for, what becomes of its lines, and what is said when it fails."""

from __future__ import annotations

import io
import json
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from envbuilder import __version__
from envbuilder.errors import Place
from envbuilder.image.engine import Engine, RunRequest
from envbuilder.report import Confidence, Finding, Report, Severity, Verdict
from envbuilder.stack.gpu import GpuProfile
from envbuilder.stack.model import Stack
from envbuilder.train.checkpoints import last_whole, put_in_order, tracked
from envbuilder.train.kernel_log import kernel_lines, uptime
from envbuilder.train.outfolder import OutFolder
from envbuilder.train.plan import GIB
from envbuilder.train.preflight import Prepared
from envbuilder.train.resuming import asked
from envbuilder.train.settings import Paths, Wanted
from envbuilder.train.watching import Watch

SCRIPT = "/run/envbuilder/train.sh"
# Batches go through Ray's object store, which lies in shared memory.
_SHM_MIB = 2048
_TAIL = 12
# Ray colours the names of its workers.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

Listener = Callable[[dict[str, Any]], None]


@dataclass
class Ended:
    """How a start of the trainer ended. ``code`` is the trainer's exit code, None when it was stopped here; ``since``
    when it began, in seconds since boot."""

    log: Path
    watch: Watch
    begun: int = 0
    since: float = field(default_factory=uptime)
    code: int | None = None
    scores: list[float] = field(default_factory=list)
    not_finite: dict[str, Any] | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))


def command_of() -> tuple[str, ...]:
    """What runs in the container: the script, both its streams as one, in the order they were written."""
    return ("sh", "-c", f"exec sh {SCRIPT} 2>&1")


def request_for(wanted: Wanted, done: Prepared, out: OutFolder, image: str) -> RunRequest:
    """What the engine runs: the script, over the user's files."""
    assert done.data is not None
    inside = Paths()
    data = {done.data.train: inside.train}
    if done.data.validation != done.data.train:
        data[done.data.validation] = str(Path(inside.train).with_name(done.data.validation.name))
    return RunRequest(
        image=image,
        command=command_of(),
        gpu=(done.card.uuid or str(done.card.index)) if done.card else None,
        mounts={
            out.script.resolve(): SCRIPT,
            # A container without network may have no hosts file, and Ray looks up `localhost`.
            out.hosts.resolve(): "/etc/hosts",
            # File by file: in the hub's own cache they are links to somewhere else.
            **{
                file.resolve(): f"{inside.model}/{file.name}"
                for file in sorted(wanted.model.iterdir())
                if file.is_file()
            },
            **{path.resolve(): target for path, target in data.items()},
            **({wanted.reward.resolve(): inside.reward} if wanted.reward else {}),
        },
        writable={out.checkpoints.resolve(): inside.checkpoints, out.samples.resolve(): inside.samples},
        env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        shm_mib=_SHM_MIB,
    )


def start(
    wanted: Wanted, done: Prepared, out: OutFolder, engine: Engine, image: str, gpu: GpuProfile, listener: Listener
) -> Ended:
    """Put the folder in order, say where the run goes on from, and follow it to its end."""
    assert done.sizes is not None
    begun = put_in_order(out.checkpoints)
    out.forget_after(begun)
    record = {
        "schema": 1, "envbuilder": __version__, "asked": asked(wanted), "steps": done.sizes.steps,
        "image": {"reference": image, "digest": done.image.digest if done.image else ""},
        "overrides": [str(row) for row in done.rows],
    }  # fmt: skip
    out.prepare(record, done.script)
    listener({"event": "ready", "checks": {check.id: check.message for check in done.checks}})
    limit = None if wanted.gpu is None else int(gpu.usable_memory_gib.value * GIB)
    watch = Watch(done.sizes.steps, begun, out.samples, limit)
    return follow(engine, request_for(wanted, done, out, image), out, watch, listener)


def follow(engine: Engine, request: RunRequest, out: OutFolder, watch: Watch, listener: Listener) -> Ended:
    """Run to the end, keeping every line and every step. An interruption removes the container and goes on upwards."""
    ended = Ended(out.new_log(), watch, begun=watch.done)
    listener({"event": "begin", "from": ended.begun, "steps": watch.total, "log": str(ended.log)})
    checkpoint = ended.begun
    with ended.log.open("w", encoding="utf-8") as log, out.metrics.open("a", encoding="utf-8") as metrics:
        run = engine.run(request)
        try:
            for line in run:
                log.write(line + "\n")
                log.flush()
                if plain := _COLOURS.sub("", line).rstrip():
                    ended.tail.append(plain)
                    listener({"event": "line", "text": plain})
                for event in watch.line(line, time.time()):
                    if event["event"] == "not finite":
                        ended.not_finite = event
                        continue
                    if event["event"] == "step":
                        ended.scores += [event["score"]] if event["score"] is not None else []
                        metrics.write(json.dumps(event) + "\n")
                        metrics.flush()
                    listener(event)
                    if event["event"] == "step" and (saved := tracked(out.checkpoints)) > checkpoint:
                        checkpoint = saved
                        listener({"event": "checkpoint", "step": saved})
                if ended.not_finite:
                    return ended
            ended.code = run.wait()
            if errors := run.errors():
                log.write(errors + "\n")
                ended.tail.extend(line for line in errors.splitlines() if line.strip())
        finally:
            run.stop()
    return ended


def verdict(ended: Ended, stack: Stack, gpu: GpuProfile, out: OutFolder) -> Report:
    """Trained to the end, or what stopped it: causes and cures that the log tells of, else its last lines."""
    kept, watch = last_whole(out.checkpoints), ended.watch
    facts: dict[str, Any] = {"log": str(ended.log), "exit code": ended.code, "step": watch.done, "checkpoint": kept}
    if ended.code == 0 and watch.done >= watch.total:
        return Report("train", stack.name, Verdict.YES, _success(ended, out, kept), facts=facts)
    findings = _explained(ended, stack, gpu)
    how = "was stopped" if ended.code is None else f"ended with exit code {ended.code}"
    summary = f"the trainer {how} after step {watch.done} of {watch.total}. "
    summary += f"The checkpoint of step {kept} is kept. " if kept else "There is no checkpoint. "
    summary += "" if findings else "No rule knows why; its last lines are above. "
    summary += f"Everything it printed is in {ended.log}."
    facts["last lines"] = list(ended.tail)
    return Report("train", stack.name, Verdict.NO, summary, tuple(findings), facts=facts)


def _success(ended: Ended, out: OutFolder, kept: int) -> str:
    score = ""
    if ended.scores:
        part = max(1, len(ended.scores) // 10)
        score = f"score {fmean(ended.scores[:part]):.3f} at the begin, {fmean(ended.scores[-part:]):.3f} at the end; "
    steps = ended.watch.done - ended.begun
    memory = f"memory: {ended.watch.growth}"
    return f"{steps} steps trained; {score}{memory}; the checkpoint is {out.checkpoints}/global_step_{kept}"


def _explained(ended: Ended, stack: Stack, gpu: GpuProfile) -> list[Finding]:
    from envbuilder.diagnose.context import Known
    from envbuilder.diagnose.explain import explain_streams

    kernel = io.BytesIO(kernel_lines(ended.since).encode())
    with ended.log.open("rb") as stream:
        told = explain_streams([stream, kernel], Known(gpu, stack), subject=str(ended.log))
    findings = [f for f in told.findings if f.severity is not Severity.ADVICE]
    return [*([_not_finite(ended.not_finite, ended.log)] if ended.not_finite else []), *findings]


def _not_finite(event: dict[str, Any], log: Path) -> Finding:
    names = ", ".join(event["names"])
    return Finding(
        "train-not-finite",
        Severity.ERROR,
        f"step {event['step']}: {names} is not finite",
        Place(str(log)),
        cause="Weights or gradients became NaN or infinite; every later step would be computed from them.",
        cure="Lower the learning rates (--set actor_rollout_ref.actor.optim.lr=5e-7, --set critic.optim.lr=5e-6), look "
        "for rewards that are not finite, and run `envbuilder verify` to see that the card computes right.",
        evidence=(f"step {event['step']}: {names}",),
        confidence=Confidence.MEASURED,
    )
