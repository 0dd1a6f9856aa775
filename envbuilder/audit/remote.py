"""Wheels that lie elsewhere: the archive's directory and as much of each library as an answer takes, by range requests.

A library is read from its beginning until one code unit settles the matter (one that cannot run where all must, one
that can where one is enough), or until ``HEAD`` packed bytes. What was not seen is said.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from envbuilder.audit.arch import Arch
from envbuilder.audit.binary import Binary, read_stream
from envbuilder.audit.collect import Collection, Package, is_candidate
from envbuilder.audit.fatbin import Image
from envbuilder.audit.rules import rule_for
from envbuilder.audit.runs import Means, means_of
from envbuilder.audit.wheel import inflate
from envbuilder.errors import SourceError
from envbuilder.report.progress import Progress, Silent

HEAD = 24 << 20
_BLOCK = 128 << 10
_LOCAL_HEADER = 30
_STORED, _DEFLATED = 0, 8
_MIB = 1 << 20


class Ranges(Protocol):
    """A file that can be read in parts. Both raise SourceError when its server does not serve parts.

    ``near`` is a file on this disk: all of it is looked at.
    """

    size: int
    near: bool

    def read(self, start: int, length: int) -> bytes:
        """A small part."""

    def stream(self, start: int, length: int) -> Iterator[bytes]:
        """A large part, piece by piece; closing the iterator ends the transfer."""


@dataclass(frozen=True)
class RemoteWheel:
    """A wheel that a list names. ``open`` is called only for wheels that may hold libraries."""

    name: str
    version: str
    filename: str
    open: Callable[[], Ranges]

    @property
    def pure(self) -> bool:
        """Whether its tag says that it holds no binaries."""
        return self.filename.endswith("-none-any.whl")


@dataclass(frozen=True)
class WheelList:
    """What a lock or requirements file names: wheels, and what cannot be looked at with the reason.

    ``sources`` are source distributions: they hold no device code yet, and what is built of them is not known.
    """

    wheels: tuple[RemoteWheel, ...]
    unseen: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


def collect_list(
    subject: str, found: WheelList, cards: Sequence[Arch], progress: Progress | None = None
) -> tuple[Collection, int, int]:
    """What the wheels of a list hold, the bytes fetched for it, and the bytes that the wheels have in all."""
    progress = progress or Silent()
    collection = Collection(subject, "list", unseen=list(found.unseen))
    fetched = total = 0
    for wheel in found.wheels:
        if wheel.pure:
            continue
        progress.item(wheel.filename)
        try:
            ranges = wheel.open()
            counted = _Counted(ranges)
            total += ranges.size
            collection.packages.append(_collect(wheel, counted, cards))
            fetched += counted.fetched
            progress.advance(fetched)
        except (SourceError, zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
            collection.unseen.append(f"{wheel.filename}: {getattr(error, 'message', error)}")
    return collection, fetched, total


def _collect(wheel: RemoteWheel, ranges: _Counted, cards: Sequence[Arch]) -> Package:
    package = Package(wheel.name, wheel.version)
    with zipfile.ZipFile(_File(ranges)) as archive:
        for member in archive.infolist():
            name = member.filename.rsplit("/", 1)[-1]
            if is_candidate(name) and member.file_size:
                package.binaries.append(_read(member, ranges, cards))
    return package


def _read(member: zipfile.ZipInfo, ranges: _Counted, cards: Sequence[Arch]) -> Binary:
    if member.flag_bits & 1 or member.compress_type not in (_STORED, _DEFLATED):
        return Binary(member.filename, doubts=["it is encrypted or packed in a way that wheels do not use"])
    header = ranges.read(member.header_offset, _LOCAL_HEADER)
    if header[:4] != b"PK\x03\x04" or len(header) < _LOCAL_HEADER:
        return Binary(member.filename, doubts=["the archive is damaged: its directory points nowhere"])
    start = member.header_offset + _LOCAL_HEADER
    start += int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    length = member.compress_size if ranges.near else min(member.compress_size, HEAD)
    enough = None if ranges.near else _enough(member.filename, cards)
    packed = ranges.stream(start, length)
    cut = length < member.compress_size
    chunks = inflate(packed, member.file_size) if member.compress_type == _DEFLATED else packed
    try:
        return read_stream(member.filename, chunks, member.file_size, cut=cut, enough=enough)
    finally:
        close = getattr(packed, "close", None)
        if close:
            close()


def _enough(path: str, cards: Sequence[Arch]) -> Callable[[tuple[Image, ...]], bool] | None:
    """Whether one unit settles the matter, for a single card; with several, everything must be seen."""
    if len(cards) != 1:
        return None
    rule = rule_for(path)
    wanted = (Means.SASS, Means.PTX) if rule and rule.partly else (Means.NOTHING,)
    return lambda images: means_of(images, cards[0])[0] in wanted


class _Counted:
    """Counts what is fetched."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self.fetched = 0
        self.size = ranges.size
        self.near = ranges.near

    def read(self, start: int, length: int) -> bytes:
        data = self._ranges.read(start, length)
        self.fetched += len(data)
        return data

    def stream(self, start: int, length: int) -> Iterator[bytes]:
        for chunk in self._ranges.stream(start, length):
            self.fetched += len(chunk)
            yield chunk


class _File(io.RawIOBase, IO[bytes]):
    """A file elsewhere for zipfile: reads whole blocks, so that its many small reads cost few requests."""

    def __init__(self, ranges: _Counted) -> None:
        self._ranges = ranges
        self._position = 0
        self._blocks: dict[int, bytes] = {}

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._ranges.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        end = self._ranges.size if size is None or size < 0 else min(self._position + size, self._ranges.size)
        parts = []
        while self._position < end:
            number, inside = divmod(self._position, _BLOCK)
            if number not in self._blocks:
                self._blocks = {
                    **dict(list(self._blocks.items())[-8:]),
                    number: self._ranges.read(number * _BLOCK, _BLOCK),
                }
            part = self._blocks[number][inside : inside + end - self._position]
            if not part:
                break
            parts.append(part)
            self._position += len(part)
        return b"".join(parts)
