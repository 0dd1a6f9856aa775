"""Reading from an image registry (OCI distribution API): tags, manifests, and where blobs are.

Plain requests rather than a library: reading takes three kinds of request, and the blobs go through the downloader
that everything else goes through, so that they resume and are verified the same way.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import requests

from envbuilder.errors import InputError, IntegrityError, Place, SourceError
from envbuilder.lock.client import distrusts, redact, untrusted
from envbuilder.lock.mirrors import Mirrors

DOCKER_HUB = "docker.io"
# The host that answers for Docker Hub's name.
_HUB_HOST = "registry-1.docker.io"
INDEX_TYPES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFEST_TYPES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_TIMEOUT = (10, 60)
_CHUNK = 64 * 1024
_MANIFEST_LIMIT = 4 * 1024 * 1024
_REFERENCE = re.compile(
    r"^(?:(?P<host>[a-zA-Z0-9-]+(?:\.[a-zA-Z0-9.-]+)?(?::\d+)?|localhost(?::\d+)?)/)?"
    r"(?P<name>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?$"
)


class NotServedError(SourceError):
    """The registry answers, and has no manifest of that name."""


@dataclass(frozen=True)
class ImageName:
    """A reference taken apart: registry host, repository, tag ("latest" where none is given), digest where given."""

    host: str
    repository: str
    tag: str
    digest: str = ""

    @classmethod
    def parse(cls, reference: str) -> ImageName:
        """Read ``nvidia/cuda:TAG`` or ``host:port/name:TAG``. Raises InputError for anything else."""
        found = _REFERENCE.match(reference)
        # Only a host may have capitals, and without a dot or a port it is none.
        if found is None or (found["host"] and found["host"].isalpha() and not found["host"].islower()):
            raise InputError(f"{reference!r} is not the name of an image", cure="Write it as registry/name:tag.")
        host, name = found["host"] or "", found["name"]
        if host and "." not in host and ":" not in host and host != "localhost":
            name, host = f"{host}/{name}", ""
        if not host:
            host, name = DOCKER_HUB, name if "/" in name else f"library/{name}"
        return cls(host, name, found["tag"] or "latest", found["digest"] or "")


def registry_address(host: str) -> str:
    """Where the registry ``host`` answers. On loopback registries speak plain HTTP, as Docker has it."""
    host = _HUB_HOST if host == DOCKER_HUB else host
    bare = host.partition(":")[0]
    return f"{'http' if bare == 'localhost' or bare.startswith('127.') else 'https'}://{host}"


@dataclass(frozen=True)
class Registry:
    """One registry host that serves ``repository``, or a mirror of it."""

    host: str
    repository: str
    session: requests.Session

    @property
    def address(self) -> str:
        """The beginning of every address of the API for this repository."""
        return f"{registry_address(self.host)}/v2/{self.repository}"

    def manifest(self, reference: str) -> tuple[bytes, str]:
        """The manifest or index at a tag or digest: its bytes and media type.

        Raises SourceError when the registry does not serve it, IntegrityError when the bytes are not the digest's.
        """
        accept = {"Accept": ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))}
        with self._get(f"{self.address}/manifests/{reference}", accept) as answer:
            body = self._body(answer)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if reference.startswith("sha256:") and digest != reference:
            raise IntegrityError(
                f"{self.host} serves other bytes than {self.repository}@{reference}",
                cure="Nothing of it was kept. Set another mirror of the registry, or none.",
                detail=f"lock    {reference}\nmirror  {digest}",
            )
        media_type = answer.headers.get("Content-Type", "").partition(";")[0]
        if media_type not in (*INDEX_TYPES, *MANIFEST_TYPES):
            raise IntegrityError(
                f"{self.host} answers with {media_type or 'no type'} where a manifest should be: "
                "a login page or a notice of a proxy, most often",
                cure="Check the network and the mirror of the registry.",
            )
        return body, media_type

    def blob_url(self, digest: str) -> str:
        """Where the blob ``digest`` is; the session carries the token it needs."""
        return f"{self.address}/blobs/{digest}"

    def _body(self, answer: requests.Response) -> bytes:
        """What a manifest may be long; a registry that goes on and on is not listened to."""
        body = b""
        try:
            for chunk in answer.iter_content(_CHUNK):
                body += chunk
                if len(body) > _MANIFEST_LIMIT:
                    raise IntegrityError(
                        f"{self.host} sends more than {_MANIFEST_LIMIT} bytes where a manifest of {self.repository} "
                        "should be",
                        cure="Nothing of it was kept. Ask whoever runs the registry.",
                    )
        except requests.RequestException as error:
            raise self._silent(error) from None
        return body

    def _silent(self, error: requests.RequestException) -> SourceError:
        if distrusts(error):
            return untrusted(self.host, error)
        return SourceError(
            f"the registry {self.host} does not answer",
            cure="Check the network and the proxy, or set a mirror in envbuilder.toml (docs/mirrors.md).",
            detail=redact(str(error)),
        )

    def _get(self, url: str, headers: dict[str, str]) -> requests.Response:
        try:
            answer = self.session.get(url, headers=headers, timeout=_TIMEOUT, stream=True)
            if answer.status_code == 401 and self._log_in(answer):
                answer = self.session.get(url, headers=headers, timeout=_TIMEOUT, stream=True)
        except requests.RequestException as error:
            raise self._silent(error) from None
        if answer.status_code == 404:
            raise NotServedError(
                f"{self.host} does not serve {url.rsplit('/', 1)[-1]} of {self.repository}",
                cure="Images do vanish. Take it from a bundle or another registry that still has this digest.",
            )
        if answer.status_code != 200:
            raise SourceError(
                f"{self.host} answers {answer.status_code} {answer.reason} for {self.repository}",
                cure="Try again later (Docker Hub limits anonymous pulls), or set a mirror in envbuilder.toml.",
            )
        return answer

    def _log_in(self, refusal: requests.Response) -> bool:
        """Fetch an anonymous token as the refusal says; whether there was one."""
        said = dict(re.findall(r'(\w+)="([^"]*)"', refusal.headers.get("WWW-Authenticate", "")))
        if "realm" not in said:
            return False
        scope = said.get("scope", f"repository:{self.repository}:pull")
        answer = self.session.get(
            said["realm"], params={"service": said.get("service", ""), "scope": scope}, timeout=_TIMEOUT
        )
        if answer.status_code != 200:
            return False
        token: dict[str, Any] = answer.json()
        self.session.headers["Authorization"] = f"Bearer {token.get('token') or token.get('access_token')}"
        return True


def registries_for(
    name: ImageName, mirrors: Mirrors, new_session: Callable[[], requests.Session] = requests.Session
) -> list[Registry]:
    """The hosts to ask for an image, in order. Each has a session of its own: a token goes to nobody else."""
    return [Registry(host, name.repository, new_session()) for host in mirrors.addresses(name.host)]


def resolve_tag(reference: str, mirrors: Mirrors) -> str:
    """The digest a tag points to now, at the first host that answers. Raises SourceError when none does."""
    name = ImageName.parse(reference)
    said = []
    for registry in registries_for(name, mirrors):
        try:
            body, _ = registry.manifest(name.tag)
        except SourceError as error:
            said.append(error.message)
            continue
        return f"sha256:{hashlib.sha256(body).hexdigest()}"
    raise SourceError(
        f"the digest of {reference} cannot be asked for",
        place=Place(field="image"),
        cure="Lock on a host that reaches the registry, or set a mirror in envbuilder.toml (docs/mirrors.md).",
        detail="\n".join(said),
    )


def manifest_for_amd64(index: bytes) -> str:
    """The digest of the linux/amd64 manifest in an index. Raises SourceError when there is none."""
    for entry in json.loads(index).get("manifests", []):
        platform = entry.get("platform", {})
        if (platform.get("os"), platform.get("architecture")) == ("linux", "amd64"):
            return str(entry["digest"])
    raise SourceError("the image has no variant for linux/amd64", cure="Choose another image.")
