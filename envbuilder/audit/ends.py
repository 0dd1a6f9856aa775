"""Where support for old cards ends in well-known packages (``ends.toml``): the cure for a package without code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from envbuilder import toml
from envbuilder.audit.arch import Arch


@dataclass(frozen=True)
class End:
    """The last version of a package with code for a card, said as a cure."""

    cure: str
    source: str


@lru_cache(maxsize=1)
def _table() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = toml.load(Path(__file__).with_name("ends.toml"))["end"]
    return rows


def last_with(package: str, card: Arch) -> End | None:
    """What is known of the last version of ``package`` that runs on ``card``, or None."""
    for row in _table():
        if row["package"] == package and card.sm in row["cards"]:
            return End(row["cure"], row["source"])
    return None
