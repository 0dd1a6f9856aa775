"""What runs on a node of a Ray cluster: the suite of the image that this worker lives in, on the card that it was lent.

Ray sends this module to the node by value, so it uses the standard library and Ray alone: the node's own envbuilder may
be of another version, and it is the node's that is proven.
"""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_WAIT_SECONDS = 2.0


class CardRun:
    """One card for as long as this lives. ``begin`` once, ``follow`` until it gives a code, ``end`` at any time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: list[str] = []

    def begin(self, arguments: list[str]) -> dict[str, Any]:
        """Start the suite. ``host`` and ``gpu`` of this card, and under ``missing`` why nothing was started."""
        import ray

        lent = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        gpu = lent[0] if lent else "0"
        told = {"host": os.environ.get("ENVBUILDER_HOST") or platform.node(), "gpu": gpu, "missing": ""}
        profile = Path(os.environ.get("ENVBUILDER_STACK", "/opt/envbuilder/stack.json"))
        # Asked of a fresh process: this one has the driver's folders in its path.
        there = subprocess.run(
            [sys.executable, "-c", "import envbuilder.smoke"], capture_output=True, check=False, cwd="/"
        )
        if there.returncode or not profile.is_file():
            return {**told, "missing": f"no stack of envbuilder's is where this node's Ray runs ({sys.executable})"}
        self._start(gpu, ["--profile", str(profile), *arguments])
        return told

    def _start(self, gpu: str, arguments: list[str]) -> None:
        # The suite goes when this process does, also when that is killed.
        tied = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        self._process = subprocess.Popen(
            [*tied, sys.executable, "-m", "envbuilder.smoke", "--gpu", gpu, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
        )  # fmt: skip
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        threading.Thread(target=self._keep, args=(self._process.stderr,), daemon=True).start()

    def _read(self, stream: Any) -> None:
        for line in stream:
            self._lines.put(line.decode(errors="replace"))
        self._lines.put(None)

    def _keep(self, stream: Any) -> None:
        for line in stream:
            self._errors = [*self._errors[-19:], line.decode(errors="replace").rstrip()]

    def follow(self) -> dict[str, Any]:
        """``lines`` that have come, and the exit ``code`` once there are no more; returns soon in any case."""
        lines: list[str] = []
        with contextlib.suppress(queue.Empty):
            line = self._lines.get(timeout=_WAIT_SECONDS)
            while line is not None:
                lines.append(line)
                line = self._lines.get_nowait()
            assert self._process is not None
            return {"lines": lines, "code": self._process.wait(), "errors": self._errors}
        return {"lines": lines, "code": None, "errors": []}

    def end(self) -> None:
        """End the suite."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=10)
            self._process.kill()
