"""The JSON Schemas of the files people write, for editors: stacks and GPU profiles."""

from __future__ import annotations

import json
from pathlib import Path

from envbuilder.stack.fields import Strict
from envbuilder.stack.gpu import GpuProfile
from envbuilder.stack.model import Stack

MODELS: dict[str, type[Strict]] = {"stack.schema.json": Stack, "gpu.schema.json": GpuProfile}


def schema_text(filename: str) -> str:
    """The schema published under ``filename``, as indented JSON (draft 2020-12)."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **MODELS[filename].model_json_schema()}
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def stale(folder: Path) -> list[str]:
    """The published schemas in ``folder`` that are missing or not what the models say."""
    return [
        name for name in MODELS if not (folder / name).is_file() or (folder / name).read_text() != schema_text(name)
    ]
