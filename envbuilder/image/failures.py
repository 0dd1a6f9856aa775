"""A failed build step in words, with a cure where it is known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from envbuilder import toml
from envbuilder.errors import BuildError, IntegrityError


def build_error(step: str, output: str) -> BuildError | IntegrityError:
    """The error for a step that failed with ``output`` as its last lines; IntegrityError for bytes not the lock's."""
    lines = [line for line in output.splitlines() if line.strip()][-20:]
    known = _known(output)
    kind = IntegrityError if known.get("integrity") else BuildError
    return kind(
        f"the build failed at: {step}" if step else "the build failed before its first step",
        detail="\n".join(lines),
        cure=known.get("cure"),
    )


def _known(output: str) -> dict[str, Any]:
    """The first entry of failures.toml whose pattern the output has; empty when nothing is known."""
    table = toml.load(Path(__file__).with_name("failures.toml"))
    for entry in table["failure"]:
        if re.search(entry["pattern"], output, re.IGNORECASE):
            found: dict[str, Any] = entry
            return found
    return {}
