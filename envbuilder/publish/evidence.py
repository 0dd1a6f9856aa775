"""What is said of an image when it is published: what is in it, how it came to be, and who stands for it."""

from __future__ import annotations

from collections.abc import Iterator

from envbuilder.errors import EnvbuilderError
from envbuilder.image.building import INPUTS_LABEL
from envbuilder.image.engine import ImageInfo
from envbuilder.image.slimming import SLIM_LABEL
from envbuilder.lock.reading import load_lock
from envbuilder.publish.attaching import Document, attach
from envbuilder.publish.layout import Descriptor
from envbuilder.publish.provenance import Origin, builder_of, provenance
from envbuilder.publish.remote import Remote
from envbuilder.publish.sbom import cyclonedx, spdx
from envbuilder.publish.sbom.inventory import contents_of
from envbuilder.publish.signing.interface import Signer
from envbuilder.publish.statements import MEDIA_TYPE, PROVENANCE, SIGNED, statement
from envbuilder.report.progress import Progress
from envbuilder.stack.loading import load_stack

_PREDICATE = "in-toto.io/predicate-type"


def attach_evidence(
    remote: Remote, subject: Descriptor, image: ImageInfo, engine: str, signer: Signer | None, progress: Progress
) -> list[str]:
    """Store what is said of ``image`` beside it in its repository; the digests of the documents.

    ``subject`` describes its manifest there, ``engine`` names the store it is read from. With a ``signer`` the
    provenance is signed, and the image. The same image gives the same documents, which are stored once.
    """
    name = f"{remote.name.host}/{remote.name.repository}"
    digests = []
    for document in documents_on(name, subject.digest, image, engine, signer, progress):
        progress.item(document.artifact_type)
        digests.append(attach(remote, document, subject, progress))
    return digests


def documents_on(
    name: str, digest: str, image: ImageInfo, engine: str, signer: Signer | None, progress: Progress
) -> Iterator[Document]:
    """The documents on the image published as ``name`` under ``digest``."""
    contents = contents_of(image.reference, progress, engine=engine)
    progress.stage("bill of materials, provenance" + (f", signed by {signer.who}" if signer else ""))
    yield Document(cyclonedx.cyclonedx_text(contents).encode(), cyclonedx.MEDIA_TYPE, cyclonedx.MEDIA_TYPE)
    yield Document(spdx.spdx_text(contents).encode(), spdx.MEDIA_TYPE, spdx.MEDIA_TYPE)
    origin = origin_of(image)
    if origin is None:
        progress.log("no provenance: the stack and lock this image was built from are not at hand")
    else:
        said = provenance(name, digest, origin)
        yield signer.sign(said) if signer else Document(said, MEDIA_TYPE, MEDIA_TYPE, {_PREDICATE: PROVENANCE})
    if signer:
        yield signature(name, digest, signer)


def signature(name: str, digest: str, signer: Signer) -> Document:
    """The signature on the image ``digest``, known as ``name``."""
    return signer.sign(statement(name, digest, SIGNED, {}))


def origin_of(image: ImageInfo) -> Origin | None:
    """What ``image`` was built from by its labels, when that stack and that very lock are at hand."""
    labels = image.labels
    try:
        stack, _ = load_stack(labels.get("io.envbuilder.stack", ""))
        lock = load_lock(stack)
    except EnvbuilderError:
        return None
    if lock.digest != labels.get("io.envbuilder.lock"):
        return None
    target = "devel" if ":devel" in image.reference else "runtime"
    slim = SLIM_LABEL in labels
    return Origin(
        stack, lock, target, slim, labels.get(INPUTS_LABEL, ""), builder_of(stack.name, target, slim, image.id)
    )
