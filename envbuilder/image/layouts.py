"""OCI layouts as engines are given them."""

from __future__ import annotations

import json
from pathlib import Path


def manifest_of(layout: Path) -> str:
    """The digest of the one manifest of an OCI layout."""
    return str(json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"][0]["digest"])
