"""A change of verl alone: bytes and seconds to build, push and pull it, beside a plain ``docker build`` and push.

envbuilder's side is built by buildah, the other is one step that installs all of the same stack, built by a Docker
daemon of the benchmark's own (BuildKit) and pushed by it. Both take the same files out of the cache and go to the same
registry (Debian's docker-registry) on loopback; a forwarder in front of it counts the bytes on the wire, both ways.
What comes before the change is not counted: our first build, push and pull, and that the daemon has the files of
before the change and the registry the base. Run as root; it takes 20 GB of disk for a while.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from envbuilder import data
from envbuilder.fetch.fetching import fetch
from envbuilder.image.buildah import Buildah
from envbuilder.image.building import build_stack
from envbuilder.image.context import wheels_context
from envbuilder.image.rootfs import rootfs
from envbuilder.image.uv_version import uv_version
from envbuilder.lock.mirrors import Mirrors
from envbuilder.lock.model import Lock
from envbuilder.lock.reading import load_lock
from envbuilder.publish.export import export
from envbuilder.publish.pull import pull
from envbuilder.publish.push import push
from envbuilder.publish.remote import Remote
from envbuilder.report.progress import Silent
from envbuilder.stack.loading import load_stack
from envbuilder.stack.model import Stack
from tests.e2e.docker_daemon import docker_daemon

CHANGED = "verl/utils/__init__.py"
PLAIN = """FROM scratch AS base
ADD rootfs.tar /
FROM base AS before
RUN --mount=type=bind,from=wheels,target=/mnt true
FROM base AS plain
RUN --mount=type=bind,from=wheels,target=/mnt /mnt/tools/uv venv --offline --no-config --no-cache /opt/venv \\
    && for layer in tools cuda torch libraries verl; do /mnt/$layer/uv pip install --python /opt/venv --no-config \\
       --offline --no-cache --no-index --find-links /mnt/$layer --no-deps --no-build-isolation \\
       -r /mnt/$layer/requirements.txt || exit 1; done
"""


class Wire:
    """Forwards connections to ``port`` and counts the bytes to the registry (``up``) and from it (``down``)."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.up = self.down = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._to))
            for source, target, name in ((client, server, "up"), (server, client, "down")):
                threading.Thread(target=self._pump, args=(source, target, name), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 18):
                target.sendall(chunk)
                with self._lock:
                    setattr(self, name, getattr(self, name) + len(chunk))
            target.shutdown(socket.SHUT_WR)


@dataclasses.dataclass
class Measured:
    """Seconds and bytes of one side."""

    build: float = 0.0
    push: float = 0.0
    pull: float = 0.0
    pushed: int = 0
    pulled: int = 0
    by: str = ""


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[Wire]:
    """A registry of its own, and the wire to it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    conf = folder / "registry.yml"
    conf.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder / 'registry'}}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    process = subprocess.Popen(
        ["docker-registry", "serve", str(conf)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield Wire(port)
    finally:
        process.terminate()
        process.wait()


def changed_verl(lock: Lock) -> Lock:
    """The lock with a verl of one more line in one file; the wheel is put into the cache."""
    (verl,) = (artifact for artifact in lock.python if artifact.name == "verl")
    source = data.cache_root() / "sha256" / verl.sha256[:2] / verl.sha256
    with tempfile.TemporaryDirectory(dir=data.cache_root()) as folder:
        made = Path(folder) / "wheel"
        with zipfile.ZipFile(source) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
            text = old.read(CHANGED) + b"# one more line\n"
            for entry in old.infolist():
                content = text if entry.filename == CHANGED else old.read(entry)
                if entry.filename.endswith(".dist-info/RECORD"):
                    content = record(content.decode(), text).encode()
                new.writestr(entry, content)
        digest = hashlib.sha256(made.read_bytes()).hexdigest()
        target = data.cache_root() / "sha256" / digest[:2] / digest
        target.parent.mkdir(parents=True, exist_ok=True)
        size = made.stat().st_size
        made.replace(target)
    other = verl.model_copy(update={"sha256": digest, "size": size})
    python = tuple(other if artifact.name == "verl" else artifact for artifact in lock.python)
    return lock.model_copy(update={"python": python, "digest": f"sha256:{hashlib.sha256(digest.encode()).hexdigest()}"})


def record(text: str, content: bytes) -> str:
    """A RECORD that names CHANGED with the hash and size of its new ``content``."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    new = f"{CHANGED},sha256={digest},{len(content)}"
    return "\n".join(new if line.startswith(f"{CHANGED},") else line for line in text.split("\n"))


