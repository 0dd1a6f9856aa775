"""Reading ``conda-lock.yml``, and what must hold of one before it is kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from envbuilder.errors import InputError, Place
from envbuilder.lock.conda_inputs import PLATFORM
from envbuilder.lock.model import CondaArtifact

_FILE = re.compile(r"^(?P<name>.+)-(?P<version>[^-]+)-(?P<build>[^-]+)\.(?:conda|tar\.bz2)$")


def parse_conda_lock(text: str, file: str) -> tuple[CondaArtifact, ...]:
    """The conda packages of a lock for linux-64, by name. ``file`` stands for the text in errors.

    Raises InputError for anything that is not a conda-lock file of version 1, or a package without MD5.
    """
    try:
        data = YAML(typ="safe", pure=False).load(text)
    except YAMLError as error:
        raise InputError(f"this is not YAML: {' '.join(str(error).split())}", place=Place(file)) from None
    if not isinstance(data, dict) or data.get("version") != 1 or not isinstance(data.get("package"), list):
        raise InputError(
            "this is not a conda-lock file of version 1", place=Place(file), cure="Make one with envbuilder lock."
        )
    packages = [
        p
        for p in data["package"]
        if isinstance(p, dict) and (p.get("manager"), p.get("platform")) == ("conda", PLATFORM)
    ]
    return tuple(sorted((_artifact(p, file) for p in packages), key=lambda a: a.name))


def _artifact(package: dict[str, Any], file: str) -> CondaArtifact:
    url = str(package.get("url", ""))
    filename = unquote(url.rpartition("/")[2])
    parts = _FILE.match(filename)
    digests = package.get("hash") or {}
    try:
        return CondaArtifact(
            name=str(package.get("name", "")),
            version=str(package.get("version", "")),
            build=parts["build"] if parts else "",
            filename=filename,
            url=url,
            md5=digests.get("md5") or "",
            sha256=digests.get("sha256"),
            size=None,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(
            f"package {package.get('name')}: {first['loc'][0]}: {first['msg']}",
            place=Place(file),
            cure="Make the lock anew with envbuilder lock.",
        ) from None


def read_conda_lock(path: Path) -> tuple[CondaArtifact, ...]:
    """Like parse_conda_lock, for a file."""
    try:
        return parse_conda_lock(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the lock cannot be read: {error}", place=Place(str(path))) from error
