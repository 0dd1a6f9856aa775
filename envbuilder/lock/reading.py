"""Reading the lock files of a stack, each held against its own checksum."""

from __future__ import annotations

import hashlib
from pathlib import Path

from envbuilder import data
from envbuilder.errors import InputError, Place
from envbuilder.lock.checksum import check_seal
from envbuilder.lock.conda_file import parse_conda_lock
from envbuilder.lock.model import Lock
from envbuilder.lock.requirements_file import parse_requirements
from envbuilder.lock.sources_file import Sources, parse_sources
from envbuilder.stack.model import Stack

REQUIREMENTS = ".requirements.txt"
SOURCES = ".sources.toml"
CONDA = ".conda-lock.yml"


def load_lock(stack: Stack) -> Lock:
    """The lock of a stack: the project's, else the built-in one.

    Raises InputError when there is none, and IntegrityError when a file was edited by hand.
    """
    folder = lock_folder(stack.name)
    if folder is None:
        raise InputError(
            f"there is no lock of {stack.name}",
            place=Place(f"locks/{stack.name}{REQUIREMENTS}"),
            cure=f"Make one: envbuilder lock {stack.name}",
        )
    requirements, sources = folder / f"{stack.name}{REQUIREMENTS}", folder / f"{stack.name}{SOURCES}"
    python = parse_requirements(_sealed(requirements, stack.name), str(requirements))
    others = Sources(stack=stack.name)
    conda = folder / f"{stack.name}{CONDA}"
    if sources.is_file():
        others = parse_sources(_sealed(sources, stack.name), str(sources))
    return Lock(
        stack=stack.name,
        digest=lock_digest(folder, stack.name),
        python=python,
        debian=others.debian,
        conda=parse_conda_lock(_sealed(conda, stack.name), str(conda)) if conda.is_file() else (),
        git=others.git,
        images=others.images,
        references=others.references,
    )


def lock_folder(name: str) -> Path | None:
    """The folder holding the lock files of the stack ``name``: all of them come from the same one."""
    for root in data.roots():
        if (root / "locks" / f"{name}{REQUIREMENTS}").is_file():
            return root / "locks"
    return None


def is_borrowed(name: str) -> bool:
    """Whether a project that keeps stacks or locks has none of ``name``, so that the built-in one serves."""
    builtin, project = data.builtin_root(), data.project_root()
    keeps = (project / "locks").is_dir() or (project / "stacks" / f"{name}.toml").is_file()
    return project != builtin and keeps and lock_folder(name) == builtin / "locks"


def lock_digest(folder: Path, name: str) -> str:
    """``sha256:...`` over the bytes of all lock files of the stack ``name``."""
    digest = hashlib.sha256()
    for suffix in (REQUIREMENTS, SOURCES, CONDA):
        path = folder / f"{name}{suffix}"
        if path.is_file():
            digest.update(f"{suffix} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _sealed(path: Path, stack: str) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the lock cannot be read: {error}",
            place=Place(str(path)),
            cure=f"Take the file back out of version control, or lock anew: envbuilder lock {stack}",
        ) from error
    check_seal(text, str(path), stack)
    return text
