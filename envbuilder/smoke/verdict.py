"""From checks to a verdict: proven, failed, or not enough to tell."""

from __future__ import annotations

import os
import platform
from typing import Any

from envbuilder.report.model import Check, Report, Status, Verdict
from envbuilder.smoke.context import Options
from envbuilder.smoke.manifest import Manifest
from envbuilder.smoke.runner import Result

# A job file names its image here: inside a container nothing else knows it.
IMAGE_ENVIRONMENT = "ENVBUILDER_IMAGE"


def report(result: Result, options: Options, manifest: Manifest) -> Report:
    """The report of a run of the suite."""
    verdict, summary = judge(result.checks, options.device == "cuda", str(manifest.gpu["title"]))
    facts: dict[str, Any] = {
        "passport": passport(result, manifest),
        "measured": result.measured,
        "host": result.facts,
        "options": {"device": options.device, "steps": options.steps},
    }
    return Report("verify", manifest.stack["name"], verdict, summary, checks=tuple(result.checks), facts=facts)


def judge(checks: list[Check], on_gpu: bool, card: str) -> tuple[Verdict, str]:
    """One failed check is a no. Without a card nothing of the card is proven, however much passed."""
    count = {status: sum(check.status is status for check in checks) for status in Status}
    told = f"{count[Status.PASSED]} passed"
    for status in (Status.FAILED, Status.UNKNOWN, Status.NOT_PROVEN):
        if count[status]:
            told += f", {count[status]} {status.value}"
    if count[Status.FAILED]:
        names = ", ".join(check.id for check in checks if check.status is Status.FAILED)
        return Verdict.NO, f"{told}. Failed: {names}."
    if not on_gpu:
        return Verdict.UNKNOWN, f"{told}. Nothing was run on a card: of the {card} itself nothing is proven."
    if count[Status.UNKNOWN] or not count[Status.PASSED]:
        return Verdict.UNKNOWN, f"{told}."
    return Verdict.YES, f"{told}."


def passport(result: Result, manifest: Manifest) -> dict[str, Any]:
    """What tells one host from another: card, driver, stack, lock, kernel and machine."""
    cards = result.facts.get("gpus") or []
    card = cards[0] if cards else {}
    return {
        "card": card.get("name", ""),
        "uuid": card.get("uuid", ""),
        "pci": card.get("pci", ""),
        "driver": result.facts.get("driver", ""),
        "stack": manifest.stack["name"],
        "lock": manifest.lock,
        "torch": result.facts.get("torch", {}).get("version", ""),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        **({"image": image} if (image := os.environ.get(IMAGE_ENVIRONMENT)) else {}),
    }
