"""As whom a command runs that writes to the host, so that the folder's owner owns what it wrote."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from envbuilder.errors import HostError, Place

# The user of every image (templates/*.Dockerfile.j2 and Dockerfile.p40 make it).
IMAGE_USER = (1000, 1000)


def writer(folders: Iterable[Path]) -> tuple[int, int] | None:
    """User and group id on the host for a command that writes to ``folders``; None when there are none.

    It is the folders' owner. No container runs as the host's root: a folder of root's is given to the image's user.
    Raises HostError when the folders have several owners.
    """
    owners: dict[tuple[int, int], Path] = {}
    for folder in folders:
        state = folder.stat()
        if state.st_uid == 0 and os.geteuid() == 0:
            os.chown(folder, *IMAGE_USER)
            state = folder.stat()
        owners.setdefault((state.st_uid, state.st_gid), folder)
    if len(owners) > 1:
        raise HostError(
            f"the folders {', '.join(map(str, owners.values()))} have different owners, a container writes as one",
            cure="Give them all to one user: chown -R USER FOLDER.",
        )
    owner = next(iter(owners), None)
    if owner is not None and owner[0] == 0:
        raise HostError(
            "the folder is root's, and you are not root", place=Place(str(next(iter(owners.values())))),
            cure="Give a folder of your own.",
        )  # fmt: skip
    return owner


def inside(owner: tuple[int, int]) -> tuple[int, int]:
    """The ids inside a container without a daemon: rootless, the invoking user is root there, and nothing outside."""
    return (0, 0) if os.geteuid() != 0 and owner[0] == os.geteuid() else owner
