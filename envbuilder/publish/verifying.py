"""Signing an image in a registry, and holding one against the policy of this host before it is used."""

from __future__ import annotations

from collections.abc import Sequence

from envbuilder.errors import InputError, Place, SourceError
from envbuilder.image.archives import blob
from envbuilder.publish.archive_reading import Content
from envbuilder.publish.attaching import attach, attached
from envbuilder.publish.evidence import signature
from envbuilder.publish.export import parts_of
from envbuilder.publish.layout import Descriptor, read_manifest
from envbuilder.publish.policy import LONGEST, admit, artifact_types, rules_for
from envbuilder.publish.remote import Remote
from envbuilder.publish.signing.interface import Signer
from envbuilder.report.progress import Progress
from envbuilder.stack.settings import ARCHIVE


def sign_published(reference: str, signer: Signer, progress: Progress) -> str:
    """Sign the image ``host/name@sha256:...`` in its registry; the digest of the signature's manifest.

    Raises InputError for a tag: what it names may have changed since it was looked at.
    """
    remote = Remote.open(reference)
    digest = remote.name.digest
    if not digest:
        raise InputError(
            "a signature is for one image, and a tag may name another tomorrow",
            place=Place(reference),
            cure="Name it by its digest, host/name@sha256:...; `envbuilder push` prints it.",
        )
    progress.stage(f"sign {reference}")
    body, media_type = remote.manifest(digest)
    subject = Descriptor(media_type, digest, len(body))
    return attach(remote, signature(_name(remote), digest, signer), subject, progress)


def admit_published(remotes: Sequence[Remote], manifest: Descriptor) -> tuple[str, ...]:
    """Hold an image against the policy before any of it is used; who signed it, nobody when none need.

    Its signatures are looked for at each of ``remotes``, mirrors first, the registry itself last; of several, one that
    does not answer is passed over. Raises IntegrityError when the image is refused.
    """
    name = _name(remotes[-1])
    rules = rules_for(name)
    if not rules:
        return ()
    documents: list[bytes] = []
    silent: list[SourceError] = []
    for remote in remotes:
        try:
            documents += attached(remote, manifest.digest, artifact_types(rules), LONGEST)
        except SourceError as error:
            silent.append(error)
    if len(silent) == len(remotes):
        raise silent[-1]
    return admit(name, manifest.digest, documents, rules)


def admit_archive(content: Content) -> tuple[str, ...]:
    """The same for an image that came as a file: its signatures came along in it."""
    rules = rules_for(ARCHIVE)
    types = artifact_types(rules)
    documents = []
    for entry in content.referrers:
        _, layers = parts_of(read_manifest(content.documents[blob(entry.digest)]))
        if entry.artifact_type in types and len(layers) == 1 and layers[0].size <= LONGEST:
            documents.append(content.documents[blob(layers[0].digest)])
    return admit(ARCHIVE, content.published.digest, documents, rules)


def _name(remote: Remote) -> str:
    """What a policy calls an image: its own registry and repository, whichever mirror it comes from."""
    return f"{remote.name.host}/{remote.name.repository}"
