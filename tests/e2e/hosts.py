"""Hosts on this machine: network namespaces, each with a home, a cache, a store and a project folder of its own.

The link between two of them is the only network they have; nothing of it touches the machine's own.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from envbuilder import data
from envbuilder.lock.model import DebArtifact, PythonArtifact

_CLONE_NEWNET = 0x40000000
# A network for documentation (RFC 5737): no real host has such an address.
FIRST, SECOND = "198.51.100.1", "198.51.100.2"
RESULTS = {"images": [], "containers": [], "scratch": [], "damaged": [], "temporary": []}


class Namespace:
    """A network namespace with loopback and nothing else."""

    def __init__(self, name: str) -> None:
        self.name = f"{name}-{os.getpid()}"
        self.path = Path("/run/netns") / self.name
        _ip("netns", "add", self.name)
        _ip("-n", self.name, "link", "set", "lo", "up")

    def remove(self) -> None:
        """Take it away; its links go with it."""
        _ip("netns", "del", self.name)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets and threads that are made within it belong to the namespace."""
        with Path("/proc/thread-self/ns/net").open() as own, self.path.open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(own.fileno())


@contextmanager
def namespaces(*names: str) -> Iterator[list[Namespace]]:
    """Namespaces for a while."""
    made: list[Namespace] = []
    try:
        for name in names:
            made.append(Namespace(name))
        yield made
    finally:
        for namespace in made:
            namespace.remove()


def link(first: Namespace, second: Namespace) -> None:
    """Join two namespaces with a cable: FIRST on one end, SECOND on the other."""
    _ip("link", "add", "name", "eth0", "netns", first.name, "type", "veth", "peer", "eth0", "netns", second.name)
    for namespace, address in ((first, FIRST), (second, SECOND)):
        _ip("-n", namespace.name, "address", "add", f"{address}/30", "dev", "eth0")
        _ip("-n", namespace.name, "link", "set", "eth0", "up")


