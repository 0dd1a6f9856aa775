"""An image as one file: written whole or not at all, the same bytes twice, verified whole before an engine sees it.

The file is a tar that every engine loads with its own command (``docker load``, ``podman load``, ``buildah pull
docker-archive:FILE``): layers unpacked, as Docker 20.10 takes no zstd. ``envbuilder.json`` in it names the manifest
the image is published under, and documents attached to it (SBOM, provenance, signatures), which lie beside it; that
manifest and the layers meet in the image's configuration, which lists the digests of the unpacked layers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from envbuilder.errors import HostError, Place
from envbuilder.fetch.transfers import Counter
from envbuilder.files import replacing, write_bytes
from envbuilder.image.archives import Member, blob, size_of, tar_of, text, unpacked_members
from envbuilder.image.engine import Engine, ImageInfo
from envbuilder.publish.archive_reading import ABOUT, Content, about_of, read_archive
from envbuilder.publish.export import Exported, layout_of, parts_of
from envbuilder.publish.installing import check_fits, present
from envbuilder.report.progress import Progress


@dataclass(frozen=True)
class Saved:
    """What was written: ``size`` in bytes, ``sha256`` of the file, ``digest`` of the image as published."""

    path: Path
    size: int
    sha256: str
    digest: str


def save(exported: Exported, path: Path, progress: Progress) -> Saved:
    """Write the image to ``path``. Raises HostError when it cannot be written; nothing is then left."""
    name = exported.image.reference
    members = [*_documents(exported), *unpacked_members(exported.layout.folder, exported.digest, [name])]
    total = size_of(members)
    progress.stage(f"writing {path.name}, {total / 1e9:.2f} GB")
    hasher = hashlib.sha256()
    try:
        with replacing(path) as stream:
            for chunk in tar_of(members, Counter(progress, total).add):
                hasher.update(chunk)
                stream.write(chunk)
    except OSError as error:
        raise HostError(
            f"the archive cannot be written: {error.strerror}; nothing of it is left",
            place=Place(str(path)),
            cure=f"It needs {total / 1e9:.1f} GB: free some space or choose another folder.",
        ) from error
    return Saved(path, total, hasher.hexdigest(), exported.digest)


def _documents(exported: Exported) -> list[Member]:
    """``envbuilder.json``, the manifest as published, and what is attached to it."""
    attached = exported.layout.referrers(exported.digest)
    digests = [exported.digest]
    for entry in attached:
        config, layers = parts_of(exported.layout.manifest(entry.digest))
        digests += [entry.digest, config.digest, *(layer.digest for layer in layers)]
    bodies = [(digest, exported.layout.path(digest).read_bytes()) for digest in dict.fromkeys(digests)]
    manifests = [dict(bodies)[digest] for digest in (exported.digest, *(entry.digest for entry in attached))]
    about = about_of(manifests[0], manifests[1:])
    return [text(ABOUT, about), *(text(blob(digest), body) for digest, body in bodies)]


@dataclass(frozen=True)
class Loaded:
    """What a load came to: ``name`` is what the engine calls the image, ``id`` its configuration's digest,
    ``referrers`` how many documents came along.
    """

    name: str
    digest: str
    id: str
    image: ImageInfo
    referrers: int
    anew: bool
    signed_by: tuple[str, ...] = ()


# Told of the archive's content before an engine sees it; who signed it. It raises when the image may not come in.
Admit = Callable[[Content], tuple[str, ...]]


def admit_all(content: Content) -> tuple[str, ...]:
    """Let in every image that is whole."""
    return ()


def load(path: Path, engine: Engine, progress: Progress, admit: Admit = admit_all) -> Loaded:
    """Have the archive's image in the engine, under the name of its stack.

    Raises InputError for what is no archive of envbuilder's, IntegrityError for one whose bytes are not what it says,
    HostError when the engine cannot take it, and whatever ``admit`` raises. The engine is then as it was before.
    """
    content = read_archive(path, progress)
    signed_by = admit(content)
    image = present(engine, content.ids, content.name, progress)
    anew = image is None
    if image is None:
        check_fits(engine, (size for _, size in content.layers))
        progress.stage(f"taking {content.name} into {engine.name}'s store")
        image = engine.load(path, content.ids, content.name, progress)
    # What is attached goes on with the image: into the next archive, or to a registry.
    layout = layout_of(image)
    for name, body in content.documents.items():
        write_bytes(layout.folder / name, body)
    for entry in content.referrers:
        layout.tag(entry, "")
    return Loaded(
        content.name, content.published.digest, content.config.digest, image, len(content.referrers), anew, signed_by
    )
