"""This host's part of a run over several: ``python -m envbuilder.smoke.ray_host --hosts N [OPTIONS] -- COMMAND``.

The same command on every host. The first (rank 0) starts Ray, opens its door (the port after Ray's), waits until all
hosts have come and runs COMMAND with RAY_ADDRESS set. The others wait for the door, join Ray, and leave when the door
has closed. The first host's exit code is COMMAND's; that of the others is 0 unless they could not join.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

from envbuilder.errors import FAILED, WRONG_USE
from envbuilder.smoke.ray_worker import DEVICE_ENVIRONMENT

_EVERY_SECONDS = 1.0
# One refusal may be chance; silence may be a network that comes back.
_CLOSED_TIMES, _SILENT_SECONDS = 3, 60
_END_SECONDS = 20
# Ray's own limit for its start is 30 seconds, which a busy host exceeds.
_START_SECONDS = 300
# Ray keeps objects in shared memory; beyond it, it would take the disk.
_SHARE_OF_SHM = 0.6
# Logical cores beside those of the machine: verl asks for three a card and one for its main task.
_CORES_A_CARD = 4
# For the trainer and its workers, where the job says nothing else. Python asks for a name of users that have none.
_ENVIRONMENT = {DEVICE_ENVIRONMENT: "cuda", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "RAY_DEDUP_LOGS": "0",
                "USER": "trainer"}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Start Ray here, and on the first host the command."""
    given = _parser().parse_args(arguments)
    rank = os.environ.get(given.rank_from, "") if given.rank_from else str(given.rank)
    if not rank.isdigit() or (given.hosts > 1 and not given.head):
        _complain(f"--head and the host's number are needed ({given.rank_from or '--rank'} is {rank!r})")
        return WRONG_USE
    # A scheduler ends a job with SIGTERM: leave by the ordinary way, so that Ray is ended too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # Ray's sockets lie below this folder, and a socket's path may have 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as scratch:
        return _first(given, scratch) if int(rank) == 0 else _other(given)


def _first(given: argparse.Namespace, scratch: str) -> int:
    address = "127.0.0.1" if given.hosts == 1 else _own_address(given.head)
    options = ["--head", f"--port={given.port}", f"--node-ip-address={address}", "--include-dashboard=false",
               f"--temp-dir={scratch}"]  # fmt: skip
    environment = {**_ENVIRONMENT, **os.environ, "RAY_ADDRESS": f"{address}:{given.port}"}
    hosts = [str(given.hosts), str(given.cards), str(given.wait)]
    with _ray(options, given.cards) as started:
        if not started:
            return FAILED
        print(f"Ray runs at {address}:{given.port}; waiting for {given.hosts} host(s)", flush=True)
        with _door(given.port + 1):
            code = _run([sys.executable, "-m", "envbuilder.smoke.ray_wait", *hosts], environment)
            return code or _run(given.command, environment)


@contextlib.contextmanager
def _door(port: int) -> Iterator[None]:
    """A port that answers while the block runs, and says nothing."""
    socketserver.TCPServer.allow_reuse_address = True
    with socketserver.TCPServer(("", port), socketserver.BaseRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def _run(command: list[str], environment: dict[str, str]) -> int:
    process = subprocess.Popen(command, env=environment)
    try:
        code = process.wait()
    finally:
        _end(process)
    return code if code >= 0 else 128 - code


def _other(given: argparse.Namespace) -> int:
    if not _wait(given.head, given.port + 1, given.wait):
        _complain(f"{given.head}:{given.port + 1} did not answer within {given.wait} s")
        return FAILED
    address = socket.gethostbyname(given.head)
    options = [f"--address={address}:{given.port}", f"--node-ip-address={_towards(address)}"]
    with _ray(options, given.cards) as started:
        if not started:
            return FAILED
        print(f"joined Ray at {address}:{given.port}", flush=True)
        # Should Ray end here alone, the run fails on the first host, and that ends it here too.
        _stay(address, given.port + 1)
    print("the first host has ended Ray; its own exit code is the run's", flush=True)
    return 0


def _stay(address: str, port: int) -> None:
    """Until the first host has closed its door, or has not been heard of for a while."""
    closed, heard = 0, time.monotonic()
    while closed < _CLOSED_TIMES and time.monotonic() - heard < _SILENT_SECONDS:
        state = _answers(address, port)
        closed = closed + 1 if state is False else 0
        heard = time.monotonic() if state is not None else heard
        time.sleep(_EVERY_SECONDS)


def _own_address(name: str) -> str:
    """The address under which the others find this host by ``name``.

    A host's own name often means the loopback to itself (Debian's 127.0.1.1): the default route's address serves then.
    """
    address = socket.gethostbyname(name)
    if address == name or not ipaddress.ip_address(address).is_loopback:
        return address
    # Any address beyond this host does: nothing is sent. This one is for documentation (RFC 5737).
    return _towards("192.0.2.1")


def _towards(address: str) -> str:
    """The address of the interface that leads to ``address``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        own: str = probe.getsockname()[0]
    return own


@contextlib.contextmanager
def _ray(options: list[str], cards: int) -> Iterator[bool]:
    """Ray's processes of this host, ended with the block. False when they did not start."""
    objects = int(shutil.disk_usage("/dev/shm").total * _SHARE_OF_SHM)  # noqa: S108 - asked for its size
    cores = max(os.cpu_count() or 1, _CORES_A_CARD * cards)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats", *options,
               f"--num-gpus={cards}", f"--num-cpus={cores}", f"--object-store-memory={objects}"]  # fmt: skip
    environment = {**_ENVIRONMENT, "RAY_raylet_start_wait_time_s": str(_START_SECONDS), **os.environ}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, env=environment)
        try:
            started = process.wait() == 0
            if not started:
                output.seek(0)
                _complain(f"Ray did not start here:\n{output.read().decode(errors='replace')[-4000:]}")
            yield started
        finally:
            # What Ray leaves running is in the group of the process that started it.
            _end_group(process.pid)
            process.wait()


def _end_group(group: int) -> None:
    """Ask the processes of a group to end, and end those that do not."""
    deadline = time.monotonic() + _END_SECONDS
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < deadline:
            time.sleep(_EVERY_SECONDS / 4)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and end it when it does not."""
    process.terminate()
    try:
        process.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(host: str, port: int, seconds: float) -> bool:
    """Whether the port answers in time; a name that is not known yet (a pod that starts) is waited for too."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if _answers(host, port):
            return True
        time.sleep(_EVERY_SECONDS)
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


def _complain(text: str) -> None:
    print(f"error: {text}", file=sys.stderr, flush=True)


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