def ours(stack: Stack, lock: Lock, other: Lock, wire: Wire, folder: Path) -> Measured:
    """envbuilder's layers: build, push, pull; then the same after the change, measured."""
    gpu = load_stack("p40-debian")[1]
    engine, silent, reference = Buildah(), Silent(), f"127.0.0.1:{wire.port}/bench/layered"
    before_change = build_stack(stack, gpu, lock, engine, silent).image.reference
    first = push(export(engine, before_change, silent), Remote.open(f"{reference}:1"), silent)
    second_host = {"ENVBUILDER_CACHE": str(folder / "cache"), "CONTAINERS_STORAGE_CONF": storage(folder / "second")}
    with patch.dict(os.environ, second_host):
        pull(first.pinned, Buildah(), Mirrors(), silent)
    found, started = Measured(by=f"{engine.version()}, uv {uv_version()}"), time.monotonic()
    image = build_stack(stack, gpu, other, engine, silent).image.reference
    found.build = time.monotonic() - started
    before, started = wire.up, time.monotonic()
    pushed = push(export(engine, image, silent), Remote.open(f"{reference}:2"), silent)
    found.push, found.pushed = time.monotonic() - started, wire.up - before
    with patch.dict(os.environ, second_host):
        before, started = wire.down, time.monotonic()
        pull(pushed.pinned, Buildah(), Mirrors(), silent)
        found.pull, found.pulled = time.monotonic() - started, wire.down - before
    return found


def plain(stack: Stack, lock: Lock, other: Lock, wire: Wire, folder: Path) -> Measured:
    """One step that installs all, by Docker: build and push after the change."""
    assert stack.debian is not None
    fetched = fetch(stack, lock, Silent(), ("runtime",))
    files = {file.path.name: file for file in (*fetched.python, *fetched.debs)}
    debs = tuple(deb for deb in lock.debs if deb.target == "runtime")
    context, wheels, daemon = folder / "context", folder / "wheels", folder / "docker"
    tar = rootfs(stack.debian.suite, debs, files, stack.source_date_epoch, Silent())
    for made in (context, daemon):
        made.mkdir()
    (context / "rootfs.tar").hardlink_to(tar)
    (context / "Dockerfile").write_text(PLAIN)
    wheels_context(wheels, lock, files)
    changed = fetch(stack, other, Silent(), ("runtime",))
    wheels_context(folder / "changed", other, {file.path.name: file for file in changed.python})
    name = f"127.0.0.1:{wire.port}/bench/plain"
    build = ("build", "--quiet", "--network", "none", "--build-context", f"wheels={wheels}")

    def docker(*arguments: str) -> str:
        return subprocess.run(["docker", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    with docker_daemon(daemon):
        docker(*build, "--target", "before", str(context))
        docker(*build, "--target", "base", "--tag", f"{name}:base", str(context))
        docker("push", "--quiet", f"{name}:base")
        shutil.rmtree(wheels / "verl")
        (folder / "changed" / "verl").rename(wheels / "verl")
        version = docker("version", "--format", "Docker {{.Server.Version}}")
        found, started = Measured(by=version), time.monotonic()
        docker(*build, "--target", "plain", "--tag", f"{name}:2", str(context))
        found.build = time.monotonic() - started
        before, started = wire.up, time.monotonic()
        docker("push", "--quiet", f"{name}:2")
        found.push, found.pushed = time.monotonic() - started, wire.up - before
    return found


def storage(folder: Path) -> str:
    """A containers storage below ``folder``; the path of its settings."""
    folder.mkdir()
    lines = ["[storage]", 'driver = "overlay"', f'graphroot = "{folder}/graph"', f'runroot = "{folder}/run"']
    (folder / "storage.conf").write_text("\n".join(lines) + "\n")
    return str(folder / "storage.conf")


def main() -> None:
    """Measure and print."""
    stack, _ = load_stack("p40-debian")
    lock = load_lock(stack)
    fetch(stack, lock, Silent(), ("runtime",))
    other = changed_verl(lock)
    stack = stack.model_copy(update={"name": "bench-publish"})
    lock, other = (some.model_copy(update={"stack": stack.name}) for some in (lock, other))
    folder = Path(tempfile.mkdtemp(prefix="bench-publish-", dir=data.cache_root()))
    try:
        with registry(folder) as wire:
            # A store of its own: in another, a run before may have left the layers of the very change.
            with patch.dict(os.environ, {"CONTAINERS_STORAGE_CONF": storage(folder / "first")}):
                layered = ours(stack, lock, other, wire, folder)
            row("envbuilder", layered)
            for name in ("first", "second"):
                clear(folder / name)
            shutil.rmtree(folder / "cache")
            whole = plain(stack, lock, other, wire, folder)
            row("docker", whole)
    finally:
        for name in ("first", "second"):
            clear(folder / name)
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"ratio: bytes to push {whole.pushed / layered.pushed:.0f}, "
        f"seconds to build and push {(whole.build + whole.push) / (layered.build + layered.push):.1f}"
    )


def row(name: str, found: Measured) -> None:
    """One side, as a line."""
    parts = [f"build {found.build:.0f} s", f"push {found.push:.1f} s, {found.pushed / 1e6:.1f} MB"]
    if found.pull:
        parts.append(f"pull {found.pull:.1f} s, {found.pulled / 1e6:.1f} MB")
    print(f"{name:10}  {', '.join(parts)}  ({found.by})", flush=True)


def clear(folder: Path) -> None:
    """Remove a storage."""
    subprocess.run(["umount", str(folder / "graph" / "overlay")], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
