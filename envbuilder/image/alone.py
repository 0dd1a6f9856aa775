"""Doing something while nobody else on this host does it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from envbuilder.report.progress import Progress


@contextmanager
def alone(path: Path, other: str, progress: Progress) -> Iterator[None]:
    """Hold the lock file ``path``. Whoever holds it is waited for; ``other`` says in words what that is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.stage(f"{other} is running: waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
