"""Key files: ed25519 and ECDSA keys as openssl and ssh-keygen write them, envelopes as DSSE has them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.errors import InputError, Place
from envbuilder.files import write_bytes
from envbuilder.publish.attaching import Document
from envbuilder.publish.layout import canonical
from envbuilder.publish.signing.interface import Outcome
from envbuilder.publish.statements import MEDIA_TYPE

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

ENVELOPE = "application/vnd.dsse.envelope.v1+json"
ARTIFACT_TYPE = ENVELOPE
PASSWORD = "ENVBUILDER_KEY_PASSWORD"  # noqa: S105 - the variable's name, not a password
_LARGEST_KEY = 1 << 16
_KINDS = "an ed25519 or ECDSA key (P-256, P-384, P-521), as `openssl genpkey` or `ssh-keygen` writes it"


class KeySigner:
    """Signs with a private key."""

    def __init__(self, signer: CryptoSigner) -> None:
        self._signer = signer
        self.who = f"key {signer.public_key.keyid}"

    def sign(self, statement: bytes) -> Document:
        """See Signer."""
        from securesystemslib.dsse import Envelope

        envelope = Envelope(statement, MEDIA_TYPE, {})
        envelope.sign(self._signer)
        predicate = {"in-toto.io/predicate-type": str(json.loads(statement)["predicateType"])}
        return Document(canonical(envelope.to_dict()), ENVELOPE, ARTIFACT_TYPE, predicate)


class KeyVerifier:
    """Accepts what a public key verifies."""

    artifact_type = ARTIFACT_TYPE

    def __init__(self, key: SSlibKey, file: str) -> None:
        self._key = key
        self.who = f"key {key.keyid} ({file})"

    def verify(self, document: bytes) -> tuple[Outcome, bytes, str]:
        """See Verifier. The key id in an envelope is a hint and is not relied on: the key itself is tried."""
        from securesystemslib.dsse import Envelope
        from securesystemslib.exceptions import FormatError, UnverifiedSignatureError
        from securesystemslib.signer import Signature

        try:
            envelope = Envelope.from_dict(json.loads(document))
            pae = envelope.pae()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, FormatError):
            return Outcome.OTHER, b"", "nobody: it is no DSSE envelope"
        for signature in envelope.signatures.values():
            try:
                self._key.verify_signature(Signature(self._key.keyid, signature.signature), pae)
            except UnverifiedSignatureError:
                continue
            return (Outcome.GOOD, envelope.payload, "") if envelope.payload_type == MEDIA_TYPE else _WRONG_TYPE
        if self._key.keyid in envelope.signatures:
            return Outcome.WRONG, b"", ""
        return Outcome.OTHER, b"", ", ".join(f"key {keyid}" for keyid in envelope.signatures) or "nobody"


_WRONG_TYPE = (Outcome.OTHER, b"", "this key, but it is no statement on an image")


def new_key(path: Path, password: str) -> str:
    """Make an ed25519 key pair: the private key in ``path``, the public one in ``path.pub``; the id of the key.

    The private key is readable by its owner only, and encrypted unless ``password`` is empty. Raises InputError when
    there is a file already.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = path.with_name(f"{path.name}.pub")
    for file in (path, public):
        if file.exists():
            raise InputError("there is a file of this name already", place=Place(str(file)), cure="Give another name.")
    key = Ed25519PrivateKey.generate()
    lock = form.BestAvailableEncryption(password.encode()) if password else form.NoEncryption()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, lock)
    mask = os.umask(0o077)
    try:
        write_bytes(path, private)
    finally:
        os.umask(mask)
    write_bytes(public, key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo))
    return str(_public(key.public_key(), public).keyid)


def load_signer(path: Path, password: str | None) -> KeySigner:
    """The private key in ``path``. Raises InputError: no key, of a kind not taken, or the password is wrong.

    Raises PasswordNeededError when it is encrypted and ``password`` is None.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key
    from securesystemslib.signer import CryptoSigner

    text = _read(path)
    load = load_ssh_private_key if b"BEGIN OPENSSH PRIVATE KEY" in text else load_pem_private_key
    secret = password.encode() if password else None
    try:
        key: Any = load(text, secret)
    except TypeError:
        # What it raises when a password is missing, or given where none is.
        if secret is not None:
            return load_signer(path, "")
        raise PasswordNeededError(path, asked=password is not None) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        if secret is not None and b"PRIVATE KEY" in text:
            raise InputError(
                "the key cannot be opened: the password is wrong, or the file is damaged",
                place=Place(str(path)),
                cure=f"Give its password in {PASSWORD}, or at the prompt.",
            ) from None
        if secret is None and "password" in str(error).lower():
            raise PasswordNeededError(path, asked=password is not None) from None
        raise _no_key(path, "private") from None
    return KeySigner(CryptoSigner(key, _public(key.public_key(), path)))


class PasswordNeededError(InputError):
    """A key is encrypted and there is no password."""

    def __init__(self, path: Path, *, asked: bool) -> None:
        super().__init__(
            "this key is encrypted" + (", and the password given is empty" if asked else ""),
            place=Place(str(path)),
            cure=f"Give its password in {PASSWORD}, or at the prompt of a terminal.",
        )


def load_verifier(path: Path) -> KeyVerifier:
    """The public key in ``path``, PEM or a line of ssh-keygen's. Raises InputError for anything else."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key

    text = _read(path)
    load = load_pem_public_key if text.lstrip().startswith(b"-----BEGIN") else load_ssh_public_key
    try:
        return KeyVerifier(_public(load(text), path), path.name)
    except (ValueError, UnsupportedAlgorithm):
        raise _no_key(path, "public") from None


def _public(key: Any, path: Path) -> SSlibKey:
    """The key as securesystemslib has it; its id follows from the key alone."""
    from securesystemslib.signer import SSlibKey

    try:
        found = SSlibKey.from_crypto(key)
    except ValueError:
        raise _no_key(path, "") from None
    if found.keytype not in ("ed25519", "ecdsa"):
        raise _no_key(path, "")
    return found


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(_LARGEST_KEY)
    except OSError as error:
        raise InputError(
            f"the key cannot be read: {error.strerror}", place=Place(str(path)), cure="Give the path of a key file."
        ) from None


def _no_key(path: Path, kind: str) -> InputError:
    return InputError(f"this is no {kind} key that can be used".replace("  ", " "), place=Place(str(path)),
                      cure=f"Give {_KINDS}; envbuilder sign --new-key FILE makes one.")  # fmt: skip
