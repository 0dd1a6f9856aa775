"""Applying the safe fixes of findings to a text."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from envbuilder.diagnose.lint.model import Fix


def apply(text: str, fixes: Iterable[Fix]) -> str:
    """``text`` with the fixes applied, from the last line to the first; of two that overlap the first one wins."""
    lines = text.splitlines()
    ending = "\n" if text.endswith("\n") or not text else ""
    taken: set[int] = set()
    chosen: list[Fix] = []
    for fix in fixes:
        span = set(range(fix.first, fix.last + 1))
        if fix.last <= len(lines) and not span & taken:
            taken |= span
            chosen.append(fix)
    for fix in sorted(chosen, key=lambda f: f.first, reverse=True):
        lines[fix.first - 1 : fix.last] = fix.lines
    return "\n".join(lines) + ending


def diff(name: str, before: str, after: str) -> str:
    """The change as a unified diff."""
    return "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
    )
