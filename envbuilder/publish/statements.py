"""in-toto statements: what is said of an image, by the digest of its manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envbuilder.publish.layout import canonical

MEDIA_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
# The predicate that signing an image makes: nothing but that the signer stands for these bytes. The type is cosign's.
SIGNED = "https://sigstore.dev/cosign/sign/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"


def statement(name: str, digest: str, predicate_type: str, predicate: Mapping[str, Any]) -> bytes:
    """A statement on the image ``digest`` (``sha256:...``), known as ``name``; the same one gives the same bytes."""
    subject = {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
    return canonical(
        {"_type": STATEMENT, "subject": [subject], "predicateType": predicate_type, "predicate": dict(predicate)}
    )


@dataclass(frozen=True)
class Said:
    """What a statement says: of which digests, and what kind of thing."""

    digests: frozenset[str]
    predicate_type: str


def read_statement(body: bytes) -> Said | None:
    """What ``body`` says, or None when it is no in-toto statement."""
    try:
        data = json.loads(body)
        if data["_type"] != STATEMENT:
            return None
        digests = frozenset(f"sha256:{subject['digest']['sha256']}" for subject in data["subject"])
        return Said(digests, str(data["predicateType"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
