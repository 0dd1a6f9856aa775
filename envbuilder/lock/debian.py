"""The Debian half of a lock: every package of the base and of the devel target, resolved by apt itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from filelock import FileLock

from envbuilder import data
from envbuilder.errors import InputError, Place
from envbuilder.lock.apt import Archive, Download, PrivateApt
from envbuilder.lock.archives import mirror_of
from envbuilder.lock.model import DebArtifact, DebianBase
from envbuilder.stack.model import DebianPart, Stack
from envbuilder.stack.settings import Settings

# What mmdebstrap's variant minbase installs before it looks at --include.
_MINBASE = ("?essential", "?priority(required)", "apt")


def lock_debian(stack: Stack, settings: Settings, *, security: bool = False, offline: bool = False) -> DebianBase:
    """Resolve the stack's Debian packages on an empty machine.

    ``security`` also reads the security archive. ``offline`` resolves from the indexes of the last run.
    Raises SourceError when the mirror does not answer, InputError when it serves another point release than the
    stack names or the packages cannot be installed.
    """
    part = stack.debian
    assert part is not None, "only for stacks with a Debian base"
    archives = _archives(part, settings, security)
    folder = _state(archives)
    with FileLock(f"{folder}.lock"):
        apt = PrivateApt(folder, archives)
        if not offline:
            apt.update()
        release = apt.release(part.suite)
        _check_release(stack, part, release, offline)
        runtime = [*apt.install([*_MINBASE, *part.packages], part.components)]
        names = [download.file.split("_")[0] for download in runtime]
        devel = [*apt.install([*_MINBASE, *names, *part.devel], part.devel_components)] if part.devel else []
    base = {download.uri for download in runtime}
    packages = (
        *_artifacts(runtime, archives, "runtime"),
        *_artifacts((d for d in devel if d.uri not in base), archives, "devel"),
    )
    return DebianBase(suite=part.suite, release=release, security=security, packages=packages)


def _archives(part: DebianPart, settings: Settings, security: bool) -> list[Archive]:
    components = tuple(dict.fromkeys((*part.components, *part.devel_components)))
    suites = [part.suite, f"{part.suite}-security"] if security else [part.suite]
    return [Archive(mirror_of(suite, settings), suite, components) for suite in suites]


def _state(archives: Iterable[Archive]) -> Path:
    """A folder for these archives at these mirrors: indexes of different mirrors do not mix."""
    name = hashlib.sha256(repr(tuple(archives)).encode()).hexdigest()[:16]
    return data.cache_folder("apt") / name


def _check_release(stack: Stack, part: DebianPart, release: str, offline: bool) -> None:
    if release == part.point_release:
        return
    place = Place(f"stacks/{stack.name}.toml", field="debian.point_release")
    if not release:
        raise InputError(
            f"no index of {part.suite} is known here" + (" (--offline)" if offline else ""),
            place=place,
            cure="Run it once with the network.",
        )
    raise InputError(
        f"the mirror serves {part.suite} {release}, the stack is made of {part.point_release}",
        place=place,
        cure=f'Use a mirror that is up to date, or set point_release = "{release}".',
    )


def _artifacts(
    downloads: Iterable[Download], archives: list[Archive], target: Literal["runtime", "devel"]
) -> Iterable[DebArtifact]:
    for download in downloads:
        archive = next(a for a in archives if download.uri.startswith(f"{a.mirror}/"))
        path = unquote(download.uri.removeprefix(f"{archive.mirror}/"))
        name, version, architecture = download.file.removesuffix(".deb").split("_")
        # pool/COMPONENT/... in Debian's archive, pool/updates/COMPONENT/... in that of security updates.
        component = path.removeprefix("pool/").removeprefix("updates/").split("/")[0]
        yield DebArtifact(
            name=name,
            version=unquote(version),
            architecture=architecture,
            suite=archive.suite,
            component=component,
            path=path,
            sha256=download.sha256,
            size=download.size,
            target=target,
        )
