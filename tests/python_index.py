"""A small Python index on loopback (PEP 691) with wheels made on the spot, whose upload times the test chooses."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import tarfile
import zipfile
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

EARLY = "2025-01-01T00:00:00.000000Z"
LATE = "2025-12-01T00:00:00.000000Z"


def wheel(name: str, version: str, *requires: str, content: str = "") -> bytes:
    """A wheel that holds its metadata and ``content``."""
    info = f"{name}-{version}.dist-info"
    metadata = "".join([f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", *_requires(requires)])
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, text in (
            (f"{name}.py", content),
            (f"{info}/METADATA", metadata),
            (f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            (f"{info}/RECORD", ""),
        ):
            archive.writestr(zipfile.ZipInfo(path), text)
    return stream.getvalue()


def sdist(name: str, version: str, *requires: str) -> bytes:
    """A source distribution whose metadata is static, so that nobody needs to build it."""
    text = "".join([f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n", *_requires(requires)])
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path, content in (("PKG-INFO", text), ("setup.py", "from setuptools import setup\nsetup()\n")):
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    return stream.getvalue()


def _requires(requires: tuple[str, ...]) -> list[str]:
    return [f"Requires-Dist: {requirement}\n" for requirement in requires]


@dataclass
class Index:
    """What is served. ``login`` as user:password is asked for when set; ``asked`` collects paths.

    ``sized``: whether the index says how large its files are.
    """

    server: HTTPServer
    login: str | None = None
    files: dict[str, tuple[bytes, str | None, bool]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    sized: bool = True

    def __post_init__(self) -> None:
        self.server.expect_request(re.compile("/(simple|files)/.*")).respond_with_handler(self._answer)

    @property
    def url(self) -> str:
        """The address to set as index."""
        url = self.server.url_for("/simple")
        return url.replace("//", f"//{self.login}@") if self.login else url

    def add(self, filename: str, data: bytes, uploaded: str | None = EARLY, hashed: bool = True) -> None:
        """Serve a file, with an upload time (None: the index knows none) and a SHA-256 (unless not ``hashed``)."""
        self.files[filename] = (data, uploaded, hashed)

    def _answer(self, request: Request) -> Response:
        self.asked.append(request.path)
        if self.login:
            wanted = f"Basic {base64.b64encode(self.login.encode()).decode()}"
            if request.headers.get("Authorization") != wanted:
                return Response("login", 401, {"WWW-Authenticate": "Basic"})
        if request.path.startswith("/files/"):
            name = request.path.removeprefix("/files/")
            return Response(self.files[name][0]) if name in self.files else Response(status=404)
        package = request.path.removeprefix("/simple/").strip("/")
        files = [
            {
                "filename": name,
                "url": self.server.url_for(f"/files/{name}"),
                "hashes": {"sha256": hashlib.sha256(data).hexdigest()} if hashed else {},
                **({"size": len(data)} if self.sized else {}),
                **({"upload-time": uploaded} if uploaded else {}),
            }
            for name, (data, uploaded, hashed) in self.files.items()
            if canonicalize_name(re.split(r"-\d", name)[0]) == package
        ]
        if not files:
            return Response(status=404)
        body = {"meta": {"api-version": "1.1"}, "name": package, "files": files, "versions": []}
        return Response(json.dumps(body), content_type="application/vnd.pypi.simple.v1+json")
