"""Suppressing a finding where it stands: ``# envbuilder: ignore[rule-id] reason``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from envbuilder.diagnose.lint.model import Hit

_MARK = re.compile(r"#\s*envbuilder:\s*ignore(?:\[([\w\s,-]*)\])?[ \t]*(.*)$")


def suppressed(text: str, hits: Iterable[Hit]) -> Iterator[Hit]:
    """The hits that no comment suppresses, and one for each comment that gives no rule or no reason.

    A comment holds for its own line and, when it stands alone, for the next line that is not a comment. Without a line
    of its own (a fault of the whole file) a hit is suppressed by a comment in the first line.
    """
    marks: dict[int, set[str]] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        match = _MARK.search(line)
        if not match:
            continue
        rules = {part.strip() for part in (match.group(1) or "").split(",") if part.strip()}
        if not rules or len(match.group(2).strip()) < 3:
            missing = "a rule id" if not rules else "a reason"
            yield Hit("suppression-without-reason", number, (line.strip(),), {"missing": missing})
            continue
        marks.setdefault(number, set()).update(rules)
        if line.lstrip().startswith("#"):
            after = number + 1
            while after <= len(lines) and (not lines[after - 1].strip() or lines[after - 1].lstrip().startswith("#")):
                after += 1
            marks.setdefault(after, set()).update(rules)
    for hit in hits:
        if hit.rule not in marks.get(hit.line or 1, set()):
            yield hit
