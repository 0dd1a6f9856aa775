"""Finding all device code of a file: fat binaries wherever they lie, bare cubins, PTX text.

One walk serves files (which skip what they need not read) and streams (which let it pass). What is found is counted by
kind of unit, so that memory grows with how different the units are and not with what a file claims to hold.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from envbuilder.audit import kernels
from envbuilder.audit.fatbin import MAGIC, Entry, Headers, RawImage, header_at, walk
from envbuilder.audit.sources import CHUNK, Source, StreamSource

MAX_UNITS = 1 << 20  # of one file; libcufft, the largest met, has 17,607
MAX_GROUPS = 1 << 14
# Places that look like code and are none. Real files have a handful; a file made of them would take for ever.
MAX_FALSE_HITS = 1 << 17
_OVERLAP = 64
_DAMAGED_NAMED = 100
_PTX = re.compile(
    rb"\.version[ \t]+(\d{1,2})\.(\d{1,2})\s(?:\s|//[^\n]{0,200}\n){0,8}\.target[ \t]+(?:sm|compute)_(\d{2,3})([af]?)"
)
_PTX_HEAD = 512
_PTX_LONGEST = 64 << 20
_ELF = kernels.ELF_MAGIC[:4]  # found faster without its tail, which is of bytes that every file is full of
_PATTERNS = (MAGIC, _ELF, b".version")
PTX_NUMBER, SASS_NUMBER = 1, 2
_SUFFIX = {b"": 0, b"a": 0x100000, b"f": 0x200000}

Key = tuple[tuple[RawImage, ...], bool]


@dataclass
class Found:
    """The device code of one file, not yet told apart by section.

    ``units`` maps (images in file order, whether no kernel is in it, when that was looked at) to the units' offsets.
    ``damaged`` are offsets where a fat binary breaks off; ``overflow`` says that there was more than is counted.
    """

    units: dict[Key, array[int]] = field(default_factory=dict)
    damaged: list[int] = field(default_factory=list)
    total: int = 0
    overflow: bool = False
    first: int | None = None

    def add(self, images: tuple[RawImage, ...], empty: bool, offset: int) -> None:
        """Count one unit."""
        if self.first is None:
            self.first = offset
        key = (images, empty)
        group = self.units.get(key)
        if self.total >= MAX_UNITS or (group is None and len(self.units) >= MAX_GROUPS):
            self.overflow = True
            return
        self.total += 1
        if group is None:
            group = self.units[key] = array("Q")
        group.append(offset)


class Scanner:
    """Walks one source from low to high offsets and collects what it finds.

    ``enough`` is asked at each fat binary that may hold kernels and ends the walk by True.
    """

    def __init__(self, source: Source, enough: Callable[[list[Entry]], bool] | None = None) -> None:
        self._source = source
        self._enough = enough
        self.stopped = False
        self._headers = Headers(source)
        self._false_hits = 0
        self.found = Found()

    def region(self, start: int, end: int | None, *, whole: bool = True) -> None:
        """Scan from ``start`` to ``end`` (None: to the end of the source).

        ``whole`` looks for fat binaries, cubins and PTX text; without it, for fat binaries alone.
        """
        patterns = _PATTERNS if whole else _PATTERNS[:1]
        position = start
        while (end is None or position < end) and not self.found.overflow and not self.stopped:
            after = self._fatbin(position)
            if after is None:
                hit = self._search(position, end, patterns)
                if hit is None:
                    return
                position, pattern = hit
                after = self._take(position, pattern)
            position = after

    def _take(self, offset: int, pattern: bytes) -> int:
        """Take what stands at a hit; where to go on."""
        after: int | None = None
        if pattern is MAGIC:
            after = self._fatbin(offset)
        elif pattern is _ELF:
            after = self._cubin(offset)
        else:
            after = self._ptx(offset)
        if after is None:
            self._false_hits += 1
            self.found.overflow = self.found.overflow or self._false_hits > MAX_FALSE_HITS
            return offset + 4
        return after

    def _fatbin(self, offset: int) -> int | None:
        span = header_at(self._headers, offset)
        if span is None:
            return None
        if isinstance(self._source, StreamSource):
            self._source.device_code(offset, span[1])
        found = walk(self._headers, *span)
        if isinstance(self._source, StreamSource) and not found.whole:
            self._source.device_code(offset, found.end)
        if not found.entries and not found.whole:
            return None
        if not found.whole:
            self._damaged(offset)
            return max(found.end, offset + 16)
        empty = False
        if not self._source.random and found.entries:
            # The stream has passed the payloads by now, but for the last MiB: units without kernels are small.
            near = all(kernels.small(e) and found.end - e.payload <= CHUNK for e in found.entries)
            empty = near and not kernels.has_kernel(self._source, offset)
        images = tuple(e.raw for e in found.entries)
        self.found.add(images, empty, offset)
        self.stopped = not empty and self._enough is not None and self._enough(found.entries)
        return found.end + (-found.end % 8)

    def _cubin(self, offset: int) -> int | None:
        header = kernels.cubin_header(self._source.read(offset, kernels.EHDR_SIZE))
        if header is None:
            return None
        arch, _, size = header
        total = self._source.size
        if total is not None and offset + size > total:
            self._damaged(offset)
            return None
        self.found.add(((SASS_NUMBER, 0, 0, arch, 0),), False, offset)
        return offset + size

    def _ptx(self, offset: int) -> int | None:
        match = _PTX.match(self._source.read(offset, _PTX_HEAD))
        if match is None:
            return None
        isa_major, isa_minor, arch, suffix = match.groups()
        raw = (PTX_NUMBER, int(isa_minor), int(isa_major), int(arch), _SUFFIX[suffix])
        position, kernel, step = offset + match.end(), False, 2048
        while position < offset + _PTX_LONGEST:
            data = self._source.read(position, step)
            if not data:
                break
            stops = [i for i in (data.find(b"\0"), data.find(b"\n.version")) if i >= 0]
            kernel = kernel or b".entry" in data[: min(stops, default=len(data))]
            if stops:
                position += min(stops)
                break
            position += max(len(data) - 16, 1) if len(data) == step else len(data)
            step = min(step * 4, CHUNK // 4)
        self.found.add((raw,), not kernel, offset)
        return position

    def _damaged(self, offset: int) -> None:
        self._false_hits += 1
        if len(self.found.damaged) < _DAMAGED_NAMED:
            self.found.damaged.append(offset)

    def _search(self, start: int, end: int | None, patterns: tuple[bytes, ...]) -> tuple[int, bytes] | None:
        """The first hit of a pattern from ``start`` on."""
        step = 4096
        position = start
        while end is None or position < end:
            want = step if end is None else min(step, end - position)
            data = self._source.read(position, want + _OVERLAP)
            if not data:
                return None
            best: tuple[int, bytes] | None = None
            for pattern in patterns:
                limit = len(data) if best is None else best[0] + len(pattern)
                index = data.find(pattern, 0, limit)
                if index >= 0 and (best is None or index < best[0]) and index < want:
                    best = (index, pattern)
            if best:
                return position + best[0], best[1]
            if len(data) <= want:
                return None
            position += want
            step = min(step * 8, CHUNK)
        return None
