"""Having every file a lock names in the cache."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.fetch.cache import Item, check_space, is_there, path_of
from envbuilder.fetch.git import fetch_commit, repository_of
from envbuilder.lock.mirrors import mirrors_of
from envbuilder.lock.model import CondaArtifact, DebArtifact, Lock, PythonArtifact
from envbuilder.report.progress import Progress
from envbuilder.stack.model import Stack
from envbuilder.stack.settings import load_settings

if TYPE_CHECKING:
    from envbuilder.fetch.download import Location
    from envbuilder.fetch.images import ImageFiles

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
    conda: tuple[Cached, ...] = ()
    git: tuple[Path, ...] = ()
    images: tuple[ImageFiles, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all the files; source trees are not counted."""
        layers = sum(blob.size or 0 for image in self.images for blob in image.blobs)
        return layers + sum(file.size for file in (*self.python, *self.debs, *self.conda))


def fetch(stack: Stack, lock: Lock, progress: Progress, targets: Collection[str] = TARGETS) -> Fetched:
    """Have every file of ``lock`` that ``targets`` need in the cache. With all of them there, no network is asked.

    Raises SourceError, IntegrityError or HostError as ``download`` does; what has come by then is kept.
    """
    debs = [deb for deb in lock.debs if deb.target in targets]
    python_items = [item_of(artifact) for artifact in lock.python]
    deb_items = [item_of(deb) for deb in debs]
    conda_items = [item_of(package) for package in lock.conda]
    missing = [item for item in (*python_items, *deb_items, *conda_items) if not is_there(item)]
    images, locations = _images(lock, progress)
    missing += [blob for image in images for blob in image.blobs if blob.hex in locations]
    downloaded = 0
    if missing:
        # Not above: what speaks HTTP is a good part of the time a run takes that finds everything there.
        from envbuilder.fetch.locating import locate_conda, locate_debs, locate_indexed, locate_python
        from envbuilder.fetch.transfers import fetch_items

        check_space(missing)
        progress.stage(f"locating {len(missing)} files")
        absent = {item.hex for item in missing}
        settings = load_settings()
        mirrors = mirrors_of(settings)
        wanted = [a for a in lock.python if a.sha256 in absent]
        locations.update(locate_indexed(wanted, mirrors))
        if default := [a for a in wanted if a.index is None]:
            locations.update(locate_python(stack, default))
        if packages := [d for d in debs if d.sha256 in absent]:
            locations.update(locate_debs(lock, packages, settings))
        locations.update(locate_conda([c for c in lock.conda if (c.sha256 or c.md5) in absent], mirrors))
        downloaded = fetch_items(list({item.hex: item for item in missing}.values()), locations, progress)
    return Fetched(
        python=tuple(_cached(item) for item in python_items),
        debs=tuple(_cached(item) for item in deb_items),
        downloaded=downloaded,
        conda=tuple(_cached(item) for item in conda_items),
        git=_trees(lock, progress),
        images=images,
    )


def _images(lock: Lock, progress: Progress) -> tuple[tuple[ImageFiles, ...], dict[str, Location]]:
    """The base images' parts, and where those are that are missing."""
    if not lock.images:
        return (), {}
    from envbuilder.fetch.images import image_files

    progress.stage(f"reading {len(lock.images)} base images")
    mirrors = mirrors_of(load_settings())
    found = [image_files(image, mirrors) for image in lock.images]
    return tuple(files for files, _ in found), {digest: at for _, where in found for digest, at in where.items()}


def _trees(lock: Lock, progress: Progress) -> tuple[Path, ...]:
    absent = [artifact for artifact in lock.git if not repository_of(artifact).is_dir()]
    if absent:
        progress.stage(f"fetching {len(absent)} source trees")
    mirrors = mirrors_of(load_settings())
    return tuple(fetch_commit(artifact, mirrors, progress) for artifact in lock.git)


def item_of(artifact: PythonArtifact | DebArtifact | CondaArtifact) -> Item:
    """The file to have for an artifact of a lock: by SHA-256, or by MD5 where nobody gives a SHA-256."""
    digest = f"sha256:{artifact.sha256}"
    if isinstance(artifact, CondaArtifact) and artifact.sha256 is None:
        digest = f"md5:{artifact.md5}"
    return Item(f"{artifact.name} {artifact.version}", artifact.filename, digest, artifact.size)


def _cached(item: Item) -> Cached:
    path = path_of(item)
    return Cached(item.filename, path, path.stat().st_size)
