"""The facts the judges rest on (``tables.json``, each with its source)."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

Capability = tuple[int, int]
_SERIES = ("16", "20", "30", "40", " A", " P")  # "RTX 30" is the series of RTX 3090


@lru_cache(maxsize=1)
def tables() -> dict[str, Any]:
    """The whole file."""
    data: dict[str, Any] = json.loads(Path(__file__).with_name("tables.json").read_text(encoding="utf-8"))
    return data


def version(text: str) -> tuple[int, ...]:
    """``525.60.13`` as numbers to compare."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def capability(text: str) -> Capability:
    """``6.1`` as (6, 1)."""
    major, minor = text.split(".")
    return int(major), int(minor)


def dotted(pair: Capability) -> str:
    """(6, 1) as ``6.1``."""
    return f"{pair[0]}.{pair[1]}"


def capability_of(name: str) -> Capability | None:
    """The capability of a card by its name, None where the table does not know it."""
    known = tables()["capability_of"]["longest_name_wins"]
    # A digit right after the name makes it another card: "Tesla P4" is not in "Tesla P40". A series ends in a digit.
    found = [
        part for part in known if re.search(re.escape(part) + ("" if part[-2:] in _SERIES else r"(?!\d)"), name, re.I)
    ]
    return capability(known[max(found, key=len)]) if found else None


def architecture(pair: Capability) -> dict[str, Any] | None:
    """The row of the architecture that ``pair`` belongs to."""
    for row in tables()["architectures"]["by_capability"]:
        if capability(row["first"]) <= pair <= capability(row["last"]):
            found: dict[str, Any] = row
            return found
    return None


def driver_floor(cuda: str) -> str | None:
    """The least driver for a CUDA release (``12.4``), by minor-version compatibility."""
    floor: str | None = tables()["driver_floor"]["by_cuda_major"].get(cuda.split(".")[0])
    return floor
