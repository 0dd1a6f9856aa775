"""Values as quoted data in YAML and shell. A template that puts a value in unquoted raises.

Whatever a value holds (blanks, quotes, newlines, ``$``), it is read back as that value and as nothing else.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@#+-]*")


class Quoted(str):
    """Text that may stand in the file as it is."""

    __slots__ = ()


def yaml(value: str) -> Quoted:
    """A double-quoted YAML scalar on one line."""
    import yaml as pyyaml

    text: str = pyyaml.dump(value, default_style='"', allow_unicode=True, width=float("inf"))
    return Quoted(text.removesuffix("\n"))


def kubernetes(value: str) -> Quoted:
    """A command's argument or a variable in a manifest: ``$`` doubled, since ``$(NAME)`` would be expanded."""
    return yaml(value.replace("$", "$$"))


def compose(value: str) -> Quoted:
    """Any value of a compose file: ``$`` doubled, since ``$NAME`` would be replaced from the environment."""
    return yaml(value.replace("$", "$$"))


def shell(value: str) -> Quoted:
    """One word for the shell."""
    return Quoted(shlex.quote(value))


def plain(value: str) -> Quoted:
    """A name of ours that needs no quotes anywhere. Raises ValueError for anything else."""
    if not _PLAIN.fullmatch(value):
        raise ValueError(f"{value!r} cannot stand unquoted")
    return Quoted(value)


def as_is(value: str) -> Quoted:
    """What a macro of the template gave; the values in it went through here themselves."""
    return Quoted(value)


def only_quoted(value: Any) -> Any:
    """What every expression of a template goes through: numbers and quoted text pass, the rest is a fault of ours."""
    if isinstance(value, (Quoted, int)):
        return value
    raise TypeError(f"a template puts in {value!r} unquoted")
