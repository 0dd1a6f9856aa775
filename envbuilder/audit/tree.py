"""A folder, a virtual environment, a mounted image, or a single file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from envbuilder.audit.arch import Arch
from envbuilder.audit.assemble import Assembly, read_file
from envbuilder.audit.collect import Collection, Package
from envbuilder.report.progress import Progress, Silent

_SKIPPED = frozenset({"proc", "sys", "dev"})


def collect_file(path: Path, cards: Sequence[Arch]) -> Collection:
    """A single binary."""
    return Collection(str(path), "file", [Package("", "", [read_file(path, str(path), cards)])])


def collect_tree(
    root: Path, cards: Sequence[Arch], progress: Progress | None = None, *, subject: str = "", kind: str = "directory"
) -> Collection:
    """Everything below a folder. A folder in which installed packages are found is an environment."""
    progress = progress or Silent()
    assembly = Assembly(subject or str(root), kind, cards)
    files: list[tuple[str, int]] = []

    def unreadable(error: OSError) -> None:
        assembly.unseen(f"{error.filename}: {error.strerror}")

    for path, entry in walk(root, unreadable):
        if assembly.wants(path):
            files.append((path, entry.stat(follow_symlinks=False).st_size))
    total, done = sum(size for _, size in files), 0
    for path, size in files:
        progress.item(path.rsplit("/", 1)[-1])
        assembly.add_file(path, root / path)
        done += size
        progress.advance(done, total)
    return assembly.done()


def walk(root: Path, unreadable: Callable[[OSError], None]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """(path relative to ``root``, entry) of every regular file, in a stable order. Links are not followed."""
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(root / folder) as entries:
                found = sorted(entries, key=lambda e: e.name)
        except OSError as error:
            unreadable(error)
            continue
        for entry in reversed(found):
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False) and (folder or entry.name not in _SKIPPED):
                pending.append(path)
        for entry in found:
            if entry.is_file(follow_symlinks=False):
                yield (f"{folder}/{entry.name}" if folder else entry.name), entry
