"""A slimmed image serves one card: any other would die in its first kernel."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from envbuilder.smoke.check import Outcome, Spec, failed, not_proven, passed, unknown
from envbuilder.smoke.context import Context

# Written by `envbuilder slim` and `build --slim`: {"schema": 1, "card": {"sm": "sm_61", "capability": "6.1"}, ...}.
RECORD = "envbuilder-slim.json"


def _run(context: Context) -> Outcome:
    path = Path(sys.prefix) / RECORD
    if not path.is_file():
        return passed("holds code for every card it came with", slimmed="no")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        sm, capability = str(record["card"]["sm"]), str(record["card"]["capability"])
        kept = tuple(int(part) for part in capability.split("."))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return unknown(f"{path} is damaged: {error}", "Build the image again.")
    if context.on_gpu:
        import torch

        if not torch.cuda.is_available():
            return not_proven("no card is seen")
        found, name = tuple(torch.cuda.get_device_capability()), torch.cuda.get_device_name()
    else:
        found, name = context.manifest.capability, str(context.manifest.gpu["title"])
    if found != kept:
        return failed(
            f"this image was slimmed for {sm} and cannot serve {name}, which is sm_{found[0]}{found[1]}: the code for "
            'it was blanked, and CUDA would end in "device kernel image is invalid"',
            f"Use the image that was not slimmed, or build one with --slim for sm_{found[0]}{found[1]}.",
            slimmed_for=sm,
        )
    blanked = sum(int(file["bytes_blanked"]) for file in record["files"])
    return passed(slimmed_for=sm, MiB_blanked=round(blanked / (1 << 20)))


SLIM = Spec(
    "slim", "slimmed for this card", "the image holds this card's code, where code for others was blanked", _run
)
