"""Where bytes come from: a file, a part of one, a stream that only moves forward. Standard library only.

Files are read with ``pread`` and never mapped: a file that shrinks meanwhile gives a short read instead of a crash,
and what was read does not stay in memory.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol

CHUNK = 1 << 20
# Of a stream: how much of the beginning is set aside, and how much in all. It goes to disk beyond a few MiB.
HEAD = 64 << 20
_STORE = 192 << 20
_ALIGNMENT = 4096
_SPANS = 64


class UnseenError(Exception):
    """These bytes were not kept or not fetched: whoever asked must say so instead of guessing."""


class Source(Protocol):
    """Bytes by offset. ``size`` may be None while a stream has not ended, ``random`` tells whether one can go back."""

    random: bool

    @property
    def size(self) -> int | None:
        """Bytes in all."""

    def read(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``, fewer at the end. Raises UnseenError for what cannot be had."""


class FileSource:
    """A file on disk."""

    random = True

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._handle).st_size

    def __enter__(self) -> FileSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)

    @property
    def size(self) -> int:
        """Bytes when the file was opened."""
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """See Source."""
        if offset >= self._size or length <= 0:
            return b""
        return os.pread(self._handle, min(length, self._size - offset), offset)


class BytesSource:
    """Bytes in memory."""

    random = True

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        """See Source."""
        return self._data[offset : offset + max(length, 0)] if offset >= 0 else b""


class PartSource:
    """``length`` bytes of another source from ``start`` on: a member of an archive, a file embedded in another."""

    random = True

    def __init__(self, whole: Source, start: int, length: int) -> None:
        self._whole = whole
        self._start = start
        self._length = length

    @property
    def size(self) -> int:
        """Bytes of the part."""
        return self._length

    def read(self, offset: int, length: int) -> bytes:
        """See Source."""
        length = min(length, self._length - offset)
        return self._whole.read(self._start + offset, length) if length > 0 and offset >= 0 else b""


class StreamSource:
    """Bytes that come one chunk after another: a member of a wheel, a file in a layer.

    What has passed can be read again while it is near (at least the last ``CHUNK`` bytes), or where it was set aside
    into ``store``: the first ``HEAD`` bytes, ranges asked for by ``keep``, and what follows the first device code
    without being device code itself. Everything else is dropped. ``size`` is what the archive claims until the end.
    """

    random = False

    def __init__(self, chunks: Iterator[bytes], store: IO[bytes], size: int | None = None) -> None:
        self._chunks = chunks
        self._window = bytearray()
        self._window_start = 0
        self._ended = False
        self._size = size
        self._store = store
        self._stored = 0
        self._extents: list[tuple[int, int, int]] = []
        self._wanted: list[tuple[int, int]] = []
        self._code: list[tuple[int, int]] = []
        self.passed = 0

    @property
    def size(self) -> int | None:
        """Bytes in all; before the end, what the archive claims, or None."""
        return self.passed if self._ended else self._size

    def keep(self, offset: int, length: int) -> None:
        """Set aside a range that is still to come."""
        self._wanted.append((offset, offset + length))

    def device_code(self, start: int, end: int) -> None:
        """Tell that these bytes are device code, which nobody reads again. A second word on ``start`` corrects it."""
        if self._code and self._code[-1][0] == start:
            self._code.pop()
        if self._code and start - self._code[-1][1] < _ALIGNMENT:
            start = self._code.pop()[0]
        # What lies a MiB behind has been set aside or dropped; a few spans are all that can still matter.
        self._code = [*self._code[-_SPANS:], (start, end)]

    def read(self, offset: int, length: int) -> bytes:
        """See Source."""
        end = offset + length
        while self.passed < end and not self._ended:
            self._pull(offset)
        if offset >= self._window_start:
            start = offset - self._window_start
            return bytes(self._window[start : start + length])
        return self._read_store(offset, min(end, self.passed))

    def drain(self) -> None:
        """Let the rest pass."""
        while not self._ended:
            self._pull(self.passed)

    def _read_store(self, offset: int, end: int) -> bytes:
        parts = []
        index = bisect_right(self._extents, (offset, 1 << 64, 0)) - 1
        while offset < end:
            if index < 0 or index >= len(self._extents):
                raise UnseenError(f"bytes {offset} to {end} have passed")
            start, length, at = self._extents[index]
            if not start <= offset < start + length:
                raise UnseenError(f"bytes {offset} to {end} have passed")
            part = min(end, start + length) - offset
            self._store.seek(at + offset - start)
            parts.append(self._store.read(part))
            offset += part
            index += 1
        return b"".join(parts)

    def _pull(self, wanted: int) -> None:
        chunk = next(self._chunks, b"")
        if not chunk:
            self._ended = True
            return
        self._window += chunk
        self.passed += len(chunk)
        drop = min(len(self._window) - CHUNK, wanted - self._window_start)
        if drop >= CHUNK:
            # Only now, a MiB later, is it known what of this was device code.
            self._set_aside(self._window_start, bytes(self._window[:drop]))
            del self._window[:drop]
            self._window_start += drop

    def _set_aside(self, start: int, data: bytes) -> None:
        """Store those parts of ``data`` that somebody may want to read again."""
        end = start + len(data)
        coded = bool(self._code) and self._code[0][0] < end
        wanted = [(start, end)] if start < HEAD or coded else []
        for low, high in self._code if wanted else ():
            wanted = [
                part
                for a, b in wanted
                for part in ((a, min(b, max(a, low))), (max(a, min(b, high)), b))
                if part[0] < part[1]
            ]
        wanted += [(max(low, start), min(high, end)) for low, high in self._wanted if low < end and start < high]
        position = start
        for low, high in sorted(wanted):
            low = max(low, position)
            if low >= high or self._stored + high - low > _STORE:
                continue
            self._store.seek(0, os.SEEK_END)
            self._store.write(data[low - start : high - start])
            self._extents.append((low, high - low, self._stored))
            self._stored += high - low
            position = high
