"""The wheels that a lock or requirements file names, located through the client's own index and read by ranges.

A wheel that is in the cache already is read from there.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests
from packaging.pylock import PackageWheel
from packaging.requirements import InvalidRequirement, Requirement

from envbuilder.audit.remote import RemoteWheel, WheelList
from envbuilder.data import cache_root
from envbuilder.errors import InputError, Place, SourceError
from envbuilder.fetch.transport import CONNECT_SECONDS, READ_SECONDS, python_session
from envbuilder.lock.client import python_client
from envbuilder.lock.python import chosen
from envbuilder.lock.uv import Target, resolve

_PIECE = 256 << 10
_HEADER = re.compile(r"^# Python (?P<python>\d+\.\d+)(?:\.\d+)?, Linux x86_64, glibc (?P<glibc>\d+\.\d+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_OLDEST_GLIBC = "2.17"


def locate(path: Path) -> WheelList:
    """The wheels that ``path`` names; dependencies that it does not name are not looked at.

    Raises InputError when the file is no list of requirements or its pins do not exist, SourceError when the index
    does not answer.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the file cannot be read: {error}", place=Place(str(path))) from error
    wanted, unseen = _requirements(text, path)
    if not wanted:
        raise InputError(
            "this file names no package",
            place=Place(str(path)),
            cure="Give a requirements file or a lock of envbuilder's (locks/NAME.requirements.txt).",
        )
    target = _target(text)
    client = python_client()
    hashes = {h for line in wanted.values() for h in _HASH.findall(line)}
    pylock = resolve([line.split(" --hash=")[0] for line in wanted.values()], target, client, dependencies=False)
    # Where the list names a wheel's hash, it is that wheel; elsewhere the one that fits best.
    named: dict[str, PackageWheel] = {
        str(p.name): w for p in pylock.packages for w in p.wheels or () if w.hashes.get("sha256") in hashes
    }
    session = python_session(client)
    wheels, sources = [], []
    for artifact, url in chosen(pylock, target, {}):
        filename, digest, address = artifact.filename, artifact.sha256, url
        if artifact.name in named:
            wheel = named[artifact.name]
            filename, digest, address = wheel.filename, wheel.hashes["sha256"], wheel.url or ""
        if not filename.endswith(".whl"):
            sources.append(filename)
            continue
        wheels.append(RemoteWheel(artifact.name, artifact.version, filename, _Opener(address, digest, session)))
    return WheelList(tuple(wheels), tuple(unseen), tuple(sources))


def _requirements(text: str, path: Path) -> tuple[dict[str, str], list[str]]:
    """(name -> requirement with its hashes, what cannot be looked at)."""
    wanted: dict[str, str] = {}
    unseen: list[str] = []
    for number, line in enumerate(re.sub(r"\\\r?\n", " ", text).splitlines(), start=1):
        stripped = re.sub(r"(^|\s)#.*$", "", line).strip()
        if not stripped:
            continue
        if stripped.startswith("-"):
            if not stripped.startswith(("--hash", "--require-hashes")):
                unseen.append(f"{stripped.split()[0]} in line {number} was not followed")
            continue
        try:
            requirement = Requirement(stripped.split(" --")[0])
        except InvalidRequirement as error:
            raise InputError(
                f"this is no requirement: {error}".splitlines()[0],
                place=Place(str(path), number),
                cure="Write NAME==VERSION, as pip takes it.",
            ) from None
        if requirement.url:
            unseen.append(f"{requirement.name}: named by its address, not by an index")
        elif "+" in str(requirement.specifier):
            unseen.append(f"{requirement.name}{requirement.specifier}: a build of an index beside the client's own")
        else:
            wanted[requirement.name] = " ".join(stripped.split())
    return wanted, unseen


def _target(text: str) -> Target:
    """What the wheels must fit: what a lock's header says, else this Python and this host's glibc."""
    match = _HEADER.search(text)
    if match:
        return Target(match["python"], match["glibc"])
    glibc = platform.libc_ver()
    release = glibc[1] if glibc[0] == "glibc" else _OLDEST_GLIBC
    return Target(f"{sys.version_info.major}.{sys.version_info.minor}", release)


class _Opener:
    def __init__(self, url: str, sha256: str, session: requests.Session) -> None:
        self._url, self._sha256, self._session = url, sha256, session

    def __call__(self) -> _Local | _Http:
        cached = cache_root() / "sha256" / self._sha256[:2] / self._sha256
        if cached.is_file():
            return _Local(cached)
        parts = urlsplit(self._url)
        if parts.scheme in ("http", "https"):
            return _Http(self._url, self._session)
        return _Local(Path(unquote(parts.path)) if parts.scheme == "file" else Path(self._url))


class _Local:
    """A file on disk."""

    near = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = path.stat().st_size

    def read(self, start: int, length: int) -> bytes:
        with self._path.open("rb") as stream:
            stream.seek(start)
            return stream.read(length)

    def stream(self, start: int, length: int) -> Iterator[bytes]:
        with self._path.open("rb") as stream:
            stream.seek(start)
            while length > 0 and (data := stream.read(min(_PIECE, length))):
                length -= len(data)
                yield data


class _Http:
    """A file on a server that serves ranges."""

    near = False

    def __init__(self, url: str, session: requests.Session) -> None:
        self._url, self._session = url, session
        with self._get("bytes=-1") as answer:
            total = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if not total.isdigit():
            raise SourceError("its server does not say how large the file is", cure="Fetch it, then audit the file.")
        self.size = int(total)

    def _get(self, ranges: str) -> requests.Response:
        try:
            answer = self._session.get(
                self._url, headers={"Range": ranges}, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS)
            )
        except requests.RequestException as error:
            raise SourceError(
                f"its server does not answer ({type(error).__name__})", cure="Try again later."
            ) from error
        if answer.status_code != 206:
            answer.close()
            raise SourceError(
                f"its server does not serve parts of it (status {answer.status_code})", cure="Fetch it, then audit it."
            )
        return answer

    def read(self, start: int, length: int) -> bytes:
        end = min(start + length, self.size) - 1
        if end < start:
            return b""
        return b"".join(self.stream(start, end - start + 1))

    def stream(self, start: int, length: int) -> Iterator[bytes]:
        if length <= 0:
            return
        with self._get(f"bytes={start}-{start + length - 1}") as answer:
            try:
                left = length
                for chunk in answer.iter_content(_PIECE):
                    # A server that sends more than was asked for is not believed.
                    yield chunk[:left]
                    left -= len(chunk)
                    if left <= 0:
                        return
            except requests.RequestException as error:
                raise SourceError(f"the transfer broke off ({type(error).__name__})", cure="Try again.") from error
