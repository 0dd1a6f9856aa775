"""Several downloads at once; the first fault stops them all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from envbuilder.errors import SourceError
from envbuilder.fetch.cache import Item
from envbuilder.fetch.download import Location, Stopped, download
from envbuilder.report.progress import Progress

# Enough to fill a fast line while one of them verifies; few enough for a mirror that is shared.
_AT_ONCE = 4
T = TypeVar("T")
R = TypeVar("R")


def fetch_items(items: Sequence[Item], locations: Mapping[str, Location], progress: Progress) -> int:
    """Download ``items`` from ``locations`` (by hex digest); the bytes that came. The first fault stops them all."""
    hosts = ", ".join(sorted({locations[item.hex].host for item in items}))
    total = sum(item.size or 0 for item in items)
    progress.stage(f"fetching {len(items)} files, {total / 1e9:.2f} GB, from {hosts}")
    counter = Counter(progress, total)
    stop = threading.Event()

    def one(item: Item) -> int:
        progress.item(item.label)
        first = locations[item.hex]
        *others, last = [first, *first.then]
        for location in others:
            try:
                return download(item, location, counter.add, stop.is_set)
            except SourceError as error:
                progress.log(f"{error.message}; trying the next address")
        return download(item, last, counter.add, stop.is_set)

    return sum(at_once(items, one, lambda item: item.size or 0, stop))


def at_once(items: Sequence[T], one: Callable[[T], R], size: Callable[[T], int], stop: threading.Event) -> list[R]:
    """What ``one`` gives for each of ``items``, several at a time; ``stop`` is set when the first of them fails."""
    # The largest first, so that none of them is what everything waits for in the end.
    order = sorted(items, key=lambda item: -size(item))
    with ThreadPoolExecutor(_AT_ONCE, "transfer") as pool:
        try:
            futures = [pool.submit(one, item) for item in order]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
    faults = [error for future in done if (error := future.exception()) and not isinstance(error, Stopped)]
    if faults:
        raise faults[0]
    return [future.result() for future in futures]


class Counter:
    """Adds up the bytes of all threads."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._lock = threading.Lock()
        self._done = 0

    def add(self, count: int) -> None:
        """``count`` more bytes, or fewer."""
        with self._lock:
            self._done += count
            self._progress.advance(self._done, self._total)
