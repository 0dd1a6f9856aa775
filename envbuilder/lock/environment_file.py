"""Reading somebody's ``environment.yml`` and the ``virtual-packages.yml`` beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from envbuilder.errors import InputError, Place

VIRTUAL = "virtual-packages.yml"
_NAME = re.compile(r"^(?:(?P<channel>[^\s:]+)::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9._-]*?)(?=$|[\s=<>!~\[])(?P<rest>.*)$")


@dataclass(frozen=True)
class Requirement:
    """One line of ``dependencies``: ``text`` as written, the package's ``name``, its ``build`` pattern where given."""

    text: str
    name: str
    build: str
    line: int | None


@dataclass(frozen=True)
class Environment:
    """An environment file. ``virtual`` are the virtual packages for linux-64 beside it; None without such a file."""

    path: Path
    channels: tuple[str, ...]
    requirements: tuple[Requirement, ...]
    virtual: dict[str, str] | None


def read_environment(path: Path) -> Environment:
    """Read ``path``. Raises InputError naming what is wrong with it."""
    text, data = _load(path)
    if not isinstance(data, dict) or not isinstance(data.get("dependencies"), list):
        raise InputError(
            "this is no environment file: it has no list of dependencies",
            place=Place(str(path)),
            cure="An environment file holds `channels:` and `dependencies:`.",
        )
    channels = data.get("channels") or []
    if not isinstance(channels, list) or not all(isinstance(channel, str) for channel in channels):
        raise InputError("channels must be a list of names", place=Place(str(path), field="channels"))
    requirements = [_requirement(entry, text, path) for entry in data["dependencies"] if not isinstance(entry, dict)]
    return Environment(path, tuple(channels), tuple(requirements), _virtual(path.with_name(VIRTUAL)))


def _requirement(entry: Any, text: str, path: Path) -> Requirement:
    found = _NAME.match(entry.strip()) if isinstance(entry, str) else None
    if found is None:
        raise InputError(f"{entry!r} is not a requirement", place=Place(str(path), field="dependencies"))
    lines = text.splitlines()
    line = next((number for number, content in enumerate(lines, 1) if entry in content), None)
    # `name=version=build` and `name version build`.
    parts = [part for part in re.split(r"[\s=]+", found["rest"].strip()) if part]
    return Requirement(entry, found["name"].lower(), parts[1] if len(parts) > 1 else "", line)


def _virtual(path: Path) -> dict[str, str] | None:
    if not path.is_file():
        return None
    _, data = _load(path)
    try:
        packages = data["subdirs"]["linux-64"]["packages"]
        return {str(name): str(version) for name, version in packages.items()}
    except (KeyError, TypeError, AttributeError):
        raise InputError(
            "this file of virtual packages says nothing of linux-64",
            place=Place(str(path), field="subdirs.linux-64.packages"),
            cure="Write it as conda-lock's documentation shows.",
        ) from None


def _load(path: Path) -> tuple[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, YAML(typ="safe").load(text)
    except FileNotFoundError:
        raise InputError("there is no such file", place=Place(str(path))) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the file cannot be read: {error}", place=Place(str(path))) from None
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise InputError(f"this is not YAML: {problem}", place=Place(str(path), line)) from None
