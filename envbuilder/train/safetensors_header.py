"""The header of a safetensors file: names, dtypes and shapes, without reading the weights.

The library of that name needs numpy or torch to say as much, and the tool has neither.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from envbuilder.errors import InputError, Place

# The reference reader's own limit for a header.
_MAX_HEADER = 100_000_000
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_LFS = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True)
class Tensor:
    """One tensor of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)


def read_header(path: Path) -> list[Tensor]:
    """The tensors of ``path``. Raises InputError for a pointer file, a truncated file or a header that is none."""
    place = Place(str(path))
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(64)
        if head.startswith(_LFS):
            raise InputError(
                "this is a Git LFS pointer, not the weights",
                place=place,
                cure="Fetch the file itself: `git lfs pull`, or `envbuilder model get`.",
            )
        length = struct.unpack("<Q", head[:8])[0] if len(head) >= 8 else 0
        if not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise InputError("this is not a safetensors file", place=place, cure="Fetch it again.")
        stream.seek(8)
        raw = stream.read(length)
    try:
        entries = json.loads(raw)
        tensors = [
            (Tensor(name, entry["dtype"], tuple(entry["shape"])), int(entry["data_offsets"][1]))
            for name, entry in entries.items()
            if name != "__metadata__"
        ]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise InputError(f"the header is broken: {error}", place=place, cure="Fetch the file again.") from error
    end = max((offset for _, offset in tensors), default=0)
    if size != 8 + length + end:
        raise InputError(
            f"the file has {size} bytes, its header promises {8 + length + end}",
            place=place,
            cure="The download was cut short or overwritten: fetch it again.",
        )
    return [tensor for tensor, _ in tensors]


def dtype_bytes(dtype: str) -> int | None:
    """Bytes of one number of a safetensors dtype; None for one that is not known here."""
    return _BYTES.get(dtype)
