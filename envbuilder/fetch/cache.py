"""The content-addressed cache: one file per digest, put there only after its bytes were verified."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from envbuilder import data
from envbuilder.errors import HostError, Place

# Kept free besides what is downloaded, so that the host's own logs and temporary files go on.
RESERVE = 256 * 1024 * 1024


@dataclass(frozen=True)
class Item:
    """A file to have, as the lock names it: what it is, its name, its digest and its size in bytes where known.

    ``digest`` is ``sha256:...``, or ``md5:...`` for the few conda packages that nobody gives a SHA-256 for.
    ``named_by`` says in words what names it.
    """

    label: str
    filename: str
    digest: str
    size: int | None
    named_by: str = "the lock"

    @property
    def algorithm(self) -> str:
        """The name of the hash function, as hashlib knows it."""
        return self.digest.split(":")[0]

    @property
    def hex(self) -> str:
        """The digest's hex digits."""
        return self.digest.split(":")[1]


def path_of(item: Item) -> Path:
    """Where the verified file is, or will be."""
    return data.cache_root() / item.algorithm / item.hex[:2] / item.hex


def partial_of(item: Item) -> Path:
    """Where the bytes fetched so far are."""
    return data.cache_root() / "partial" / item.hex


def lock_of(item: Item) -> Path:
    """The lock file of whoever fetches the item now."""
    return data.cache_root() / "locks" / item.hex


def is_there(item: Item) -> bool:
    """Whether the verified file is in the cache. Its size is looked at, its bytes are not read again."""
    try:
        size = path_of(item).stat().st_size
    except FileNotFoundError:
        return False
    return item.size is None or size == item.size


def check_space(missing: list[Item]) -> None:
    """Raise HostError when the cache's disk cannot hold what is missing. Unknown sizes count as nothing."""
    needed = 0
    for item in missing:
        partial = partial_of(item)
        needed += max(0, (item.size or 0) - (partial.stat().st_size if partial.is_file() else 0))
    root = data.cache_folder()
    free = shutil.disk_usage(root).free
    if needed + RESERVE > free:
        raise HostError(
            f"the disk of the cache has {free / 1e9:.1f} GB free, {(needed + RESERVE) / 1e9:.1f} GB are needed",
            place=Place(str(root)),
            cure="Free some space, or set ENVBUILDER_CACHE to a folder on a larger disk.",
        )
