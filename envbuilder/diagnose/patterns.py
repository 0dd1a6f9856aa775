"""Patterns with the literals that must be in a text for them to match, so that one pass over a log finds the places."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

MIN_LITERAL = 3
MOST_FOUND = 12
MOST_VAIN = 400


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, case-insensitive; ``^`` and ``$`` stand for ends of lines."""
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


@lru_cache(maxsize=4096)
def literals(pattern: str) -> tuple[str, ...]:
    """Lower-case texts one of which is in every match, as long as can be found.

    Raises ValueError where some match need not hold a fixed text of at least 3 characters.
    """
    found: list[str] = []
    for alternative in _alternatives(pattern):
        best = max(_candidates(alternative), key=lambda texts: min(map(len, texts)), default=("",))
        if min(map(len, best)) < MIN_LITERAL:
            raise ValueError(f"the pattern {pattern!r} has an alternative without a fixed text: {alternative!r}")
        found.extend(text.lower() for text in best)
    return tuple(dict.fromkeys(found))


def _alternatives(pattern: str) -> list[str]:
    parts, depth, start, index = [], 0, 0, 0
    while index < len(pattern):
        char = pattern[index]
        if char == "\\":
            index += 1
        elif char == "[":
            index = _class_end(pattern, index)
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "|" and depth == 0:
            parts.append(pattern[start:index])
            start = index + 1
        index += 1
    return [*parts, pattern[start:]]


def _class_end(pattern: str, index: int) -> int:
    """The index of the ``]`` closing the class that opens at ``index``."""
    index += 1
    if pattern[index : index + 1] == "^":
        index += 1
    if pattern[index : index + 1] == "]":
        index += 1
    while pattern[index] != "]":
        index += 2 if pattern[index] == "\\" else 1
    return index


def _group_end(pattern: str, index: int) -> int:
    """The index of the ``)`` closing the group that opens at ``index``."""
    depth = 0
    while True:
        char = pattern[index]
        if char == "\\":
            index += 1
        elif char == "[":
            index = _class_end(pattern, index)
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                return index
        index += 1


def _candidates(pattern: str) -> list[tuple[str, ...]]:
    """Sets of texts one of which is in every match of this single alternative: fixed runs, groups of alternatives."""
    found: list[tuple[str, ...]] = []
    current, index = "", 0
    while index < len(pattern):
        char, fixed = pattern[index], ""
        if char == "\\":
            index += 1
            fixed = "" if pattern[index].isalnum() else pattern[index]
        elif char == "[":
            index = _class_end(pattern, index)
        elif char == "(":
            end = _group_end(pattern, index)
            if pattern[end + 1 : end + 2] not in tuple("?*{") or end + 1 == len(pattern):
                found.extend(_of_group(pattern[index + 1 : end]))
            index = end
        elif char in "?*{":
            # What stands before it may be absent; the run ends without it. A {m,n} is skipped whole.
            current = current[:-1]
            if char == "{":
                index = pattern.index("}", index)
        elif char not in ".^$+":
            fixed = char
        index += 1
        if fixed:
            current += fixed
        else:
            found.append((current,))
            current = ""
    return [*found, (current,)]


def _of_group(inside: str) -> list[tuple[str, ...]]:
    if inside.startswith(("?!", "?=", "?<!", "?<=", "?P=")):
        return []
    if inside.startswith("?P<"):
        inside = inside[inside.index(">") + 1 :]
    elif inside.startswith("?"):
        inside = inside[inside.index(":") + 1 :]
    parts = _alternatives(inside)
    if len(parts) == 1:
        return _candidates(inside)
    chosen: list[str] = []
    for part in parts:
        chosen.extend(max(_candidates(part), key=lambda texts: min(map(len, texts)), default=("",)))
    return [tuple(chosen)]


@dataclass(frozen=True)
class Match:
    """One place where a pattern matched: 1-based line, what matched, the named groups that took part,
    and the first group."""

    line: int
    text: str
    groups: tuple[tuple[str, str], ...]
    first: str = ""


@dataclass
class Matcher:
    """A pattern with what it found: the first few matches and how often it was tried in vain."""

    pattern: str
    found: list[Match] = field(default_factory=list)
    vain: int = 0

    @property
    def spent(self) -> bool:
        """Whether further places need not be looked at: enough was found, or enough was tried in vain."""
        return len(self.found) >= MOST_FOUND or self.vain >= MOST_VAIN

    def add(self, match: Match) -> None:
        """Take in a match, unless it is known already (windows overlap)."""
        if match not in self.found:
            self.found.append(match)


def matchers(patterns: Sequence[str]) -> dict[str, Matcher]:
    """A fresh matcher for every distinct pattern."""
    return {pattern: Matcher(pattern) for pattern in patterns}
