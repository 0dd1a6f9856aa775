"""The host side of a library: sections, what it needs, which glibc it asks for. 64-bit little-endian ELF only.

Written here and not taken from a library because the same reader must serve files, archives being streamed and
hostile input, in bounded memory. Standard library only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from envbuilder.audit.sources import Source

MAGIC = b"\x7fELF"
_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_PHDR = struct.Struct("<IIQQQQQQ")
_DYN = struct.Struct("<qQ")
EHDR_SIZE = _EHDR.size

SHT_PROGBITS, SHT_NOBITS, SHT_LOOS, SHT_GNU = 1, 8, 0x60000000, 0x6FFFFFF0
SHF_EXECINSTR = 4
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 5, 14, 15, 29
_DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
ET_REL, ET_EXEC, ET_DYN = 1, 2, 3

_MAX_SECTIONS = 1 << 16
_MAX_SEGMENTS = 1 << 10
_MAX_DYNAMIC = 1 << 16
_MAX_NEEDED = 1 << 10
_MAX_VERSIONS = 1 << 12
_LONGEST_NAME = 1 << 12
_MAX_KEPT = 32 << 20


@dataclass(frozen=True)
class Section:
    """One section: its name, type, flags, and where it lies in the file."""

    name: str
    type: int
    flags: int
    offset: int
    size: int

    @property
    def executable(self) -> bool:
        """Whether it holds machine code of the host."""
        return bool(self.flags & SHF_EXECINSTR)


@dataclass(frozen=True)
class Linkage:
    """What the dynamic section says. ``versions`` are (library, version name) pairs such as (libc.so.6, GLIBC_2.17)."""

    soname: str = ""
    needed: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Header:
    """The ELF header as far as it is needed here."""

    type: int
    machine: int
    phoff: int
    phentsize: int
    phnum: int
    shoff: int
    shentsize: int
    shnum: int
    shstrndx: int


def parse_header(data: bytes) -> Header | None:
    """The header, or None when ``data`` is no 64-bit little-endian ELF file."""
    if len(data) < EHDR_SIZE or data[:6] != MAGIC + b"\x02\x01":
        return None
    _, kind, machine, _, _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, shstrndx = _EHDR.unpack_from(data)
    return Header(kind, machine, phoff, phentsize, phnum, shoff, shentsize, shnum, shstrndx)


def is_cut_short(header: Header, size: int) -> bool:
    """Whether a file of ``size`` bytes ends before the section table that its header names."""
    return header.shoff + header.shentsize * header.shnum > size


def sections(source: Source, header: Header) -> list[Section]:
    """The section table; empty when there is none or it does not fit the file. Raises UnseenError."""
    if header.shentsize != _SHDR.size or not 0 < header.shnum <= _MAX_SECTIONS or not header.shoff:
        return []
    table = source.read(header.shoff, _SHDR.size * header.shnum)
    if len(table) != _SHDR.size * header.shnum or header.shstrndx >= header.shnum:
        return []
    rows = list(_SHDR.iter_unpack(table))
    names_offset, names_size = rows[header.shstrndx][4], rows[header.shstrndx][5]
    names = source.read(names_offset, min(names_size, 1 << 20))
    found = []
    for name, kind, flags, _, offset, size, _, _, _, _ in rows:
        end = names.find(b"\0", name)
        text = names[name:end].decode("latin-1") if name < len(names) and 0 <= end - name <= _LONGEST_NAME else ""
        found.append(Section(text, kind, flags, offset, size))
    return found


@dataclass(frozen=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def _segments(source: Source, header: Header) -> list[_Segment]:
    if header.phentsize != _PHDR.size or not 0 < header.phnum <= _MAX_SEGMENTS:
        return []
    table = source.read(header.phoff, _PHDR.size * header.phnum)
    usable = table[: len(table) // _PHDR.size * _PHDR.size]
    return [_Segment(k, off, va, size) for k, _, off, va, _, size, _, _ in _PHDR.iter_unpack(usable)]


def dynamic_range(source: Source, header: Header) -> tuple[int, int] | None:
    """(offset, length) of the dynamic section, or None for a static or relocatable file."""
    for segment in _segments(source, header):
        if segment.kind == _PT_DYNAMIC:
            return segment.offset, min(segment.size, _MAX_DYNAMIC)
    return None


def linkage_ranges(source: Source, header: Header) -> list[tuple[int, int]]:
    """(offset, length) of what `linkage` and `sections` read beyond a file's beginning: a stream must keep these.

    Besides the dynamic section and the section table, that is each segment behind the dynamic section: tools that
    edit a library (patchelf) move its strings there.
    """
    ranges = [(header.shoff, min(header.shentsize * header.shnum, _MAX_SECTIONS * _SHDR.size))]
    where = dynamic_range(source, header)
    if where is None:
        return ranges
    later = [s for s in _segments(source, header) if s.kind == _PT_LOAD and s.offset > where[0]]
    return [*ranges, where, *((s.offset, min(s.size, _MAX_KEPT)) for s in later[:4])]


def linkage(source: Source, header: Header) -> Linkage | None:
    """What the dynamic section asks for, or None when the file has none. Raises UnseenError."""
    where = dynamic_range(source, header)
    if where is None:
        return None
    loads = [s for s in _segments(source, header) if s.kind == _PT_LOAD]
    data = source.read(*where)
    entries = []
    for tag, value in _DYN.iter_unpack(data[: len(data) // _DYN.size * _DYN.size]):
        if tag == 0:
            break
        entries.append((tag, value))
    table = dict(entries)
    strings = _file_offset(loads, table.get(_DT_STRTAB, 0))
    if strings is None:
        return Linkage()
    needed = [v for t, v in entries if t == _DT_NEEDED][:_MAX_NEEDED]
    runpath = [v for t, v in entries if t in (_DT_RPATH, _DT_RUNPATH)][:16]
    soname = _string(source, strings, table[_DT_SONAME]) if _DT_SONAME in table else ""
    paths = [part for v in runpath for part in _string(source, strings, v).split(":") if part]
    versions = _file_offset(loads, table.get(_DT_VERNEED, 0))
    return Linkage(
        soname,
        tuple(_string(source, strings, v) for v in needed),
        tuple(paths),
        _versions(source, strings, versions, table.get(_DT_VERNEEDNUM, 0)) if versions is not None else (),
    )


def _versions(source: Source, strings: int, offset: int, count: int) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for _ in range(min(count, _MAX_VERSIONS)):
        record = source.read(offset, 16)
        if len(record) < 16:
            break
        _, number, name, first, following = struct.unpack("<HHIII", record)
        library = _string(source, strings, name)
        aux = offset + first
        for _ in range(number):
            entry = source.read(aux, 16)
            if len(entry) < 16 or len(found) >= _MAX_VERSIONS:
                break
            _, _, _, version, step = struct.unpack("<IHHII", entry)
            found.append((library, _string(source, strings, version)))
            if not step:
                break
            aux += step
        if not following:
            break
        offset += following
    return tuple(found)


def _file_offset(loads: list[_Segment], address: int) -> int | None:
    for segment in loads:
        if address and segment.address <= address < segment.address + segment.size:
            return address - segment.address + segment.offset
    return None


def _string(source: Source, strings: int, index: int) -> str:
    data = source.read(strings + index, 256)
    if b"\0" not in data:
        data = source.read(strings + index, _LONGEST_NAME)
    return data.split(b"\0", 1)[0].decode("utf-8", "replace")
