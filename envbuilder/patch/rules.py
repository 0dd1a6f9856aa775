"""The table of kinds, carriers and untouched files: ``rules.toml``."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from envbuilder.stack.fields import Strict, load_model

By = Literal["codemod", "hook", "override"]


class Kind(Strict):
    """A kind of site: what it is, and why the card cannot have it."""

    title: str
    why: str


class Carrier(Strict):
    """Who carries the sites of a kind where the hook is in use, and why that is safe."""

    kind: str
    file: str = "*"
    shape: str | None = None
    top: bool | None = None
    by: By
    overrides: tuple[str, ...] = ()
    reason: str


class Left(Strict):
    """Files that are left alone, and why nothing in them runs on the card."""

    file: str
    reason: str


class Rules(Strict):
    """``rules.toml``."""

    schema_: Literal[1] = Field(alias="schema")
    source: str
    kinds: dict[str, Kind]
    carrier: tuple[Carrier, ...]
    left: tuple[Left, ...]

    def carrier_of(self, kind: str, file: str, shape: str, top: bool) -> Carrier:
        """The carrier of a site; ``file`` is the path below ``verl/``. The table ends with one that takes all."""
        return next(
            c
            for c in self.carrier
            if c.kind in (kind, "*") and fnmatch(file, c.file) and c.shape in (None, shape) and c.top in (None, top)
        )

    def left_alone(self, file: str) -> str | None:
        """Why ``file`` (below ``verl/``) is left alone, or None when it is not."""
        return next((row.reason for row in self.left if fnmatch(file, row.file)), None)


@cache
def load_rules() -> Rules:
    """The rules that come with envbuilder."""
    return load_model(Rules, Path(__file__).with_name("rules.toml"))
