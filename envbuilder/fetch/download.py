"""One file from one address into the cache: resumed where it stopped, bounded by its size, verified while it comes."""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

import requests
import urllib3
from filelock import FileLock, Timeout

from envbuilder import data
from envbuilder.errors import HostError, IntegrityError, Place, SourceError
from envbuilder.fetch.cache import Item, is_there, lock_of, partial_of, path_of
from envbuilder.fetch.transport import CONNECT_SECONDS, READ_SECONDS
from envbuilder.lock.client import distrusts, redact, untrusted

_CHUNK = 256 * 1024
# A connection that breaks is taken up again this often without a byte of progress in between.
_ATTEMPTS = 5
_PAUSE_SECONDS = 0.5
# The most that is taken of a file whose size the lock does not know.
_UNKNOWN_SIZE = 4 * 1024**3
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BROKEN = urllib3.exceptions.HTTPError


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """The download was asked to stop; what has come stays for the next run."""


def pause(broken: int, stopping: Callable[[], bool]) -> None:
    """Wait before a connection that broke ``broken`` times is taken up again. Raises Stopped when asked to stop."""
    until = time.monotonic() + _PAUSE_SECONDS * 2**broken
    while time.monotonic() < until:
        if stopping():
            raise Stopped
        time.sleep(0.05)


@dataclass(frozen=True)
class Location:
    """Where a file is for this host. ``gone`` is the cure when the host no longer serves it.

    ``then`` are further locations, in order, for when this one does not serve it.
    """

    url: str
    session: requests.Session
    gone: str
    then: tuple[Location, ...] = ()

    @property
    def host(self) -> str:
        """The host's name for messages, without a password; the folder of a local file."""
        parts = urlsplit(self.url)
        if parts.scheme == "file":
            return str(Path(unquote(parts.path)).parent)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def download(
    item: Item, location: Location, advance: Callable[[int], None], stopping: Callable[[], bool] = lambda: False
) -> int:
    """Have ``item`` in the cache; the bytes that came for it now. Nothing unverified ever gets its name there.

    ``advance`` is told of bytes that came or were there, and with a negative number of bytes that no longer count.
    Raises IntegrityError naming host and file when the bytes are not the lock's, SourceError when the host does not
    serve the file, HostError when it cannot be stored, Stopped when ``stopping`` says so.
    """
    path = path_of(item)
    for file in (path, partial_of(item), lock_of(item)):
        data.cache_folder(*file.relative_to(data.cache_root()).parts[:-1])
    try:
        with _one_at_a_time(item, stopping):
            if is_there(item):
                advance(path.stat().st_size)
                return 0
            came = _Download(item, location, advance, stopping).run()
            partial_of(item).replace(path)
            # Builds link to it: nobody is to write to it by mistake.
            path.chmod(0o444)
            return came
    except OSError as error:
        full = error.errno in _FULL
        raise HostError(
            f"{'the disk is full' if full else error.strerror}: {item.filename} could not be stored whole",
            place=Place(str(path.parent)),
            cure="Free some space and run it again: what has come is kept."
            if full
            else "Set ENVBUILDER_CACHE to a folder you may write to.",
        ) from error


@contextmanager
def _one_at_a_time(item: Item, stopping: Callable[[], bool]) -> Iterator[None]:
    """Hold the file's lock; another process that holds it is waited for, and what it fetched is used."""
    lock = FileLock(lock_of(item))
    while not lock.is_locked:
        if stopping():
            raise Stopped
        try:
            lock.acquire(timeout=0.5)
        except Timeout:
            continue
    try:
        yield
    finally:
        lock.release()


