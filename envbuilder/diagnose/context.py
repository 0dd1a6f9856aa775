"""The facts a rule reasons over: read out of the log, known of the card and of the stack, and derived from both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from envbuilder.diagnose.patterns import Matcher
from envbuilder.stack.compat.cards import card_rows
from envbuilder.stack.compat.torch_builds import builds_for, find_build
from envbuilder.stack.fields import Strict, load_model
from envbuilder.stack.gpu import GpuProfile, load_gpu
from envbuilder.stack.model import Stack

HERE = Path(__file__).parent
DEFAULT_CARD = "p40"


class FactPatterns(Strict):
    """How one fact is read out of a log. The first group of each pattern is the value."""

    name: str
    about: str
    patterns: tuple[str, ...]


class FactFile(Strict):
    """``facts.toml``."""

    schema_: Literal[1] = Field(alias="schema")
    fact: tuple[FactPatterns, ...]


@dataclass(frozen=True)
class Known:
    """What is known before the log is read: the card it is about, the stack at hand."""

    gpu: GpuProfile | None = None
    stack: Stack | None = None


@lru_cache(maxsize=1)
def fact_patterns() -> tuple[FactPatterns, ...]:
    """All facts, in the order of the file."""
    return load_model(FactFile, HERE / "facts.toml").fact


@lru_cache(maxsize=1)
def card_patterns() -> Mapping[str, str]:
    """A pattern for every card name, and the capability it stands for."""
    return {rf"(?<!\w)({re.escape(name)})(?!\d)": row.capability for row in card_rows() for name in row.logged}


# Facts that are derived below, beside those of facts.toml.
DERIVED = (
    "sm", "card", "cards", "torch_number", "torch_tag", "torch_arches", "torch_runs", "torch_major_minor",
    "driver_branch", "library_differs", "target", "target_sm", "target_digits", "target_card", "builds", "tags",
    "last_driver", "stack", "stack_torch",
)  # fmt: skip


def facts_of(matchers: Mapping[str, Matcher], known: Known) -> dict[str, tuple[str, ...]]:
    """All facts by name. A fact that nobody states is absent; ``target...`` is the card the cure is written for."""
    facts = {f.name: values for f in fact_patterns() if (values := _values(f, matchers))}
    if "capability" in facts:
        facts["capability"] = tuple(dict.fromkeys(_dotted(value) for value in facts["capability"]))
    _add_cards(facts, matchers, known)
    _add_torch(facts)
    if "driver" in facts:
        facts["driver_branch"] = tuple(dict.fromkeys(v.split(".")[0] for v in facts["driver"]))
        if any(v not in facts["driver"][0] and facts["driver"][0] != v for v in facts.get("driver_library", ())):
            facts["library_differs"] = ("yes",)
    _add_target(facts, known)
    if known.stack:
        facts["stack"] = (known.stack.name,)
        facts["stack_torch"] = (known.stack.python.packages["torch"].version,)
    return facts


def _values(fact: FactPatterns, matchers: Mapping[str, Matcher]) -> tuple[str, ...]:
    values: dict[str, None] = {}
    for pattern in fact.patterns:
        for match in matchers[pattern].found:
            if match.first:
                values[match.first.rstrip(".,;)'\"")] = None
    return tuple(values)


def _dotted(capability: str) -> str:
    return capability if "." in capability else f"{capability[:-1]}.{capability[-1]}"


def _add_cards(facts: dict[str, tuple[str, ...]], matchers: Mapping[str, Matcher], known: Known) -> None:
    named: dict[str, str] = {}
    for pattern, capability in card_patterns().items():
        for match in matchers[pattern].found:
            named[match.first] = capability
    if named:
        facts["cards"] = tuple(named)
        facts["card"] = (next(iter(named)),)
    if "capability" not in facts:
        stated = tuple(dict.fromkeys(named.values()))
        if not stated and known.gpu:
            stated = (known.gpu.capability.value,)
        if stated:
            facts["capability"] = stated
    if "capability" in facts:
        facts["sm"] = tuple("sm_" + value.replace(".", "") for value in facts["capability"])
    if "card" not in facts and known.gpu:
        facts["card"] = (known.gpu.title,)


def _add_torch(facts: dict[str, tuple[str, ...]]) -> None:
    if "torch" not in facts:
        return
    full = next((v for v in facts["torch"] if "+" in v), facts["torch"][0])
    number, _, tag = full.partition("+")
    facts["torch"] = (full, *(v for v in facts["torch"] if v != full))
    facts["torch_number"] = (number,)
    facts["torch_major_minor"] = (".".join(number.split(".")[:2]),)
    row = find_build(full)
    tag = tag or (row.cuda if row else "")
    if tag:
        facts["torch_tag"] = (tag,)
    if tag.startswith("cu") and "torch_cuda" not in facts and tag[2:].isdigit():
        facts["torch_cuda"] = (f"{tag[2:-1]}.{tag[-1]}",)
    if row:
        facts["torch_arches"] = (" ".join(row.arches),)
        if "capability" in facts:
            runs = all(row.runs_on(_numbers(value)) for value in facts["capability"])
            facts["torch_runs"] = ("yes" if runs else "no",)


def _add_target(facts: dict[str, tuple[str, ...]], known: Known) -> None:
    gpu = known.gpu or load_gpu(DEFAULT_CARD)
    target = min(facts.get("capability") or (gpu.capability.value,), key=_numbers)
    facts["target"] = (target,)
    facts["target_sm"] = ("sm_" + target.replace(".", ""),)
    facts["target_digits"] = (target.replace(".", ""),)
    facts["target_card"] = facts.get("card") or (gpu.title,)
    builds = builds_for(_numbers(target))
    if builds:
        facts["builds"] = (", ".join(f"{number}+{tag}" for number, tag in reversed(builds[-9:])),)
        facts["tags"] = (", ".join(dict.fromkeys(tag for _, tag in builds)),)
    if target == gpu.capability.value:
        facts["last_driver"] = (str(gpu.driver.last_branch),)


def _numbers(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return int(major), int(minor or 0)
