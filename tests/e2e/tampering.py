"""Bytes that change behind everybody's back, and are put right again."""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def flipped(path: Path, offset: int | None = None) -> Iterator[None]:
    """One bit of the byte at ``offset``, or of the middle one, turned over for a while."""
    place = path.stat().st_size // 2 if offset is None else offset
    _flip(path, place)
    try:
        yield
    finally:
        _flip(path, place)


@contextmanager
def flipped_member(archive: Path) -> Iterator[str]:
    """One bit in the middle of the largest file in a tar, turned over for a while; the file's name."""
    with tarfile.open(archive) as tar:
        largest = max(tar.getmembers(), key=lambda member: member.size)
    with flipped(archive, largest.offset_data + largest.size // 2):
        yield largest.name


def _flip(path: Path, offset: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 1]))
