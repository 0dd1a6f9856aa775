"""The build record: what was built, out of what, by what. A JSON file that a person can read and compare."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from envbuilder import __version__, data
from envbuilder.files import write_text
from envbuilder.image.building import Built
from envbuilder.image.engine import Engine
from envbuilder.image.steps import step_title
from envbuilder.image.uv_version import uv_version
from envbuilder.lock.model import Lock

SCHEMA = 1


def build_folder() -> Path:
    """Where records and logs go: ``build`` below the current folder."""
    return data.project_root() / "build"


def record_path(stack: str, target: str, *, slim: bool = False) -> Path:
    """The record of the last build of a stack's target."""
    return build_folder() / f"{stack}-{target}{'-slim' if slim else ''}.json"


def log_path(stack: str, target: str) -> Path:
    """A new log file's name for a build that starts now (UTC)."""
    now = datetime.now(tz=timezone.utc)
    return build_folder() / "logs" / f"{stack}-{target}-{now:%Y%m%dT%H%M%SZ}.log"


def build_record(built: Built, lock: Lock, engine: Engine, log: Path | None) -> dict[str, Any]:
    """The record as JSON-typed data (schema 1). Sizes in bytes, times in seconds."""
    layers = [{**asdict(layer), "title": step_title(layer.made_by) or layer.made_by} for layer in built.image.layers]
    return {
        "schema": SCHEMA,
        "stack": lock.stack,
        "target": built.target,
        "slim": built.slim,
        "image": built.image.reference,
        "id": built.identity,
        "size": built.image.size,
        "layers": layers,
        "labels": dict(built.image.labels),
        "audit": dict(built.audit) if built.audit else None,
        "lock": lock.digest,
        "inputs": built.inputs,
        "built": built.anew,
        "seconds": round(built.seconds, 1),
        "finished": datetime.now(tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "builder": {"engine": engine.version(), "uv": uv_version(), "envbuilder": __version__},
        "log": str(log) if log else None,
    }


def write_record(record: dict[str, Any]) -> Path:
    """Write the record to its place, whole or not at all; the record of the build that made the image stays."""
    path = record_path(record["stack"], record["target"], slim=record["slim"])
    if not record["built"] and path.is_file():
        return path
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return path
