"""Having every file a lock names in the cache."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from envbuilder.fetch.cache import Item, check_space, is_there, path_of
from envbuilder.lock.model import DebArtifact, Lock, PythonArtifact
from envbuilder.report.progress import Progress
from envbuilder.stack.model import Stack
from envbuilder.stack.settings import load_settings

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
    python_items = [item_of(artifact) for artifact in lock.python]
    deb_items = [item_of(deb) for deb in debs]
    missing = [item for item in (*python_items, *deb_items) if not is_there(item)]
    downloaded = 0
    if missing:
        # Not above: what speaks HTTP is a good part of the time a run takes that finds everything there.
        from envbuilder.fetch.locating import locate_debs, locate_python
        from envbuilder.fetch.transfers import fetch_items

        check_space(missing)
        progress.stage(f"locating {len(missing)} files")
        absent = {item.hex for item in missing}
        locations = {}
        if wanted := [a for a in lock.python if a.sha256 in absent]:
            locations.update(locate_python(stack, wanted))
        if packages := [d for d in debs if d.sha256 in absent]:
            locations.update(locate_debs(lock, packages, load_settings()))
        downloaded = fetch_items(missing, locations, progress)
    return Fetched(
        python=tuple(_cached(item) for item in python_items),
        debs=tuple(_cached(item) for item in deb_items),
        downloaded=downloaded,
    )


def item_of(artifact: PythonArtifact | DebArtifact) -> Item:
    """The file to have for an artifact of a lock."""
    label = f"{artifact.name} {artifact.version}"
    return Item(label, artifact.filename, f"sha256:{artifact.sha256}", artifact.size)


def _cached(item: Item) -> Cached:
    path = path_of(item)
    return Cached(item.filename, path, path.stat().st_size)
