"""One blob into a registry, in chunks: after a drop the registry is asked how far it came, and it goes on from there.

The distribution specification's chunked upload. Where an upload stands is kept in the cache, so that another run,
after Ctrl-C or a lost line, goes on as well. A registry may refuse that: Docker's own (2.8.2) does when the line broke
amid a chunk, as its upload then holds more than the state it gave out says. That blob is then begun anew.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO
from urllib.parse import urljoin, urlsplit

import requests

from envbuilder import data
from envbuilder.errors import HostError, IntegrityError, Place, SourceError
from envbuilder.fetch.download import Stopped, pause
from envbuilder.files import write_bytes
from envbuilder.lock.client import distrusts, redact, untrusted
from envbuilder.publish.answers import finish, reasons
from envbuilder.publish.layout import Descriptor

# What a drop may cost. Large enough that the round trips between chunks do not show.
CHUNK = 16 * 1024 * 1024
_TIMEOUT = (15, 300)
# Tried again this often without a byte of progress in between.
_ATTEMPTS = 5
_PASSING = (408, 429, 500, 502, 503, 504)


class _Lost(Exception):  # noqa: N818 - an upload may be begun anew
    """The registry no longer knows this upload, or does not go on from where it says it is."""


class Upload:
    """The blob ``descriptor``, read from ``source``, to the repository at ``address``.

    ``advance`` is told of bytes that went, with a negative number of bytes that no longer count.
    Raises SourceError when the registry does not take it, IntegrityError when it stored other bytes, Stopped when
    ``stopping`` says so.
    """

    def __init__(
        self,
        session: requests.Session,
        address: str,
        source: Path | bytes,
        descriptor: Descriptor,
        advance: Callable[[int], None] = lambda count: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._session = session
        self._address = address
        self._host = urlsplit(address).netloc
        self._source = source
        self._descriptor = descriptor
        self._advance = advance
        self._stopping = stopping
        self._location = ""
        self._sent = 0
        self._chunk = CHUNK
        key = hashlib.sha256(f"{address} {descriptor.digest}".encode()).hexdigest()
        self._note = data.cache_root() / "uploads" / key

    def run(self) -> None:
        """Have the blob in the registry."""
        broken, lost = 0, 0
        self._location = self._noted()
        with self._open() as stream:
            try:
                while True:
                    before = self._sent
                    try:
                        self._go_on(stream, resumed=bool(self._location))
                        break
                    except _Lost:
                        self._forget()
                        error: Exception | None = None
                        lost += 1
                    except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as e:
                        if distrusts(e):
                            raise untrusted(self._host, e) from None
                        error = e
                    broken = 0 if self._sent > before else broken + 1
                    if _ATTEMPTS in (broken, lost):
                        raise self._failed(error)
                    pause(broken, self._stopping)
            except BaseException:
                self._count(-self._sent)
                raise
        self._note.unlink(missing_ok=True)

    def _open(self) -> IO[bytes]:
        if isinstance(self._source, bytes):
            return io.BytesIO(self._source)
        try:
            return self._source.open("rb")
        except OSError as error:
            raise HostError(
                f"a blob to upload cannot be read: {error.strerror}",
                place=Place(str(self._source)),
                cure="Run it again: what is missing in the cache is made anew.",
            ) from error

    def _go_on(self, stream: IO[bytes], *, resumed: bool) -> None:
        if resumed:
            self._ask_how_far()
        else:
            self._begin()
        size = self._descriptor.size
        # What fits into one request goes with the last one.
        while size - self._sent > self._chunk:
            self._send(stream)
        self._finish(stream)

    def _begin(self) -> None:
        answer = self._ask("POST", f"{self._address}/blobs/uploads/", headers={"Content-Length": "0"})
        self._expect(answer, 202, "begin an upload")
        self._follow(answer)
        least = answer.headers.get("OCI-Chunk-Min-Length", "")
        self._chunk = max(CHUNK, int(least)) if least.isdigit() else CHUNK

    def _ask_how_far(self) -> None:
        answer = self._ask("GET", self._location)
        if answer.status_code in (400, 404, 410, 416):
            raise _Lost
        self._expect(answer, 204, "say how far an upload came")
        self._follow(answer)
        self._set_sent(_end_of(answer.headers.get("Range", "")))

    def _send(self, stream: IO[bytes]) -> None:
        first = self._sent
        with _Told(self._read(stream), self._count) as body:
            headers = {"Content-Range": f"{first}-{first + len(body) - 1}"}
            answer = self._deliver("PATCH", self._location, body, headers)
            self._expect(answer, 202, "take a part of a blob")
            if (there := _end_of(answer.headers.get("Range", ""))) != first + len(body):
                raise IntegrityError(
                    f"{self._host} has {there} bytes of a blob of which {first + len(body)} were sent",
                    cure="Run it again; if it says so again, ask whoever runs the registry or the proxy before it.",
                )
            self._sent = there
        self._follow(answer)

    def _finish(self, stream: IO[bytes]) -> None:
        digest = self._descriptor.digest
        with _Told(self._read(stream), self._count) as body:
            where = f"{self._location}{'&' if urlsplit(self._location).query else '?'}digest={digest}"
            headers = {"Content-Range": f"{self._sent}-{self._descriptor.size - 1}"} if self._sent else {}
            answer = self._deliver("PUT", where, body, headers)
            if answer.status_code == 400:
                self._note.unlink(missing_ok=True)
                raise IntegrityError(
                    f"{self._host} did not take {digest}: the bytes that came there are others",
                    cure="Run it again. If it stays so, a proxy on the way changes them, or this host's disk does.",
                    detail=reasons(answer) or None,
                )
            self._expect(answer, 201, "take a blob")
            check_digest(answer, self._host, digest)
            self._sent += len(body)

    def _deliver(self, method: str, url: str, body: _Told, headers: dict[str, str]) -> requests.Response:
        headers = {**headers, "Content-Type": "application/octet-stream", "Content-Length": str(len(body))}
        answer = self._ask(method, url, headers=headers, data=body)
        if answer.status_code in (404, 410, 416):
            raise _Lost
        return answer

    def _read(self, stream: IO[bytes]) -> bytes:
        """The next chunk, or what is left."""
        stream.seek(self._sent)
        wanted = min(self._chunk, self._descriptor.size - self._sent)
        body = stream.read(wanted)
        if len(body) != wanted:
            raise IntegrityError(
                f"the blob {self._descriptor.digest} is shorter than the {self._descriptor.size} bytes it should have",
                place=Place(str(self._source)) if isinstance(self._source, Path) else None,
                cure="Remove the file, then run it again.",
            )
        return body

    def _ask(
        self, method: str, url: str, headers: dict[str, str] | None = None, data: _Told | None = None
    ) -> requests.Response:
        if self._stopping():
            raise Stopped
        # Uploads are not redirected: their Location says where to go on.
        answer = self._session.request(
            method, url, headers=headers, data=data, timeout=_TIMEOUT, stream=True, allow_redirects=False
        )
        if answer.status_code in _PASSING:
            finish(answer)
            raise requests.ConnectionError(f"{self._host} answers {answer.status_code} {answer.reason}")
        return answer

    def _expect(self, answer: requests.Response, status: int, what: str) -> None:
        if answer.status_code == status:
            finish(answer)
            return
        said = reasons(answer)
        repository = urlsplit(self._address).path.removeprefix("/v2/")
        if answer.status_code in (403, 404, 405):
            raise SourceError(
                f"{self._host} does not let you push to {repository} ({answer.status_code} {answer.reason})",
                cure="Check the name of the repository, and that your login may push there.",
                detail=said or None,
            )
        raise SourceError(
            f"{self._host} does not {what}: it answers {answer.status_code} {answer.reason}",
            cure="Is it an image registry? Behind a proxy, check that it lets large uploads through.",
            detail=said or None,
        )

    def _follow(self, answer: requests.Response) -> None:
        """Go on where the registry says. Where that is another host, the login does not go there."""
        location = urljoin(f"{self._address}/blobs/uploads/", answer.headers.get("Location", ""))
        self._location = location
        if self._descriptor.size > self._chunk:
            write_bytes(self._note, location.encode())
            # It lets whoever has it go on with the upload.
            self._note.chmod(0o600)

    def _noted(self) -> str:
        try:
            return self._note.read_text()
        except (FileNotFoundError, UnicodeDecodeError):
            return ""

    def _forget(self) -> None:
        self._location = ""
        self._note.unlink(missing_ok=True)
        self._set_sent(0)

    def _set_sent(self, sent: int) -> None:
        if sent > self._descriptor.size:
            raise _Lost
        self._count(sent - self._sent)
        self._sent = sent

    def _count(self, count: int) -> None:
        if count:
            self._advance(count)

    def _failed(self, error: Exception | None) -> SourceError:
        return SourceError(
            f"the connection to {self._host} keeps breaking" if error else f"{self._host} keeps losing the upload",
            cure="Run it again: it goes on from what the registry has kept.",
            detail=f"{self._descriptor.digest}: {self._sent} of {self._descriptor.size} bytes went"
            + (f"; {redact(str(error))}" if error else ""),
        )


class _Told(io.BytesIO):
    """A request's body that tells how much of it was sent; what did not arrive in the end is taken back."""

    def __init__(self, body: bytes, told: Callable[[int], None]) -> None:
        super().__init__(body)
        self._length = len(body)
        self._told = told

    def __len__(self) -> int:
        return self._length

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.seek(0)
        super().__exit__(kind, error, trace)

    def read(self, size: int | None = -1, /) -> bytes:
        """As ever, and tell of it."""
        data = super().read(size)
        self._told(len(data))
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As ever, and tell of it."""
        before = self.tell()
        after = super().seek(offset, whence)
        self._told(after - before)
        return after


def _end_of(text: str) -> int:
    """How many bytes the header ``Range: 0-LAST`` says are there. Registries say 0-0 for none."""
    last = text.rpartition("-")[2]
    return int(last) + 1 if last.isdigit() and int(last) > 0 else 0


def check_digest(answer: requests.Response, host: str, digest: str) -> None:
    """Raise IntegrityError when the registry says that it stored something else than ``digest``."""
    said = answer.headers.get("Docker-Content-Digest")
    if said and said != digest:
        raise IntegrityError(
            f"{host} says it stored other bytes than were sent",
            cure="Do not use what is there. Run it again, or ask whoever runs the registry.",
            detail=f"sent      {digest}\nregistry  {said}",
        )
