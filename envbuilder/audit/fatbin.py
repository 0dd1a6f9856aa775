"""The fat binary format, as far as it was read off real files (CUDA 11.8 to 13). Standard library only.

A fat binary is a 16-byte header and a row of entries, each an image: SASS in an ELF file, PTX text or LTO-IR. The
host program registers one fat binary a translation unit, and the driver picks one image of it: it is the unit that
can or cannot run. Nothing here trusts a length: all are checked against what the header before them allows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

from envbuilder.audit.arch import Arch
from envbuilder.audit.sources import Source

MAGIC = b"\x50\xed\x55\xba"
HEADER = struct.Struct("<4sHHQ")
# kind, version, header length, padded payload size, compressed size, (options offset), minor, major, arch,
# (name offset, name length), flags, (0), uncompressed size
_ENTRY = struct.Struct("<HHIQI4xHHI8xQ8xQ")
ENTRY_SIZE = _ENTRY.size
_ENTRY_AND_START = 256  # a header (64 to 120 bytes so far) and the beginning of its payload
MAX_ENTRIES = 4096  # of one fat binary; the largest met in a real file is below 40
_MAX_ENTRY_HEADER = 1 << 16

FLAG_LZ4 = 0x2000
FLAG_ZSTD = 0x8000
FLAG_ARCH_SPECIFIC = 0x100000
FLAG_FAMILY_SPECIFIC = 0x200000
_SUFFIX_FLAGS = FLAG_ARCH_SPECIFIC | FLAG_FAMILY_SPECIFIC
# Not of the format: an image that `envbuilder slim` blanked. Its payload begins with zeros, as that of no real image
# does, or is a cubin without code whose ELF identification carries this mark where others have zeros.
BLANKED = 1 << 31
HOLLOW_MARK = b"blanked"
_BLANK = bytes(16)
_MARK_AT = 9


class Kind(str, Enum):
    """What an image is."""

    PTX = "PTX"
    SASS = "SASS"
    LTO_IR = "LTO-IR"
    UNKNOWN = "unknown"


_KINDS = {1: Kind.PTX, 2: Kind.SASS, 8: Kind.LTO_IR}

# One image as the header says it: kind, minor, major, arch, suffix flags. What is counted by the million stays a tuple.
RawImage = tuple[int, int, int, int, int]


@dataclass(frozen=True, order=True)
class Image:
    """One image: what it is and for which architecture. ``isa`` is a PTX image's ISA version, else (0, 0)."""

    kind: Kind
    arch: Arch
    isa: tuple[int, int] = (0, 0)
    number: int = 0  # of a kind that is not known
    blanked: bool = False

    def __str__(self) -> str:
        return f"{self._name()}, blanked" if self.blanked else self._name()

    def _name(self) -> str:
        if self.kind is Kind.PTX:
            return f"PTX {self.arch.compute} (ISA {self.isa[0]}.{self.isa[1]})"
        if self.kind is Kind.SASS:
            return f"SASS {self.arch.sm}"
        if self.kind is Kind.LTO_IR:
            return f"LTO-IR {self.arch.sm}"
        return f"kind {self.number} {self.arch.sm}"


def decode(raw: RawImage) -> Image:
    """The image a raw header stands for."""
    number, minor, major, arch, flags = raw
    kind = _KINDS.get(number, Kind.UNKNOWN)
    suffix = "a" if flags & FLAG_ARCH_SPECIFIC else "f" if flags & FLAG_FAMILY_SPECIFIC else ""
    isa = (major, minor) if kind is Kind.PTX else (0, 0)
    other = 0 if kind is not Kind.UNKNOWN else number
    return Image(kind, Arch.from_number(arch, suffix), isa, other, bool(flags & BLANKED))


@dataclass(frozen=True)
class Entry:
    """Where one image lies. Offsets and sizes in bytes; ``header`` is where its header begins, ``payload`` its data.

    ``stored`` is the padded size in the file, ``compressed`` the size of the packed data (0 when it is not packed),
    ``unpacked`` what the header claims the data has unpacked.
    """

    raw: RawImage
    header: int
    payload: int
    stored: int
    compressed: int
    unpacked: int
    flags: int

    @property
    def image(self) -> Image:
        """What it is."""
        return decode(self.raw)


@dataclass
class Walk:
    """The outcome of walking one fat binary: its entries, where it ends, and whether it is whole."""

    entries: list[Entry]
    end: int
    whole: bool


class Headers:
    """Reads small headers at ascending offsets through one buffer, so that neighbours cost no system call."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._near = 1 << 14
        self.buffer = b""
        self.base = 0

    def at(self, offset: int, need: int) -> int:
        """The index in ``buffer`` where ``offset`` stands, or -1 when fewer than ``need`` bytes are left there."""
        index = offset - self.base
        if index >= 0 and index + need <= len(self.buffer):
            return index
        # Far from the last one: the payloads between are large, so a long read would fetch what nobody looks at.
        near = 0 <= index <= len(self.buffer) + self._near
        self.buffer = self._source.read(offset, self._near if near else 4096)
        self.base = offset
        return 0 if len(self.buffer) >= need else -1


def header_at(headers: Headers, offset: int) -> tuple[int, int] | None:
    """(offset of the first entry, end) of the fat binary at ``offset``, or None when there is none."""
    index = headers.at(offset, HEADER.size)
    if index < 0:
        return None
    magic, version, length, size = HEADER.unpack_from(headers.buffer, index)
    if magic != MAGIC or version != 1 or not HEADER.size <= length <= _MAX_ENTRY_HEADER or size < ENTRY_SIZE:
        return None
    return offset + length, offset + length + size


def walk(headers: Headers, first: int, end: int) -> Walk:
    """Walk the entries from ``first`` to ``end``. Stops at the first that does not fit; ``end`` is then where."""
    entries: list[Entry] = []
    offset = first
    unpack, at = _ENTRY.unpack_from, headers.at
    while offset + ENTRY_SIZE <= end:
        index = at(offset, _ENTRY_AND_START)
        if index < 0:
            index = at(offset, ENTRY_SIZE)
        if index < 0 or len(entries) >= MAX_ENTRIES:
            return Walk(entries, offset, whole=False)
        kind, _, length, stored, packed, minor, major, arch, flags, unpacked = unpack(headers.buffer, index)
        payload = offset + length
        if not ENTRY_SIZE <= length <= _MAX_ENTRY_HEADER or payload + stored > end or packed > stored:
            return Walk(entries, offset, whole=False)
        start = headers.buffer[index + length : index + length + len(_BLANK)]
        blank = BLANKED if stored >= len(_BLANK) and (start == _BLANK or start[_MARK_AT:] == HOLLOW_MARK) else 0
        raw = (kind, minor if kind == 1 else 0, major if kind == 1 else 0, arch, flags & _SUFFIX_FLAGS | blank)
        entries.append(Entry(raw, offset, payload, stored, packed, unpacked, flags))
        offset = payload + stored
    return Walk(entries, offset, whole=offset == end or end - offset < ENTRY_SIZE)


def fatbin_at(source: Source, offset: int) -> Walk | None:
    """Walk the fat binary at ``offset``, or None when there is none."""
    headers = Headers(source)
    span = header_at(headers, offset)
    return walk(headers, *span) if span else None
