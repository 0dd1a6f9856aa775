"""The verdict over what a host reported, without running anything: ``verify --probe``, and the look before a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from envbuilder.errors import InputError
from envbuilder.report.model import Check, Report, Status, Verdict
from envbuilder.smoke.check import Outcome, not_proven
from envbuilder.smoke.facts import Card, HostFacts
from envbuilder.smoke.judge.tables import capability_of
from envbuilder.smoke.judged import JUDGED, Case, Judged
from envbuilder.smoke.manifest import Manifest

# Who the card is decides nothing by itself: a report that holds no more than its name proves nothing.
_NAMES_ONLY = {"gpu", "card", "bf16"}


def replay(
    facts: HostFacts,
    indices: Sequence[int],
    manifest: Manifest | None,
    builds: Mapping[str, Sequence[str]],
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
) -> Report:
    """Judge ``facts`` for the cards at ``indices`` (nvidia-smi's). Raises InputError for an index that is not there."""
    cards = pick(facts, indices)
    known = {key: tuple(value) for key, value in builds.items()}
    checks = [
        _check(judged, Case(facts, card, manifest, known), several=len(cards) > 1)
        for judged in JUDGED
        if (not only or judged.id in only) and judged.id not in skip
        for card in (cards if judged.per_card else cards[:1])
    ]
    verdict, summary = _verdict(checks, facts)
    unread = {"not read": list(facts.unread)} if facts.unread else {}
    names = ", ".join(card.label for card in cards)
    return Report(
        "verify",
        names,
        verdict,
        summary,
        checks=tuple(checks),
        facts={"host": facts.to_dict(), "replayed": True, **unread},
    )


def pick(facts: HostFacts, indices: Sequence[int]) -> list[Card]:
    """The cards at ``indices``, their capability added from their name where it was not reported."""
    if not facts.cards:
        # Nothing to choose from; the checks say why.
        return [Card(index=index) for index in indices]
    there = {card.index: card for card in facts.cards}
    for index in indices:
        if index not in there:
            raise InputError(
                f"there is no GPU {index}: this host has {', '.join(card.label for card in facts.cards)}",
                cure=f"--gpu counts as nvidia-smi does: {', '.join(str(i) for i in sorted(there))}.",
            )
    return [with_capability(there[index]) for index in indices]


def with_capability(card: Card) -> Card:
    """The card with its capability, told by its name where it was not reported."""
    return card if card.cc else replace(card, cc=capability_of(card.name))


def _check(judged: Judged, case: Case, several: bool) -> Check:
    outcome = judged.judge(case) if _applies(judged, case) else not_proven("the host reported no card")
    return to_check(judged, outcome, case.card.index if several and judged.per_card else None)


def to_check(judged: Judged, outcome: Outcome, index: int | None = None) -> Check:
    """The check of the report; with an index, its id and title name the card."""
    suffix, title = ("", "") if index is None else (f"@{index}", f", GPU {index}")
    return Check(
        judged.id + suffix, judged.title + title, judged.proves, outcome.status, 0.0, outcome.evidence, outcome.message,
        outcome.cure,
    )  # fmt: skip


def _applies(judged: Judged, case: Case) -> bool:
    return not judged.needs_card or bool(case.facts.cards)


def _verdict(checks: Sequence[Check], facts: HostFacts) -> tuple[Verdict, str]:
    failed = [check for check in checks if check.status is Status.FAILED]
    open_ = [check for check in checks if check.status is Status.UNKNOWN]
    silent = _NAMES_ONLY if facts.cuda else _NAMES_ONLY | {"order"}
    passed = [c for c in checks if c.status is Status.PASSED and c.id.split("@")[0] not in silent]
    told = f"{len([c for c in checks if c.status is Status.PASSED])} passed, {len(failed)} failed"
    if failed:
        return Verdict.NO, f"{told}. Failed: {', '.join(check.id for check in failed)}."
    if open_:
        return Verdict.UNKNOWN, f"{told}: {'; '.join(check.message for check in open_)}"
    if not facts.known or not passed:
        return Verdict.UNKNOWN, "too little was reported to tell anything"
    return Verdict.YES, f"{told}. Nothing that was reported speaks against the card; nothing was run."
