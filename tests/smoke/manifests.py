"""The description of a stack, as an image holds it, for a test environment that has none of the tool's own packages."""

from __future__ import annotations

import json
from pathlib import Path

import tomli

ROOT = Path(__file__).parents[2]


def write_manifest(path: Path, stack: str = "p40-debian") -> Path:
    """Write ``path`` out of ``stacks/`` and ``gpus/`` and return it."""
    data = {
        "stack": tomli.loads((ROOT / "stacks" / f"{stack}.toml").read_text()),
        "gpu": tomli.loads((ROOT / "gpus" / "p40.toml").read_text()),
        "lock": "sha256:" + "0" * 64,
        "builds": {"6.1": ["2.6.0+cu118", "2.6.0+cu124"]},
    }
    path.write_text(json.dumps(data, default=str))
    return path
