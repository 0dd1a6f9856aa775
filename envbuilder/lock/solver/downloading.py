"""Bringing packages to this host, each held against its digest: py-rattler installs what it is given unseen."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

_AT_ONCE = 4
_CHUNK = 1 << 20
_TIMEOUT = (15, 60)


class WrongBytesError(Exception):
    """An address served other bytes than the lock names."""


class NotServedError(Exception):
    """No address serves a package."""


def bring(wanted: Sequence[tuple[list[str], str]], folder: Path) -> list[Path]:
    """Have every package in ``folder``: for each the addresses to try and its digest (``md5:`` or ``sha256:``, hex).

    An address that does not serve a package is passed over for the next; one that serves other bytes stops it all.
    Raises WrongBytesError naming it, NotServedError naming each address.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda pair: _bring(pair[0], pair[1], folder), wanted))


def _bring(urls: list[str], digest: str, folder: Path) -> Path:
    path = folder / unquote(urls[0].rsplit("/", 1)[-1])
    said = []
    for url in urls:
        try:
            _copy(url, path)
        except OSError as error:  # what requests raises is an OSError too
            said.append(f"{url}: {error}")
            continue
        algorithm, expected = digest.split(":")
        actual = _digest(path, algorithm)
        if actual != expected:
            path.unlink()
            raise WrongBytesError(
                f"{url} is not the package of the lock: {algorithm} {actual}, the lock says {expected}"
            )
        return path
    raise NotServedError(f"{path.name} is served by none of its addresses\n" + "\n".join(said))


def _copy(url: str, path: Path) -> None:
    parts = urlsplit(url)
    if parts.scheme == "file":
        shutil.copyfile(unquote(parts.path), path)
        return
    import requests

    with requests.get(url, stream=True, timeout=_TIMEOUT) as answer, path.open("wb") as stream:
        answer.raise_for_status()
        for chunk in answer.iter_content(_CHUNK):
            stream.write(chunk)


def _digest(path: Path, algorithm: str) -> str:
    hasher = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()
