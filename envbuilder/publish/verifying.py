"""Signing an image in a registry, and holding one against the policy of this host before it is used."""

from __future__ import annotations

from collections.abc import Iterable

from envbuilder.errors import InputError, Place
from envbuilder.publish.attaching import attach, attached, attached_beside
from envbuilder.publish.evidence import signature
from envbuilder.publish.layout import Descriptor, Layout
from envbuilder.publish.policy import ARCHIVE, LONGEST, admit, artifact_types, rules_for
from envbuilder.publish.remote import Remote
from envbuilder.publish.signing.interface import Signer
from envbuilder.report.progress import Progress


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


def admit_published(remotes: Iterable[Remote], digest: str) -> tuple[str, ...]:
    """Hold the image ``digest`` against the policy, before any of it is used; who signed it, nobody when none need.

    The signatures are looked for at each of ``remotes``, the mirrors first. Raises IntegrityError when it is refused.
    """
    remotes = list(remotes)
    rules = rules_for(_name(remotes[0]))
    if not rules:
        return ()
    documents = [d for remote in remotes for d in attached(remote, digest, artifact_types(rules), LONGEST)]
    return admit(_name(remotes[0]), digest, documents, rules)


def admit_archive(layout: Layout, digest: str) -> tuple[str, ...]:
    """The same for an image that came as a file: the signatures are those beside it in ``layout``."""
    rules = rules_for(ARCHIVE)
    return admit(ARCHIVE, digest, list(attached_beside(layout, digest, artifact_types(rules), LONGEST)), rules)


def _name(remote: Remote) -> str:
    """What a policy calls an image: its own registry and repository, whichever mirror it comes from."""
    return f"{remote.name.host}/{remote.name.repository}"
