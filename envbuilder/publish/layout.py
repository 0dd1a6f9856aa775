"""An OCI image layout on disk: blobs by digest, and an index that names manifests."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuilder.errors import IntegrityError, Place
from envbuilder.files import write_bytes

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
# What stands where a manifest must name something and there is nothing: OCI image specification 1.1, "empty".
EMPTY = "application/vnd.oci.empty.v1+json"
NAME = "org.opencontainers.image.ref.name"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Descriptor:
    """What OCI calls a descriptor: media type, ``sha256:`` digest and size in bytes of one blob or manifest."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    artifact_type: str | None = None

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest) or self.size < 0:
            raise IntegrityError(
                f"{self.digest!r} with {self.size} bytes describes no blob",
                cure="The manifest it stands in is damaged or hostile; nothing of it was used.",
            )

    @property
    def hex(self) -> str:
        """The digest's hex digits."""
        return self.digest.removeprefix("sha256:")

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a manifest or an index."""
        data: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.artifact_type:
            data["artifactType"] = self.artifact_type
        if self.annotations:
            data["annotations"] = dict(self.annotations)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Descriptor:
        """Out of a manifest or an index. Raises IntegrityError for what is none."""
        try:
            return cls(
                str(data["mediaType"]),
                str(data["digest"]),
                int(data["size"]),
                {str(key): str(value) for key, value in (data.get("annotations") or {}).items()},
                str(data["artifactType"]) if data.get("artifactType") else None,
            )
        except (LookupError, TypeError, ValueError, AttributeError):
            raise IntegrityError(
                "a manifest holds what is no descriptor of a blob",
                cure="It is damaged or hostile; nothing of it was used.",
                detail=str(data)[:500],
            ) from None


def describe(
    body: bytes, media_type: str, annotations: Mapping[str, str] | None = None, artifact_type: str | None = None
) -> Descriptor:
    """The descriptor of ``body``."""
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    return Descriptor(media_type, digest, len(body), annotations or {}, artifact_type)


def describe_artifact(manifest: bytes) -> Descriptor:
    """The descriptor of an artifact's manifest, as it stands in an index of what refers to an image."""
    parts = read_manifest(manifest)
    config = parts.get("config")
    kind = parts.get("artifactType") or (config.get("mediaType") if isinstance(config, dict) else None)
    annotations = parts.get("annotations")
    return describe(manifest, MANIFEST, annotations if isinstance(annotations, dict) else None, str(kind or ""))


def canonical(data: Mapping[str, Any]) -> bytes:
    """JSON whose bytes, and so its digest, follow from the content alone."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class Layout:
    """An OCI image layout in ``folder``, made when it is not there. Each file is written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        body: bytes,
        media_type: str,
        annotations: Mapping[str, str] | None = None,
        artifact_type: str | None = None,
    ) -> Descriptor:
        """Store a blob or manifest; its descriptor."""
        descriptor = describe(body, media_type, annotations, artifact_type)
        path = self.path(descriptor.digest)
        if not path.is_file() or path.read_bytes() != body:
            write_bytes(path, body)
        return descriptor

    def link(self, source: Path, digest: str) -> None:
        """Store the file ``source``, whose digest was checked before: a hard link where that goes, else a copy."""
        target = self.path(digest)
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            temporary = target.with_name(f".{target.name}.{os.getpid()}")
            shutil.copyfile(source, temporary)
            temporary.replace(target)

    def path(self, digest: str) -> Path:
        """Where the blob of ``digest`` is, or will be. Raises IntegrityError for what is no digest."""
        if not _DIGEST.fullmatch(digest):
            raise IntegrityError(f"{digest!r} is no SHA-256 digest", cure="The manifest is damaged or hostile.")
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def manifest(self, digest: str) -> dict[str, Any]:
        """The manifest ``digest``, its bytes held against the digest. Raises IntegrityError when they differ."""
        path = self.path(digest)
        try:
            body = path.read_bytes()
        except FileNotFoundError:
            raise IntegrityError(
                f"the manifest {digest} is missing", place=Place(str(path)), cure="Get the image again."
            ) from None
        if f"sha256:{hashlib.sha256(body).hexdigest()}" != digest:
            raise IntegrityError(
                f"the bytes of the manifest are not those of {digest}",
                place=Place(str(path)),
                cure="Remove the file, then get the image again.",
            )
        return read_manifest(body)

    def index(self) -> list[Descriptor]:
        """What ``index.json`` names, in its order; nothing where there is none yet."""
        path = self.folder / "index.json"
        if not path.is_file():
            return []
        return [Descriptor.from_dict(entry) for entry in read_manifest(path.read_bytes()).get("manifests", [])]

    def referrers(self, digest: str) -> list[Descriptor]:
        """The artifacts in the layout whose ``subject`` is ``digest``."""
        artifacts = [entry for entry in self.index() if entry.artifact_type]
        return [e for e in artifacts if (self.manifest(e.digest).get("subject") or {}).get("digest") == digest]

    def tag(self, descriptor: Descriptor, name: str) -> None:
        """Name ``descriptor`` in ``index.json``; what bore the name before loses it. An empty name only lists it."""
        kept = [
            entry
            for entry in self.index()
            if entry.digest != descriptor.digest and (not name or entry.annotations.get(NAME) != name)
        ]
        annotations = {**descriptor.annotations, **({NAME: name} if name else {})}
        named = Descriptor(
            descriptor.media_type, descriptor.digest, descriptor.size, annotations, descriptor.artifact_type
        )
        entries = [entry.to_dict() for entry in [*kept, named]]
        write_bytes(self.folder / "oci-layout", canonical({"imageLayoutVersion": "1.0.0"}))
        write_bytes(
            self.folder / "index.json", canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
        )


def read_manifest(body: bytes) -> dict[str, Any]:
    """The JSON object of a manifest or index. Raises IntegrityError for anything else."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise IntegrityError("this is no manifest of an image", cure="It is damaged; nothing of it was used.")
    return data
