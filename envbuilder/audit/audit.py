"""The audit of some targets for one card, or for all known ones."""

from __future__ import annotations

from collections.abc import Sequence

from envbuilder.audit.cards import Card, known_cards
from envbuilder.audit.summary import report_for, report_for_all
from envbuilder.audit.target import collect
from envbuilder.report.model import Report
from envbuilder.report.progress import Progress, Silent


def audit(targets: Sequence[str], card: Card | None, progress: Progress | None = None) -> Report:
    """Audit ``targets`` (paths, or images of the local store) for ``card``, or for every known card without one."""
    progress = progress or Silent()
    cards = [card.arch] if card else [c.arch for c in known_cards()]
    collections = []
    for target in targets:
        progress.stage(f"read {target}")
        collections.append(collect(target, cards, progress))
    return report_for(collections, card) if card else report_for_all(collections)
