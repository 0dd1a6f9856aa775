"""What stands in the place of a blanked image: a valid cubin without any code. Standard library only.

A payload of nothing but zeros would do for the card that is kept, but cuobjdump then calls the file damaged, and a card
that does get the image ends in "unknown error" where it says "device kernel image is invalid" of an empty cubin (both
measured on an H200). An empty cubin is 376 bytes; the rest of the payload is zeros.
"""

from __future__ import annotations

import struct

from envbuilder.audit.fatbin import FLAG_LZ4, FLAG_ZSTD, HOLLOW_MARK, Entry, Kind

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_OLD_ABI, _NEW_ABI = (0x33, 7), (0x41, 8)
_ET_EXEC, _EM_CUDA = 2, 190
_STRTAB, _SYMTAB = 3, 2
_MAGIC = b"\x7fELF\x02\x01\x01"
# Offsets in an entry's header of what says how the payload is packed.
_COMPRESSED_SIZE, _FLAGS, _UNPACKED_SIZE = 16, 40, 56
SMALLEST = 512  # a payload below this is left as it is: there is nothing to gain


def patches(entry: Entry, header: int, start: bytes) -> list[tuple[int, bytes]]:
    """(offset, bytes) to write over zeros and the header so that ``entry`` holds a valid image without code.

    ``header`` is the offset of the entry's header, ``start`` the first bytes of its payload.
    """
    flags = entry.flags & ~(FLAG_LZ4 | FLAG_ZSTD)
    found = [
        (header + _COMPRESSED_SIZE, bytes(4)),
        (header + _FLAGS, struct.pack("<Q", flags)),
        (header + _UNPACKED_SIZE, bytes(8)),
    ]
    if entry.image.kind is Kind.SASS:
        found.append((entry.payload, empty_cubin(entry, start)))
    return found


def empty_cubin(entry: Entry, start: bytes) -> bytes:
    """A cubin for the entry's architecture with the three tables every tool asks for and nothing in them."""
    kind, version, flags = _ET_EXEC, 1, 0
    at = start.find(_MAGIC)
    osabi, abi = (start[at + 7], start[at + 8]) if 0 <= at <= len(start) - 9 else _NEW_ABI
    number = entry.raw[3]
    if not entry.compressed and len(start) >= _EHDR.size:
        _, kind, _, version, _, _, _, flags, *_ = _EHDR.unpack_from(start)
    elif (osabi, abi) == _OLD_ABI:
        version, flags = 120, number << 16 | 0x500 | number
    else:
        flags = 0x06000000 | number << 8 | 4
    names = b"\0.shstrtab\0.strtab\0.symtab\0"
    strings = _EHDR.size + len(names)
    symbols = strings + 1 + (-(strings + 1) % 8)
    table = symbols + 24
    ident = _MAGIC + bytes((osabi, abi)) + HOLLOW_MARK
    header = _EHDR.pack(ident, kind, _EM_CUDA, version, 0, 0, table, flags, _EHDR.size, 56, 0, _SHDR.size, 4, 1)
    sections = (
        _SHDR.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        _SHDR.pack(1, _STRTAB, 0, 0, _EHDR.size, len(names), 0, 0, 1, 0),
        _SHDR.pack(11, _STRTAB, 0, 0, strings, 1, 0, 0, 1, 0),
        _SHDR.pack(19, _SYMTAB, 0, 0, symbols, 24, 2, 1, 8, 24),
    )
    return (header + names).ljust(table, b"\0") + b"".join(sections)
