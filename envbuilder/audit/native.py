"""Beside the kernels: libraries that are missing, twice there, overwritten, or newer than the base's glibc."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from envbuilder import toml
from envbuilder.audit.binary import Binary
from envbuilder.audit.collect import Clash, Collection, is_candidate
from envbuilder.audit.rules import rule_for
from envbuilder.errors import Place
from envbuilder.report.model import Confidence, Finding, Severity

_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)")
_X86_64 = 62
_SHOWN = 8


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return toml.load(Path(__file__).with_name("native.toml"))


def native_findings(collection: Collection) -> list[Finding]:
    """What is wrong with the libraries of an environment or image; nothing for single files and wheels."""
    if collection.kind not in ("environment", "image"):
        return []
    linked = [b for b in collection.binaries if b.linkage is not None]
    return [
        *_missing(collection, linked),
        *_twice(collection, linked),
        *_clashes(collection, collection.clashes),
        *_glibc(collection, linked),
    ]


def glibc_floor(binaries: Iterable[Binary]) -> tuple[str, str]:
    """(release, file) of the newest glibc that a file asks for; two empty strings when none does."""
    best, release, path = (0, 0), "", ""
    for binary in binaries:
        for _, version in binary.linkage.versions if binary.linkage else ():
            match = _GLIBC.fullmatch(version)
            if match and (found := (int(match[1]), int(match[2]))) > best:
                best, release, path = found, f"{found[0]}.{found[1]}", binary.path
    return release, path


def _is_optional(path: str) -> bool:
    rule = rule_for(path)
    if rule and (rule.optional or rule.variants or rule.own_business):
        return True
    return any(fnmatchcase(path, glob) for row in _table()["optional"] for glob in row["needed_by"])


def _missing(collection: Collection, linked: Sequence[Binary]) -> list[Finding]:
    provided = {b.path.rsplit("/", 1)[-1] for b in collection.binaries}
    provided |= {b.linkage.soname for b in linked if b.linkage}
    outside = [*_table()["driver"], *([] if collection.complete else _table()["base"])]
    lacking: dict[str, list[str]] = defaultdict(list)
    for binary in linked:
        if binary.machine != _X86_64 or _is_optional(binary.path):
            continue
        for name in binary.linkage.needed if binary.linkage else ():
            if name not in provided and not any(fnmatchcase(name, glob) for glob in outside):
                lacking[name].append(binary.path)
    if not lacking:
        return []
    evidence = [f"{name}: needed by {_some(paths)}" for name, paths in sorted(lacking.items())]
    if collection.complete:
        return [
            Finding(
                rule="library-missing",
                severity=Severity.ERROR,
                title=f"{_count(len(lacking), 'library', 'libraries')} needed and not there: {_some(sorted(lacking))}",
                place=Place(collection.subject),
                cause="Importing what needs them ends in `cannot open shared object file: No such file or directory`.",
                cure="Install the packages that hold them, or a build that does not need them.",
                evidence=_few(evidence),
                confidence=Confidence.MEASURED,
            )
        ]
    return [
        Finding(
            rule="library-of-the-base",
            severity=Severity.ADVICE,
            title=f"the system must bring {_count(len(lacking), 'library', 'libraries')}: {_some(sorted(lacking))}",
            place=Place(collection.subject),
            cause="They are in no package of this environment and not among those that every system has.",
            evidence=_few(evidence),
            confidence=Confidence.MEASURED,
        )
    ]


def _twice(collection: Collection, linked: Sequence[Binary]) -> list[Finding]:
    found = []
    for row in _table()["once"]:
        places: dict[str, list[str]] = defaultdict(list)
        for binary in linked:
            name = binary.path.rsplit("/", 1)[-1]
            soname = (binary.linkage.soname if binary.linkage else "") or name
            if fnmatchcase(soname, row["files"]) and not binary.path.startswith(("usr/lib/", "lib/")):
                places[soname].append(binary.path)
        if len(places) > 1:
            found.append(
                Finding(
                    rule="library-in-two-majors",
                    severity=Severity.WARNING,
                    title=f"{row['title']} is there in {len(places)} versions: {', '.join(sorted(places))}",
                    place=Place(collection.subject),
                    cause="Whichever is loaded first serves all; code built for the other then fails or crashes.",
                    cure="Keep the one that torch was built for, and uninstall the packages that bring the others.",
                    evidence=_few(f"{name}: {_some(paths)}" for name, paths in sorted(places.items())),
                    sources=(row["source"],),
                )
            )
            continue
        for name, copies in places.items():
            # auditwheel puts a wheel's private copies there; nobody else finds them.
            paths = [path for path in copies if ".libs/" not in path]
            if len(paths) < 2:
                continue
            found.append(
                Finding(
                    rule="library-twice",
                    severity=Severity.WARNING,
                    title=f"{row['title']} is there {len(paths)} times as {name}",
                    place=Place(collection.subject),
                    cause="Which one is loaded depends on the order of imports and on LD_LIBRARY_PATH.",
                    cure="Keep one of them.",
                    evidence=_few(sorted(paths)),
                    sources=(row["source"],),
                )
            )
    return found


def _clashes(collection: Collection, clashes: Sequence[Clash]) -> list[Finding]:
    pairs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for clash in clashes:
        if is_candidate(clash.path.rsplit("/", 1)[-1]):
            pairs[(clash.first, clash.second)].append(clash.path)
    return [
        Finding(
            rule="two-packages-own-a-file",
            severity=Severity.ERROR,
            title=f"{first} and {second} both own {_count(len(paths), 'file', 'files')}, with different bytes",
            place=Place(collection.subject),
            cause="The one that was installed last has overwritten the other, whatever their versions say.",
            cure="Uninstall both, then install the one that torch needs.",
            evidence=_few(sorted(paths)),
            confidence=Confidence.MEASURED,
        )
        for (first, second), paths in sorted(pairs.items())
    ]


def _glibc(collection: Collection, linked: Sequence[Binary]) -> list[Finding]:
    release, path = glibc_floor(b for b in linked if b.machine == _X86_64 and not _is_optional(b.path))
    if not release or not collection.glibc or _numbers(release) <= _numbers(collection.glibc):
        return []
    return [
        Finding(
            rule="glibc-too-old",
            severity=Severity.ERROR,
            title=f"{path} asks for glibc {release}, the base has {collection.glibc}",
            place=Place(collection.subject),
            cause=f"Loading it ends in `version GLIBC_{release} not found`.",
            cure="Take a newer base, or a wheel built for an older one. Its tag does not tell: this was read from it.",
            confidence=Confidence.MEASURED,
        )
    ]


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _few(lines: Iterable[str]) -> tuple[str, ...]:
    found = list(lines)
    return (*found[:_SHOWN], f"and {len(found) - _SHOWN} more") if len(found) > _SHOWN else tuple(found)
