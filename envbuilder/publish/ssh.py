"""An image over ssh into the Docker or podman of another host that has nothing else: no registry, no envbuilder.

The system's own ``ssh`` does it, with the user's keys, agent and configuration: one connection, through which the
other host's engine socket is reached from here.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from envbuilder.errors import HostError, InputError
from envbuilder.image.docker import Docker
from envbuilder.image.scratch import scratch
from envbuilder.publish.export import Exported
from envbuilder.publish.installing import present
from envbuilder.publish.layout import Layout
from envbuilder.report.progress import Progress

# Prints the first engine socket that the user there may use. POSIX shell; nothing of the image goes into it.
_FIND = """
for s in "${DOCKER_HOST#unix://}" /var/run/docker.sock "$XDG_RUNTIME_DIR/docker.sock" /run/podman/podman.sock \
  "$XDG_RUNTIME_DIR/podman/podman.sock" "/run/user/$(id -u)/docker.sock" "/run/user/$(id -u)/podman/podman.sock"; do
  if [ -S "$s" ] && [ -w "$s" ]; then echo "$s"; exit 0; fi
done
exit 3
"""
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Sent:
    """What came of it: the engine there, what it calls the image, and the bytes that went; 0 where it had it."""

    engine: str
    name: str
    moved: int


def push_over_ssh(exported: Exported, where: str, progress: Progress) -> Sent:
    """Have the image in the engine of ``where``, ``ssh://[USER@]HOST[:PORT]``.

    Raises InputError for another form, HostError when the host or its engine cannot be reached or does not take it.
    """
    host = _destination(where)
    name = exported.image.reference
    ids = (exported.config.digest, exported.digest)
    progress.stage(f"asking {host[-1]} what it has")
    with _socket(host) as socket:
        engine = Docker(f"unix://{socket}")
        if present(engine, ids, name, progress):
            return Sent(engine.version(), name, 0)
        progress.stage(f"sending {name}, {exported.size / 1e9:.2f} GB, to {host[-1]}")
        with scratch() as folder:
            layout = Layout(folder / "layout")
            for blob in (exported.manifest, exported.config, *exported.layers):
                layout.link(exported.layout.path(blob.digest), blob.digest)
            layout.tag(exported.manifest, "")
            counted = _Counted(progress)
            engine.load(layout.folder, ids, name, counted)
        return Sent(engine.version(), name, counted.done)


class _Counted:
    """Passes progress on, and keeps how many bytes went."""

    def __init__(self, progress: Progress) -> None:
        self.done = 0
        self.stage, self.item, self.log = progress.stage, progress.item, progress.log
        self._progress = progress

    def advance(self, done: int, total: int | None = None) -> None:
        """Bytes done so far."""
        self.done = done
        self._progress.advance(done, total)


def _destination(where: str) -> list[str]:
    """ssh's arguments that say where to go. Raises InputError for what is no such place."""
    try:
        parts = urlsplit(where)
        port, host = parts.port, parts.hostname
    except ValueError:
        port, host = None, None
    if not host or host.startswith("-") or parts.path not in ("", "/") or parts.query or parts.password:
        raise InputError(f"{where!r} is no host to push to", cure="Write ssh://USER@HOST or ssh://USER@HOST:PORT.")
    user = ["-l", parts.username] if parts.username else []
    return [*user, *(["-p", str(port)] if port else []), "--", host]


@contextmanager
def _socket(host: Sequence[str]) -> Iterator[Path]:
    """The engine socket of the other host, as one here."""
    # Not in the cache: the name of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="envbuilder-ssh-") as folder:
        control, local = Path(folder) / "control", Path(folder) / "engine"
        shared = ["-o", f"ControlPath={control}"]
        master = _start(["ssh", "-M", "-N", "-T", "-o", "ControlPersist=no", *shared, *host])
        try:
            while not control.exists():
                if master.poll() is not None:
                    raise _unreachable(host, master)
                time.sleep(_POLL_SECONDS)
            found = subprocess.run(
                ["ssh", "-T", *shared, *host, "sh"], input=_FIND, capture_output=True, text=True, check=False
            )
            if found.returncode != 0:
                raise HostError(
                    f"{host[-1]} has no Docker or podman socket that you may use",
                    cure="Start one there (systemctl start docker; systemctl --user start podman.socket), "
                    "or be somebody who may use it (group docker).",
                    detail=found.stderr.strip() or None,
                )
            forward = f"{local}:{found.stdout.strip().splitlines()[-1]}"
            forwarded = subprocess.run(
                ["ssh", "-O", "forward", "-L", forward, *shared, *host], capture_output=True, text=True, check=False
            )
            if forwarded.returncode != 0:
                raise HostError(
                    f"{host[-1]} does not forward its engine's socket",
                    cure="Its sshd must have AllowStreamLocalForwarding yes, as it has unless told otherwise.",
                    detail=forwarded.stderr.strip() or None,
                )
            yield local
        finally:
            master.terminate()
            master.wait()


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """ssh in the foreground of the terminal, so that it can ask for a passphrase."""
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    except FileNotFoundError:
        raise HostError("ssh is not on this host", cure="Install it: apt-get install openssh-client") from None


def _unreachable(host: Sequence[str], master: subprocess.Popen[bytes]) -> HostError:
    return HostError(
        f"ssh does not get to {host[-1]} (exit {master.returncode}); what it said stands above",
        cure=f"Make this work first: ssh {' '.join(part for part in host if part != '--')} true",
    )
