"""A folder for the time of one build or run, and clearing up after those that were killed.

The folder is held by a file lock that dies with its process. What an engine makes for a build is found again by
the folder's name: it is the TMPDIR of the engine's programs and part of the names of containers. Whoever comes next
removes what the dead have left.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from envbuilder.data import cache_root

PREFIX = "envbuilder-"


def scratch_root() -> Path:
    """Where the folders lie: in the cache, so that files of the cache can be linked into them."""
    return cache_root() / "scratch"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A new folder, removed at the end."""
    folder = scratch_root() / f"{PREFIX}{uuid.uuid4().hex[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_suffix(".lock"))
    try:
        with lock:
            folder.mkdir()
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)


def abandoned() -> list[Path]:
    """The folders whose process is gone."""
    found = []
    for folder in sorted(scratch_root().glob(f"{PREFIX}*")):
        if not folder.is_dir():
            continue
        lock = FileLock(folder.with_suffix(".lock"), timeout=0)
        with contextlib.suppress(Timeout), lock:
            found.append(folder)
    return found


def discard(folder: Path) -> None:
    """Remove an abandoned folder and its lock."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(".lock").unlink(missing_ok=True)
