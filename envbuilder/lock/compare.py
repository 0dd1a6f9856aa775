"""What differs between two locks: packages added, removed, moved, and bytes that changed under one version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from envbuilder.errors import InputError, Place
from envbuilder.lock.conda_file import parse_conda_lock
from envbuilder.lock.model import Lock
from envbuilder.lock.reading import CONDA, REQUIREMENTS, SOURCES
from envbuilder.lock.requirements_file import parse_requirements
from envbuilder.lock.sources_file import parse_sources


@dataclass(frozen=True)
class Entry:
    """One package of a lock. ``bytes`` is what the file is known by, ``size`` in bytes where known."""

    kind: str
    name: str
    version: str
    bytes: str
    size: int | None = None


@dataclass(frozen=True)
class Change:
    """One difference. ``before`` is None for an added package, ``after`` for a removed one."""

    kind: str
    name: str
    before: Entry | None
    after: Entry | None

    @property
    def what(self) -> str:
        """added, removed, version, or bytes: another file under the same version."""
        if self.before is None:
            return "added"
        if self.after is None:
            return "removed"
        return "version" if self.before.version != self.after.version else "bytes"


@dataclass(frozen=True)
class Comparison:
    """All differences, by kind and name. Sizes in bytes over the files whose size is known."""

    changes: tuple[Change, ...]
    size_before: int
    size_after: int
    unknown_sizes: int = field(default=0)

    def of(self, what: str) -> tuple[Change, ...]:
        """The changes of one sort."""
        return tuple(change for change in self.changes if change.what == what)


def compare(before: Iterable[Entry], after: Iterable[Entry]) -> Comparison:
    """Compare two sets of entries."""
    old = {(entry.kind, entry.name): entry for entry in before}
    new = {(entry.kind, entry.name): entry for entry in after}
    changes = []
    for key in sorted(old.keys() | new.keys()):
        one, other = old.get(key), new.get(key)
        if one is None or other is None or (one.version, one.bytes) != (other.version, other.bytes):
            changes.append(Change(*key, before=one, after=other))
    unknown = sum(entry.size is None for entry in (*old.values(), *new.values()))
    return Comparison(tuple(changes), _size(old.values()), _size(new.values()), unknown)


def _size(entries: Iterable[Entry]) -> int:
    return sum(entry.size or 0 for entry in entries)


def entries_of(lock: Lock) -> list[Entry]:
    """All packages of a lock."""
    return [
        *(Entry("Python", a.name, a.version, a.sha256, a.size) for a in lock.python),
        *(Entry("conda", a.name, f"{a.version} {a.build}", a.sha256 or a.md5, a.size) for a in lock.conda),
        *(Entry("Debian", d.name, d.version, d.sha256, d.size) for d in lock.debs),
        *(Entry("source", g.name, g.tag, g.commit) for g in lock.git),
        *(Entry("image", i.target, i.reference, i.digest) for i in lock.images),
    ]


def read_entries(path: Path) -> list[Entry]:
    """The packages of a lock file, or of all lock files when ``path`` is a folder holding those of one stack.

    A lock edited by hand is compared too: seeing what changed is what a comparison is for.
    Raises InputError when there is no lock there.
    """
    if path.is_dir():
        files = [file for suffix in (REQUIREMENTS, CONDA, SOURCES) for file in sorted(path.glob(f"*{suffix}"))]
        stacks = {
            file.name.removesuffix(suffix)
            for file in files
            for suffix in (REQUIREMENTS, CONDA, SOURCES)
            if file.name.endswith(suffix)
        }
        if len(stacks) != 1:
            raise InputError(
                f"the folder holds the locks of {len(stacks)} stacks, and one is compared",
                place=Place(str(path)),
                cure="Name a file of one stack: FOLDER/STACK.requirements.txt",
            )
        return [entry for file in files for entry in _read_file(file)]
    return list(_read_file(path))


def _read_file(path: Path) -> Iterable[Entry]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            "there is no such file",
            place=Place(str(path)),
            cure="Name a lock file or a folder of one stack's, such as locks/p40.requirements.txt.",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the lock cannot be read: {error}", place=Place(str(path))) from None
    file = Lock(stack="", digest="", python=())
    if path.name.endswith(REQUIREMENTS):
        return entries_of(file.model_copy(update={"python": parse_requirements(text, str(path))}))
    if path.name.endswith((CONDA, "conda-lock.yml")):
        return entries_of(file.model_copy(update={"conda": parse_conda_lock(text, str(path))}))
    if path.name.endswith(SOURCES):
        sources = parse_sources(text, str(path))
        parts = {"debian": sources.debian, "git": sources.git, "images": sources.images}
        return entries_of(file.model_copy(update=parts))
    raise InputError(
        "this is none of a stack's lock files",
        place=Place(str(path)),
        cure=f"A lock file's name ends in {REQUIREMENTS}, {CONDA} or {SOURCES}.",
    )
