"""What a build step is for, in words."""

from __future__ import annotations

import re

# Our Dockerfiles say it themselves, in a command that does nothing: RUN : 'title @ digest of what is installed' && ...
_TITLE = re.compile(r": '([^']+)'")
_FILES = re.compile(r"^(?:/bin/sh -c #\(nop\) )?(ADD|COPY)\s+(.*)$")


def step_title(instruction: str) -> str | None:
    """A title for an instruction, or for the note of it in an image's history; None where nothing happens."""
    if match := _TITLE.search(instruction):
        return match[1].split(" @ ")[0]
    if match := _FILES.match(instruction.removesuffix(" # buildkit")):
        if match[2].split()[-1] == "/":
            return "Debian base"
        return "copy " + re.sub(r"\b(file|dir|multi):[0-9a-f]{64}\b|\bin\b", "", match[2]).split()[-1]
    if instruction.startswith("RUN"):
        return instruction if len(instruction) <= 72 else instruction[:71] + "…"
    return None
