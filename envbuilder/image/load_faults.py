"""An image that an engine did not take, in words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from envbuilder.errors import EnvbuilderError, HostError, IntegrityError, Place

_FULL = ("no space left on device", "disk quota exceeded")
_DAMAGED = ("does not match", "invalid checksum", "unexpected EOF", "mismatch", "digest")


# SIGKILL, as Python says it and as a shell does.
KILLED = (-9, 137)


def killed(engine: str) -> HostError:
    """The error for an engine that was killed while it took an image."""
    return HostError(
        f"{engine} was killed while it took the image; nothing of it has a name",
        cure="Mostly the kernel does it for want of memory (dmesg says so). Run it again: what was fetched is kept.",
    )


def gone(engine: str, error: Exception) -> HostError:
    """The error for a daemon that no longer answers while it takes an image."""
    return HostError(
        f"{engine} went away while it took the image",
        cure="See why it ended (journalctl -u docker) and start it, then run it again: what was fetched is kept.",
        detail=str(error),
    )


def load_error(engine: str, said: str, storage: Path | None) -> EnvbuilderError:
    """The error for ``said``, what ``engine`` said when it did not take an image."""
    place = Place(str(storage)) if storage else None
    lines = "\n".join(said.strip().splitlines()[-8:])
    if any(text in said for text in _FULL):
        return HostError(
            f"the disk is full: {engine} could not store the image, and knows no such image",
            place=place,
            cure="Free some space, then run it again: what was fetched, and layers that were stored whole, are kept.",
            detail=lines,
        )
    if any(text in said for text in _DAMAGED):
        return IntegrityError(
            f"{engine} refused the image: its bytes are not what it says it is made of",
            cure="Whoever made it made it wrong, or this host's disk changed it. The store knows no such image.",
            detail=lines,
        )
    return HostError(f"{engine} does not take the image", place=place, detail=lines, cure="See what it says above.")


def other_image(engine: str, ids: Iterable[str]) -> IntegrityError:
    """The error for an engine that has none of ``ids`` after it took the image."""
    return IntegrityError(
        f"what {engine} stored is not the image it was given; it bears no name",
        cure="Do not use it. Run it again; if it stays so, the engine's store is damaged.",
        detail="\n".join(f"wanted  {digest}" for digest in sorted(ids)),
    )
