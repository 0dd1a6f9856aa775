"""Remembering what was solved: the same question asked of unchanged sources has the same answer.

A Python half is settled by its pins, its target and its cut-off date. A conda half is settled by its inputs and the
state of the channels' indexes, which is asked for each time; where a channel does not tell it, nothing is remembered.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from envbuilder import __version__, data
from envbuilder.errors import EnvbuilderError
from envbuilder.files import write_text
from envbuilder.lock.checksum import check_seal
from envbuilder.lock.conda_inputs import PLATFORM

_TIMEOUT = (4, 8)


def remembered(question: Mapping[str, Any], stack: str, answer: Callable[[], str]) -> str:
    """The sealed text that answers ``question``: from the cache, else ``answer()``, which is kept.

    ``question`` is JSON-typed and holds everything the answer depends on. A damaged entry is not used.
    """
    text = json.dumps({**question, "envbuilder": __version__}, sort_keys=True)
    path = data.cache_root() / "solved" / hashlib.sha256(text.encode()).hexdigest()
    try:
        known = path.read_text(encoding="utf-8")
        check_seal(known, str(path), stack)
    except (OSError, UnicodeDecodeError, EnvbuilderError):
        known = answer()
        write_text(path, known)
    return known


def channels_state(addresses: Iterable[str]) -> list[str] | None:
    """What tells one state of the channels at ``addresses`` from another; None when one of them does not tell."""
    from concurrent.futures import ThreadPoolExecutor

    pages = [f"{address}/{subdir}/repodata.json" for address in addresses for subdir in (PLATFORM, "noarch")]
    with ThreadPoolExecutor(max(1, len(pages))) as pool:
        states = list(pool.map(_state, pages))
    found = [f"{page} {state}" for page, state in zip(pages, states, strict=True) if state]
    return found if len(found) == len(pages) else None


def _state(page: str) -> str | None:
    parts = urlsplit(page)
    if parts.scheme == "file":
        try:
            status = Path(unquote(parts.path)).stat()
        except OSError:
            return None
        return f"{status.st_mtime_ns} {status.st_size}"
    import requests

    try:
        answer = requests.head(page, timeout=_TIMEOUT, allow_redirects=True)
    except requests.RequestException:
        return None
    if answer.status_code != 200:
        return None
    return answer.headers.get("ETag") or answer.headers.get("Last-Modified")
