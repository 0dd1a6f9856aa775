"""Servers on loopback that stand in the place of the real sources: an image registry, and hosts by their real names."""

from __future__ import annotations

import contextlib
import json
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, unquote, urlsplit


class _Handler(BaseHTTPRequestHandler):
    def answer(self, body: bytes | Path, kind: str = "application/octet-stream", **headers: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(body.stat().st_size if isinstance(body, Path) else len(body)))
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if isinstance(body, Path):
            with body.open("rb") as stream:
                shutil.copyfileobj(stream, self.wfile)
        else:
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class _Server:
    def __init__(self, address: str, port: int, handler: type[_Handler], tls: ssl.SSLContext | None = None) -> None:
        self._server = ThreadingHTTPServer((address, port), handler)
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.host = f"{address}:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Registry(_Server):
    """An image registry that serves OCI layouts: repository name to folder."""

    def __init__(self, layouts: Mapping[str, Path]) -> None:
        class Handler(_Handler):
            def do_GET(self) -> None:
                path = urlsplit(self.path).path
                if path == "/v2/":
                    self.answer(b"{}", "application/json")
                    return
                repository, _, place = path.removeprefix("/v2/").rpartition("/")
                repository, kind = repository.rsplit("/", 1) if "/" in repository else ("", "")
                layout = layouts.get(repository)
                entry = json.loads((layout / "index.json").read_text())["manifests"][0] if layout else {}
                digest = place if place.startswith("sha256:") else entry.get("digest", "sha256:none")
                blob = layout / "blobs" / "sha256" / digest.removeprefix("sha256:") if layout else None
                if blob is None or not blob.is_file():
                    self.send_error(404)
                    return
                media = entry["mediaType"] if kind == "manifests" else "application/octet-stream"
                self.answer(blob, media, Docker_Content_Digest=digest)

            do_HEAD = do_GET  # noqa: N815

        super().__init__("127.0.0.1", 0, Handler)


class NamedHosts(_Server):
    """The hosts that Dockerfile.p40 downloads from, at ``ADDRESS``, by their names and under a certificate of ours.

    ``repositories`` holds git repositories as owner/name, ``channels`` conda channels, ``pytorch`` is the address that
    answers for the PyTorch index.
    """

    ADDRESS = "127.20.11.8"
    NAMES = ("github.com", "conda.anaconda.org", "download.pytorch.org")

    def __init__(self, folder: Path, repositories: Path, channels: Path, pytorch: str) -> None:
        class Handler(_Handler):
            def do_GET(self) -> None:
                host, parts = self.headers["Host"], urlsplit(self.path)
                path = unquote(parts.path).lstrip("/")
                if host == "github.com":
                    service = parse_qs(parts.query).get("service")
                    if service == ["git-upload-pack"]:
                        said = self._upload_pack(path.removesuffix("/info/refs"), "--advertise-refs")
                        head = b"# service=git-upload-pack\n"
                        self._git(b"%04x" % (len(head) + 4) + head + b"0000" + said, "advertisement")
                        return
                elif host == "conda.anaconda.org" and (channels / path).is_file():
                    self.answer(channels / path)
                    return
                elif host == "download.pytorch.org":
                    with contextlib.suppress(HTTPError), urllib.request.urlopen(f"{pytorch}{self.path}") as got:
                        self.answer(got.read(), got.headers["Content-Type"])
                        return
                self.send_error(404)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._git(self._upload_pack(self.path.removesuffix("/git-upload-pack"), input=body), "result")

            def _upload_pack(self, path: str, *options: str, input: bytes = b"") -> bytes:
                repository = repositories / path.strip("/").removesuffix(".git")
                environment = {"GIT_PROTOCOL": self.headers.get("Git-Protocol", "")}
                command = ["git", "upload-pack", "--stateless-rpc", *options, str(repository)]
                return subprocess.run(command, input=input, env=environment, check=True, capture_output=True).stdout

            def _git(self, body: bytes, what: str) -> None:
                self.answer(body, f"application/x-git-upload-pack-{what}")

        self.certificate = folder / "loopback.pem"
        key = folder / "loopback.key"
        names = ",".join(f"DNS:{name}" for name in self.NAMES)
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=loopback"]
        made += ["-addext", f"subjectAltName={names}", "-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(made, check=True, capture_output=True)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self.certificate, key)
        super().__init__(self.ADDRESS, 443, Handler, tls)
        self.hosts = folder / "hosts"
        self.hosts.write_text(
            Path("/etc/hosts").read_text() + "".join(f"{self.ADDRESS} {name}\n" for name in self.NAMES)
        )
