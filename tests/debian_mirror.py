"""A Debian mirror on loopback: the signed index of ``tests/data/debian``; its packages hold only their file name."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

ARCHIVE = Path(__file__).parent / "data" / "debian"
KEYRING = ARCHIVE / "keyring.gpg"


@dataclass
class DebianMirror:
    """What is served below ``/now``, ``/later`` and ``/security``. ``gone`` are file names that are not served."""

    server: HTTPServer
    folder: Path
    gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        shutil.copytree(ARCHIVE, self.folder)
        self.server.expect_request(re.compile("/(now|later|security)/.*")).respond_with_handler(self._answer)

    def url(self, part: str = "now") -> str:
        """The mirror's address."""
        return self.server.url_for(f"/{part}")

    def _answer(self, request: Request) -> Response:
        path = unquote(request.path).lstrip("/")
        name = path.rsplit("/", 1)[-1]
        if name.endswith(".deb") and name not in self.gone:
            return Response(name, content_type="application/vnd.debian.binary-package")
        file = self.folder / path
        return Response(file.read_bytes()) if file.is_file() else Response(status=404)
