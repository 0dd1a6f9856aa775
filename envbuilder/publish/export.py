"""An engine's image as an OCI layout in the cache: layers packed with zstd, one manifest, the same bytes everywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuilder import data
from envbuilder.errors import HostError, IntegrityError
from envbuilder.fetch.cache import path_of
from envbuilder.image.alone import alone
from envbuilder.image.engine import Engine, ImageInfo
from envbuilder.publish.layout import CONFIG, MANIFEST, Descriptor, Layout, canonical, describe
from envbuilder.publish.packing import item_of, pack, packed
from envbuilder.report.progress import Progress


@dataclass(frozen=True)
class Exported:
    """An image ready to travel. ``manifest`` describes its manifest in ``layout``, ``image`` is the engine's word."""

    layout: Layout
    manifest: Descriptor
    config: Descriptor
    layers: tuple[Descriptor, ...]
    image: ImageInfo
    anew: bool

    @property
    def digest(self) -> str:
        """The digest it is published under: that of its manifest."""
        return self.manifest.digest

    @property
    def size(self) -> int:
        """Bytes of all that travels."""
        return self.manifest.size + self.config.size + sum(layer.size for layer in self.layers)


def export(engine: Engine, reference: str, progress: Progress) -> Exported:
    """The image ``reference`` of ``engine`` as a layout in the cache.

    The same image gives the same bytes; what is packed already is not packed again.
    Raises HostError when the image is not there or the store cannot be read, IntegrityError when it is damaged.
    """
    image = engine.image(reference)
    if image is None:
        raise HostError(
            f"there is no image {reference} in {engine.name}'s store",
            cure="Build it: envbuilder build STACK.",
        )
    hexadecimal = image.id.removeprefix("sha256:")
    layout = Layout(data.cache_folder("images") / hexadecimal)
    if done := _finished(layout, image):
        return done
    with alone(data.cache_root() / "locks" / f"export-{hexadecimal}", f"another export of {reference}", progress):
        if done := _finished(layout, image):
            return done
        return _export(engine, image, layout, progress)


def _export(engine: Engine, image: ImageInfo, layout: Layout, progress: Progress) -> Exported:
    contents = engine.contents(image)

    def is_new(diff_id: str) -> bool:
        return packed(diff_id) is None

    total = contents.size(is_new)
    progress.stage(f"packing {image.reference}, {total / 1e9:.2f} GB of new layers")
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress.advance(done, max(total, done))

    for diff_id, chunks in contents.layers(is_new):
        progress.item(diff_id or "a layer")
        pack(diff_id, chunks, advance)
    body = contents.config()
    layers = [_packed(diff_id) for diff_id in json.loads(body)["rootfs"]["diff_ids"]]
    return _laid_out(layout, body, layers, image)


def _packed(diff_id: str) -> Descriptor:
    if found := packed(diff_id):
        return found
    raise IntegrityError(
        f"the engine did not give the layer {diff_id} of the image",
        cure="Its store is damaged: remove the image, then build or pull it again.",
    )


def _laid_out(layout: Layout, body: bytes, layers: Sequence[Descriptor], image: ImageInfo) -> Exported:
    config = layout.add(body, CONFIG)
    for layer in layers:
        layout.link(path_of(item_of(layer)), layer.digest)
    manifest = layout.add(manifest_of(config, layers), MANIFEST)
    layout.tag(manifest, image.reference)
    return Exported(layout, manifest, config, tuple(layers), image, True)


def manifest_of(config: Descriptor, layers: Sequence[Descriptor]) -> bytes:
    """The manifest of an image: nothing in it but what the image is made of."""
    return canonical(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.to_dict(),
            "layers": [layer.to_dict() for layer in layers],
        }
    )


def _finished(layout: Layout, image: ImageInfo) -> Exported | None:
    """An earlier export, where every part of it is still there and would be made the same today."""
    try:
        manifest = next(entry for entry in layout.index() if entry.media_type == MANIFEST)
        parts = layout.manifest(manifest.digest)
        config = Descriptor.from_dict(parts["config"])
        body = layout.path(config.digest).read_bytes()
        layers = [packed(diff_id) for diff_id in json.loads(body)["rootfs"]["diff_ids"]]
    except (StopIteration, OSError, ValueError, LookupError, TypeError, IntegrityError):
        return None
    found = tuple(layer for layer in layers if layer and _is_whole(layout.path(layer.digest), layer.size))
    if len(found) != len(layers) or describe(manifest_of(config, found), MANIFEST).digest != manifest.digest:
        return None
    if hashlib.sha256(body).hexdigest() != config.hex:
        return None
    return Exported(layout, manifest, config, found, image, False)


def _is_whole(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
