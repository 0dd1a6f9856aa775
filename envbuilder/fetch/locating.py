"""Where the files of a lock are for this host, by the client's own settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import requests

from envbuilder.errors import InputError, Place, SourceError
from envbuilder.fetch.download import Location
from envbuilder.fetch.transport import debian_session, new_session, python_session
from envbuilder.lock.archives import mirror_of
from envbuilder.lock.client import python_client
from envbuilder.lock.indexes import index_named
from envbuilder.lock.mirrors import Mirrors
from envbuilder.lock.model import CondaArtifact, DebArtifact, Lock, PythonArtifact
from envbuilder.lock.python import target_of
from envbuilder.lock.uv import resolve
from envbuilder.stack.model import Stack
from envbuilder.stack.settings import Settings


def locate_python(stack: Stack, artifacts: Iterable[PythonArtifact]) -> dict[str, Location]:
    """The locations by SHA-256: the index is asked once, through uv, for the files of exactly these versions.

    Raises SourceError when the index no longer lists a file with the lock's bytes.
    """
    wanted = [artifact for artifact in artifacts if artifact.index is None]
    client = python_client()
    session = python_session(client)
    gone = f"Ask the index for it, or lock anew and see what changes: envbuilder lock {stack.name}"
    try:
        pylock = resolve([f"{a.name}=={a.version}" for a in wanted], target_of(stack), client, dependencies=False)
    except InputError as error:
        raise SourceError(
            "the Python index no longer lists all that the lock names", cure=gone, detail=error.detail
        ) from error
    found: dict[str, Location] = {}
    for package in pylock.packages:
        for file in [*(package.wheels or ()), *([package.sdist] if package.sdist else ())]:
            url = file.url or (Path(file.path).absolute().as_uri() if file.path else "")
            found[file.hashes.get("sha256", "")] = Location(url, session, gone)
    missing = [a for a in wanted if a.sha256 not in found]
    if missing:
        raise SourceError(
            f"the Python index does not list {missing[0].filename} with the lock's SHA-256",
            cure=gone,
            detail="\n".join(f"{a.filename} sha256:{a.sha256}" for a in missing[:10]),
        )
    return {a.sha256: found[a.sha256] for a in wanted}


def locate_indexed(artifacts: Iterable[PythonArtifact], mirrors: Mirrors) -> dict[str, Location]:
    """The locations by SHA-256 of files from indexes beside the default one: beside the index's own pages.

    That is where the PyTorch index and its mirrors keep them; a name may be escaped or not there.
    """
    session = new_session()
    found: dict[str, Location] = {}
    for artifact in artifacts:
        if artifact.index is not None:
            index = index_named(artifact.index, Place(field=artifact.name))
            urls = [f"{address}/{quote(artifact.filename)}" for address in mirrors.addresses(index.url)]
            found[artifact.sha256] = in_order(urls, session, "Set a mirror in envbuilder.toml (docs/mirrors.md).")
    return found


def locate_conda(artifacts: Iterable[CondaArtifact], mirrors: Mirrors) -> dict[str, Location]:
    """The locations by digest of conda packages: at their channel's mirrors, then at the channel."""
    session = new_session()
    gone = "Set a mirror that still has it in envbuilder.toml (docs/mirrors.md), or lock anew."
    return {(a.sha256 or a.md5): in_order(mirrors.addresses(a.url), session, gone) for a in artifacts}


def in_order(urls: Sequence[str], session: requests.Session, gone: str) -> Location:
    """The first of ``urls``, and the others to try when it does not serve the file."""
    first, *rest = [Location(url, session, gone) for url in urls]
    return replace(first, then=tuple(rest))


def locate_debs(lock: Lock, debs: Iterable[DebArtifact], settings: Settings) -> dict[str, Location]:
    """The locations by SHA-256: a package's path is the same on every mirror."""
    by_suite: Mapping[str, list[DebArtifact]] = defaultdict(list)
    for deb in debs:
        by_suite[deb.suite].append(deb)
    gone = f"Lock the base anew and see what changes: envbuilder lock {lock.stack}"
    found: dict[str, Location] = {}
    for suite, packages in by_suite.items():
        mirror = mirror_of(suite, settings)
        session = debian_session(mirror)
        for deb in packages:
            found[deb.sha256] = Location(f"{mirror}/{deb.path}", session, gone)
    return found
