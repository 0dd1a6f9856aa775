"""What ``docker save`` writes, read as it comes: layers in any packing, the configuration at the end, no copy of it.

Old engines write ``ID/layer.tar`` and ``HEX.json``, newer ones ``blobs/sha256/HEX`` for both; all name them in
``manifest.json``, which comes last.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

import zstandard
from isal import igzip

from envbuilder.errors import HostError

_CHUNK = 1024 * 1024
_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})")
_TEXT_LIMIT = 16 * 1024 * 1024
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class SavedContents:
    """The image in ``chunks``, a stream of ``docker save``. It is read once: first ``layers``, then ``config``.

    Raises HostError when the stream is not what Docker writes.
    """

    def __init__(self, chunks: Iterator[bytes], sizes: dict[str, int]) -> None:
        self._stream = io.BufferedReader(_Chunks(chunks), _CHUNK)
        self._sizes = sizes
        self._texts: dict[str, bytes] = {}

    def size(self, wanted: Callable[[str], bool]) -> int:
        """Bytes of the layers whose digest is wanted, as far as Docker tells."""
        return sum(size for diff_id, size in self._sizes.items() if wanted(diff_id))

    def layers(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str | None, Iterator[bytes]]]:
        """The layers, unpacked. None as digest where Docker's name for it does not say what is in it."""
        try:
            with tarfile.open(fileobj=self._stream, mode="r|", bufsize=_CHUNK) as archive:
                for member in archive:
                    archive.members = []  # type: ignore[attr-defined]  # it would keep every header it has passed
                    source = archive.extractfile(member) if member.isreg() and member.size else None
                    if isinstance(source, io.BufferedReader):
                        yield from self._take(member, source, wanted)
        except (tarfile.TarError, EOFError, ValueError, zstandard.ZstdError, igzip.BadGzipFile) as error:
            raise self._broken(error) from error

    def _take(
        self, member: tarfile.TarInfo, source: io.BufferedReader, wanted: Callable[[str], bool]
    ) -> Iterator[tuple[str | None, Iterator[bytes]]]:
        name = member.name.removeprefix("./")
        head = source.peek(len(_ZSTD))
        if head[:1] in (b"{", b"["):
            if member.size <= _TEXT_LIMIT:
                self._texts[name] = source.read()
            return
        blob = _BLOB.fullmatch(name)
        if blob is None and not name.endswith("/layer.tar"):
            return
        is_packed = head.startswith((_GZIP, _ZSTD))
        diff_id = f"sha256:{blob[1]}" if blob and not is_packed else None
        if diff_id is None or wanted(diff_id):
            yield diff_id, _unpacked(source)

    def config(self) -> bytes:
        """The image's configuration, as its digest was made of it."""
        try:
            listed: Any = json.loads(self._texts["manifest.json"])
            return self._texts[listed[0]["Config"]]
        except (LookupError, TypeError, ValueError) as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> HostError:
        return HostError(
            f"Docker did not write the image whole: {error}",
            cure="Does its disk have space? `docker image inspect` and Docker's log tell more; then run it again.",
        )


class _Chunks(io.RawIOBase):
    """Chunks as a file to read from."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill ``buffer`` with what is there of the present chunk."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _unpacked(stream: io.BufferedReader) -> Iterator[bytes]:
    head = stream.peek(len(_ZSTD))
    source: Any = stream
    if head.startswith(_GZIP):
        source = igzip.IGzipFile(fileobj=stream, mode="rb")  # type: ignore[no-untyped-call]  # its stub lacks a type
    elif head.startswith(_ZSTD):
        source = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    while chunk := source.read(_CHUNK):
        yield chunk
