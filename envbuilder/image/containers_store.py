"""An image's layers out of containers storage (buildah, podman), byte for byte as they were put in, without a copy.

Beside each layer's files the store keeps what was between them in the tar archive (``tar-split``: headers and padding),
so the archive is put together again while it is read.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder.errors import HostError, Place

_CHUNK = 1024 * 1024
_MAX_LAYERS = 1024
# tar-split's kinds of entries.
_FILE, _BYTES = 1, 2


@dataclass(frozen=True)
class _Layer:
    diff_id: str
    size: int
    folder: Path
    split: Path


class StoredContents:
    """The image ``identity`` (hex digits of its id) in the store at ``root``; ``config`` is its configuration.

    Raises HostError when the store cannot be read.
    """

    def __init__(self, root: Path, identity: str, config: bytes) -> None:
        self._root = root
        self._config = config
        try:
            self._layers = _layers(root, identity)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise _unreadable(root, error) from error

    def config(self) -> bytes:
        """The image's configuration, as its digest was made of it."""
        return self._config

    def size(self, wanted: Callable[[str], bool]) -> int:
        """Bytes of the layers whose digest is wanted."""
        return sum(layer.size for layer in self._layers if wanted(layer.diff_id))

    def layers(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Iterator[bytes]]]:
        """The layers that are wanted, from the bottom up: digest, and the bytes of the tar archive."""
        for layer in self._layers:
            if wanted(layer.diff_id):
                yield layer.diff_id, self._archive(layer)

    def _archive(self, layer: _Layer) -> Iterator[bytes]:
        try:
            with gzip.open(layer.split) as lines:
                for line in lines:
                    entry = json.loads(line)
                    if entry["type"] == _BYTES:
                        yield base64.b64decode(entry["payload"])
                    elif entry["type"] == _FILE and entry.get("size"):
                        yield from _file(layer.folder / _name(entry), entry["size"])
        except (OSError, EOFError, ValueError, LookupError, TypeError, binascii.Error) as error:
            raise _unreadable(self._root, error) from error


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
            chain.append(_Layer(row["diff-digest"], row["diff-size"], folder, notes / f"{layer}.tar-split.gz"))
            layer = row.get("parent", "")
        return list(reversed(chain))
    raise LookupError(f"no layers of {identity}")


def _name(entry: dict[str, Any]) -> str | Path:
    """A file's name in the layer; one that is no UTF-8 stands in base64."""
    raw = entry.get("name_raw")
    name = os.fsdecode(base64.b64decode(raw)) if raw else str(entry["name"])
    return name.lstrip("/")


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
