"""The Python half of a lock: for each package the one file that is installed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

from packaging.markers import Environment
from packaging.pylock import PackageSdist, PackageWheel, Pylock, PylockSelectError
from packaging.tags import Tag, compatible_tags, cpython_tags

from envbuilder.errors import InputError, Place, SourceError
from envbuilder.lock.client import PythonClient
from envbuilder.lock.indexes import IndexFile, Wanted, find_file, index_named
from envbuilder.lock.mirrors import Mirrors
from envbuilder.lock.model import PythonArtifact
from envbuilder.lock.standins import write_stand_ins
from envbuilder.lock.suites import base_glibc
from envbuilder.lock.uv import Target, resolve
from envbuilder.stack.model import Stack

# PEP 600: the names that manylinux tags had before they were numbered by glibc.
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


def target_of(stack: Stack) -> Target:
    """What the stack's Python files must fit."""
    return Target(stack.python.version, base_glibc(stack))


def lock_python(
    stack: Stack,
    client: PythonClient,
    *,
    cutoff: date | None = None,
    offline: bool = False,
    sizes: Mapping[str, int] | None = None,
    mirrors: Mirrors | None = None,
    keep: Iterable[PythonArtifact] = (),
    found: IndexFiles | None = None,
) -> tuple[PythonArtifact, ...]:
    """Resolve the stack's Python requirements and choose one file for each package.

    ``cutoff`` replaces the stack's. ``sizes`` gives the bytes by SHA-256 for files whose size the index does not
    say, ``mirrors`` where other indexes are looked for (or ``found`` what was found there), ``keep`` files that stay
    at their version. An optional group whose files can be found nowhere is left out: see ``missing_groups``. Raises
    InputError when the pins contradict one another or a file has no SHA-256 or cannot be built.
    """
    target = target_of(stack)
    found = found or index_files(stack, offline=offline, mirrors=mirrors or Mirrors())
    files, lacking = found.files, found.lacking
    pins = {name: pin for name, pin in stack.python.packages.items() if pin.group not in lacking}
    kept = tuple(f"{artifact.name}=={artifact.version}" for artifact in keep)

    def resolved(requirements: list[str]) -> tuple[PythonArtifact, ...]:
        with tempfile.TemporaryDirectory(prefix="envbuilder-wheels-") as folder:
            links = write_stand_ins(files.values(), Path(folder)) if files else None
            pylock = resolve(
                requirements,
                target,
                client,
                cutoff=cutoff or stack.python.cutoff,
                offline=offline,
                find_links=links,
                constraints=kept,
            )
        return tuple(artifact for artifact, _ in chosen(pylock, target, sizes or {}, files))

    artifacts = resolved([f"{name}=={pin.version}" for name, pin in pins.items() if pin.group is None])
    for group in sorted({pin.group for pin in pins.values() if pin.group}):
        # What is locked already stays as it is; the group adds to it.
        wanted = [f"{a.name}=={a.version}" for a in artifacts]
        wanted += [f"{name}=={pin.version}" for name, pin in pins.items() if pin.group == group]
        known = {a.name for a in artifacts}
        artifacts += tuple(a.model_copy(update={"group": group}) for a in resolved(wanted) if a.name not in known)
    _check_buildable(stack, artifacts)
    return artifacts


def missing_groups(stack: Stack, artifacts: Iterable[PythonArtifact]) -> list[str]:
    """A sentence for each optional group of the stack that its lock does not hold."""
    held = {artifact.group for artifact in artifacts}
    pins = stack.python.packages
    said = []
    for group in sorted({pin.group for pin in pins.values() if pin.group} - held):
        names = ", ".join(f"{name} {pin.version}" for name, pin in pins.items() if pin.group == group)
        indexes = ", ".join(sorted({pin.index for pin in pins.values() if pin.group == group and pin.index}))
        said.append(
            f"group {group} is not locked: the digests of {names} are in no public record, "
            f"so it locks on a machine that reaches the index {indexes}."
        )
    return said


@dataclass(frozen=True)
class IndexFiles:
    """What indexes beside the default one hold of a stack: files by package, and the groups that cannot be locked."""

    files: Mapping[str, IndexFile]
    lacking: frozenset[str]


