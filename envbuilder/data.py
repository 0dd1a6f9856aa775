"""Where stacks, GPU profiles, templates and locks are found: the project in the current folder, then the built-in ones.

A project is a folder that holds ``stacks/``. Without one, the files that came with envbuilder serve, and what a
command writes goes below the current folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from envbuilder.errors import HostError, InputError, Place

_PACKAGE = Path(__file__).resolve().parent


def builtin_root() -> Path:
    """The folder holding the built-in ``stacks``, ``gpus``, ``templates`` and ``locks``.

    In an installed wheel that is ``envbuilder/_data``; in a checkout, the checkout itself.
    """
    packed = _PACKAGE / "_data"
    return packed if packed.is_dir() else _PACKAGE.parent


_BESIDE: ContextVar[Path | None] = ContextVar("beside", default=None)


@contextmanager
def reading_from(folder: Path) -> Iterator[None]:
    """Within it, stacks, locks and the like are looked for in ``folder`` first; writing goes where it always does."""
    token = _BESIDE.set(folder)
    try:
        yield
    finally:
        _BESIDE.reset(token)


def roots() -> tuple[Path, ...]:
    """Where files are looked for, in order."""
    beside = _BESIDE.get()
    return (*([beside] if beside else []), project_root(), builtin_root())


def project_root() -> Path:
    """The current folder, where commands write."""
    return Path.cwd()


def cache_root() -> Path:
    """Where fetched files and kept indexes lie: ``$ENVBUILDER_CACHE``, else the user's cache folder."""
    if chosen := os.environ.get("ENVBUILDER_CACHE"):
        return Path(chosen)
    import platformdirs

    return platformdirs.user_cache_path("envbuilder")


def cache_folder(*names: str) -> Path:
    """The folder ``names`` of the cache, made when it is not there. Raises HostError when it cannot be."""
    folder = cache_root().joinpath(*names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(
            f"the cache cannot be written: {error.strerror}",
            place=Place(str(folder)),
            cure="Set ENVBUILDER_CACHE to a folder you may write to.",
        ) from error
    return folder


def find(kind: str, filename: str) -> Path:
    """The file ``kind/filename`` of the project, else the built-in one.

    Raises InputError, listing what there is, when neither has it.
    """
    is_name = Path(filename).name == filename and not filename.startswith(".")
    for root in roots() if is_name else []:
        path = root / kind / filename
        if path.is_file():
            return path
    ending = f".{filename.rpartition('.')[2]}"
    name = filename.removesuffix(ending)
    known = ", ".join(names(kind, ending)) or "none"
    own = f" Your own goes into {project_root() / kind / filename}." if is_name else ""
    raise InputError(f"there is no {kind.rstrip('s')} named {name!r}", cure=f"Known: {known}.{own}")


def names(kind: str, suffix: str) -> list[str]:
    """The names (file name without suffix) known in ``kind``, sorted."""
    found: set[str] = set()
    for root in roots():
        folder = root / kind
        if folder.is_dir():
            found.update(p.stem for p in folder.iterdir() if p.suffix == suffix and p.is_file())
    return sorted(found)
