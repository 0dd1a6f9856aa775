"""What is said of an image when it leaves: what is in it, how it came to be, and who stands for it.

The documents lie beside the image in its layout, once; an archive takes them along, a registry gets them attached.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from envbuilder import __version__
from envbuilder.errors import EnvbuilderError
from envbuilder.files import write_text
from envbuilder.image.building import INPUTS_LABEL
from envbuilder.image.engine import ImageInfo
from envbuilder.image.names import TARGET_LABEL
from envbuilder.image.slimming import SLIM_LABEL
from envbuilder.lock.reading import load_lock
from envbuilder.publish.attaching import Document, attach_beside
from envbuilder.publish.export import Exported, parts_of
from envbuilder.publish.layout import Descriptor
from envbuilder.publish.provenance import Origin, builder_of, provenance
from envbuilder.publish.remote import Remote
from envbuilder.publish.sbom import cyclonedx, spdx
from envbuilder.publish.sbom.inventory import contents_of
from envbuilder.publish.signing.interface import Signer
from envbuilder.publish.statements import MEDIA_TYPE, PROVENANCE, SIGNED, statement
from envbuilder.report.progress import Progress
from envbuilder.stack.loading import load_stack

_TOOL = f"envbuilder {__version__}"
# Beside the layout's own files: what each document is that was made here, and by whom. It is not made again, and one
# that came with the image, whatever it calls itself, does not stand in for it.
_MADE = "made-here.json"


def lay_evidence(exported: Exported, engine: str, signer: Signer | None, progress: Progress) -> None:
    """Have the documents on the image beside it in its layout.

    With a ``signer`` the provenance is signed, and the image. ``engine`` names the store it came from. What is there
    already, by the same envbuilder or the same signer, stays; the same image gives the same documents.
    """
    origin = origin_of(exported.image, exported.config.digest)
    wanted: dict[tuple[str, str], Callable[[], Document]] = {}
    if not {("cyclonedx", _TOOL), ("spdx", _TOOL)} <= _there(exported):
        # Docker has no folders to read: its image lies in the layout by now.
        source = exported.image.reference if engine == "buildah" else str(exported.layout.folder)
        contents = contents_of(source, progress, engine=engine)
        progress.stage("write its bill of materials")
        wanted["cyclonedx", _TOOL] = lambda: _sbom(cyclonedx.cyclonedx_text(contents), cyclonedx.MEDIA_TYPE)
        wanted["spdx", _TOOL] = lambda: _sbom(spdx.spdx_text(contents), spdx.MEDIA_TYPE)
    name = exported.image.reference
    if origin is None:
        progress.log("no provenance: the stack and lock this image was built from are not at hand")
    else:
        said = provenance(name, exported.digest, origin)
        made_by = f"{_TOOL}, signed by {signer.who}" if signer else _TOOL
        wanted["provenance", made_by] = lambda: signer.sign(said) if signer else _unsigned(said)
    if signer:
        wanted["signature", signer.who] = lambda: signature(name, exported.digest, signer)
    subject = Descriptor(exported.manifest.media_type, exported.digest, exported.manifest.size)
    for what, by in sorted(wanted.keys() - _there(exported)):
        entry = attach_beside(exported.layout, wanted[what, by](), subject)
        made = {**_made(exported), entry.digest: [what, by]}
        write_text(exported.layout.folder / _MADE, json.dumps(made, indent=1, sort_keys=True) + "\n")


def documents_beside(exported: Exported) -> list[str]:
    """What lies beside the image: ``signature by key ...``; of what came with it, the type and the digest."""
    made = _made(exported)
    return sorted(
        " by ".join(made[entry.digest]) if entry.digest in made else f"{entry.artifact_type} {entry.digest}"
        for entry in exported.layout.referrers(exported.digest)
    )


def send_evidence(exported: Exported, remote: Remote, progress: Progress) -> int:
    """Attach every document that lies beside the image to it in its repository; how many are new there."""
    entries = exported.layout.referrers(exported.digest)
    there = {entry.digest for entry in remote.referrers(exported.digest)}
    new = [entry for entry in entries if entry.digest not in there]
    subject = Descriptor(exported.manifest.media_type, exported.digest, exported.manifest.size)
    for entry in new:
        progress.item(entry.artifact_type or entry.digest)
        config, layers = parts_of(exported.layout.manifest(entry.digest))
        for blob in (config, *layers):
            remote.upload(exported.layout.path(blob.digest), blob, progress)
        remote.attach(exported.layout.path(entry.digest).read_bytes(), subject)
    return len(new)


def signature(name: str, digest: str, signer: Signer) -> Document:
    """The signature on the image ``digest``, known as ``name``."""
    return signer.sign(statement(name, digest, SIGNED, {}))


def origin_of(image: ImageInfo, identity: str) -> Origin | None:
    """What ``image`` was built from by its labels, when that stack and that very lock are at hand.

    By its ``identity`` the record of its build is known, which says what built it.
    """
    labels = image.labels
    try:
        stack, _ = load_stack(labels.get("io.envbuilder.stack", ""))
        lock = load_lock(stack)
    except EnvbuilderError:
        return None
    if lock.digest != labels.get("io.envbuilder.lock"):
        return None
    target, slim = labels.get(TARGET_LABEL, "runtime"), SLIM_LABEL in labels
    builder = builder_of(stack.name, target, slim, identity)
    return Origin(stack, lock, target, slim, labels.get(INPUTS_LABEL, ""), builder)


def _there(exported: Exported) -> set[tuple[str, str]]:
    """(what, by whom) of the documents that were made here and are still there."""
    made = _made(exported)
    listed = exported.layout.referrers(exported.digest)
    return {(made[entry.digest][0], made[entry.digest][1]) for entry in listed if entry.digest in made}


def _made(exported: Exported) -> dict[str, list[str]]:
    try:
        made = json.loads((exported.layout.folder / _MADE).read_bytes())
        return {str(digest): [str(what), str(by)] for digest, (what, by) in made.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _sbom(text: str, media_type: str) -> Document:
    return Document(text.encode(), media_type, media_type)


def _unsigned(said: bytes) -> Document:
    return Document(said, MEDIA_TYPE, MEDIA_TYPE, {"in-toto.io/predicate-type": PROVENANCE})
