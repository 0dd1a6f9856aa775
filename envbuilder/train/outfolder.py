"""The folder of a run: what it was asked, its checkpoints, logs and metrics.

``run.json`` says what the run was started with, ``train.sh`` is its launch script, ``checkpoints`` is verl's,
``logs/run-NNN.log`` the whole output of each start, ``metrics.jsonl`` one line a step.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from envbuilder.errors import InputError, Place
from envbuilder.files import write_text

RECORD = "run.json"
_LOCK = ".lock"


class OutFolder:
    """The folder at ``path``; nothing is made before ``prepare``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.samples = path / "samples"
        self.metrics = path / "metrics.jsonl"
        self.script = path / "train.sh"
        self.hosts = path / ".hosts"

    def record(self) -> dict[str, Any] | None:
        """What the run here was started with; None when there is no run. Raises InputError when it cannot be read."""
        path = self.path / RECORD
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(data, dict) or not isinstance(data.get("asked"), dict):
                raise ValueError("not the record of a run")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(
                f"the record of the run cannot be read: {error}", place=Place(str(path)),
                cure="Give another --out; the checkpoints here stay as they are.",
            ) from error  # fmt: skip
        return data

    def check(self) -> None:
        """Raise InputError when the folder is a file, is not writable, or holds other things than a run."""
        place = Place(str(self.path))
        nearest = self.path
        while not nearest.exists():
            nearest = nearest.parent
        if not nearest.is_dir():
            raise InputError(f"{nearest} is not a folder", place=place, cure="Give another --out.")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise InputError(f"{nearest} cannot be written", place=place, cure="Give a folder you may write to.")
        others = [p for p in self.path.iterdir() if p.name != _LOCK] if self.path.is_dir() else []
        if others and self.record() is None:
            raise InputError(
                "the out folder is not empty and holds no run", place=place, cure="Give a new or an empty folder."
            )

    def prepare(self, record: dict[str, Any], script: str) -> None:
        """Make the folders and write the record and the script."""
        for folder in (self.checkpoints, self.samples, self.path / "logs"):
            folder.mkdir(parents=True, exist_ok=True)
        for left in self.samples.glob("memory-*.jsonl"):
            left.unlink()
        write_text(self.path / RECORD, json.dumps(record, indent=1) + "\n")
        for path, text in ((self.script, script), (self.hosts, "127.0.0.1 localhost\n")):
            write_text(path, text)
            path.chmod(0o644)  # the image's user reads them, whatever the umask here

    def new_log(self) -> Path:
        """The log of this start."""
        count = len(list((self.path / "logs").glob("run-*.log")))
        return self.path / "logs" / f"run-{count + 1:03}.log"

    def forget_after(self, step: int) -> None:
        """Drop the metrics of steps after ``step``: they are made again from the checkpoint."""
        if not self.metrics.is_file():
            return
        lines = self.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if _step_of(line) <= step]
        if len(kept) != len(lines):
            write_text(self.metrics, "".join(kept))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder: two runs in one would overwrite each other's checkpoints. Raises InputError."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / _LOCK, timeout=0)
        try:
            with lock:
                yield
        except Timeout:
            raise InputError(
                "another run is writing here", place=Place(str(self.path)), cure="Wait for it, or give another --out."
            ) from None


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # a line cut short
