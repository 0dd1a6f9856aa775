"""Whether an image may come onto this host: the policy of the user and of the project, and the signatures of the image.

``envbuilder.toml`` of the user and of the project both count: a project cannot take back what the user asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from envbuilder.errors import InputError, IntegrityError, Place
from envbuilder.publish.signing.interface import Outcome, Verifier
from envbuilder.publish.signing.keyless import KeylessVerifier
from envbuilder.publish.signing.keys import load_verifier
from envbuilder.publish.statements import SIGNED, read_statement
from envbuilder.stack.settings import ImagePolicy, settings_files

# No signature is longer; a bundle of Sigstore's is some 10 kB.
LONGEST = 1 << 20


@dataclass(frozen=True)
class Rule:
    """What one file asks of the images that ``pattern`` matches; ``verifiers`` is empty when it asks nothing."""

    pattern: str
    file: Path
    verifiers: tuple[Verifier, ...]


def rules_for(name: str) -> tuple[Rule, ...]:
    """What is asked of an image ``name`` (``host/repository``, or ARCHIVE): the first match of each settings file.

    Raises InputError when a file is wrong or a key it names cannot be read.
    """
    rules = []
    for path, settings in settings_files():
        found = next((p for p in settings.policy.images if fnmatchcase(name, p.match)), None)
        if found is not None and found.require == "signed":
            rules.append(Rule(found.match, path, tuple(_verifiers(found, path))))
    return tuple(rules)


def _verifiers(policy: ImagePolicy, file: Path) -> Iterator[Verifier]:
    if not policy.keys and not policy.identities:
        raise InputError(
            f"images that match {policy.match!r} must be signed, and nobody's signature is accepted",
            place=Place(str(file), field="policy.images.keys"),
            cure='Name public keys (keys = ["release.pub"]) or identities.',
        )
    for key in policy.keys:
        yield load_verifier(file.parent / key)
    for one in policy.identities:
        yield KeylessVerifier(one.identity, one.issuer)


def artifact_types(rules: Sequence[Rule]) -> tuple[str, ...]:
    """The types of the documents that may satisfy ``rules``."""
    return tuple({verifier.artifact_type for rule in rules for verifier in rule.verifiers})


def admit(name: str, digest: str, documents: Sequence[bytes], rules: Sequence[Rule]) -> tuple[str, ...]:
    """Let the image ``digest`` pass, or raise IntegrityError saying why not; who signed it comes back.

    ``documents`` are all signatures that were found with it. Every rule must be satisfied by one of them.
    """
    return tuple(_satisfied(name, digest, documents, rule) for rule in rules)


def _satisfied(name: str, digest: str, documents: Sequence[bytes], rule: Rule) -> str:
    wrong, replayed, others = [], [], []
    for document in documents:
        for verifier in rule.verifiers:
            outcome, payload, other = verifier.verify(document)
            if outcome is Outcome.GOOD:
                said = read_statement(payload)
                if said is not None and digest in said.digests:
                    if said.predicate_type == SIGNED:
                        return verifier.who
                    continue  # his word on how it was built: true, and no word that it may be used
                replayed.append(", ".join(sorted(said.digests)) if said else "something that is no image")
            elif outcome is Outcome.WRONG:
                wrong.append(verifier.who)
            else:
                others.append(other)
    asked = f"{rule.file} asks for a signature by {' or '.join(v.who for v in rule.verifiers)}"
    if wrong:
        raise _refused(name, digest, f"its signature is wrong: it names {wrong[0]}, which did not make it", asked)
    if replayed:
        raise _refused(name, digest, f"the signature with it is for another image: {replayed[0]}", asked)
    if others:
        raise _refused(name, digest, f"it is signed by somebody else: {'; '.join(dict.fromkeys(others))}", asked)
    raise _refused(name, digest, "it is not signed", asked)


def _refused(name: str, digest: str, why: str, asked: str) -> IntegrityError:
    return IntegrityError(
        f"{name}@{digest} is refused: {why}",
        cure="Get the image that was signed, have this one signed (envbuilder sign), or change the policy.",
        detail=asked,
    )
