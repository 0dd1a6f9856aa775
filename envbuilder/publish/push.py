"""An exported image into a registry: only what is not there yet, several blobs at a time, checked at the end."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass

from envbuilder.errors import InputError, IntegrityError
from envbuilder.fetch.transfers import Counter, at_once
from envbuilder.publish.export import Exported
from envbuilder.publish.layout import MANIFEST, Descriptor
from envbuilder.publish.remote import Remote
from envbuilder.report.progress import Progress


@dataclass(frozen=True)
class Pushed:
    """What a push came to: ``moved`` bytes went, ``skipped`` were there already; ``pinned`` names it for pulling."""

    reference: str
    pinned: str
    digest: str
    moved: int
    skipped: int


def check_target(reference: str) -> None:
    """Raise InputError for what an image cannot be pushed to, before any work is done for it."""
    name = Remote.open(reference).name
    if name.digest:
        raise InputError(
            f"{reference} names a digest, and what digest an image has follows from the image",
            cure=f"Name a tag: {name.host}/{name.repository}:TAG",
        )


def push(exported: Exported, remote: Remote, progress: Progress) -> Pushed:
    """Have the image in the repository, and its tag there point to it.

    Raises SourceError when the registry does not take it, IntegrityError when it stored something else.
    """
    progress.stage(f"asking {remote.host} what it has")
    blobs = list({blob.digest: blob for blob in (*exported.layers, exported.config)}.values())
    stop = threading.Event()
    there = dict(at_once(blobs, lambda blob: (blob.digest, remote.has(blob.digest)), lambda blob: 0, stop))
    new = [blob for blob in blobs if not there[blob.digest]]
    moved = sum(blob.size for blob in new)
    if new:
        layers = f"{len(new)} of {len(blobs)} blobs"
        progress.stage(f"pushing {layers}, {moved / 1e6:.1f} MB, to {remote.host}/{remote.name.repository}")
        _send(new, exported, remote, progress)
    body = exported.layout.path(exported.digest).read_bytes()
    stored = remote.put_manifest(body, MANIFEST, remote.name.tag)
    if stored != exported.digest:
        raise IntegrityError("the manifest in the cache is not the image's", cure="Run it again.")
    _check(remote, exported)
    return Pushed(
        reference=f"{remote.name.host}/{remote.name.repository}:{remote.name.tag}",
        pinned=remote.pinned(exported.digest),
        digest=exported.digest,
        moved=moved,
        skipped=sum(blob.size for blob in blobs) - moved,
    )


def _send(new: list[Descriptor], exported: Exported, remote: Remote, progress: Progress) -> None:
    counter = Counter(progress, sum(blob.size for blob in new))
    stop = threading.Event()

    def one(blob: Descriptor) -> None:
        progress.item(blob.digest[:19])
        remote.send(exported.layout.path(blob.digest), blob, counter.add, stop.is_set)

    at_once(new, one, lambda blob: blob.size, stop)


def _check(remote: Remote, exported: Exported) -> None:
    """The registry serves what was pushed, by tag and by digest."""
    for reference in (exported.digest, remote.name.tag):
        body, _ = remote.manifest(reference)
        if f"sha256:{hashlib.sha256(body).hexdigest()}" != exported.digest:
            raise IntegrityError(
                f"{remote.host} serves another image as {remote.name.repository}:{reference} than was pushed",
                cure="Somebody else may have pushed to this tag at the same time. Run it again.",
            )
