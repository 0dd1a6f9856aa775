"""Loading the rules and turning one into a finding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from envbuilder.diagnose.model import Lang, Rule, RuleFile, Text
from envbuilder.errors import Place
from envbuilder.report import Finding
from envbuilder.stack.fields import load_model

RULES = Path(__file__).parent / "rules"
_SLOT = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_OPTIONAL = re.compile(r"\[\[(.+?)\]\]", re.DOTALL)
_UNKNOWN = {"en": "(not known)", "zh": "（未知）"}
_CHECKS = {"en": "To decide: ", "zh": "用下列检查来判断："}


@dataclass(frozen=True)
class Subject:
    """A file of rules: its name (the path below ``rules`` without suffix), its title, its rules."""

    name: str
    title: Text
    rules: tuple[Rule, ...]


@lru_cache(maxsize=1)
def subjects() -> tuple[Subject, ...]:
    """All subjects in the order of their names. Raises InputError for a wrong file or an id used twice."""
    found = []
    for path in sorted(RULES.rglob("*.toml")):
        data = load_model(RuleFile, path)
        found.append(Subject(path.relative_to(RULES).with_suffix("").as_posix(), data.subject, data.rule))
    return tuple(found)


@lru_cache(maxsize=1)
def rules() -> Mapping[str, Rule]:
    """Every rule by its id."""
    book: dict[str, Rule] = {}
    for subject in subjects():
        for rule in subject.rules:
            if rule.id in book:
                raise ValueError(f"two rules have the id {rule.id}")
            book[rule.id] = rule
    return book


def fill(text: str, slots: Mapping[str, str], lang: Lang) -> str:
    """``text`` with its slots filled; an optional part with a slot that has no value is left out."""

    def optional(match: re.Match[str]) -> str:
        part = match.group(1)
        return part if all(slots.get(name) for name in _SLOT.findall(part)) else ""

    kept = _OPTIONAL.sub(optional, text)
    return _SLOT.sub(lambda m: slots.get(m.group(1)) or _UNKNOWN[lang], kept).strip()


def slots_of(rule: Rule) -> set[str]:
    """The names of all slots in the rule's texts."""
    texts = (rule.title, rule.cause, rule.cure, *rule.not_help, *rule.checks)
    return {name for text in texts for name in _SLOT.findall(text.en + text.zh)}


def finding(
    rule: Rule,
    slots: Mapping[str, str],
    lang: Lang = "en",
    place: Place | None = None,
    evidence: tuple[str, ...] = (),
) -> Finding:
    """The finding that ``rule`` makes of ``slots`` (strings by name), for lint and explain alike."""
    cure = fill(rule.cure.get(lang), slots, lang)
    if rule.checks:
        steps = [f"({n}) {fill(check.get(lang), slots, lang)}" for n, check in enumerate(rule.checks, 1)]
        cure = f"{cure} {_CHECKS[lang]}" + " ".join(steps)
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        title=fill(rule.title.get(lang), slots, lang),
        place=place or Place(),
        cause=fill(rule.cause.get(lang), slots, lang),
        cure=cure,
        not_help=tuple(fill(text.get(lang), slots, lang) for text in rule.not_help),
        evidence=evidence,
        sources=rule.sources,
        confidence=rule.confidence,
    )
