"""Reading TOML, with errors for people."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from envbuilder.errors import InputError, Place


def load(path: Path) -> dict[str, Any]:
    """The TOML document in ``path``. Raises InputError when it is missing, unreadable or not TOML."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("there is no such file", place=Place(str(path))) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the file cannot be read: {error}",
            place=Place(str(path)),
            cure="Give a text file in UTF-8 that you may read, or save this one as UTF-8.",
        ) from error
    return loads(text, str(path))


def loads(text: str, name: str) -> dict[str, Any]:
    """The TOML document in ``text``; ``name`` stands for it in errors."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"this is not TOML: {error}", place=Place(name), cure="Put right the line named; strings stand in quotes."
        ) from error
