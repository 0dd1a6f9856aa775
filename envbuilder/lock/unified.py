"""Both halves of a lock in one conda-lock file, for people who want a stock ``conda-lock install``.

Its Python packages bear the addresses of the index this host is set to, so it belongs to this host: it is written
beside the project, not into ``locks``, and is not meant to be committed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from ruamel.yaml import YAML
from ruamel.yaml.compat import StringIO

from envbuilder import data
from envbuilder.errors import InputError, Place, SourceError
from envbuilder.files import write_text
from envbuilder.lock.client import python_client
from envbuilder.lock.conda_inputs import PLATFORM
from envbuilder.lock.indexes import index_named
from envbuilder.lock.model import Lock, PythonArtifact
from envbuilder.lock.python import target_of
from envbuilder.lock.reading import CONDA, lock_folder
from envbuilder.lock.uv import resolve
from envbuilder.stack.model import Stack

NAME = "{stack}.unified-conda-lock.yml"


def write_unified(stack: Stack, lock: Lock, *, offline: bool = False) -> Path:
    """Write ``STACK.unified-conda-lock.yml`` into the current folder; its path.

    Optional groups are categories. Raises InputError for a stack without a conda half, SourceError when the index
    does not list a file of the lock.
    """
    folder = lock_folder(stack.name)
    if not lock.conda or folder is None:
        raise InputError(
            f"{stack.name} has no conda half, so there is nothing to unify",
            place=Place(field="--unified"),
            cure=f"Install its Python half: uv pip install --require-hashes -r locks/{stack.name}.requirements.txt",
        )
    yaml = YAML(typ="rt")
    yaml.width = 4096
    document = yaml.load((folder / f"{stack.name}{CONDA}").read_text(encoding="utf-8"))
    addresses = _addresses(stack, lock, offline)
    document["package"].extend(_package(artifact, addresses[artifact.sha256]) for artifact in lock.python)
    stream = StringIO()
    yaml.dump(document, stream)
    body = "\n".join(line for line in stream.getvalue().split("\n") if not line.startswith("#"))
    head = (
        f"# The lock of {stack.name}, both halves, with the addresses of this host's Python index: do not commit it.\n"
    )
    path = data.project_root() / NAME.format(stack=stack.name)
    write_text(path, head + body)
    return path


def _addresses(stack: Stack, lock: Lock, offline: bool) -> dict[str, str]:
    found = {
        a.sha256: f"{index_named(a.index, Place(field=a.name)).url}/{quote(a.filename)}" for a in lock.python if a.index
    }
    wanted = [f"{a.name}=={a.version}" for a in lock.python if not a.index]
    pylock = resolve(wanted, target_of(stack), python_client(), dependencies=False, offline=offline)
    for package in pylock.packages:
        for file in [*(package.wheels or ()), *([package.sdist] if package.sdist else ())]:
            found[file.hashes.get("sha256", "")] = file.url or ""
    missing = [a.filename for a in lock.python if not found.get(a.sha256)]
    if missing:
        raise SourceError(
            f"the Python index does not list {missing[0]} with the lock's SHA-256",
            cure=f"Ask the index for it, or lock anew: envbuilder lock {stack.name}",
        )
    return found


def _package(artifact: PythonArtifact, url: str) -> dict[str, Any]:
    return {
        "name": artifact.name,
        "version": artifact.version,
        "manager": "pip",
        "platform": PLATFORM,
        "dependencies": {},
        "url": url,
        "hash": {"sha256": artifact.sha256},
        "category": artifact.group or "main",
        "optional": artifact.group is not None,
    }
