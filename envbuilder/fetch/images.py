"""Base images by digest: manifests and layers into the cache, and laid out as an OCI layout for the engines."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder.errors import SourceError
from envbuilder.fetch.cache import Item, is_there, path_of
from envbuilder.fetch.download import Location
from envbuilder.fetch.transport import new_session
from envbuilder.files import write_bytes
from envbuilder.lock.mirrors import Mirrors
from envbuilder.lock.model import BaseImage
from envbuilder.lock.registry import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    ImageName,
    Registry,
    manifest_for_amd64,
    registries_for,
)

_LAYOUT = '{"imageLayoutVersion": "1.0.0"}'


@dataclass(frozen=True)
class ImageFiles:
    """The parts of one base image for linux/amd64. ``manifest`` is its digest, ``media_type`` that manifest's."""

    image: BaseImage
    manifest: str
    media_type: str
    blobs: tuple[Item, ...]


def image_files(image: BaseImage, mirrors: Mirrors) -> tuple[ImageFiles, dict[str, Location]]:
    """What ``image`` consists of, and where its missing blobs are (by hex digest).

    Manifests are read from the cache, else from the first registry host that serves them, and kept there.
    """
    name = ImageName.parse(image.reference)
    registries = registries_for(name, mirrors, new_session)
    said: list[str] = []
    for registry in registries:
        try:
            top, kind = _manifest(image, image.digest, registry)
            digest = image.digest
            if kind in INDEX_TYPES:
                digest = manifest_for_amd64(top)
                top, kind = _manifest(image, digest, registry)
        except SourceError as error:
            said.append(error.message)
            continue
        parts: dict[str, Any] = json.loads(top)
        blobs = tuple(_item(image, part) for part in [parts["config"], *parts["layers"]])
        gone = "Images do vanish. Take it from a bundle, or set a mirror that still has it (docs/mirrors.md)."
        missing = [blob for blob in blobs if not is_there(blob)]
        locations = {b.hex: Location(registry.blob_url(b.digest), registry.session, gone) for b in missing}
        return ImageFiles(image, digest, kind, blobs), locations
    raise SourceError(
        f"the base image {image.reference} cannot be fetched by its digest",
        cure="Check the network, set a mirror in envbuilder.toml (docs/mirrors.md), or take it from a bundle.",
        detail="\n".join(said),
    )


def _manifest(image: BaseImage, digest: str, registry: Registry) -> tuple[bytes, str]:
    path = path_of(_manifest_item(image, digest))
    if path.is_file():
        body = path.read_bytes()
        if hashlib.sha256(body).hexdigest() == digest.removeprefix("sha256:"):
            return body, _kind_of(body)
    body, kind = registry.manifest(digest)
    write_bytes(path, body)
    return body, kind


def _kind_of(body: bytes) -> str:
    """The media type of a manifest or index; OCI leaves it out of the document at times."""
    data = json.loads(body)
    return str(data.get("mediaType") or (INDEX_TYPES if "manifests" in data else MANIFEST_TYPES)[0])


def _manifest_item(image: BaseImage, digest: str) -> Item:
    return Item(f"{image.reference} manifest", "manifest.json", digest, None)


def _item(image: BaseImage, part: dict[str, Any]) -> Item:
    return Item(
        f"{image.reference} layer", str(part["digest"]).replace(":", "-"), str(part["digest"]), int(part["size"])
    )


def oci_layout(files: ImageFiles, folder: Path) -> Path:
    """Make ``folder`` an OCI layout of the image out of the cache, by hard links where that goes; the folder.

    Engines take it as ``oci:FOLDER``; its one manifest is ``files.manifest``.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    manifest = _manifest_item(files.image, files.manifest)
    for item in (manifest, *files.blobs):
        target = blobs / item.hex
        if not target.exists():
            _link(path_of(item), target)
    (folder / "oci-layout").write_text(_LAYOUT)
    entry = {
        "mediaType": files.media_type,
        "digest": files.manifest,
        "size": path_of(manifest).stat().st_size,
        "platform": {"architecture": "amd64", "os": "linux"},
    }
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return folder


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def cached_paths(files: Iterable[ImageFiles]) -> list[Path]:
    """The cache's files that make up the images, indexes included."""
    paths = []
    for image in files:
        digests = {image.image.digest, image.manifest}
        paths += [path_of(_manifest_item(image.image, digest)) for digest in sorted(digests)]
        paths += [path_of(blob) for blob in image.blobs]
    return paths
