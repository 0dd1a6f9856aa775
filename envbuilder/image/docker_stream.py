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
from envbuilder.image.archives import Chunks, is_packed, unpacked

_CHUNK = 1024 * 1024
_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})")
_TEXT_LIMIT = 16 * 1024 * 1024


class SavedContents:
    """The image in ``chunks``, a stream of ``docker save``. It is read once: first ``layers``, then ``config``.

    Raises HostError when the stream is not what Docker writes.
    """

    def __init__(self, chunks: Iterator[bytes], sizes: dict[str, int]) -> None:
        self._stream = io.BufferedReader(Chunks(chunks), _CHUNK)
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
        head = source.peek(4)
        if head[:1] in (b"{", b"["):
            if member.size <= _TEXT_LIMIT:
                self._texts[name] = source.read()
            return
        blob = _BLOB.fullmatch(name)
        if blob is None and not name.endswith("/layer.tar"):
            return
        diff_id = f"sha256:{blob[1]}" if blob and not is_packed(head) else None
        if diff_id is None or wanted(diff_id):
            yield diff_id, unpacked(source)

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