class Host:
    """A host below ``root`` in ``namespace``; ``authority`` is the certificate it trusts besides none."""

    def __init__(self, root: Path, namespace: Namespace, authority: Path | None = None) -> None:
        self.root = root
        self.namespace = namespace
        self.project, self.cache, self.home = root / "project", root / "cache", root / "home"
        for folder in (self.project, self.home, root / "run"):
            folder.mkdir(parents=True)
        self.store_in(root / "storage")
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(root / "run"),
            "CONTAINERS_STORAGE_CONF": str(root / "storage.conf"),
            "ENVBUILDER_CACHE": str(self.cache),
            "PYTHONDONTWRITEBYTECODE": "1",
            **({"SSL_CERT_FILE": str(authority)} if authority else {}),
        }

    def store_in(self, folder: Path) -> None:
        """Keep images below ``folder``."""
        self.storage = folder
        lines = ["[storage]", 'driver = "overlay"', f'graphroot = "{folder}/graph"', f'runroot = "{folder}/run"']
        (self.root / "storage.conf").write_text("\n".join(lines) + "\n")

    def command(self, *arguments: str) -> list[str]:
        """How a program is started on this host."""
        return ["nsenter", f"--net={self.namespace.path}", "--", *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program here to its end."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.project,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    def envbuilder(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run envbuilder here. Whatever goes wrong, nobody sees a traceback."""
        done = self.run(sys.executable, "-m", "envbuilder", *arguments)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start envbuilder here, in a process group of its own."""
        return subprocess.Popen(
            # Whoever runs the tests in the background of a shell ignores Ctrl-C, and that is handed on.
            self.command("env", "--default-signal=INT", sys.executable, "-m", "envbuilder", *arguments),
            cwd=self.project,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def has_fetched(self, artifacts: Iterable[PythonArtifact | DebArtifact]) -> None:
        """Have these files, which are in the cache of whoever runs the tests, in the host's own."""
        for artifact in artifacts:
            place = Path("sha256", artifact.sha256[:2], artifact.sha256)
            (self.cache / place).parent.mkdir(parents=True, exist_ok=True)
            (self.cache / place).hardlink_to(data.cache_root() / place)

    def inside(self, image: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in an image of this host, as ``verify`` does."""
        script = (
            "import sys; from envbuilder.image.buildah import Buildah; from envbuilder.image.engine import RunRequest\n"
            "run = Buildah().run(RunRequest(sys.argv[1], tuple(sys.argv[2:])))\n"
            "print(*run, sep='\\n'); print(run.errors(), file=sys.stderr); sys.exit(run.wait())"
        )
        return self.run(sys.executable, "-c", script, image, *command)

    def images(self) -> list[str]:
        """The names of what is in the store, and the ids of what has none."""
        rows = json.loads(self.run("buildah", "images", "--all", "--json").stdout or "null") or []
        return sorted(name for row in rows for name in row["names"] or [row["id"]])

    def left(self) -> dict[str, list[str]]:
        """Everything that would be half-done: RESULTS when there is nothing.

        Images and containers of any kind, folders of work that nobody does now, files in the cache whose bytes are
        not those of their name, temporary files that nobody will ever take up.
        """
        hashed = [path for path in self.cache.glob("sha256/*/*") if path.is_file()]
        containers = self.run("buildah", "containers", "--all", "--quiet").stdout.split()
        return {
            "images": self.images(),
            "containers": containers,
            "scratch": [path.name for path in self.cache.glob("scratch/*") if not _held(path)],
            "damaged": [path.name for path in hashed if _hash(path) != path.name],
            "temporary": [path.name for path in self.cache.glob("sha256/*/.*")],
        }

    def fetched(self) -> int:
        """Bytes that wait in the cache for the rest of their file."""
        return _size(self.cache.glob("partial/*"))

    def kept(self) -> int:
        """Those, and the bytes of files that came whole."""
        return self.fetched() + _size(self.cache.glob("sha256/*/*"))

    def remove(self) -> None:
        """Take away all of it."""
        self.unmount()
        shutil.rmtree(self.root)

    def unmount(self) -> None:
        """Take away what is mounted below the host's folder."""
        self.run("buildah", "rm", "--all")
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if line.split()[1].startswith(f"{self.root}/"):
                subprocess.run(["umount", "-l", line.split()[1]], check=False, capture_output=True)


def wrapped_buildah(folder: Path, on_pull: str) -> str:
    """A PATH on which ``buildah pull`` does something else first; ``$real`` is the real one."""
    folder.mkdir()
    real = shutil.which("buildah")
    script = f'#!/bin/sh\nreal={real}\nif [ "$1" = pull ]; then\n{on_pull}\nfi\nexec $real "$@"\n'
    (folder / "buildah").write_text(script)
    (folder / "buildah").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to everything the command started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def _size(paths: Iterable[Path]) -> int:
    """Bytes of the files; one that was moved to its place meanwhile counts there."""
    total = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def wait_for(condition, process: subprocess.Popen[str] | None = None, seconds: float = 60) -> None:
    """Wait until ``condition`` holds, while ``process`` runs."""
    until = time.monotonic() + seconds
    while not condition():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it ended with {process.returncode}: {process.stderr.read()}")
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def until_said(process: subprocess.Popen[str], start: str) -> str:
    """What it says on standard error until a line begins with ``start``."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith(start):
            break
    return "".join(lines)


def refused(done: subprocess.CompletedProcess[str], code: int, *texts: str) -> None:
    """``done`` ended with ``code`` and one message that holds ``texts`` and says what to do."""
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.count("error:") == 1, done.stderr
    assert "\ndo:" in done.stderr, done.stderr
    for text in texts:
        assert text in done.stderr, (text, done.stderr)


def _held(path: Path) -> bool:
    lock = FileLock(path.with_suffix(".lock"))
    try:
        lock.acquire(timeout=0)
    except TimeoutError:
        return True
    lock.release()
    return False


def _hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _enter(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
