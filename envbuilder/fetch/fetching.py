"""Fetching every file a lock names into the cache: several at once, resumed, verified."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from envbuilder.fetch.cache import Item, check_space, is_there, path_of
from envbuilder.fetch.download import Location, Stopped, download
from envbuilder.fetch.locating import locate_debs, locate_python
from envbuilder.lock.model import DebArtifact, Lock, PythonArtifact
from envbuilder.report.progress import Progress
from envbuilder.stack.model import Stack
from envbuilder.stack.settings import load_settings

# Enough to fill a fast line while one of them verifies; few enough for a mirror that is shared.
_AT_ONCE = 4
TARGETS = ("runtime", "devel")


@dataclass(frozen=True)
class Cached:
    """A verified file in the cache, with the name it has in a folder made of it. ``size`` in bytes."""

    filename: str
    path: Path
    size: int


@dataclass(frozen=True)
class Fetched:
    """What a lock's files came to: all of them in the cache, ``downloaded`` of their bytes by this run."""

    python: tuple[Cached, ...]
    debs: tuple[Cached, ...]
    downloaded: int

    @property
    def size(self) -> int:
        """Bytes of all the files."""
        return sum(file.size for file in (*self.python, *self.debs))


def fetch(stack: Stack, lock: Lock, progress: Progress, targets: Collection[str] = TARGETS) -> Fetched:
    """Have every file of ``lock`` that ``targets`` need in the cache. With all of them there, no network is asked.

    Raises SourceError, IntegrityError or HostError as ``download`` does; what has come by then is kept.
    """
    debs = [deb for deb in lock.debs if deb.target in targets]
    python_items = {a.sha256: python_item(a) for a in lock.python}
    deb_items = {d.sha256: deb_item(d) for d in debs}
    missing = [item for item in (*python_items.values(), *deb_items.values()) if not is_there(item)]
    downloaded = 0
    if missing:
        check_space(missing)
        progress.stage(f"locating {len(missing)} files")
        absent = {item.hex for item in missing}
        locations: dict[str, Location] = {}
        if wanted := [a for a in lock.python if a.sha256 in absent]:
            locations.update(locate_python(stack, wanted))
        if packages := [d for d in debs if d.sha256 in absent]:
            locations.update(locate_debs(lock, packages, load_settings()))
        downloaded = fetch_items(missing, locations, progress)
    return Fetched(
        python=tuple(_cached(item) for item in python_items.values()),
        debs=tuple(_cached(item) for item in deb_items.values()),
        downloaded=downloaded,
    )


def fetch_items(items: Sequence[Item], locations: Mapping[str, Location], progress: Progress) -> int:
    """Download ``items`` from ``locations`` (by hex digest); the bytes that came. The first fault stops them all."""
    hosts = ", ".join(sorted({locations[item.hex].host for item in items}))
    total = sum(item.size or 0 for item in items)
    progress.stage(f"fetching {len(items)} files, {total / 1e9:.2f} GB, from {hosts}")
    counter = _Counter(progress, total)
    stop = threading.Event()

    def one(item: Item) -> None:
        progress.item(item.label)
        download(item, locations[item.hex], counter.add, stop.is_set)
        progress.log(f"{item.filename} {item.digest}")

    # The largest first, so that none of them is what everything waits for in the end.
    order = sorted(items, key=lambda item: -(item.size or 0))
    with ThreadPoolExecutor(_AT_ONCE, "fetch") as pool:
        try:
            futures = [pool.submit(one, item) for item in order]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
    faults = [error for future in done if (error := future.exception()) and not isinstance(error, Stopped)]
    if faults:
        raise faults[0]
    return counter.done


def python_item(artifact: PythonArtifact) -> Item:
    """The file to have for a Python artifact."""
    label = f"{artifact.name} {artifact.version}"
    return Item(label, artifact.filename, f"sha256:{artifact.sha256}", artifact.size)


def deb_item(artifact: DebArtifact) -> Item:
    """The file to have for a Debian package."""
    label = f"{artifact.name} {artifact.version}"
    return Item(label, artifact.filename, f"sha256:{artifact.sha256}", artifact.size)


def _cached(item: Item) -> Cached:
    path = path_of(item)
    return Cached(item.filename, path, path.stat().st_size)


class _Counter:
    """Adds up the bytes of all threads."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._lock = threading.Lock()
        self.done = 0

    def add(self, count: int) -> None:
        with self._lock:
            self.done += count
            self._progress.advance(self.done, self._total)
