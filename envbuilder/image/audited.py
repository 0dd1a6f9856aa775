"""The audit in the road: an image is done only when its CUDA code can run on the stack's card."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from envbuilder.audit.arch import Arch
from envbuilder.audit.audit import audit_image
from envbuilder.audit.cards import Card
from envbuilder.data import cache_root
from envbuilder.errors import BuildError
from envbuilder.files import write_text
from envbuilder.image.engine import Engine, ImageInfo
from envbuilder.report.model import Report, Severity, Verdict
from envbuilder.report.progress import Progress
from envbuilder.stack.gpu import GpuProfile


def audited(image: ImageInfo, engine: Engine, gpu: GpuProfile, progress: Progress) -> dict[str, Any]:
    """What the build record says of an image's audit. Each image is audited once for a card; the answer is kept.

    It is no label of the image: the same files have the same digest whatever audits them, and whether they were.
    Raises BuildError when code in the image cannot run on the card.
    """
    card = Card(Arch(*gpu.major_minor), gpu.title, gpu.driver.last_branch)
    kept = cache_root() / "audits" / f"{image.id.removeprefix('sha256:')}-{card.arch.sm}.json"
    with contextlib.suppress(OSError, ValueError):
        known: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return known
    progress.stage(f"audit the image's CUDA code for {card}")
    report = audit_image(image.reference, card, engine.name, progress)
    found = summary_of(report)
    if found["verdict"] == Verdict.NO.value:
        raise _refusal(report, image.reference, card)
    write_text(kept, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return found


def summary_of(report: Report) -> dict[str, Any]:
    """What a build record says of an audit: the answer for the CUDA code, by package, and what stands beside it."""
    (target,) = report.facts["targets"]
    return {
        "card": report.facts["card"]["sm"],
        "verdict": target["verdict"],
        "summary": report.summary,
        "driver": report.facts["driver"],
        "packages": {f"{p['name']} {p['version']}".strip(): p["answer"] for p in target["packages"]},
        "findings": [f.title for f in report.findings if f.severity is not Severity.ADVICE],
    }


def _refusal(report: Report, tag: str, card: Card) -> BuildError:
    faults = [f for f in report.findings if f.rule == "no-code-for-card" and f.severity is Severity.ERROR]
    first = faults[0] if faults else None
    return BuildError(
        first.title if first else report.summary,
        detail="\n".join(line for f in faults for line in f.evidence) or None,
        cure=f"{first.cure if first else ''} Change the stack and lock it again. "
        f"To look closer: envbuilder audit {tag} --gpu {card.arch.sm}",
    )
