"""A small stand-in for an image registry, which can also drop connections, lie, and ask who is there."""

import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

INDEX = "application/vnd.oci.image.index.v1+json"


def digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@dataclass
class FakeRegistry:
    """The distribution API of one host; repositories share their blobs.

    ``before`` may answer a request in place of the registry. ``drop_after`` are, for the next uploads, how many bytes
    of a request are taken before the line breaks. ``user`` and ``password`` make it ask for a login: with ``tokens``
    for a token, else Basic.
    """

    server: HTTPServer
    referrers_api: bool = False
    tokens: bool = False
    user: str = ""
    password: str = ""
    drop_after: list[int] = field(default_factory=list)
    before: Callable[[Request], Response | None] = lambda request: None
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    uploads: dict[str, bytearray] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    received: int = 0
    issued: int = 0

    def __post_init__(self) -> None:
        self.host = urlsplit(self.server.url_for("/")).netloc.replace("localhost", "127.0.0.1")
        self._lock = threading.Lock()
        self.server.expect_request(re.compile("^/(v2|token).*")).respond_with_handler(self._answer)

    def _answer(self, request: Request) -> Response:
        self.asked.append((request.method, request.full_path.rstrip("?")))
        if (said := self.before(request)) is not None:
            return said
        if request.path == "/token":
            return self._token(request)
        if self.user and (refusal := self._refuse(request)):
            return refusal
        if found := re.fullmatch(r"/v2/(?P<name>.+)/(?P<kind>manifests|blobs|referrers)/(?P<rest>.+)", request.path):
            return getattr(self, f"_{found['kind']}")(request, found["name"], found["rest"])
        upload = re.fullmatch(r"/v2/(?P<name>.+)/blobs/uploads/", request.path)
        return self._begin(upload["name"]) if upload else Response(status=404)

    def _token(self, request: Request) -> Response:
        sent = request.authorization
        if sent is None or (sent.username, sent.password) != (self.user, self.password):
            return _error(401, "UNAUTHORIZED", "incorrect username or password")
        self.issued += 1
        return Response(json.dumps({"token": f"token-{self.issued}"}), content_type="application/json")

    def _refuse(self, request: Request) -> Response | None:
        sent = request.headers.get("Authorization", "")
        if self.tokens:
            if sent == f"Bearer token-{self.issued}" and self.issued:
                return None
            said = f'Bearer realm="http://{self.host}/token",service="fake",scope="repository:x:pull"'
        else:
            if sent == f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}":
                return None
            said = 'Basic realm="fake"'
        answer = _error(401, "UNAUTHORIZED", "authentication required")
        answer.headers["WWW-Authenticate"] = said
        return answer

    def _begin(self, name: str) -> Response:
        with self._lock:
            key = str(len(self.uploads) + 1)
            self.uploads[key] = bytearray()
        return Response(status=202, headers={"Location": f"/v2/{name}/blobs/uploads/{key}?state=0", "Range": "0-0"})

    def _blobs(self, request: Request, name: str, rest: str) -> Response:
        if rest.startswith("uploads/"):
            key = rest.removeprefix("uploads/")
            return self._upload(request, name, key) if key else self._begin(name)
        body = self.blobs.get(rest)
        if body is None:
            return _error(404, "BLOB_UNKNOWN", "blob unknown to registry")
        asked = request.headers.get("Range")
        if asked and request.method == "GET":
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            headers = {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"}
            return Response(body[start:], 206, headers, content_type="application/octet-stream")
        return Response(body, content_type="application/octet-stream")

    def _upload(self, request: Request, name: str, key: str) -> Response:
        if key not in self.uploads:
            return _error(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
        have = self.uploads[key]
        first = request.headers.get("Content-Range", "").partition("-")[0]
        if first and int(first) != len(have):
            return Response(status=416)
        if request.method in ("PATCH", "PUT"):
            if self.drop_after:
                have += request.get_data()[: self.drop_after.pop(0)]
                connection: socket.socket = request.environ["werkzeug.socket"]
                connection.shutdown(socket.SHUT_RDWR)
                return Response(status=500)
            body = request.get_data()
            self.received += len(body)
            have += body
        where = {"Location": f"/v2/{name}/blobs/uploads/{key}?state={len(have)}", "Range": f"0-{max(0, len(have) - 1)}"}
        if request.method != "PUT":
            return Response(status=204 if request.method == "GET" else 202, headers=where)
        del self.uploads[key]
        body, digest = bytes(have), request.args["digest"]
        if digest_of(body) != digest:
            return _error(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
        self.blobs[digest] = body
        return Response(status=201, headers={"Docker-Content-Digest": digest})

    def _manifests(self, request: Request, name: str, rest: str) -> Response:
        if request.method == "PUT":
            body = request.get_data()
            kept = (body, request.headers["Content-Type"])
            self.manifests[rest] = self.manifests[digest_of(body)] = kept
            headers = {"Docker-Content-Digest": digest_of(body)}
            subject = json.loads(body).get("subject")
            if self.referrers_api and subject:
                headers["OCI-Subject"] = subject["digest"]
            return Response(status=201, headers=headers)
        if rest not in self.manifests:
            return _error(404, "MANIFEST_UNKNOWN", "manifest unknown")
        body, kind = self.manifests[rest]
        return Response(body, content_type=kind, headers={"Docker-Content-Digest": digest_of(body)})

    def _referrers(self, request: Request, name: str, rest: str) -> Response:
        if not self.referrers_api:
            return Response("404 page not found", 404)
        found = {
            digest_of(body): {
                "mediaType": kind,
                "digest": digest_of(body),
                "size": len(body),
                "artifactType": json.loads(body).get("artifactType"),
            }
            for body, kind in self.manifests.values()
            if (json.loads(body).get("subject") or {}).get("digest") == rest
        }
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": list(found.values())}
        return Response(json.dumps(index), content_type=INDEX)


def _error(status: int, code: str, message: str) -> Response:
    body = json.dumps({"errors": [{"code": code, "message": message}]})
    return Response(body, status, content_type="application/json")
