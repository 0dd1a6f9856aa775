"""The checksum a lock file carries of its own content, so that an edit by hand is noticed.

It is no signature: whoever edits on purpose can write the checksum anew. It keeps honest people honest.
"""

from __future__ import annotations

import hashlib

from envbuilder.errors import IntegrityError, Place

_PREFIX = "# checksum: sha256:"


def seal(header: list[str], body: str) -> str:
    """The file's text: the comment lines of ``header``, the checksum of all the rest, and ``body``."""
    lines = [f"# {line}" for line in header]
    rest = "\n".join([*lines, body])
    return "\n".join([*lines, _PREFIX + _digest(rest), body])


def check_seal(text: str, file: str, stack: str) -> None:
    """Raise IntegrityError when ``text`` is not what was sealed, naming the file and what locks the stack anew."""
    lines = text.split("\n")
    found = [number for number, line in enumerate(lines) if line.startswith(_PREFIX)]
    cure = f"Take the file back out of version control, or lock anew: envbuilder lock {stack}"
    if not found:
        raise IntegrityError("the lock has lost its checksum line", place=Place(file), cure=cure)
    written = lines.pop(found[0]).removeprefix(_PREFIX)
    actual = _digest("\n".join(lines))
    if written != actual:
        raise IntegrityError(
            "the lock was changed by hand: its content is not what its checksum says",
            place=Place(file, found[0] + 1),
            cure=cure,
            detail=f"written  sha256:{written}\ncontent  sha256:{actual}",
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
