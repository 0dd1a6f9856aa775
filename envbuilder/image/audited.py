"""The audit in the road: an image is done only when its CUDA code can run on the stack's card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envbuilder.audit.arch import Arch
from envbuilder.audit.audit import audit_image
from envbuilder.audit.cards import Card
from envbuilder.errors import BuildError
from envbuilder.image.engine import BuildRequest, Engine, ImageInfo
from envbuilder.report.model import Report, Severity, Verdict
from envbuilder.report.progress import Progress, Silent
from envbuilder.stack.gpu import GpuProfile

# "yes for sm_61": an image without it was not found able to run on its card, and is built again.
AUDIT_LABEL = "io.envbuilder.audit"


def build_audited(
    engine: Engine, request: BuildRequest, gpu: GpuProfile, progress: Progress
) -> tuple[ImageInfo, dict[str, Any]]:
    """Build, audit, and label the image with the answer; the image and what the build record says of the audit.

    Raises BuildError naming the package when code in the image cannot run on the card.
    """
    image = engine.build(request, progress)
    card = Card(Arch(*gpu.major_minor), gpu.title, gpu.driver.last_branch)
    progress.stage(f"audit the image's CUDA code for {card}")
    report = audit_image(image.reference, card, engine.name, progress)
    found = summary_of(report)
    if found["verdict"] == Verdict.NO.value:
        raise _refusal(report, request.tag, card)
    # Every layer is there by now: this only writes the label.
    labels = {**request.labels, AUDIT_LABEL: f"{found['verdict']} for {card.arch.sm}"}
    return engine.build(replace(request, labels=labels, cache=True), Silent()), found


def passed(labels: Mapping[str, str]) -> bool:
    """Whether an image's labels say that it was audited."""
    return AUDIT_LABEL in labels


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