class _Download:
    """Brings the partial file of an item to all of its bytes."""

    def __init__(
        self, item: Item, location: Location, advance: Callable[[int], None], stopping: Callable[[], bool]
    ) -> None:
        self._item = item
        self._location = location
        self._advance = advance
        self._stopping = stopping
        self._path = partial_of(item)
        self._have = 0
        self._came = 0
        self._hash = hashlib.new(item.algorithm, usedforsecurity=False)

    def run(self) -> int:
        with self._path.open("a+b") as stream:
            try:
                self._take_up(stream)
                self._verified(stream, again=self._have > 0)
            except BaseException:
                self._advance(-self._have)
                raise
        return self._came

    def _verified(self, stream: IO[bytes], again: bool) -> None:
        """Receive all; ``again``: what an earlier run left may be what is wrong, so try once more from the start."""
        try:
            self._receive_all(stream)
        except IntegrityError:
            self._start_over(stream)
            if not again:
                raise
            self._verified(stream, again=False)

    def _take_up(self, stream: IO[bytes]) -> None:
        """Hash what an earlier run has left."""
        stream.seek(0)
        while chunk := stream.read(_CHUNK):
            self._count(chunk)

    def _start_over(self, stream: IO[bytes]) -> None:
        stream.truncate(0)
        self._advance(-self._have)
        self._have = 0
        self._hash = hashlib.new(self._item.algorithm, usedforsecurity=False)

    def _count(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self._have += len(chunk)
        self._advance(len(chunk))

    def _receive_all(self, stream: IO[bytes]) -> None:
        """Receive until the file is whole, taking broken connections up again, and hold it against the lock."""
        broken = 0
        while self._have != self._item.size:
            before = self._have
            try:
                self._receive(stream)
                break
            except _BROKEN as error:
                broken = 0 if self._have > before else broken + 1
                if broken == _ATTEMPTS:
                    raise SourceError(
                        f"the connection to {self._location.host} keeps breaking",
                        cure="Run it again: what has come is kept, and it goes on from there.",
                        detail=f"{self._item.filename}: {self._have} bytes came; {type(error).__name__}",
                    ) from error
                pause(broken, self._stopping)
        if self._item.size is not None and self._have != self._item.size:
            raise self._wrong(f"is {self._have} bytes there, {self._item.named_by} says {self._item.size}")
        if self._hash.hexdigest() != self._item.hex:
            raise self._wrong(
                f"is not the file of {self._item.named_by}",
                f"wanted  {self._item.digest}\nserved  {self._item.algorithm}:{self._hash.hexdigest()}",
            )

    def _receive(self, stream: IO[bytes]) -> None:
        parts = urlsplit(self._location.url)
        if parts.scheme == "file":
            self._copy(stream, Path(unquote(parts.path)))
            return
        headers = {"Range": f"bytes={self._have}-"} if self._have else {}
        with self._ask(headers) as response:
            self._check_answer(response)
            if response.status_code == 200 and self._have:
                # The server knows no ranges.
                self._start_over(stream)
            self._check_length(response)
            # Not iter_content: it loses what came of a chunk when the connection breaks amid it.
            self._store(stream, iter(lambda: response.raw.read1(_CHUNK), b""))

    def _ask(self, headers: dict[str, str]) -> requests.Response:
        timeout = (CONNECT_SECONDS, READ_SECONDS)
        try:
            return self._location.session.get(self._location.url, headers=headers, stream=True, timeout=timeout)
        except requests.RequestException as error:
            if distrusts(error):
                raise untrusted(self._location.host, error) from error
            if isinstance(error, requests.exceptions.SSLError):
                raise urllib3.exceptions.ProtocolError(str(error)) from error
            raise SourceError(
                f"{self._location.host} does not answer",
                cure="Check the network, the proxy and the mirror: envbuilder sources",
                detail=redact(str(error)),
            ) from error

    def _copy(self, stream: IO[bytes], path: Path) -> None:
        try:
            with path.open("rb") as source:
                source.seek(self._have)
                self._store(stream, iter(lambda: source.read(_CHUNK), b""))
        except FileNotFoundError as error:
            raise self._gone() from error

    def _store(self, stream: IO[bytes], chunks: Iterator[bytes]) -> None:
        bound = self._item.size if self._item.size is not None else _UNKNOWN_SIZE
        for chunk in chunks:
            if self._stopping():
                raise Stopped
            if self._have + len(chunk) > bound:
                raise self._wrong(f"is longer there than {bound} bytes")
            stream.write(chunk)
            self._came += len(chunk)
            self._count(chunk)
        stream.flush()

    def _check_answer(self, response: requests.Response) -> None:
        status, host = response.status_code, self._location.host
        if status in (404, 410):
            raise self._gone()
        if status == 416:
            raise self._wrong(f"is shorter there than {self._have} bytes")
        if status in (401, 403, 407):
            raise SourceError(
                f"{host} refuses {self._item.filename} ({status} {response.reason})",
                cure="Check the user name and password for it, or for the proxy, in the settings of whatever names it: "
                "pip, uv or apt, or the login of the registry.",
            )
        if status not in (200, 206):
            raise SourceError(
                f"{host} answers {status} {response.reason} for {self._item.filename}",
                cure="Try again later, or set another mirror.",
            )
        if status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {self._have}-"):
            raise self._wrong("comes from another place than was asked for")
        if response.headers.get("Content-Type", "").startswith("text/html"):
            raise self._wrong(
                "is a web page there, not a file: a login page or a notice of a proxy, most often",
                cure="Open any page in a browser on this network and log in, or check the proxy and the mirror.",
            )

    def _check_length(self, response: requests.Response) -> None:
        """A length that cannot be right ends the transfer before its first byte."""
        length = response.headers.get("Content-Length", "")
        if self._item.size is not None and length.isdigit() and self._have + int(length) != self._item.size:
            raise self._wrong(
                f"is {self._have + int(length)} bytes there, {self._item.named_by} says {self._item.size}"
            )

    def _wrong(self, what: str, detail: str | None = None, cure: str | None = None) -> IntegrityError:
        return IntegrityError(
            f"{self._item.filename} from {self._location.host} {what}",
            cure=cure or "Nothing of it was kept. Set another mirror, or ask whoever runs this one.",
            detail=detail,
        )

    def _gone(self) -> SourceError:
        return SourceError(
            f"{self._location.host} no longer serves {self._item.label} ({self._item.filename})",
            cure=self._location.gone,
        )
