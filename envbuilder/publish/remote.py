"""A repository in a registry: reading, uploading, naming, and the documents that refer to an image."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from envbuilder.errors import IntegrityError, SourceError
from envbuilder.fetch.transfers import Counter
from envbuilder.fetch.transport import new_session
from envbuilder.lock.client import distrusts, redact, untrusted
from envbuilder.lock.mirrors import Mirrors
from envbuilder.lock.registry import INDEX_TYPES, ImageName, NotServedError, Registry, registry_address
from envbuilder.publish.answers import body_of, finish, reasons
from envbuilder.publish.layout import INDEX, MANIFEST, Descriptor, canonical, describe, describe_artifact, read_manifest
from envbuilder.publish.tokens import RegistryAuth
from envbuilder.publish.uploads import Upload, check_digest
from envbuilder.report.progress import Progress

_TIMEOUT = (15, 60)
# Documents about an image (SBOMs, signatures) are read into memory.
_DOCUMENT_LIMIT = 256 * 1024 * 1024


@dataclass(frozen=True)
class Remote:
    """One repository at one registry host, as ``name`` says. Logins come from the client's own store.

    Every method raises SourceError when the registry does not answer or refuses, IntegrityError when what it says or
    sends is not what its digest says.
    """

    name: ImageName
    host: str
    session: requests.Session

    @classmethod
    def open(cls, reference: str, *, actions: str = "pull,push") -> Remote:
        """The repository of ``reference`` (``host/name:tag`` or ``...@sha256:...``) at its own registry.

        Raises InputError for what is no name of an image. The network is asked only when something is wanted.
        """
        name = ImageName.parse(reference)
        return cls._at(name, name.host, actions)

    @classmethod
    def mirrored(cls, reference: str, mirrors: Mirrors) -> list[Remote]:
        """Where to pull ``reference`` from, in order: the mirrors of its registry, then the registry itself."""
        name = ImageName.parse(reference)
        return [cls._at(name, host, "pull") for host in mirrors.addresses(name.host)]

    @classmethod
    def _at(cls, name: ImageName, host: str, actions: str) -> Remote:
        session = new_session()
        remote = cls(name, host, session)
        session.auth = RegistryAuth(session, host, remote.address, name.repository, actions)
        # A manifest may be put twice; a blob's upload is taken up by Upload itself.
        adapter = session.get_adapter(remote.address)
        assert isinstance(adapter, HTTPAdapter)
        retry = adapter.max_retries.new(allowed_methods=("GET", "HEAD", "PUT"))
        session.mount(f"{remote.address}/manifests/", HTTPAdapter(max_retries=retry))
        return remote

    @property
    def address(self) -> str:
        """The beginning of every address of the API for this repository."""
        return f"{registry_address(self.host)}/v2/{self.name.repository}"

    @property
    def reference(self) -> str:
        """What was asked for: the digest where one was given, else the tag."""
        return self.name.digest or self.name.tag

    def pinned(self, digest: str) -> str:
        """The reference that names exactly ``digest``, at the registry's own name: ``host/name@sha256:...``."""
        return f"{self.name.host}/{self.name.repository}@{digest}"

    def has(self, digest: str) -> bool:
        """Whether the blob ``digest`` is there."""
        answer = self._ask("HEAD", f"{self.address}/blobs/{digest}", allow_redirects=True)
        if answer.status_code not in (200, 404):
            raise self._unexpected(answer, "say what it has")
        return answer.status_code == 200

    def upload(
        self,
        source: Path | bytes,
        descriptor: Descriptor,
        progress: Progress,
    ) -> None:
        """Have the blob in the repository; ``progress`` is told of its bytes. A broken upload is taken up again."""
        self.send(source, descriptor, Counter(progress, descriptor.size).add)

    def send(
        self,
        source: Path | bytes,
        descriptor: Descriptor,
        advance: Callable[[int], None],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """``upload`` as one of several: ``advance`` is told of bytes as they go, ``stopping`` says to give up."""
        Upload(self.session, self.address, source, descriptor, advance, stopping).run()

    def put_manifest(self, body: bytes, media_type: str, reference: str) -> str:
        """Store a manifest or index under ``reference`` (a tag or its digest); its digest."""
        digest, _ = self._put(body, media_type, reference)
        return digest

    def _put(self, body: bytes, media_type: str, reference: str) -> tuple[str, requests.Response]:
        digest = describe(body, media_type).digest
        where = f"{self.address}/manifests/{reference}"
        answer = self._ask("PUT", where, data=body, headers={"Content-Type": media_type})
        if answer.status_code != 201:
            raise self._unexpected(answer, f"take the manifest {reference}")
        check_digest(answer, self.host, digest)
        return digest, answer

    def manifest(self, reference: str) -> tuple[bytes, str]:
        """The manifest or index at a tag or digest: its bytes, held against the digest, and its media type.

        Raises NotServedError, a SourceError, when the registry answers that there is none.
        """
        return Registry(self.host, self.name.repository, self.session).manifest(reference)

    def read(self, descriptor: Descriptor) -> bytes:
        """A small blob (a configuration, a document), held against its digest."""
        if descriptor.size > _DOCUMENT_LIMIT:
            raise IntegrityError(
                f"{self.host} has a document of {descriptor.size} bytes for {self.name.repository}",
                cure="That is no document about an image. Nothing of it was read.",
            )
        answer = self._ask("GET", f"{self.address}/blobs/{descriptor.digest}", allow_redirects=True)
        if answer.status_code != 200:
            raise self._unexpected(answer, f"serve {descriptor.digest}")
        try:
            body = body_of(answer, descriptor.size)
        except requests.RequestException as error:
            raise self._silent(error) from None
        if f"sha256:{hashlib.sha256(body).hexdigest()}" != descriptor.digest:
            raise IntegrityError(
                f"{self.host} serves other bytes than {descriptor.digest} of {self.name.repository}",
                cure="Nothing of it was kept. Ask whoever runs the registry.",
            )
        return body

    def blob_url(self, digest: str) -> str:
        """Where the blob ``digest`` is; the session logs in for it."""
        return f"{self.address}/blobs/{digest}"

    def referrers(self, digest: str) -> list[Descriptor]:
        """The manifests whose ``subject`` is ``digest``.

        Asked of the registry's referrers API; where it has none, read from the index at the tag ``sha256-HEX``.
        """
        answer = self._ask("GET", f"{self.address}/referrers/{digest}", headers={"Accept": INDEX})
        if answer.status_code == 200 and answer.headers.get("Content-Type", "").partition(";")[0] == INDEX:
            return _entries(self._body(answer))
        if answer.status_code not in (200, 400, 404, 405):
            raise self._unexpected(answer, f"say what refers to {digest}")
        finish(answer)
        try:
            body, kind = self.manifest(_fallback_tag(digest))
        except NotServedError:
            return []
        return _entries(body) if kind in INDEX_TYPES else []

    def attach(self, manifest: bytes, subject: Descriptor) -> str:
        """Store an artifact's manifest, whose ``subject`` is the image; its digest.

        Its blobs are uploaded before. A registry without the referrers API gets it listed at ``sha256-HEX``.
        """
        parts = read_manifest(manifest)
        if (parts.get("subject") or {}).get("digest") != subject.digest:
            raise ValueError(f"the manifest's subject is not {subject.digest}")
        entry = describe_artifact(manifest)
        digest, answer = self._put(manifest, MANIFEST, entry.digest)
        if answer.headers.get("OCI-Subject") != subject.digest:
            listed = [found for found in self.referrers(subject.digest) if found.digest != digest]
            entries: list[dict[str, Any]] = [found.to_dict() for found in [*listed, entry]]
            index = canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
            self._put(index, INDEX, _fallback_tag(subject.digest))
        return digest

    def _body(self, answer: requests.Response) -> bytes:
        try:
            return body_of(answer, _DOCUMENT_LIMIT)
        except requests.RequestException as error:
            raise self._silent(error) from None

    def _ask(
        self,
        method: str,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        data: bytes | None = None,
        allow_redirects: bool = False,
    ) -> requests.Response:
        """One request. Who asked reads the answer of a GET, and what went wrong."""
        try:
            answer = self.session.request(
                method, url, headers=headers, data=data, timeout=_TIMEOUT, stream=True, allow_redirects=allow_redirects
            )
        except requests.RequestException as error:
            raise self._silent(error) from None
        if method != "GET" and answer.status_code < 400:
            finish(answer)
        return answer

    def _silent(self, error: requests.RequestException) -> SourceError:
        if distrusts(error):
            return untrusted(self.host, error)
        return SourceError(
            f"the registry {self.host} does not answer",
            cure="Check the name, the network and the proxy, then run it again.",
            detail=redact(str(error)),
        )

    def _unexpected(self, answer: requests.Response, what: str) -> SourceError:
        said = reasons(answer) or None
        if answer.status_code == 403:
            return SourceError(
                f"{self.host} does not let you use {self.name.repository} (403 {answer.reason})",
                cure="Check the name of the repository, and what your login may do there.",
                detail=said,
            )
        return SourceError(
            f"{self.host} does not {what} of {self.name.repository}: it answers {answer.status_code} {answer.reason}",
            cure="Is it an image registry? Try again later, or ask whoever runs it.",
            detail=said,
        )


def _fallback_tag(digest: str) -> str:
    """Where the distribution specification lists referrers for registries without the API."""
    return digest.replace(":", "-")


def _entries(body: bytes) -> list[Descriptor]:
    listed = read_manifest(body).get("manifests") or []
    if not isinstance(listed, list):
        raise IntegrityError(
            "a list of referrers is no list", cure="Nothing of it was used. Ask who runs the registry."
        )
    return [Descriptor.from_dict(entry) for entry in listed]
