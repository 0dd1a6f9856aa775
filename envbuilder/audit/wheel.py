"""A wheel, read as it lies: the central directory, then every binary as it is inflated. Nothing is unpacked to disk."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from envbuilder.audit.arch import Arch
from envbuilder.audit.binary import Binary, read_binary, read_stream
from envbuilder.audit.collect import Collection, Package, is_candidate
from envbuilder.audit.owners import torch_cuda
from envbuilder.audit.sources import CHUNK, FileSource, PartSource
from envbuilder.errors import InputError, Place
from envbuilder.report.progress import Progress, Silent

_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 1
_LOCAL_HEADER = 30
_LONGEST_TEXT = 1 << 20


def collect_wheel(path: Path, cards: Sequence[Arch], progress: Progress | None = None) -> Collection:
    """All binaries of a wheel. Raises InputError when the file is no zip archive."""
    progress = progress or Silent()
    try:
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive, FileSource(path) as source:
            members = [m for m in archive.infolist() if not m.is_dir()]
            name, version = package_of(path.name)
            package = Package(name, version)
            wanted = [m for m in members if is_candidate(m.filename.rsplit("/", 1)[-1])]
            total, done = sum(m.compress_size for m in wanted), 0
            collection = Collection(str(path), "wheel", [package])
            for member in wanted:
                progress.item(member.filename.rsplit("/", 1)[-1])
                package.binaries.append(_read(member, source, stream, cards))
                done += member.compress_size
                progress.advance(done, total)
            for member in members:
                if member.filename.endswith("torch/version.py"):
                    with archive.open(member) as text:
                        collection.cuda = torch_cuda(text.read(_LONGEST_TEXT).decode("utf-8", "replace"))
            return collection
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise InputError(
            f"this is no wheel: {error}", place=Place(str(path)), cure="Download it again; a wheel is a zip archive."
        ) from error


def package_of(filename: str) -> tuple[str, str]:
    """(name, version) out of a wheel's file name."""
    parts = filename.removesuffix(".whl").split("-")
    return parts[0].replace("_", "-").lower(), parts[1] if len(parts) > 1 else ""


def _read(member: zipfile.ZipInfo, source: FileSource, stream: IO[bytes], cards: Sequence[Arch]) -> Binary:
    name = member.filename
    if member.flag_bits & _ENCRYPTED or member.compress_type not in (_STORED, _DEFLATED):
        return Binary(name, doubts=["it is encrypted or packed in a way that wheels do not use"])
    header = source.read(member.header_offset, _LOCAL_HEADER)
    if len(header) < _LOCAL_HEADER or header[:4] != b"PK\x03\x04":
        return Binary(name, doubts=["the archive is damaged: its directory points nowhere"])
    start = member.header_offset + _LOCAL_HEADER
    start += int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    if member.compress_type == _STORED:
        return read_binary(name, PartSource(source, start, member.file_size), cards)
    packed = _chunks(source, start, member.compress_size)
    binary = read_stream(name, inflate(packed, member.file_size), member.file_size)
    return binary


def _chunks(source: FileSource, start: int, length: int) -> Iterator[bytes]:
    end = start + length
    while start < end:
        data = source.read(start, min(CHUNK // 4, end - start))
        if not data:
            return
        yield data
        start += len(data)


def inflate(packed: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """The bytes of a raw deflate stream, at most ``limit`` of them, a MiB at a time; ends early where it is damaged."""
    from isal import igzip_lib, isal_zlib

    engine = isal_zlib.decompressobj(wbits=-15)
    produced = 0
    for chunk in packed:
        data = chunk
        while data and not engine.eof:
            try:
                out = engine.decompress(data, CHUNK)
            except igzip_lib.IsalError:  # type: ignore[misc]  # its stubs declare an instance
                return
            data = engine.unconsumed_tail
            if not out and not data:
                break
            produced += len(out)
            if out:
                yield out
            if produced > limit:
                return
        if engine.eof:
            return
