"""Channels for tests: real conda records laid out as folders that a solver reads."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent / "data" / "conda" / "records.jsonl.gz"
ROOT = "https://conda.anaconda.org/"
P40_CHANNELS = ("nvidia/label/cuda-11.8.0", "conda-forge")


def real_records() -> list[dict[str, Any]]:
    """The records in tests/data: see the README there."""
    return [json.loads(line) for line in gzip.decompress(RECORDS.read_bytes()).decode().splitlines()]


def record(
    name: str, version: str, build: str, depends: Iterable[str] = (), channel: str = "conda-forge"
) -> dict[str, Any]:
    """A made-up record."""
    filename = f"{name}-{version}-{build}.conda"
    return {
        "name": name,
        "version": version,
        "build": build,
        "subdir": "linux-64",
        "url": f"{ROOT}{channel}/linux-64/{filename}",
        "md5": "0" * 32,
        "sha256": "0" * 64,
        "depends": list(depends),
    }


def lay_out(records: Iterable[dict[str, Any]], folder: Path) -> dict[str, list[str]]:
    """Write ``records`` as channels below ``folder``; the map from each channel's real address to its folder's."""
    channels: dict[str, dict[str, dict[str, Any]]] = {}
    for row in records:
        base, subdir, filename = row["url"].rsplit("/", 2)
        kind = "packages.conda" if filename.endswith(".conda") else "packages"
        subdirs = channels.setdefault(base.removeprefix(ROOT), {s: _empty(s) for s in ("linux-64", "noarch")})
        entry = {k: v for k, v in row.items() if k not in ("url", "sources")}
        subdirs[subdir][kind][filename] = {"depends": [], **entry, "build_number": _build_number(row["build"])}
    for channel, subdirs in channels.items():
        for subdir, data in subdirs.items():
            path = folder / channel / subdir / "repodata.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(data))
    return {ROOT + channel: [(folder / channel).as_uri()] for channel in channels}


def _empty(subdir: str) -> dict[str, Any]:
    return {"info": {"subdir": subdir}, "packages": {}, "packages.conda": {}, "repodata_version": 1}


def _build_number(build: str) -> int:
    found = re.search(r"(?:^|_)(\d+)(?:_[A-Za-z][A-Za-z_]*)?$", build)
    return int(found[1]) if found else 0
