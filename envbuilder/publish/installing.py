"""A verified image out of the cache into an engine, named only after it proved to be the one that was meant."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Any

from envbuilder.errors import IntegrityError
from envbuilder.fetch.cache import is_there, path_of
from envbuilder.image import space
from envbuilder.image.archives import UNPACKED_SIZE
from envbuilder.image.engine import Engine, ImageInfo
from envbuilder.image.names import TARGET_LABEL, image_tag
from envbuilder.image.scratch import scratch
from envbuilder.image.slimming import SLIM_LABEL
from envbuilder.lock.registry import ImageName
from envbuilder.publish.export import layout_of
from envbuilder.publish.layout import Descriptor, Layout
from envbuilder.publish.packing import item_of
from envbuilder.report.progress import Progress

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
# Where a layer does not say how large it is unpacked. Measured with p40-debian: 2.77 GB, 6.32 GB unpacked.
_UNPACKED = 2.5


def name_for(config: bytes, where: ImageName, digest: str) -> str:
    """What the image is called in the engine: as ``build`` calls the stack's, else after the repository it came from.

    Raises IntegrityError for a configuration that is none.
    """
    return stack_name(config) or f"{where.host}/{where.repository}:{digest.removeprefix('sha256:')[:12]}"


def stack_name(config: bytes) -> str:
    """What ``build`` calls the image of this configuration; empty when it is none of a stack."""
    labels = _config(config)[1]
    stack = str(labels.get("io.envbuilder.stack", ""))
    target = str(labels.get(TARGET_LABEL, "runtime"))
    if not _NAME.fullmatch(stack) or not _NAME.fullmatch(target):
        return ""
    return image_tag(stack, target, slim=SLIM_LABEL in labels)


def diff_ids_of(config: bytes) -> list[str]:
    """The digests of the unpacked layers, from the bottom up."""
    return _config(config)[0]


def _config(body: bytes) -> tuple[list[str], dict[str, Any]]:
    try:
        data: Any = json.loads(body)
        layers = data["rootfs"]["diff_ids"]
        labels = (data.get("config") or {}).get("Labels") or {}
        if not isinstance(layers, list) or not isinstance(labels, dict):
            raise TypeError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise IntegrityError(
            "the image's configuration is none", cure="It is damaged or hostile; nothing of it was used."
        ) from None
    return [str(layer) for layer in layers], labels


def present(engine: Engine, ids: Collection[str], name: str, progress: Progress) -> ImageInfo | None:
    """The image in the engine, where it is there under ``name`` already: pulled, or built here."""
    image = engine.image(name)
    if image is None or not (image.id in ids or engine.identity(image, progress) in ids):
        return None
    return image


def check_fits(engine: Engine, layers: Iterable[int]) -> None:
    """Raise HostError when the engine's disk cannot hold layers of these bytes, from the bottom up."""
    storage = engine.storage()
    if storage is not None:
        space.check_build_space(storage, space.stored(layers, engine.driver()), engine.driver())


def unpacked_sizes(layers: Iterable[Descriptor]) -> list[int]:
    """Bytes of each layer, unpacked."""
    told = [(layer, layer.annotations.get(UNPACKED_SIZE, "")) for layer in layers]
    return [int(size) if size.isdigit() else int(layer.size * _UNPACKED) for layer, size in told]


def install(
    engine: Engine,
    manifest: Descriptor,
    config: Descriptor,
    layers: tuple[Descriptor, ...],
    name: str,
    progress: Progress,
) -> ImageInfo:
    """Take the image, all of whose blobs are in the cache, into the engine as ``name``.

    Raises IntegrityError when the engine's image is not the manifest's, HostError when the engine does not take it.
    """
    progress.stage(f"taking {name} into {engine.name}'s store")
    blobs = (manifest, config, *layers)
    with scratch() as folder:
        layout = _linked(Layout(folder / "layout"), blobs)
        layout.tag(manifest, "")
        image = engine.load(layout.folder, (config.digest, manifest.digest), name, progress)
    # So that it travels on as what it was pulled, without being packed again.
    kept = _linked(layout_of(image), blobs)
    kept.tag(manifest, name)
    return image


def _linked(layout: Layout, blobs: tuple[Descriptor, ...]) -> Layout:
    for blob in blobs:
        if not is_there(item_of(blob)):
            raise IntegrityError(f"{blob.digest} is gone from the cache", cure="Run it again.")
        layout.link(path_of(item_of(blob)), blob.digest)
    return layout
