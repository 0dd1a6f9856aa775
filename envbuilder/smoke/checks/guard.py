"""The guard works here: a planted fault is found, clean work is not."""

from __future__ import annotations

from envbuilder.smoke.check import Outcome, Spec, failed, passed
from envbuilder.smoke.context import Context


def run(context: Context) -> Outcome:
    """Plant a bfloat16 cast under a guard, then clean float32 work under another."""
    import torch

    from envbuilder.smoke.guard import Guard

    with Guard(dict(context.manifest.gpu)) as planted:
        torch.ones(2, 2, device=context.device).to(torch.bfloat16)
    with Guard(dict(context.manifest.gpu)) as clean:
        x = torch.ones(8, 8, device=context.device, requires_grad=True)
        (x @ x).sum().backward()
    if not planted.findings:
        return failed(
            "the guard did not see a planted bfloat16 cast", "This torch is not one the guard knows; report it."
        )
    if clean.findings:
        return failed(f"the guard objects to plain float32 work: {clean.findings[0].title}", "Report it.")
    return passed("a planted bfloat16 cast is found; float32 work is not", found=planted.findings[0].title)


GUARD = Spec("guard", "guard", "what runs under the guard uses nothing that the card lacks, and the guard sees", run)


def told(findings: tuple[object, ...]) -> Outcome | None:
    """The failed outcome for a guard's findings, None when there are none."""
    if not findings:
        return None
    first = findings[0]
    lines = [f"{getattr(f, 'place', '')}: {getattr(f, 'title', f)}" for f in findings[:20]]
    return failed(
        f"{len(findings)} use(s) of what the card lacks, first: {lines[0]}", getattr(first, "cure", ""), findings=lines
    )
