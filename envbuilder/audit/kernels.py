"""Whether an image holds a kernel: a unit without one never needs to run anywhere.

A cubin is an ELF file whose kernels are the symbols marked STO_CUDA_ENTRY; PTX names each with ``.entry``.
"""

from __future__ import annotations

import struct

from envbuilder.audit.fatbin import FLAG_LZ4, FLAG_ZSTD, Entry, Headers, Kind, header_at, walk
from envbuilder.audit.sources import BytesSource, PartSource, Source, UnseenError

ELF_MAGIC = b"\x7fELF\x02\x01\x01"
EM_CUDA = 190
_STO_CUDA_ENTRY = 0x10
_SHT_SYMTAB = 2
# An image larger than this is taken to hold kernels without a look. Those without any, some 800 in the libraries of
# torch 2.6.0 and cuDNN 9.11.0, have at most 2,048 bytes, but for one that holds device functions only.
LOOK = 16 << 10
_UNPACKED = 1 << 20
_WINDOW = 1 << 23  # what `zstd -19` uses; an image of at most 1 MiB needs less
_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR = struct.Struct("<IIQQQQIIQQ")
EHDR_SIZE = _EHDR.size


def cubin_header(data: bytes) -> tuple[int, str, int] | None:
    """(architecture number, suffix, size in bytes by its tables) of a cubin's ELF header, or None when it is none.

    The architecture stands in the low byte of e_flags (EI_OSABI 0x33, to CUDA 12) or in bits 8 to 15 (0x41, CUDA 13).
    """
    if len(data) < EHDR_SIZE or not data.startswith(ELF_MAGIC):
        return None
    ident, _, machine, _, _, phoff, shoff, flags, _, phentsize, phnum, shentsize, shnum, _ = _EHDR.unpack_from(data)
    if machine != EM_CUDA:
        return None
    new = ident[7] == 0x41
    arch = flags >> 8 & 0xFF if new else flags & 0xFF
    size = max(EHDR_SIZE, shoff + shentsize * shnum, phoff + phentsize * phnum)
    return arch, "", size


def has_kernel(source: Source, offset: int) -> bool:
    """Whether the unit at ``offset`` (fat binary, cubin or PTX text) holds a kernel; True when it cannot be told."""
    start = source.read(offset, EHDR_SIZE)
    cubin = cubin_header(start)
    if cubin:
        return cubin[2] > LOOK or cubin_has_kernel(PartSource(source, offset, cubin[2]))
    headers = Headers(source)
    span = header_at(headers, offset)
    if span is None:
        return True
    found = walk(headers, *span)
    return not all(small(entry) for entry in found.entries) or any(
        image_has_kernel(entry, source.read(entry.payload, entry.stored)) for entry in found.entries
    )


def is_linked(source: Source, entries: list[Entry]) -> bool:
    """Whether these images of a unit are code as it runs; False for relocatable code and where nobody can tell.

    Relocatable cubins are ELF files of type REL, as a compiler's objects are.
    """
    for entry in sorted((e for e in entries if e.raw[0] == _SASS), key=lambda e: e.stored):
        try:
            data = unpack(entry, source.read(entry.payload, min(entry.stored, _UNPACKED)))
        except UnseenError:
            continue
        if data is not None and cubin_header(data):
            return int.from_bytes(data[16:18], "little") != _ET_REL
    return False


def small(entry: Entry) -> bool:
    """Whether an image is small enough to be one without a kernel, and of a kind that can be looked into."""
    return entry.stored <= LOOK and entry.unpacked <= _UNPACKED and entry.raw[0] in _LOOKED_INTO


_PTX, _SASS = 1, 2
_LOOKED_INTO = (_PTX, _SASS)
_ET_REL = 1


def image_has_kernel(entry: Entry, stored: bytes) -> bool:
    """Whether an image holds a kernel; True when its data is damaged or packed in an unknown way."""
    data = unpack(entry, stored)
    if data is None:
        return True
    if entry.image.kind is Kind.PTX:
        return b".entry" in data
    return cubin_has_kernel(BytesSource(data))


def unpack(entry: Entry, stored: bytes) -> bytes | None:
    """The image itself, at most 1 MiB, or None when it is larger, damaged or packed in an unknown way."""
    if not entry.flags & (FLAG_LZ4 | FLAG_ZSTD):
        return stored if not entry.compressed else None
    packed = stored[: entry.compressed]
    if not 0 < entry.unpacked <= _UNPACKED:
        return None
    return _unlz4(packed, entry.unpacked) if entry.flags & FLAG_LZ4 else _unzstd(packed, entry.unpacked)


def _unlz4(packed: bytes, size: int) -> bytes | None:
    import lz4.block  # type: ignore[import-untyped]  # ships no types

    try:
        data: bytes = lz4.block.decompress(packed, uncompressed_size=size)
        return data
    except (lz4.block.LZ4BlockError, ValueError, OverflowError):
        return None


def _unzstd(packed: bytes, size: int) -> bytes | None:
    import zstandard

    try:
        # The frame's own header may claim any size and window: a bounded read of a stream does not believe it.
        with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(packed) as reader:
            return reader.read(size)
    except (zstandard.ZstdError, ValueError):
        return None


def cubin_has_kernel(cubin: Source) -> bool:
    """Whether a cubin's symbol table marks a kernel; True when the tables do not fit together."""
    head = cubin.read(0, EHDR_SIZE)
    if cubin_header(head) is None:
        return True
    _, _, _, _, _, _, shoff, _, _, _, _, shentsize, shnum, _ = _EHDR.unpack_from(head)
    if shentsize != _SHDR.size or not 0 < shnum <= 1 << 16:
        return True
    table = cubin.read(shoff, shentsize * shnum)
    if len(table) != shentsize * shnum:
        return True
    seen = False
    for fields in _SHDR.iter_unpack(table):
        _, kind, _, _, offset, size, _, _, _, entsize = fields
        if kind != _SHT_SYMTAB:
            continue
        symbols = cubin.read(offset, min(size, LOOK))
        if entsize != 24 or len(symbols) < size:
            return True
        seen = True
        if any(other & _STO_CUDA_ENTRY for other in symbols[5::24]):
            return True
    return not seen
