"""What signs and what verifies. Each way is a module of its own beside this one."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from envbuilder.publish.attaching import Document


class Signer(Protocol):
    """Somebody who signs. ``who`` names him: a key's id, or an identity and its issuer."""

    who: str

    def sign(self, statement: bytes) -> Document:
        """The signed envelope of an in-toto statement, as a document to attach."""


class Outcome(str, Enum):
    """What a verifier makes of a document."""

    GOOD = "good"
    WRONG = "wrong"
    OTHER = "other"


class Verifier(Protocol):
    """Somebody whose signature is accepted."""

    who: str
    artifact_type: str

    def verify(self, document: bytes) -> tuple[Outcome, bytes, str]:
        """What becomes of an envelope, its payload, and who else signed it.

        GOOD: it is his, and the payload is what he signed. WRONG: it claims to be his and is not. OTHER: it is
        somebody else's, or no envelope. The payload is empty unless GOOD.
        """
