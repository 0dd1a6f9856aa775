"""Which engine to use."""

from __future__ import annotations

from envbuilder.errors import InputError
from envbuilder.image.engine import Engine

NAMES = ("auto", "docker", "buildah")


def choose_engine(name: str = "auto") -> Engine:
    """The engine ``name``; "auto" is a Docker daemon that answers, else buildah.

    Raises HostError with the cure when the engine asked for is not there.
    """
    from envbuilder.image.buildah import Buildah

    if name in ("auto", "buildah"):
        return Buildah()
    raise InputError(f"there is no engine named {name!r}", cure=f"One of: {', '.join(NAMES)}.")
