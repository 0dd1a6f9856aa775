"""Documents that go with an image: artifacts in its repository, or beside it in a layout, that refer to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from envbuilder.publish.export import parts_of
from envbuilder.publish.layout import (
    EMPTY,
    MANIFEST,
    Descriptor,
    Layout,
    canonical,
    describe,
    describe_artifact,
    read_manifest,
)
from envbuilder.publish.remote import Remote
from envbuilder.report.progress import Progress

_EMPTY_BODY = b"{}"
# Far more documents than an image has: a repository that lists more does so to keep its readers busy.
_MOST = 64
# A bill of materials of p40-debian has 1 MB.
_LARGEST = 64 * 1024 * 1024


@dataclass(frozen=True)
class Document:
    """What is said of an image: the bytes, their media type, and the type of the artifact that carries them."""

    body: bytes
    media_type: str
    artifact_type: str
    annotations: Mapping[str, str] = field(default_factory=dict)

    def manifest(self, subject: Descriptor) -> bytes:
        """The manifest of the artifact, an OCI 1.1 image manifest whose ``subject`` is the image."""
        parts = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": self.artifact_type,
            "config": describe(_EMPTY_BODY, EMPTY).to_dict(),
            "layers": [describe(self.body, self.media_type).to_dict()],
            "subject": Descriptor(subject.media_type, subject.digest, subject.size).to_dict(),
        }
        return canonical({**parts, **({"annotations": dict(self.annotations)} if self.annotations else {})})


def attach(remote: Remote, document: Document, subject: Descriptor, progress: Progress) -> str:
    """Store ``document`` in the image's repository; the digest of its manifest. The same one twice is stored once."""
    remote.upload(_EMPTY_BODY, describe(_EMPTY_BODY, EMPTY), progress)
    remote.upload(document.body, describe(document.body, document.media_type), progress)
    return remote.attach(document.manifest(subject), subject)


def attached(remote: Remote, digest: str, artifact_types: tuple[str, ...], limit: int) -> Iterator[bytes]:
    """The documents of these types that refer to the image ``digest``; those above ``limit`` bytes are passed over.

    Raises IntegrityError when the registry's bytes are not those of their digests.
    """
    listed = [entry for entry in remote.referrers(digest) if entry.artifact_type in artifact_types]
    for entry in listed[:_MOST]:
        body, _ = remote.manifest(entry.digest)
        layer = _document_of(body, digest)
        if layer is not None and layer.size <= limit:
            yield remote.read(layer)


def keep_attached(remote: Remote, digest: str, layout: Layout) -> int:
    """Take the documents that refer to the image ``digest`` into its layout, so that they travel on with it; how many.

    What is not about the image, or too large for a document, is passed over.
    """
    kept = 0
    for entry in remote.referrers(digest)[:_MOST]:
        body, _ = remote.manifest(entry.digest)
        subject = read_manifest(body).get("subject")
        config, layers = parts_of(read_manifest(body))
        small = sum(blob.size for blob in (config, *layers)) <= _LARGEST
        if not small or not isinstance(subject, dict) or subject.get("digest") != digest:
            continue
        for blob in (config, *layers):
            layout.add(remote.read(blob), blob.media_type)
        layout.add(body, MANIFEST)
        layout.tag(describe_artifact(body), "")
        kept += 1
    return kept


def attach_beside(layout: Layout, document: Document, subject: Descriptor) -> Descriptor:
    """Store ``document`` beside the image in a layout, listed in its index; the descriptor of its manifest."""
    layout.add(_EMPTY_BODY, EMPTY)
    layout.add(document.body, document.media_type)
    body = document.manifest(subject)
    layout.add(body, MANIFEST)
    entry = describe_artifact(body)
    layout.tag(entry, "")
    return entry


def _document_of(manifest: bytes, digest: str) -> Descriptor | None:
    """The document of an artifact, None where it refers to another image or carries more than one."""
    parts = read_manifest(manifest)
    subject, layers = parts.get("subject"), parts.get("layers")
    if not isinstance(subject, dict) or subject.get("digest") != digest:
        return None
    if not isinstance(layers, list) or len(layers) != 1 or not isinstance(layers[0], dict):
        return None
    return Descriptor.from_dict(layers[0])
