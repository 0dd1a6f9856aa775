"""Which engine to use."""

from __future__ import annotations

from envbuilder.errors import HostError, InputError
from envbuilder.image.engine import Engine

NAMES = ("auto", "docker", "buildah")


def choose_engine(name: str = "auto") -> Engine:
    """The engine ``name``; "auto" is a Docker daemon that answers and can build, else buildah.

    Raises HostError with the cure when the engine asked for is not there.
    """
    from envbuilder.image.buildah import Buildah

    if name == "buildah":
        return Buildah()
    if name not in NAMES:
        raise InputError(f"there is no engine named {name!r}", cure=f"One of: {', '.join(NAMES)}.")
    # Imported late: the SDK is slow to import, and not needed for buildah.
    from envbuilder.image.docker import Docker

    if name == "docker":
        return Docker()
    try:
        daemon = Docker()
        daemon.check_can_build()
    except HostError as no_docker:
        try:
            return Buildah()
        except HostError as no_buildah:
            raise HostError(
                "there is no engine on this host that can build images",
                detail=f"docker: {no_docker.message}\nbuildah: {no_buildah.message}",
                cure=no_buildah.cure,
            ) from None
    return daemon
