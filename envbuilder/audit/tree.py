"""A folder, a virtual environment, a mounted image, or a single file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from envbuilder.audit.arch import Arch
from envbuilder.audit.binary import Binary, read_binary
from envbuilder.audit.collect import Collection, Package, is_candidate
from envbuilder.audit.owners import Owners, torch_cuda
from envbuilder.audit.sources import FileSource
from envbuilder.report.progress import Progress, Silent

_LONGEST_TEXT = 64 << 20
_SKIPPED = frozenset({"proc", "sys", "dev"})


def collect_file(path: Path, cards: Sequence[Arch]) -> Collection:
    """A single binary."""
    return Collection(str(path), "file", [Package("", "", [_read(path, str(path), cards)])])


def collect_tree(
    root: Path, cards: Sequence[Arch], progress: Progress | None = None, *, subject: str = ""
) -> Collection:
    """Everything below a folder. A folder with ``pyvenv.cfg`` or ``conda-meta`` is an environment."""
    progress = progress or Silent()
    files: list[tuple[str, int]] = []
    owners = Owners()
    collection = Collection(subject or str(root), "directory")

    def unreadable(error: OSError) -> None:
        collection.unseen.append(f"{error.filename}: {error.strerror}")

    for path, entry in walk(root, unreadable):
        if is_candidate(entry.name):
            files.append((path, entry.stat(follow_symlinks=False).st_size))
        elif path.endswith(".dist-info/RECORD"):
            site, folder = path.split("/")[:-2], path.split("/")[-2]
            owners.add_record("/".join(site), folder, _text(root / path))
            collection.kind = "environment"
        elif "conda-meta/" in path and path.endswith(".json"):
            owners.add_conda(path.rpartition("conda-meta/")[0], _text(root / path))
            collection.kind = "environment"
        elif path.endswith("torch/version.py"):
            collection.cuda = torch_cuda(_text(root / path))
    packages: dict[tuple[str, str], Package] = {}
    total, done = sum(size for _, size in files), 0
    for path, size in files:
        progress.item(path.rsplit("/", 1)[-1])
        owner = owners.of(path)
        packages.setdefault(owner, Package(*owner)).binaries.append(_read(root / path, path, cards))
        done += size
        progress.advance(done, total)
    collection.packages = [packages[key] for key in sorted(packages)]
    collection.clashes = owners.clashes
    return collection


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


def _read(path: Path, name: str, cards: Sequence[Arch]) -> Binary:
    try:
        with FileSource(path) as source:
            return read_binary(name, source, cards)
    except OSError as error:
        return Binary(name, doubts=[f"it cannot be read: {error.strerror}"])


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(_LONGEST_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""
