"""The reports of many cards as one: who was proven, who was not and why, and in what the hosts differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envbuilder.report.compare import differences
from envbuilder.report.model import Check, Confidence, Finding, Report, Severity, Status, Verdict, check_from_dict

_STATUS = {Verdict.YES.value: Status.PASSED, Verdict.NO.value: Status.FAILED, Verdict.UNKNOWN.value: Status.UNKNOWN}


@dataclass(frozen=True)
class CardReport:
    """What is known of one card: the suite's report (as JSON), or why there is none.

    Without a report, ``failed`` says whether that counts as a fault (the host died) or leaves the question open (it has
    no stack, its card is in use).
    """

    host: str
    gpu: str
    report: Mapping[str, Any] | None = None
    problem: str = ""
    cure: str = ""
    failed: bool = False

    @property
    def name(self) -> str:
        """``host GPU 0``."""
        return f"{self.host} GPU {self.gpu}"

    @property
    def status(self) -> Status:
        """The outcome of the card."""
        if self.report is None:
            return Status.FAILED if self.failed else Status.UNKNOWN
        return _STATUS[self.report["verdict"]]

    @property
    def passport(self) -> Mapping[str, Any]:
        """What tells this host from another, empty without a report."""
        passport: Mapping[str, Any] = self.report["facts"].get("passport", {}) if self.report else {}
        return passport


def card_of(report: Mapping[str, Any], otherwise: str) -> CardReport:
    """The card that a report is of. A report that names no host (one of ``verify`` itself) is called ``otherwise``."""
    facts = report["facts"]
    return CardReport(str(facts.get("node") or otherwise), str(facts.get("gpu", "0")), report)


def merge(cards: Sequence[CardReport], subject: str, nodes: Sequence[str] = ()) -> Report:
    """One report. ``nodes`` are sentences about hosts that had no card to prove."""
    cards = sorted(cards, key=lambda card: (card.host, card.gpu))
    checks = [check for card in cards for check in _checks(card)]
    found = differences({card.name: card.passport for card in cards if card.report})
    count = {status: sum(card.status is status for card in cards) for status in Status}
    verdict = Verdict.NO if count[Status.FAILED] else Verdict.YES if cards else Verdict.UNKNOWN
    if verdict is Verdict.YES and count[Status.UNKNOWN]:
        verdict = Verdict.UNKNOWN
    told = [f"{count[Status.PASSED]} of {len(cards)} cards proven"]
    told += [f"{count[s]} {s.value}" for s in (Status.FAILED, Status.UNKNOWN) if count[s]]
    bad = [card.name for card in cards if card.status is Status.FAILED]
    summary = ", ".join(told) + "." + (f" Failed: {', '.join(bad)}." if bad else "")
    facts = {
        "hosts": [
            {"node": c.host, "gpu": c.gpu, "status": c.status.value, "problem": c.problem, "report": c.report}
            for c in cards
        ],
        "differences": found,
        "nodes": list(nodes),
    }
    return Report(
        "verify", subject, verdict, summary, tuple(_finding(*row) for row in found.items()), tuple(checks), facts
    )


def _checks(card: CardReport) -> list[Check]:
    """One line for the card, and those of its checks that did not pass."""
    proves = "the suite on this card"
    key = f"{card.host}/{card.gpu}"
    if card.report is None:
        return [Check(key, card.name, proves, card.status, message=card.problem, cure=card.cure)]
    checks = [check_from_dict(check) for check in card.report["checks"]]
    shown = {name: card.passport[name] for name in ("card", "driver") if card.passport.get(name)}
    seconds = sum(check.seconds for check in checks)
    lines = [Check(key, card.name, proves, card.status, seconds, shown, card.report["summary"])]
    for check in checks:
        if check.status in (Status.FAILED, Status.UNKNOWN):
            lines.append(
                Check(f"{key}/{check.id}", f"{card.name}: {check.title}", check.proves, check.status, check.seconds,
                      check.evidence, check.message, check.cure)
            )  # fmt: skip
    return lines


def _finding(name: str, values: Mapping[str, Sequence[str]]) -> Finding:
    return Finding(
        rule="hosts-differ",
        severity=Severity.WARNING,
        title=f"{name}: not the same on every host",
        cause="Hosts that train together, or stand in for one another, are best alike.",
        cure=f"Give every host the same {name}, or leave out those that differ.",
        evidence=tuple(f"{value or 'not known'}: {', '.join(hosts)}" for value, hosts in values.items()),
        confidence=Confidence.MEASURED,
    )
