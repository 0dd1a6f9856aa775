"""Whether an image fits on the disk, asked before anything is built."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

from envbuilder.errors import HostError, Place

# Packed bytes to bytes in the image where the file does not say: the locked base's 69 MB of .debs are a 220 MB tar,
# the toolkit's 1.6 GB of .debs are 2.8 GB without what the stack leaves out.
_DEB_FACTOR = 3.2
_DEVEL_FACTOR = 1.8
_SDIST_FACTOR = 6.0
# The kind of store that keeps, for each layer, a copy of all that lies below it too.
# Seen with p40-debian: 15 GB at the fifth of nine layers, which are 6.3 GB together.
COPYING = "vfs"
# Room for the builder's own files beside the layers.
_RESERVE = 512 * 2**20
_CURE = "Free some space: `buildah rmi --prune` or `docker builder prune` removes layers that nothing uses."
_CURE_COPYING = (
    "This store is of the kind vfs, which keeps for each layer a copy of all below it. The kind overlay does not: "
    'driver = "overlay" below [storage] in ~/.config/containers/storage.conf (for root /etc/containers/storage.conf).'
)


def unpacked_size(path: Path, filename: str) -> int:
    """The bytes a wheel or sdist takes once installed; exact for wheels, whose directory says it."""
    if filename.endswith(".whl"):
        with zipfile.ZipFile(path) as archive:
            return sum(entry.file_size for entry in archive.infolist())
    return int(path.stat().st_size * _SDIST_FACTOR)


def stored(layers: Iterable[int], driver: str) -> int:
    """The bytes that ``layers``, from the bottom up, take in an engine's store of kind ``driver``."""
    return sum(accumulate(layers)) if driver == COPYING else sum(layers)


def peak(layers: list[int], driver: str) -> int:
    """The bytes a build of ``layers`` takes at its peak, beside what was fetched.

    buildah keeps each step's container until the end, beside the layer made of it, and a layer passes through a
    file. Measured with p40-debian: 15 GB for 6.3 GB of layers, the largest of them 3.1 GB.
    """
    return 2 * stored(layers, driver) + max(layers)


def base_size(deb_sizes: Iterable[int]) -> int:
    """About how many bytes the base of Debian packages takes."""
    return int(sum(deb_sizes) * _DEB_FACTOR)


def devel_size(deb_sizes: Iterable[int]) -> int:
    """About how many bytes the devel target adds."""
    return int(sum(deb_sizes) * _DEVEL_FACTOR)


def check_build_space(storage: Path, needed: int, driver: str) -> None:
    """Raise HostError when the disk of the engine's store, of kind ``driver``, cannot hold ``needed`` more bytes."""
    folder = storage
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed + _RESERVE:
        raise HostError(
            f"images are stored where {free / 1e9:.1f} GB are free; this one needs {(needed + _RESERVE) / 1e9:.1f} GB",
            place=Place(str(storage)),
            cure=_CURE_COPYING if driver == COPYING else _CURE,
        )
