"""The guard in processes that somebody else starts, such as Ray's workers: switched on by the environment.

``ENVBUILDER_GUARD=FOLDER`` makes ``envbuilder.smoke.external_lib`` guard the process that imports it until it ends.
The process writes ``FOLDER/guard-PID.json`` at once, and again a few times a second,
because Ray ends its workers with a kill. ``collect`` reads the folder. A folder without any file means that
no process was guarded, which is not the same as no fault.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envbuilder.errors import Place
from envbuilder.report.model import Confidence, Finding, Severity
from envbuilder.smoke.guard import Guard

ENVIRONMENT = "ENVBUILDER_GUARD"
_EVERY_SECONDS = 0.2
_running: dict[str, Guard] = {}


def start(folder: Path, profile: Mapping[str, Any], role: str) -> Guard:
    """Guard this process until it ends, writing to ``folder``; a second call returns the guard that runs already.

    ``role`` says in the file what the process is. Only the calling thread (and its autograd threads) is watched.
    """
    if "guard" in _running:
        return _running["guard"]
    guard = Guard(profile)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"guard-{os.getpid()}.json"
    guard.__enter__()
    _running["guard"] = guard
    _write(path, guard, role)
    threading.Thread(target=_keep_writing, args=(path, guard, role), name="guard-writer", daemon=True).start()
    atexit.register(_write, path, guard, role)
    return guard


def collect(folder: Path) -> tuple[tuple[Finding, ...], list[dict[str, Any]]]:
    """The findings of all guarded processes, and for each process its facts with ``pid`` and ``role``."""
    findings: list[Finding] = []
    processes: list[dict[str, Any]] = []
    for path in sorted(folder.glob("guard-*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        processes.append({"pid": data["pid"], "role": data["role"], **data["facts"]})
        findings += [_finding(row) for row in data["findings"]]
    return tuple(findings), processes


def _keep_writing(path: Path, guard: Guard, role: str) -> None:
    before = None
    while True:
        time.sleep(_EVERY_SECONDS)
        facts = guard.facts
        now = (facts["operations watched"], facts["faults"])
        if now != before:
            _write(path, guard, role)
            before = now


def _write(path: Path, guard: Guard, role: str) -> None:
    data = {
        "pid": os.getpid(),
        "role": role,
        "facts": guard.facts,
        "findings": [asdict(finding) for finding in guard.findings],
    }
    # Written beside and renamed, so that the reader never meets half a file. Not through envbuilder.files: the image
    # and the workers hold the report model and nothing more of the package.
    temporary = path.with_suffix(f".{threading.get_ident()}.tmp")
    temporary.write_text(json.dumps(data, default=str), encoding="utf-8")
    temporary.replace(path)


def _finding(row: Mapping[str, Any]) -> Finding:
    lists = {name: tuple(row[name]) for name in ("not_help", "evidence", "sources")}
    return Finding(
        **{
            **row,
            **lists,
            "severity": Severity(row["severity"]),
            "place": Place(**row["place"]),
            "confidence": Confidence(row["confidence"]),
        }
    )
