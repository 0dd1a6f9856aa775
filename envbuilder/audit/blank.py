"""Writing a copy of a binary without the device code a card can never run. Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envbuilder.audit import hollow
from envbuilder.audit.arch import Arch, ptx_compiles, sass_runs
from envbuilder.audit.fatbin import Image, Kind, fatbin_at
from envbuilder.audit.runs import Means, means_of
from envbuilder.audit.scan import Scanner
from envbuilder.audit.sources import CHUNK, FileSource
from envbuilder.files import sha256_of


@dataclass(frozen=True)
class Plan:
    """What to blank in one file: (offset, length) of payloads from low to high, and what they are.

    ``patches`` are (offset, bytes) that are written afterwards, so that what is left is valid.
    """

    spans: tuple[tuple[int, int], ...]
    patches: tuple[tuple[int, bytes], ...]
    images: int
    kept: tuple[str, ...]
    blanked: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Bytes that become zero."""
        return sum(length for _, length in self.spans)


def plan(path: Path, sections: tuple[tuple[int, int], ...], card: Arch) -> Plan:
    """Which payloads ``card`` can never run, in units where an image it does run stays.

    Units that hold nothing for the card are left as they are: blanking them would gain little and change what an
    audit finds. ``sections`` are the (start, end) of the parts of the file to look into.
    """
    spans: list[tuple[int, int]] = []
    patches: list[tuple[int, bytes]] = []
    kept: set[str] = set()
    blanked: set[str] = set()
    count = 0
    with FileSource(path) as source:
        scanner = Scanner(source)
        for start, end in sections:
            scanner.region(start, end)
        for offsets in scanner.found.units.values():
            for offset in offsets:
                walk = fatbin_at(source, offset)
                if walk is None or not walk.whole:
                    continue
                images = [(entry, entry.image) for entry in walk.entries]
                means, _ = means_of([image for _, image in images], card)
                if means not in (Means.SASS, Means.PTX):
                    continue
                for entry, image in images:
                    if image.blanked:
                        continue
                    if _never_runs(image, card) and entry.stored >= hollow.SMALLEST:
                        spans.append((entry.payload, entry.stored))
                        patches += hollow.patches(entry, entry.header, source.read(entry.payload, 64))
                        blanked.add(_name(image))
                        count += 1
                    elif not _never_runs(image, card):
                        kept.add(_name(image))
    return Plan(tuple(sorted(spans)), tuple(sorted(patches)), count, tuple(sorted(kept)), tuple(sorted(blanked)))


def _never_runs(image: Image, card: Arch) -> bool:
    if image.kind is Kind.SASS:
        return not sass_runs(image.arch, card)
    if image.kind is Kind.PTX:
        return not ptx_compiles(image.arch, card)
    return False


def _name(image: Image) -> str:
    return image.arch.compute if image.kind is Kind.PTX else image.arch.sm


def rewrite(path: Path, work: Plan) -> tuple[str, str]:
    """Replace ``path`` by a copy blanked as planned; (SHA-256 before, after) in hex.

    The copy is written beside the file and renamed over it, so nobody sees half of one, and a file that is a hard link
    into a package cache leaves the cache as it was. Zeros are not written: where the filesystem knows holes they take
    no space. Mode and times stay.
    """
    before = hashlib.sha256()
    stat = path.stat()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as copy, FileSource(path) as source:
            for offset, length, blank in _pieces(work.spans, stat.st_size):
                position, end = offset, offset + length
                while position < end:
                    data = source.read(position, min(CHUNK, end - position))
                    if not data:
                        raise OSError(f"{path} became shorter while it was read")
                    before.update(data)
                    if not blank:
                        copy.seek(position)
                        copy.write(data)
                    position += len(data)
            copy.truncate(stat.st_size)
            for offset, data in work.patches:
                copy.seek(offset)
                copy.write(data)
            copy.flush()
            os.fsync(copy.fileno())
        temporary = Path(name)
        after = sha256_of(temporary)
        temporary.chmod(stat.st_mode & 0o7777)
        with contextlib.suppress(PermissionError):
            os.chown(temporary, stat.st_uid, stat.st_gid)
        os.utime(temporary, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    return before.hexdigest(), after


def _pieces(spans: tuple[tuple[int, int], ...], size: int) -> Iterator[tuple[int, int, bool]]:
    """(offset, length, blank) over the whole file."""
    position = 0
    for start, length in spans:
        if start > position:
            yield position, start - position, False
        start = max(start, position)
        end = min(start + length, size)
        if end > start:
            yield start, end - start, True
            position = end
    if position < size:
        yield position, size - position, False
