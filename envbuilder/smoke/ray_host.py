"""This host's part of a run over several: ``python -m envbuilder.smoke.ray_host --hosts N [OPTIONS] -- COMMAND``.

The same command on every host. The first (rank 0) starts Ray, waits until all hosts have come and runs COMMAND with
RAY_ADDRESS set; the others join it and leave when it has gone. Its exit code is COMMAND's; that of the others is 0
unless they could not join, or Ray ended here while the first host went on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from envbuilder.errors import FAILED, WRONG_USE

LOOPBACK = "127.0.0.1"
_EVERY_SECONDS = 2.0
# The first host's port is closed as soon as it has ended; silence may be a network that comes back.
_CLOSED_TIMES, _SILENT_TIMES = 3, 30
# Ray keeps objects in shared memory; beyond it, it would take the disk.
_SHARE_OF_SHM = 0.6
# Logical cores beside those of the machine: verl asks for three a card and one for its main task.
_CORES_A_CARD = 4


def main(arguments: list[str] | None = None) -> int:
    """Start Ray here, and on the first host the command."""
    given = _parser().parse_args(arguments)
    rank = os.environ.get(given.rank_from, "") if given.rank_from else str(given.rank)
    if not rank.isdigit() or (given.hosts > 1 and not given.head):
        print(f"error: --head and the host's number are needed ({given.rank_from or '--rank'} is {rank!r})",
              file=sys.stderr)  # fmt: skip
        return WRONG_USE
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # Ray's sockets lie below this folder, and a socket's path may have 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as scratch:
        return _first(given, scratch) if int(rank) == 0 else _other(given, scratch)


def _first(given: argparse.Namespace, scratch: str) -> int:
    address = LOOPBACK if given.hosts == 1 else socket.gethostbyname(given.head)
    options = ["--head", f"--port={given.port}", f"--node-ip-address={address}", "--include-dashboard=false",
               f"--temp-dir={scratch}"]  # fmt: skip
    with _ray(options, given.cards) as ray:
        environment = {**os.environ, "RAY_ADDRESS": f"{address}:{given.port}"}
        if not _wait(address, given.port, given.wait, ray):
            print("error: Ray did not start on the first host; its lines are above", file=sys.stderr)
            return FAILED
        print(f"Ray runs at {address}:{given.port}; waiting for {given.hosts} hosts", flush=True)
        if subprocess.run([sys.executable, "-m", "envbuilder.smoke.ray_wait", str(given.hosts), str(given.cards),
                           str(given.wait)], env=environment, check=False).returncode:  # fmt: skip
            return FAILED
        command = subprocess.Popen(given.command, env=environment)
        try:
            return command.wait()
        finally:
            _end(command)


def _other(given: argparse.Namespace, scratch: str) -> int:
    if not _wait(given.head, given.port, given.wait):
        print(f"error: {given.head}:{given.port} did not answer within {given.wait} s", file=sys.stderr)
        return FAILED
    address = socket.gethostbyname(given.head)
    with _ray([f"--address={address}:{given.port}"], given.cards) as ray:
        print(f"joined Ray at {address}:{given.port}", flush=True)
        closed = silent = 0
        while closed < _CLOSED_TIMES and silent < _SILENT_TIMES:
            state = _answers(address, given.port)
            closed, silent = (closed + 1 if state is False else 0), (silent + 1 if state is None else 0)
            if ray.poll() is not None and state:
                print(f"error: Ray ended here (exit code {ray.returncode})", file=sys.stderr)
                return FAILED
            time.sleep(_EVERY_SECONDS)
    print("the first host has ended Ray; its own exit code is the run's", flush=True)
    return 0


@contextlib.contextmanager
def _ray(options: list[str], cards: int) -> Iterator[subprocess.Popen[bytes]]:
    """Ray's processes of this host, ended with the block."""
    objects = int(shutil.disk_usage("/dev/shm").total * _SHARE_OF_SHM)  # noqa: S108 - asked for its size
    cores = max(os.cpu_count() or 1, _CORES_A_CARD * cards)
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats", *options,
         f"--num-gpus={cards}", f"--num-cpus={cores}", f"--object-store-memory={objects}"],
        stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        _end(process, group=True)


def _end(process: subprocess.Popen[bytes], group: bool = False) -> None:
    """Ask a process to end, and end it (with its whole session, for ``group``) when it does not."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _wait(host: str, port: int, seconds: float, ray: subprocess.Popen[bytes] | None = None) -> bool:
    """Whether the port answers in time; a name that is not known yet (a pod that starts) is waited for too."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (ray is None or ray.poll() is None):
        if _answers(host, port):
            return True
        time.sleep(_EVERY_SECONDS / 4)
    return False


def _answers(host: str, port: int) -> bool | None:
    """True: open. False: the host is there and the port closed. None: silence."""
    try:
        socket.create_connection((host, port), timeout=_EVERY_SECONDS).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m envbuilder.smoke.ray_host", description="One host of a Ray run.")
    parser.add_argument("--hosts", type=int, default=1, help="how many hosts there are")
    parser.add_argument("--cards", type=int, default=1, help="cards of each host")
    parser.add_argument("--head", default="", help="name or address of the first host")
    parser.add_argument("--port", type=int, default=6379, help="Ray's port on the first host")
    ranks = parser.add_mutually_exclusive_group()
    ranks.add_argument("--rank", type=int, default=0, help="which host this is, from 0")
    ranks.add_argument("--rank-from", metavar="NAME", default="", help="the environment variable that says so")
    parser.add_argument("--wait", type=int, default=1800, help="seconds to wait for the other hosts")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="what the first host runs, after --")
    return parser


if __name__ == "__main__":
    sys.exit(main())
