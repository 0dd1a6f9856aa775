"""An engine's image as an OCI layout in the cache: layers packed with zstd, one manifest, the same bytes everywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder import data
from envbuilder.errors import HostError, IntegrityError
from envbuilder.fetch.cache import path_of
from envbuilder.image.alone import alone
from envbuilder.image.engine import Engine, ImageInfo
from envbuilder.publish.layout import CONFIG, MANIFEST, Descriptor, Layout, canonical
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
    layout = layout_of(image)
    if done := _finished(layout, image):
        return done
    with alone(
        data.cache_root() / "locks" / f"export-{layout.folder.name}", f"another export of {reference}", progress
    ):
        if done := _finished(layout, image):
            return done
        return _export(engine, image, layout, progress)


def layout_of(image: ImageInfo) -> Layout:
    """Where an engine's image is laid out for travelling."""
    return Layout(data.cache_folder("images") / image.id.removeprefix("sha256:"))


def parts_of(manifest: Mapping[str, Any]) -> tuple[Descriptor, tuple[Descriptor, ...]]:
    """Configuration and layers of an image's manifest. Raises IntegrityError for what is none."""
    layers = manifest.get("layers")
    if not isinstance(layers, list) or not isinstance(manifest.get("config"), dict):
        raise IntegrityError("this is no manifest of an image", cure="Is it the digest of one? Nothing was kept.")
    return Descriptor.from_dict(manifest["config"]), tuple(Descriptor.from_dict(layer) for layer in layers)


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
    """An earlier export, or what the image was pulled as: it travels on unchanged, while every part is still there."""
    try:
        manifest = next(entry for entry in layout.index() if entry.media_type == MANIFEST and not entry.artifact_type)
        config, layers = parts_of(layout.manifest(manifest.digest))
        body = layout.path(config.digest).read_bytes()
    except (StopIteration, OSError, IntegrityError):
        return None
    whole = all(_is_whole(layout.path(layer.digest), layer.size) for layer in layers)
    if not whole or hashlib.sha256(body).hexdigest() != config.hex:
        return None
    return Exported(layout, manifest, config, layers, image, False)


def _is_whole(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
