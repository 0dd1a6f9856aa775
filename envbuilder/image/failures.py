"""A failed build step in words, with a cure where it is known."""

from __future__ import annotations

import re
from pathlib import Path

from envbuilder import toml
from envbuilder.errors import BuildError


def build_error(step: str, output: str) -> BuildError:
    """The error for a step that failed with ``output`` as its last lines."""
    lines = [line for line in output.splitlines() if line.strip()][-20:]
    return BuildError(
        f"the build failed at: {step}" if step else "the build failed before its first step",
        detail="\n".join(lines),
        cure=_cure(output),
    )


def _cure(output: str) -> str | None:
    table = toml.load(Path(__file__).with_name("failures.toml"))
    for entry in table["failure"]:
        if re.search(entry["pattern"], output, re.IGNORECASE):
            cure: str = entry["cure"]
            return cure
    return None
