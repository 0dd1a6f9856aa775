"""Layers as they travel: packed with zstd, the same bytes on every host, kept in the cache by what is in them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import zstandard

from envbuilder import data
from envbuilder.errors import IntegrityError
from envbuilder.fetch.cache import Item, is_there, path_of
from envbuilder.files import write_bytes
from envbuilder.image.archives import UNPACKED_SIZE
from envbuilder.publish.layout import LAYER_ZSTD, Descriptor, canonical

# A part of the digest of everything published: changing it changes them all. The compressor is pinned too, in the
# requirements; its name and version stand in each note, so that another one packs anew.
LEVEL = 3
_RECIPE = f"zstandard {zstandard.__version__}, zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}, level {LEVEL}"


def packed(diff_id: str) -> Descriptor | None:
    """The packed layer whose unpacked bytes are ``diff_id``, where the cache has it."""
    try:
        note = json.loads(_note(diff_id).read_bytes())
        if note["recipe"] != _RECIPE:
            return None
        descriptor = Descriptor.from_dict(note["layer"])
    except (OSError, ValueError, LookupError, TypeError, IntegrityError):
        return None
    return descriptor if is_there(item_of(descriptor)) else None


def pack(diff_id: str | None, chunks: Iterable[bytes], advance: Callable[[int], None]) -> Descriptor:
    """Pack an unpacked layer into the cache; ``advance`` is told of unpacked bytes. None takes it for what it is.

    Several threads work at it; the bytes that come out are the same with any number of them (from one on).
    Raises IntegrityError when the layer is not ``diff_id``.
    """
    folder = data.cache_folder("packing")
    handle, name = tempfile.mkstemp(dir=folder)
    temporary = Path(name)
    try:
        whole, out, length, size = hashlib.sha256(), hashlib.sha256(), 0, 0
        compressor = zstandard.ZstdCompressor(level=LEVEL, threads=os.cpu_count() or 1).compressobj()
        with os.fdopen(handle, "wb") as stream:
            for chunk in chunks:
                whole.update(chunk)
                length += len(chunk)
                advance(len(chunk))
                part = compressor.compress(chunk)
                out.update(part)
                size += stream.write(part)
            part = compressor.flush()
            out.update(part)
            size += stream.write(part)
        unpacked = f"sha256:{whole.hexdigest()}"
        if diff_id not in (None, unpacked):
            raise IntegrityError(
                "a layer in the engine's store is not what the image says it is",
                cure="The store is damaged: remove the image and build or pull it again.",
                detail=f"image  {diff_id}\nstore  {unpacked}",
            )
        descriptor = Descriptor(LAYER_ZSTD, f"sha256:{out.hexdigest()}", size, {UNPACKED_SIZE: str(length)})
        target = path_of(item_of(descriptor))
        data.cache_folder(*target.parent.relative_to(data.cache_root()).parts)
        temporary.chmod(0o444)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    write_bytes(_note(unpacked), canonical({"recipe": _RECIPE, "layer": descriptor.to_dict()}))
    return descriptor


def item_of(descriptor: Descriptor) -> Item:
    """The file of a blob in the cache."""
    return Item(descriptor.digest, descriptor.digest, descriptor.digest, descriptor.size, "the image's manifest")


def _note(diff_id: str) -> Path:
    return data.cache_root() / "packed" / f"{diff_id.removeprefix('sha256:')}.json"
