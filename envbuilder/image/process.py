"""Running an engine's program: its lines as they come, the tail of what it said, and an end that leaves nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from envbuilder.errors import HostError

TAIL_LINES = 200
# buildah kills its container and removes what it made when it gets SIGTERM; that takes a moment.
GRACE_SECONDS = 10


class Process:
    """A program in a session of its own, so that Ctrl-C on the terminal reaches us first and we end it in order.

    What it writes has the same modes whatever the user's umask.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        merge_errors: bool = False,
        cwd: Path | None = None,
    ) -> None:
        """Start ``command``; with ``merge_errors`` standard error comes in the lines of standard output."""
        self.command = tuple(command)
        self._errors: deque[str] = deque(maxlen=TAIL_LINES)
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merge_errors else subprocess.PIPE,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                text=True,
                errors="replace",
                start_new_session=True,
                umask=0o022,
            )
        except FileNotFoundError:
            raise HostError(
                f"the program {command[0]} is not on this host", cure=f"Install {command[0]} and run this again."
            ) from None
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def _read_errors(self) -> None:
        if self._process.stderr:
            for line in self._process.stderr:
                self._errors.append(line.rstrip("\n"))

    def __iter__(self) -> Iterator[str]:
        assert self._process.stdout
        for line in self._process.stdout:
            yield line.rstrip("\n")

    def wait(self) -> int:
        """The exit code. Output that nobody iterated over is dropped."""
        assert self._process.stdout
        with contextlib.suppress(ValueError):
            for _ in self._process.stdout:
                pass
        self._process.wait()
        self._reader.join()
        return self._process.returncode

    def errors(self) -> str:
        """The last lines of standard error."""
        return "\n".join(self._errors)

    def stop(self) -> None:
        """End it: SIGTERM to its whole group, SIGKILL when that does not help in time."""
        for kind in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, kind)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=GRACE_SECONDS)


def output(command: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a short command to its end and give exit code, standard output and standard error as text."""
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, cwd=cwd)
    except FileNotFoundError:
        raise HostError(
            f"the program {command[0]} is not on this host", cure=f"Install {command[0]} and run this again."
        ) from None
