"""Locking a stack: one function a half, then all files are written at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from envbuilder import data
from envbuilder.files import write_text
from envbuilder.lock.client import python_client
from envbuilder.lock.debian import lock_debian
from envbuilder.lock.model import Lock, PythonArtifact
from envbuilder.lock.python import lock_python
from envbuilder.lock.reading import REQUIREMENTS, SOURCES, load_lock, lock_folder
from envbuilder.lock.requirements_file import requirements_text
from envbuilder.lock.sources_file import Sources, sources_text
from envbuilder.report.progress import Progress
from envbuilder.stack.model import Stack
from envbuilder.stack.settings import load_settings


@dataclass(frozen=True)
class Wish:
    """How to lock. ``security``: with Debian's security archive. ``offline``: from what earlier runs kept.

    ``cutoff`` replaces the stack's upload cut-off.
    """

    security: bool = False
    offline: bool = False
    cutoff: date | None = None


@dataclass(frozen=True)
class Locked:
    """The outcome: the lock before (None when there was none), the lock now, and the files whose bytes changed."""

    before: Lock | None
    now: Lock
    changed: tuple[Path, ...]


def lock_stack(stack: Stack, wish: Wish, progress: Progress) -> Locked:
    """Lock every half of ``stack`` and write its files into the project's ``locks``.

    Nothing is written unless every half succeeded.
    """
    before = load_lock(stack) if lock_folder(stack.name) else None
    progress.stage(f"resolving {stack.name}")
    with ThreadPoolExecutor(max_workers=2) as pool:
        python = pool.submit(_python, stack, wish, before)
        sources = pool.submit(_sources, stack, wish)
        texts = {REQUIREMENTS: python.result(), SOURCES: sources.result()}
    changed = []
    for suffix, text in texts.items():
        path = data.project_root() / "locks" / f"{stack.name}{suffix}"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
            changed.append(path)
    return Locked(before, load_lock(stack), tuple(changed))


def _python(stack: Stack, wish: Wish, before: Lock | None) -> str:
    known = {a.sha256: a.size for a in before.python if a.size is not None} if before else {}
    artifacts: tuple[PythonArtifact, ...] = lock_python(
        stack, python_client(), cutoff=wish.cutoff, offline=wish.offline, sizes=known
    )
    return requirements_text(stack, artifacts)


def _sources(stack: Stack, wish: Wish) -> str:
    debian = None
    if stack.debian:
        debian = lock_debian(stack, load_settings(), security=wish.security, offline=wish.offline)
    return sources_text(Sources(stack=stack.name, debian=debian))
