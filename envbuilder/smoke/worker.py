"""The process that runs checks: one after another, sharing imports, telling its parent of each through a pipe.

    python -m envbuilder.smoke.worker FD JSON

FD is the number of the pipe's descriptor, JSON the options. Standard output belongs to what the checks print.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from envbuilder.report.model import Check, Status
from envbuilder.smoke.check import Outcome, Spec
from envbuilder.smoke.context import Context, Options
from envbuilder.smoke.facts import HostFacts
from envbuilder.smoke.manifest import load_manifest
from envbuilder.smoke.reading import read_facts
from envbuilder.smoke.registry import select


def run_check(spec: Spec, context: Context) -> Check:
    """Run one check; an exception is its failure, with the last lines of the traceback as evidence."""
    begin = time.perf_counter()
    try:
        outcome = spec.run(context)
    except Exception as error:
        lines = traceback.format_exc().strip().splitlines()
        message, cure = _told(error, context)
        outcome = Outcome(Status.FAILED, message, {"traceback": lines[-12:]}, cure)
    return Check(
        spec.id, spec.title, spec.proves, outcome.status, round(time.perf_counter() - begin, 3), outcome.evidence,
        outcome.message, outcome.cure,
    )  # fmt: skip


def _told(error: Exception, context: Context) -> tuple[str, str]:
    """The message and the cure."""
    text = str(error).splitlines()[0] if str(error) else "no message"
    if type(error).__name__ == "OutOfMemoryError":
        cap = context.manifest.memory_cap_bytes / 2**30
        return (
            f"{'. '.join(text.split('. ')[:2])}. The suite is held to {cap:.1f} GiB of the card",
            "See with nvidia-smi whether something else holds memory of this card. Otherwise it has less than its "
            "profile (usable_memory_gib) says, or the profile is that of a smaller card.",
        )
    return f"{type(error).__name__}: {text}", "The traceback is in the JSON; run this check alone with --only."


def work(specs: tuple[Spec, ...], context: Context) -> None:
    """Run ``specs``. After an exception on a GPU the process ends, since a CUDA error spoils what follows."""
    for spec in specs:
        context.emit({"event": "begin", "id": spec.id, "title": spec.title})
        check = run_check(spec, context)
        context.emit({"event": "check", "check": asdict(check) | {"status": check.status.value}})
        context.emit({"event": "measured", "measured": context.measured, "facts": context.facts.to_dict()})
        if context.on_gpu and "traceback" in check.evidence:
            return


def main(arguments: list[str]) -> int:
    """Read the options, run the checks."""
    options: dict[str, Any] = json.loads(arguments[1])
    with os.fdopen(int(arguments[0]), "w", encoding="utf-8") as pipe:
        manifest = load_manifest(Path(options["profile"]))
        facts = read_facts(Path(options["host"])) if options["host"] else HostFacts()
        context = Context(Options(**options["options"]), manifest, facts, _sender(pipe), options["measured"])
        if context.on_gpu:
            _cap_memory(context)
        checks = import_module(options["registry"]).CHECKS
        work(select(only=options["checks"], checks=checks), context)
    return 0


def _sender(pipe: IO[str]) -> Any:
    def emit(event: dict[str, Any]) -> None:
        pipe.write(json.dumps(event, default=str) + "\n")
        pipe.flush()

    return emit


def _cap_memory(context: Context) -> None:
    import torch

    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, context.manifest.memory_cap_bytes / total))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
