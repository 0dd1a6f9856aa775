"""The audit of some targets for one card, or for all known ones."""

from __future__ import annotations

from collections.abc import Sequence

from envbuilder.audit.cards import Card, known_cards
from envbuilder.audit.native import native_findings
from envbuilder.audit.store import collect_image
from envbuilder.audit.summary import report_for, report_for_all
from envbuilder.audit.target import Locator, collect
from envbuilder.errors import InputError
from envbuilder.report.model import Report
from envbuilder.report.progress import Progress, Silent


def audit(
    targets: Sequence[str], card: Card | None, progress: Progress | None = None, locate: Locator | None = None
) -> Report:
    """Audit ``targets`` (paths, or images of the local store) for ``card``, or for every known card without one.

    ``locate`` finds the wheels that a lock or requirements file names; without it such files hold nothing.
    """
    progress = progress or Silent()
    cards = [card.arch] if card else [c.arch for c in known_cards()]
    collections = []
    for target in targets:
        progress.stage(f"read {target}")
        collections.append(collect(target, cards, progress, locate))
    findings = [finding for collection in collections for finding in native_findings(collection)]
    return report_for(collections, card, findings) if card else report_for_all(collections, findings)


def audit_image(reference: str, card: Card, engine: str = "", progress: Progress | None = None) -> Report:
    """Audit an image of a local store for ``card``. ``engine`` is ``buildah``, ``docker`` or empty for either.

    Raises InputError when no store has it, HostError when its store cannot be read.
    """
    collection = collect_image(reference, [card.arch], progress, engine)
    if collection is None:
        raise InputError(f"no local store holds the image {reference}", cure="Build or pull it first.")
    return report_for([collection], card, native_findings(collection))
