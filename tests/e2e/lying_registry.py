"""A registry that answers as a real one does, and lies about what it was told to."""

import contextlib
import http.client
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.e2e.certificates import Certificate
from tests.e2e.hosts import FIRST, Namespace

# Writes a whole answer; it is given the true bytes.
Lie = Callable[[BaseHTTPRequestHandler, bytes], None]


class LyingRegistry:
    """At ``FIRST:port``, in front of the real one at ``FIRST:to``. ``lies`` are by digest."""

    def __init__(self, namespace: Namespace, port: int, to: int, certificate: Certificate, authority: Path) -> None:
        self.host = f"{FIRST}:{port}"
        self.lies: dict[str, Lie] = {}
        trust = ssl.create_default_context(cafile=str(authority))
        lies = self.lies

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                lie = lies.get(self.path.rpartition("/")[2])
                # Whoever lies is given all of the bytes, whatever part was asked for.
                passed = ("accept",) if lie else ("accept", "range")
                with contextlib.closing(http.client.HTTPSConnection(FIRST, to, context=trust)) as real:
                    wanted = {name: value for name, value in self.headers.items() if name.lower() in passed}
                    real.request(self.command, self.path, headers=wanted)
                    answer = real.getresponse()
                    body = answer.read()
                if lie and self.command == "GET":
                    self.close_connection = True
                    with contextlib.suppress(OSError):
                        lie(self, body)
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("date", "connection"):
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815 - the name is the library's

            def log_message(self, *_: object) -> None:
                pass

        with namespace.inside():
            self._server = ThreadingHTTPServer((FIRST, port), Handler)
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate.certificate, certificate.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


def other_bytes(handler: BaseHTTPRequestHandler, true: bytes) -> None:
    """The right length, and one bit turned over."""
    _answer(handler, len(true))
    handler.wfile.write(bytes([true[0] ^ 1]) + true[1:])


def too_long(handler: BaseHTTPRequestHandler, true: bytes) -> None:
    """A length that is not the blob's, and that many bytes."""
    _answer(handler, len(true) + 1000)
    handler.wfile.write(true + bytes(1000))


def too_short(handler: BaseHTTPRequestHandler, true: bytes) -> None:
    """The other way round."""
    _answer(handler, len(true) - 1000)
    handler.wfile.write(true[:-1000])


def endless(handler: BaseHTTPRequestHandler, true: bytes) -> None:
    """No length, and no end."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/octet-stream")
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.wfile.write(true)
    while True:
        handler.wfile.write(bytes(1 << 16))


def web_page(handler: BaseHTTPRequestHandler, true: bytes) -> None:
    """What a network says to whoever has not logged in to it."""
    body = b"<html><body>Welcome! Please accept the terms of use.</body></html>"
    _answer(handler, len(body), "text/html; charset=utf-8")
    handler.wfile.write(body)


def nothing_more(handler: BaseHTTPRequestHandler, true: bytes) -> None:
    """The right length, half of the bytes, and the end: each time from the start, whatever was asked for."""
    _answer(handler, len(true))
    handler.wfile.write(true[: len(true) // 2])


def _answer(handler: BaseHTTPRequestHandler, length: int, kind: str = "application/octet-stream") -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(length))
    handler.end_headers()
