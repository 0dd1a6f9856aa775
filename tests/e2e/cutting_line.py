"""A line to a registry that counts what passes, can be slow, and breaks when it is told to."""

import contextlib
import math
import socket
import struct
import threading
import time

from tests.e2e.hosts import FIRST, Namespace

_CHUNK = 64 * 1024


class CuttingLine:
    """TCP from ``FIRST:port`` to ``FIRST:to`` in ``namespace``.

    ``passed`` counts bytes of answers, ``sent`` those of requests. A connection over which ``cut_after`` bytes came, or
    ``cut_requests_after`` bytes went, ends, ``cuts`` times; with ``reset`` what was not read yet is lost.
    ``rate`` is the most bytes a second for the answers of each connection; None is as fast as it goes.
    """

    def __init__(self, namespace: Namespace, port: int, to: int) -> None:
        self.host = f"{FIRST}:{port}"
        self.passed = 0
        self.sent = 0
        self.cut_after: float = math.inf
        self.cut_requests_after: float = math.inf
        self.cuts = 0
        self.reset = False
        self.rate: float | None = None
        self._to = to
        self._lock = threading.Lock()
        with namespace.inside():
            self._socket = socket.create_server((FIRST, port), backlog=64)
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """No new connections."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._socket.accept()
                try:
                    far = socket.create_connection((FIRST, self._to))
                except OSError:
                    near.close()
                    continue
                threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        came = 0
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK):
                came += len(chunk)
                if self._is_cut(came, answers):
                    for end in (source, target) if self.reset else ():
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                target.sendall(chunk)
                with self._lock:
                    self.passed += len(chunk) if answers else 0
                    self.sent += 0 if answers else len(chunk)
                if answers and self.rate:
                    time.sleep(len(chunk) / self.rate)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _is_cut(self, came: int, answers: bool) -> bool:
        with self._lock:
            if not self.cuts or came < (self.cut_after if answers else self.cut_requests_after):
                return False
            self.cuts -= 1
            return True