def index_files(stack: Stack, *, offline: bool, mirrors: Mirrors) -> IndexFiles:
    """Look up the pins that name an index. Raises as ``find_file`` does, unless the pin belongs to a group."""
    tags = python_tags(target_of(stack))
    files: dict[str, IndexFile] = {}
    lacking: set[str] = set()
    for name, pin in stack.python.packages.items():
        if pin.index is None or pin.group in lacking:
            continue
        index = index_named(pin.index, Place(f"stacks/{stack.name}.toml", field=f"python.packages.{name}.index"))
        try:
            files[name] = find_file(index, Wanted(name, pin.version, tags), mirrors, offline)
        except SourceError:
            if pin.group is None:
                raise
            lacking.add(pin.group)
    whole = {name: file for name, file in files.items() if stack.python.packages[name].group not in lacking}
    return IndexFiles(whole, frozenset(lacking))


def chosen(
    pylock: Pylock, target: Target, sizes: Mapping[str, int], files: Mapping[str, IndexFile] | None = None
) -> Iterator[tuple[PythonArtifact, str]]:
    """For each package of ``pylock`` the file that fits best (an sdist only where no wheel fits), and its address.

    ``files`` are those of other indexes, by package: they stand as recorded, and have no address here.
    """
    try:
        for package, file in pylock.select(environment=_environment(target), tags=python_tags(target)):
            assert isinstance(file, PackageWheel | PackageSdist)
            if files and package.name in files:
                yield _of_index(files[package.name]), ""
                continue
            sha256 = file.hashes.get("sha256")
            if sha256 is None:
                raise InputError(
                    f"the index gives no SHA-256 for {file.filename}",
                    cure="Use an index that does: pip config set global.index-url ADDRESS",
                )
            size = file.size if file.size is not None else sizes.get(sha256)
            artifact = PythonArtifact(
                name=package.name,
                version=str(package.version),
                filename=file.filename,
                sha256=sha256,
                size=size,
                index=None,
                group=None,
            )
            yield artifact, file.url or ""
    except PylockSelectError as error:
        raise InputError(
            f"no file fits Python {target.python} on Linux x86_64: {error}",
            cure="Pin a version that has a wheel for it, or a source distribution.",
        ) from error


def _of_index(file: IndexFile) -> PythonArtifact:
    return PythonArtifact(
        name=file.name,
        version=file.version,
        filename=file.filename,
        sha256=file.sha256,
        size=None,
        index=file.index,
        group=None,
    )


def _check_buildable(stack: Stack, artifacts: tuple[PythonArtifact, ...]) -> None:
    """The image is built without a network, so what sdists are built with must be in the lock too."""
    sources = [a.name for a in artifacts if a.is_sdist]
    if sources and not any(a.name == "setuptools" for a in artifacts):
        raise InputError(
            f"only sources exist of {', '.join(sources)}, and the lock has no setuptools to build them with",
            place=Place(f"stacks/{stack.name}.toml", field="python.packages"),
            cure="Pin setuptools in the stack.",
        )


def _environment(target: Target) -> Environment:
    """The markers' variables on the target (PEP 508). Those of a running kernel are unknown and empty."""
    full = target.python if target.python.count(".") == 2 else f"{target.python}.0"
    return {
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": full,
        "python_version": ".".join(full.split(".")[:2]),
        "sys_platform": "linux",
    }


@cache
def python_tags(target: Target) -> tuple[Tag, ...]:
    """The wheel tags that fit, best first."""
    version = tuple(int(part) for part in target.python.split(".")[:2])
    platforms = []
    for minor in range(int(target.glibc.split(".")[1]), 4, -1):
        platforms.append(f"manylinux_2_{minor}_x86_64")
        if minor in _LEGACY:
            platforms.append(f"{_LEGACY[minor]}_x86_64")
    platforms.append("linux_x86_64")
    interpreter = f"cp{version[0]}{version[1]}"
    return (*cpython_tags(version, platforms=platforms), *compatible_tags(version, interpreter, platforms))
