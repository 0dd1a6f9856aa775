"""Weighing the rules: which of them the log supports, and which of those say it best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from envbuilder.diagnose.conditions import Facts, holds
from envbuilder.diagnose.model import Rule
from envbuilder.diagnose.patterns import Match, Matcher

NEED, HELP, CONDITION = 10, 4, 6
MOST = 4


@dataclass(frozen=True)
class Candidate:
    """A rule that the log supports: its score, and the matches it rests on in the order of the log."""

    rule: Rule
    score: int
    matches: tuple[Match, ...]

    def slots(self) -> dict[str, str]:
        """The named groups of all matches; the first match that has a group names it."""
        slots: dict[str, str] = {}
        for match in self.matches:
            for name, value in match.groups:
                slots.setdefault(name, value)
        return slots


def patterns_of(rules: Iterable[Rule]) -> list[str]:
    """Every pattern of the rules, once."""
    found: dict[str, None] = {}
    for rule in rules:
        found.update(dict.fromkeys((*rule.needs, *rule.helps, *rule.against)))
    return list(found)


def weigh(rules: Iterable[Rule], matchers: Mapping[str, Matcher], facts: Facts) -> list[Candidate]:
    """The rules to report, best first: the best of each family, causes before symptoms.

    A cause hides every symptom; a rule that decides hides those that do not.
    """
    best: dict[str, Candidate] = {}
    for rule in rules:
        candidate = _judge(rule, matchers, facts)
        if candidate is None:
            continue
        family = rule.family or rule.id
        if family not in best or candidate.score > best[family].score:
            best[family] = candidate
    found = sorted(best.values(), key=lambda c: -c.score)
    causes = [c for c in found if c.rule.decides and not c.rule.symptom]
    found = causes or [c for c in found if not c.rule.symptom] or [c for c in found if c.rule.decides] or found
    return _without_echoes(found)[:MOST]


def _judge(rule: Rule, matchers: Mapping[str, Matcher], facts: Facts) -> Candidate | None:
    if not all(matchers[p].found for p in rule.needs) or any(matchers[p].found for p in rule.against):
        return None
    if not all(holds(condition, facts) for condition in rule.when):
        return None
    helping = [p for p in rule.helps if matchers[p].found]
    score = NEED * len(rule.needs) + HELP * len(helping) + CONDITION * len(rule.when) + rule.weight
    matches = [matchers[p].found[0] for p in (*rule.needs, *helping)]
    return Candidate(rule, score, tuple(matches))


def _without_echoes(found: Sequence[Candidate]) -> list[Candidate]:
    """Without candidates that rest on nothing but lines a better one already explains."""
    kept: list[Candidate] = []
    lines: set[int] = set()
    for candidate in found:
        own = {match.line for match in candidate.matches}
        if not own <= lines:
            kept.append(candidate)
            lines |= own
    return kept
