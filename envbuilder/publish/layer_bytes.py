"""The bytes of a layer out of an archive or a layout, in pieces, and what is wrong with them in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import zstandard
from isal import igzip_lib

from envbuilder.errors import InputError, Place

_CHUNK = 1 << 20


def chunks_of(stream: IO[bytes], subject: str) -> Iterator[bytes]:
    """The bytes of an unpacked layer of the image ``subject``. Raises InputError when they cannot be unpacked."""
    try:
        while chunk := stream.read(_CHUNK):
            yield chunk
    except (OSError, EOFError, igzip_lib.IsalError, zstandard.ZstdError) as error:  # type: ignore[misc]  # its stub calls the class a value
        raise InputError(
            f"a layer of this image cannot be unpacked: {error}",
            place=Place(subject),
            cure="Save or pull the image again.",
        ) from error
