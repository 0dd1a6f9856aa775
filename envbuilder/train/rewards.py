"""Where the reward of a run comes from: verl's own function for the data source, or a file of the user's."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from envbuilder.errors import InputError, Place
from envbuilder.stack.fields import Strict, load_model

_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")


class RewardSources(Strict):
    """The data sources that verl has a function for: whole names, and how such a name may begin."""

    schema_: Literal[1] = Field(alias="schema")
    verl: str
    source: str
    names: tuple[str, ...]
    beginnings: tuple[str, ...]


@lru_cache(maxsize=1)
def reward_sources() -> RewardSources:
    """The table of the pinned verl."""
    return load_model(RewardSources, Path(__file__).with_name("reward_sources.toml"))


def without_reward(data_sources: Iterable[str]) -> list[str]:
    """Those of the data sources that verl has no function for: it would stop at the first step."""
    known = reward_sources()
    return sorted({name for name in data_sources if name not in known.names and not name.startswith(known.beginnings)})


def check_reward_file(path: Path, name: str) -> None:
    """Raise InputError unless ``path`` is Python that defines the function ``name`` with verl's four arguments.

    The file is read, never run.
    """
    place = Place(str(path))
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(
            f"the reward file cannot be read: {error.strerror}", place=place, cure="Name a Python file."
        ) from None
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise InputError(
            f"the reward file is not Python: {getattr(error, 'msg', error)}", place=Place(str(path), line),
            cure="Mend it; `python3 -m py_compile` shows the same.",
        ) from None  # fmt: skip
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not found:
        there = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        raise InputError(
            f"the reward file defines no function {name}", place=place,
            cure=f"It defines {', '.join(there) or 'none'}; name one with --reward FILE:FUNCTION.",
        )  # fmt: skip
    arguments = found[-1].args
    taken = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    missing = [argument for argument in _ARGUMENTS if argument not in taken]
    if missing and arguments.kwarg is None:
        raise InputError(
            f"the reward function {name} does not take {', '.join(missing)}", place=Place(str(path), found[-1].lineno),
            cure=f"verl calls it with {', '.join(_ARGUMENTS)}, by name; it returns a number.",
        )  # fmt: skip
