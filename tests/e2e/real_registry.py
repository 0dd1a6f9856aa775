"""A docker-registry (Debian's package, 2.8) in a namespace, over TLS, with its storage where a test can reach it."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import requests

from tests.e2e.certificates import Authority, Certificate
from tests.e2e.hosts import FIRST, Namespace, wait_for
from tests.e2e.tampering import flipped

# "right", as htpasswd keeps it.
_RIGHT = "$2y$05$abcdefghijklmnopqrstuu8xaCxxL82bnl.UY74PMksDxIJShppPC"
USER, PASSWORD = "me", "right"


class RealRegistry:
    """The registry at ``FIRST:port`` whose storage is ``folder``; ``users`` is a file of htpasswd's."""

    def __init__(self, folder: Path, namespace: Namespace, port: int, certificate: Certificate, users: Path | None):
        self.folder = folder
        self.host = f"{FIRST}:{port}"
        self.namespace = namespace
        tls = {"certificate": str(certificate.certificate), "key": str(certificate.key)}
        settings: dict[str, Any] = {
            "version": "0.1",
            "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": str(folder)}},
            "http": {"addr": self.host, "tls": tls, "relativeurls": True},
        }
        if users:
            settings["auth"] = {"htpasswd": {"realm": "tests", "path": str(users)}}
        self._config = folder.parent / f"registry-{port}.json"
        # YAML takes JSON.
        self._config.write_text(json.dumps(settings))
        self._log = folder.parent / f"registry-{port}.log"

    def start(self, authority: Path) -> subprocess.Popen[bytes]:
        """Start it and wait until it answers."""
        assert shutil.which("docker-registry"), "apt-get install docker-registry"
        command = ["nsenter", f"--net={self.namespace.path}", "--", "docker-registry", "serve", str(self._config)]
        with self._log.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)

        def answers() -> bool:
            assert process.poll() is None, self._log.read_text()[-2000:]
            with self.namespace.inside(), requests.Session() as session:
                session.trust_env = False
                try:
                    session.get(f"https://{self.host}/v2/", verify=str(authority), timeout=5)
                except requests.exceptions.SSLError:
                    return True  # its dates are wrong, and it answers
                except requests.RequestException:
                    return False
                return True

        wait_for(answers)
        return process

    def blob(self, digest: str) -> Path:
        """The file of a blob in the registry's storage."""
        name = digest.removeprefix("sha256:")
        return self.folder / "docker/registry/v2/blobs/sha256" / name[:2] / name / "data"

    def tampered(self, digest: str) -> AbstractContextManager[None]:
        """One bit of the blob turned over for a while; of a manifest one that the registry can still read."""
        size = re.match(rb'\{"config":.*?"size":\d*(?=\d)', self.blob(digest).read_bytes()[:4096], re.DOTALL)
        return flipped(self.blob(digest), size.end() if size else None)

    def empty(self) -> None:
        """Remove every blob: the disk may be needed."""
        shutil.rmtree(self.folder / "docker/registry/v2/blobs")


@contextmanager
def registry_at(
    folder: Path,
    namespace: Namespace,
    authority: Authority,
    port: int,
    *,
    days: tuple[int, int] = (-1, 30),
    users: Path | None = None,
) -> Iterator[RealRegistry]:
    """A registry for a while; its certificate holds for ``days`` from now."""
    certificate = authority.issue(f"registry-{port}", FIRST, *days)
    registry = RealRegistry(folder, namespace, port, certificate, users)
    process = registry.start(authority.path)
    try:
        yield registry
    finally:
        process.terminate()
        process.wait(timeout=30)


def write_users(path: Path, *names: str) -> None:
    """Let ``names`` in, each with PASSWORD, and nobody else."""
    path.write_text("".join(f"{name}:{_RIGHT}\n" for name in names))
