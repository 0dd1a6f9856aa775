"""Keyless: an identity that an OpenID provider vouches for, through Sigstore's public certificate and log.

Signing asks Sigstore's services; verifying needs only its trusted root, which comes with the library. The library is
an extra: gpu-envbuilder[keyless].
"""

from __future__ import annotations

from typing import Any

from envbuilder.errors import HostError, SourceError
from envbuilder.publish.attaching import Document
from envbuilder.publish.signing.interface import Outcome
from envbuilder.publish.statements import MEDIA_TYPE, SIGNED

# The artifact type under which cosign stores and looks for such bundles.
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"


class KeylessSigner:
    """Signs as whoever an identity token names: the one of a CI job, else the one a login in the browser gives."""

    def __init__(self, token: Any, config: Any) -> None:
        self._token = token
        self._config = config
        self.who = f"{token.identity} ({token.federated_issuer})"

    @classmethod
    def open(cls) -> KeylessSigner:
        """Get an identity token. Raises HostError without the library, SourceError when Sigstore does not answer."""
        _library()
        from sigstore.models import ClientTrustConfig
        from sigstore.oidc import IdentityToken, Issuer, detect_credential

        try:
            config = ClientTrustConfig.production()
            credential = detect_credential()
            if credential:
                return cls(IdentityToken(credential), config)
            return cls(Issuer(config.signing_config.get_oidc_url()).identity_token(), config)
        except Exception as error:  # the library's errors share no base with those of its clients
            raise _unreachable(error) from None

    def sign(self, statement: bytes) -> Document:
        """See Signer; the signature is in Sigstore's public log afterwards."""
        from sigstore.dsse import Statement
        from sigstore.sign import SigningContext

        try:
            with SigningContext.from_trust_config(self._config).signer(self._token) as signer:
                bundle = signer.sign_dsse(Statement(statement))
        except Exception as error:  # as above
            raise _unreachable(error) from None
        annotations = {"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": SIGNED}
        return Document(bundle.to_json().encode(), BUNDLE, BUNDLE, annotations)


class KeylessVerifier:
    """Accepts what ``identity`` (an address or the URI of a workflow), vouched for by ``issuer``, has signed."""

    artifact_type = BUNDLE

    def __init__(self, identity: str, issuer: str) -> None:
        self._identity, self._issuer = identity, issuer
        self.who = f"{identity} ({issuer})"

    def verify(self, document: bytes) -> tuple[Outcome, bytes, str]:
        """See Verifier. Asks no service: the trusted root is that of the library, or of its last refresh."""
        _library()
        from sigstore.errors import VerificationError
        from sigstore.models import Bundle, InvalidBundle
        from sigstore.verify import Verifier
        from sigstore.verify.policy import Identity

        try:
            bundle = Bundle.from_json(document)
            policy = Identity(identity=self._identity, issuer=self._issuer)
            kind, payload = Verifier.production(offline=True).verify_dsse(bundle, policy)
        except (InvalidBundle, ValueError):
            return Outcome.OTHER, b"", "nobody: it is no Sigstore bundle"
        except VerificationError as error:
            return Outcome.OTHER, b"", f"a Sigstore bundle that is not accepted: {error}"
        if kind != MEDIA_TYPE:
            return Outcome.OTHER, b"", "this identity, but it is no statement on an image"
        return Outcome.GOOD, payload, ""


def _library() -> None:
    try:
        import sigstore  # noqa: F401
    except ImportError:
        raise HostError(
            "keyless signatures need the library sigstore, which is not installed",
            cure='Install envbuilder with its extra "keyless", or use a key file.',
        ) from None


def _unreachable(error: Exception) -> SourceError:
    return SourceError(
        "Sigstore did not give an identity or a signature",
        cure="Check the network and the proxy, log in when asked to, or sign with a key file: --key FILE.",
        detail=f"{type(error).__name__}: {error}",
    )
