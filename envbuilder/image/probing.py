"""Judging a probe file with what the tool knows beside it: the stack, and which torch builds hold code for a card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from envbuilder.report.model import Report
from envbuilder.smoke.facts import HostFacts
from envbuilder.smoke.manifest import Manifest
from envbuilder.smoke.reading import read_facts
from envbuilder.smoke.registry import select
from envbuilder.smoke.replay import replay, with_capability
from envbuilder.stack.compat.torch_builds import builds_for, find_build
from envbuilder.stack.loading import load_stack
from envbuilder.stack.manifest import image_manifest


def replay_file(
    path: Path, indices: Sequence[int], stack: str | None, only: Sequence[str] = (), skip: Sequence[str] = ()
) -> Report:
    """The verdict over the host that ``path`` describes. ``stack`` adds its card and its driver's floor.

    Raises InputError for a file that is no probe, a card or a check that is not there.
    """
    select(only, skip)
    facts = with_known_arches(read_facts(path))
    manifest = manifest_of(stack) if stack else None
    return replay(facts, indices, manifest, _builds(facts), only, skip)


def manifest_of(stack: str) -> Manifest:
    """What an image of ``stack`` says of itself."""
    data = image_manifest(*load_stack(stack), lock_digest="")
    return Manifest(data["stack"], data["gpu"], data["lock"], data["builds"])


def with_known_arches(facts: HostFacts) -> HostFacts:
    """The facts with torch's arch list filled in from the table of builds, where the host named the build alone."""
    torch = facts.torch
    build = find_build(torch.version) if torch and torch.version and not torch.arch_list else None
    if torch is None or build is None:
        return facts
    arches = []
    for arch in build.arches:
        number, _, ptx = arch.partition("+")
        arches.append(f"sm_{number.replace('.', '')}")
        if ptx:
            arches.append(f"compute_{number.replace('.', '')}")
    return replace(facts, torch=replace(torch, arch_list=tuple(arches)))


def _builds(facts: HostFacts) -> dict[str, tuple[str, ...]]:
    """torch builds known per capability of the reported cards."""
    pairs = {c.cc for card in facts.cards or () if (c := with_capability(card)).cc}
    return {f"{a}.{b}": tuple(f"{version}+{tag}" for version, tag in builds_for((a, b))) for a, b in sorted(pairs)}
