"""An image's layers out of containers storage (buildah, podman), without a copy, the same however they are stored.

Beside each layer's files the store keeps what was between them in the tar archive (``tar-split``: headers and padding),
so the archive is put together again while it is read. One that a storage wrote in its own way is arranged anew and has
another digest then: what leaves root's storage and a user's is the same image.
"""

from __future__ import annotations

import binascii
import contextlib
import gzip
import hashlib
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from envbuilder import data
from envbuilder.errors import HostError, IntegrityError, Place
from envbuilder.files import write_text
from envbuilder.image.arranged import Archive, arranged, published_config, read_split

_CHUNK = 1024 * 1024
_MAX_LAYERS = 1024
# Of the cache; the number goes up when layers are arranged in another way.
_NOTES = "arranged-1"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DAMAGED = (OSError, EOFError, ValueError, LookupError, TypeError, binascii.Error, tarfile.TarError)


class StoredContents:
    """The image ``identity`` (hex digits of its id) in the store at ``root``; ``config`` is its configuration there.

    Raises HostError when the store cannot be read.
    """

    def __init__(self, root: Path, identity: str, config: bytes) -> None:
        self._root = root
        self._config = config
        try:
            self._layers = _layers(root, identity)
        except _DAMAGED as error:
            raise _unreadable(root, error) from error

    def config(self) -> bytes:
        """The image's configuration, naming the layers as they leave the store.

        Raises IntegrityError when a layer that must be arranged for it is damaged.
        """
        diff_ids = [layer.diff_id() for layer in self._layers]
        try:
            return published_config(self._config, diff_ids)
        except (*_DAMAGED, AttributeError, RecursionError) as error:
            raise _unreadable(self._root, error) from error

    def unknown(self) -> int:
        """Bytes that ``config`` has to hash the first time, because their storage wrote them in its own way."""
        return sum(layer.size for layer in self._layers if layer.kept() is None)

    def size(self, wanted: Callable[[str], bool]) -> int:
        """Bytes of the layers whose digest is wanted."""
        return sum(layer.size for layer in self._layers if wanted(layer.diff_id()))

    def layers(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Iterator[bytes]]]:
        """The layers that are wanted, from the bottom up: digest, and the bytes of the tar archive."""
        for layer in self._layers:
            if wanted(layer.diff_id()):
                yield layer.diff_id(), layer.read()


class _Layer:
    """A layer of the store at ``root``: its digest there, its bytes, the folder of its files, what was between them."""

    def __init__(self, root: Path, stored: str, size: int, folder: Path, split: Path) -> None:
        self._root, self._stored, self.size, self._folder, self._split = root, stored, size, folder, split

    def kept(self) -> str | None:
        """Its digest as it leaves the store, where that is known."""
        with contextlib.suppress(OSError):
            if _DIGEST.fullmatch(digest := self._note().read_text()):
                return digest
        if self._archive(arrange=True) != self._archive(arrange=False):
            return None
        self._keep(self._stored)
        return self._stored

    def diff_id(self) -> str:
        """Its digest as it leaves the store."""
        if known := self.kept():
            return known
        if self._hash(arrange=False) != self._stored:
            raise IntegrityError(
                "a layer in the engine's store is not what the image says it is",
                place=Place(str(self._folder)),
                cure="The store is damaged: remove the image and build or pull it again.",
            )
        digest = self._hash(arrange=True)
        self._keep(digest)
        return digest

    def read(self, arrange: bool = True) -> Iterator[bytes]:
        """The bytes of its archive as it leaves the store, or as it is stored."""
        archive = self._archive(arrange)
        try:
            for entry in archive.entries:
                yield entry.head
                if entry.size:
                    yield from _file(self._folder / os.fsdecode(entry.name.lstrip(b"/")), entry.size)
                    yield bytes(entry.padding)
            yield archive.end
        except _DAMAGED as error:
            raise _unreadable(self._root, error) from error

    def _archive(self, arrange: bool) -> Archive:
        try:
            with gzip.open(self._split) as lines:
                archive = read_split(lines)
            return arranged(archive) if arrange else archive
        except _DAMAGED as error:
            raise _unreadable(self._root, error) from error

    def _hash(self, arrange: bool) -> str:
        whole = hashlib.sha256()
        for chunk in self.read(arrange):
            whole.update(chunk)
        return f"sha256:{whole.hexdigest()}"

    def _note(self) -> Path:
        """How a layer is arranged depends on its bytes alone, so what was found of one holds for each of its digest."""
        return data.cache_root() / _NOTES / self._stored.removeprefix("sha256:")

    def _keep(self, digest: str) -> None:
        # Without the note it is found out again; a full disk is no reason to know nothing of an image.
        with contextlib.suppress(HostError):
            write_text(self._note(), digest)


def _layers(root: Path, identity: str) -> list[_Layer]:
    for driver, place in (("overlay", "overlay/{}/diff"), ("vfs", "vfs/dir/{}")):
        listing = root / f"{driver}-images" / "images.json"
        images = json.loads(listing.read_bytes()) if listing.is_file() else []
        image = next((entry for entry in images if entry["id"] == identity), None)
        if image is None:
            continue
        notes = root / f"{driver}-layers"
        rows = {row["id"]: row for row in json.loads((notes / "layers.json").read_bytes())}
        chain: list[_Layer] = []
        layer = image["layer"]
        while layer and len(chain) < _MAX_LAYERS:
            row = rows[layer]
            folder = root / place.format(layer)
            split = notes / f"{layer}.tar-split.gz"
            chain.append(_Layer(root, row["diff-digest"], row["diff-size"], folder, split))
            layer = row.get("parent", "")
        return list(reversed(chain))
    raise LookupError(f"no layers of {identity}")


def _file(path: Path, size: int) -> Iterator[bytes]:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb", buffering=0) as stream:
        left = size
        while left and (chunk := stream.read(min(left, _CHUNK))):
            left -= len(chunk)
            yield chunk
    if left:
        raise ValueError(f"{path} is {left} bytes too short")


def _unreadable(root: Path, error: Exception) -> HostError:
    return HostError(
        f"the store of this image cannot be read: {error}",
        place=Place(str(root)),
        cure="Run as the user whose store it is. If it is damaged, remove the image and build or pull it again.",
    )
