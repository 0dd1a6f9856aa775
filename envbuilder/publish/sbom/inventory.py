"""An image's contents: every package of its databases, held against its lock, and the files of none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from envbuilder.errors import EnvbuilderError
from envbuilder.lock.model import Lock
from envbuilder.lock.reading import load_lock
from envbuilder.publish.sbom.conda import conda_records, record_names
from envbuilder.publish.sbom.debian import debian_packages, listed_names, system_of
from envbuilder.publish.sbom.locked import Locked
from envbuilder.publish.sbom.model import Component, Contents, Kind, System
from envbuilder.publish.sbom.purl import purl
from envbuilder.publish.sbom.python import distributions, recorded_names
from envbuilder.publish.sbom.reading import Reading, read_contents
from envbuilder.report.progress import Progress
from envbuilder.stack.loading import load_stack

_STACK = "opt/envbuilder/stack.json"
_OWN = "/site-packages/envbuilder/"
_VERSION = re.compile(r"^__version__ = [\"']([^\"']+)[\"']", re.MULTILINE)


@dataclass(frozen=True)
class _Said:
    """What the image says of itself; every field is empty in an image that is not envbuilder's."""

    stack: str = ""
    gpu: str = ""
    lock: str = ""
    time: int = 0


def contents_of(target: str, progress: Progress, lock: Lock | None = None, engine: str = "") -> Contents:
    """What is in the image ``target``: an image of a local store, an archive, an OCI layout.

    ``lock`` is the image's; without it, that of the stack the image names, if it is at hand and the same one.
    ``engine`` is the one whose store is meant, empty for any. Raises
    InputError when there is no such image or it is damaged.
    """
    progress.stage(f"read the package databases of {target}")
    reading = Reading()
    digest = read_contents(target, reading, progress, engine)
    said = _said(reading)
    lock = lock or _lock_of(said)
    locked = Locked(lock)
    system = system_of(reading)
    owned: dict[str, str] = {}
    components: list[Component] = []
    for component, paths in _packages(reading, system):
        files = 0
        for path in paths:
            if path in reading.paths:
                # conda lists what it installed with pip too; the first to name a file owns it.
                owned.setdefault(path, component.purl)
                files += 1
        components.append(replace(component, files=files))
    named = [locked.named(component) for component in components]
    # What is carried by another may be there by itself too, and that one counts.
    named.sort(key=lambda c: "within" not in c.properties)
    components = sorted({c.purl: c for c in (*named, *locked.images())}.values(), key=lambda c: (c.kind.value, c.purl))
    return Contents(
        name=said.stack or target.rpartition("/")[2],
        digest=digest,
        components=tuple(components),
        system=system,
        stack=said.stack,
        gpu=said.gpu,
        lock=said.lock,
        lock_read=lock is not None,
        time=said.time,
        files=len(reading.paths),
        owners=frozenset(_owners(reading)),
        unlocked=tuple(c for c in components if locked.lacks(c)),
        strangers=tuple(sorted(path for path in reading.paths if path not in owned)),
        unseen=tuple(reading.missed),
    )


def _packages(reading: Reading, system: System) -> Iterator[tuple[Component, Iterable[str]]]:
    """Every package with the paths it lists."""
    by_others: dict[str, Component] = {}
    for package in (*debian_packages(reading, system), *conda_records(reading)):
        by_others.update(dict.fromkeys(package.paths, package.component))
        yield package.component, package.paths
    python = list(distributions(reading))
    for found in python:
        # A wheel may carry others inside it (setuptools does): they are installed with it, not by themselves.
        carried = (path for path in found.paths if path.endswith(".dist-info/METADATA") and path != found.metadata)
        by_others.update({path: found.component for path in carried if path not in by_others})
    for found in python:
        within = by_others.get(found.metadata)
        if within is not None and within.kind is Kind.DEBIAN:
            continue  # python3-NAME of Debian: the package is the unit, and its version Debian's
        component = found.component
        if within is not None:
            component = replace(component, properties={**component.properties, "within": within.purl})
        yield component, found.paths
    own = [path for path in reading.paths if _OWN in path or path.startswith("opt/envbuilder/")]
    init = next((p for p in own if p.endswith(f"{_OWN}__init__.py")), "")
    match = _VERSION.search(reading.texts.get(init, ""))
    if match:
        version = match.group(1)
        licence = ("Apache-2.0",)
        yield Component(Kind.OWN, "envbuilder", version, purl("generic", "envbuilder", version), licence), own


def _owners(reading: Reading) -> Iterator[tuple[Kind, str]]:
    """(kind, name) of every package whose database lists a file of the image, by the names of the databases alone.

    A distribution whose METADATA a Debian package lists is that package's.
    """
    of_debian: set[str] = set()
    for name, paths in listed_names(reading):
        there = {reading.real(path) for path in paths if len(path) > 1} & reading.paths.keys()
        of_debian |= there
        if there:
            yield Kind.DEBIAN, name
    for kind, names in ((Kind.CONDA, record_names(reading)), (Kind.PYTHON, recorded_names(reading))):
        for name, paths in names:
            there = {reading.real(path) for path in paths} & reading.paths.keys()
            within = kind is Kind.PYTHON and any(p.endswith(".dist-info/METADATA") and p in of_debian for p in there)
            if there and not within:
                yield kind, name


def _said(reading: Reading) -> _Said:
    try:
        data: Any = json.loads(reading.texts.get(_STACK, "{}"))
        stack, gpu = data.get("stack", {}), data.get("gpu", {})
        time = int(stack.get("source_date_epoch", 0))
        return _Said(str(stack.get("name", "")), str(gpu.get("name", "")), str(data.get("lock", "")), time)
    except (ValueError, TypeError, AttributeError, RecursionError):
        reading.unseen(f"{_STACK}: not what envbuilder writes")
        return _Said()


def _lock_of(said: _Said) -> Lock | None:
    """The lock of the stack an image names, when it is at hand and has the digest the image bears."""
    if not said.stack:
        return None
    try:
        lock = load_lock(load_stack(said.stack)[0])
    except EnvbuilderError:
        return None
    return lock if lock.digest == said.lock else None
