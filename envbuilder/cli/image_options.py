"""The options of `push` and `save` that say which image of a stack is meant, and out of which engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])
_TARGET = click.option(
    "--target", type=click.Choice(["runtime", "devel"]), default="runtime", help="Which image of the stack."
)
_SLIM = click.option("--slim", is_flag=True, help="The slim image.")
_ENGINE = click.option(
    "--engine", type=click.Choice(["auto", "docker", "buildah"]), default="auto", help="Whose image."
)


def image_options(command: _Command) -> _Command:
    """``--target``, ``--slim`` and ``--engine``."""
    return _TARGET(_SLIM(_ENGINE(command)))
