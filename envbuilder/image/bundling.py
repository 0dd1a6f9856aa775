"""A bundle: a stack, its lock and every file the lock names, in one tar for a host without a network.

Inside lie ``bundle.json`` (what it is), ``project/`` (stack, card, lock, Dockerfile) and ``cache/``, laid out as the
cache is: the name of each file there is the digest of its bytes, and that is checked when it is unpacked. The same
lock gives the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from envbuilder import data
from envbuilder.errors import HostError, InputError, IntegrityError, Place
from envbuilder.fetch.fetching import fetch
from envbuilder.fetch.git import repository_of
from envbuilder.fetch.images import cached_paths
from envbuilder.files import replacing
from envbuilder.lock.model import Lock
from envbuilder.lock.reading import lock_folder
from envbuilder.render.outputs import outputs
from envbuilder.report.progress import Progress
from envbuilder.stack.gpu import GpuProfile
from envbuilder.stack.model import Stack

SCHEMA = 1
_CHUNK = 1 << 20
_HASHED = re.compile(r"^cache/(?P<algorithm>sha256|md5)/[0-9a-f]{2}/(?P<hex>[0-9a-f]{32,64})$")
_GIT = re.compile(r"^cache/git/[0-9a-f]{2}/[0-9a-f]{40}/(?:[A-Za-z0-9._-]+/)*[A-Za-z0-9._-]+$")
_PROJECT = re.compile(
    r"^project/(?:stacks|gpus|locks)/[A-Za-z0-9][A-Za-z0-9._-]*$|^project/[A-Za-z0-9][A-Za-z0-9._-]*$"
)
# What belongs to a checkout of a bare repository and not to one host: hooks and logs stay behind.
_GIT_KEPT = ("HEAD", "config", "packed-refs", "shallow", "FETCH_HEAD")


@dataclass(frozen=True)
class Bundle:
    """An unpacked bundle: ``project`` is the folder with its stack and lock; its files are in the cache."""

    stack: str
    digest: str
    project: Path


def write_bundle(stack: Stack, gpu: GpuProfile, lock: Lock, path: Path, progress: Progress) -> int:
    """Fetch what is missing and write the bundle; its size in bytes. The file has its name only when it is whole.

    Raises as fetching does, and HostError when the disk is full.
    """
    fetched = fetch(stack, lock, progress)
    files = {f"cache/{p.relative_to(data.cache_root()).as_posix()}": p for p in _cache_files(fetched, lock)}
    texts = {**_project(stack, gpu, lock), "bundle.json": _about(stack, lock)}
    total = sum(p.stat().st_size for p in files.values())
    progress.stage(f"packing {len(files)} files, {total / 1e9:.2f} GB")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            replacing(path) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name in sorted(texts):
                _add(tar, name, io.BytesIO(texts[name].encode()), len(texts[name].encode()), stack)
            done = 0
            for name in sorted(files):
                progress.item(name)
                with files[name].open("rb") as source:
                    _add(tar, name, source, files[name].stat().st_size, stack)
                done += files[name].stat().st_size
                progress.advance(done, total)
    except OSError as error:
        raise HostError(
            f"the bundle cannot be written: {error.strerror}",
            place=Place(str(path)),
            cure=f"It needs {total / 1e9:.1f} GB: free some space or choose another folder.",
        ) from error
    return path.stat().st_size


def _cache_files(fetched: Any, lock: Lock) -> Iterator[Path]:
    yield from (file.path for file in (*fetched.python, *fetched.debs, *fetched.conda))
    yield from cached_paths(fetched.images)
    for artifact in lock.git:
        repository = repository_of(artifact)
        for item in sorted(repository.rglob("*")):
            inner = item.relative_to(repository)
            if item.is_file() and (inner.parts[0] in ("objects", "refs") or str(inner) in _GIT_KEPT):
                yield item


def _project(stack: Stack, gpu: GpuProfile, lock: Lock) -> dict[str, str]:
    folder = lock_folder(stack.name)
    assert folder is not None, "the lock was loaded before"
    paths = {
        f"project/stacks/{stack.name}.toml": data.find("stacks", f"{stack.name}.toml"),
        f"project/gpus/{stack.gpu}.toml": data.find("gpus", f"{stack.gpu}.toml"),
        **{f"project/locks/{path.name}": path for path in sorted(folder.glob(f"{stack.name}.*"))},
    }
    texts = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    return {**texts, **{f"project/{name}": text for name, text in outputs(stack, gpu, lock).items()}}


def _about(stack: Stack, lock: Lock) -> str:
    return json.dumps({"schema": SCHEMA, "stack": stack.name, "lock": lock.digest}, indent=2, sort_keys=True) + "\n"


def _add(tar: tarfile.TarFile, name: str, source: IO[bytes], size: int, stack: Stack) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, stack.source_date_epoch, 0o644
    tar.addfile(member, source)


def unpack_bundle(path: Path, progress: Progress) -> Bundle:
    """Put a bundle's files into the cache, each held against its digest, and its project beside them.

    Raises InputError for what is no bundle, IntegrityError for bytes that are not their name's.
    """
    try:
        with tarfile.open(path, mode="r:") as tar:
            return _unpack(tar, path, progress)
    except FileNotFoundError:
        raise InputError("there is no such file", place=Place(str(path))) from None
    except (tarfile.TarError, EOFError) as error:
        raise InputError(
            f"this is no bundle, or one that was cut short: {error}",
            place=Place(str(path)),
            cure="Copy it again; `sha256sum` on both hosts shows whether it came whole.",
        ) from None
    except OSError as error:
        raise HostError(
            f"the bundle cannot be unpacked: {error.strerror}",
            place=Place(str(error.filename or path)),
            cure="Free some space, or set ENVBUILDER_CACHE to a folder on a larger disk.",
        ) from error


def _unpack(tar: tarfile.TarFile, path: Path, progress: Progress) -> Bundle:
    first = tar.next()
    if first is None or first.name != "bundle.json":
        raise _no_bundle(path, "its first file is not bundle.json")
    about = json.loads(_read(tar, first, path, limit=_CHUNK))
    if about.get("schema") != SCHEMA:
        raise _no_bundle(path, f"it has schema {about.get('schema')}, this envbuilder reads {SCHEMA}")
    total = path.stat().st_size
    progress.stage(f"unpacking {path.name}, {total / 1e9:.2f} GB")
    project = data.cache_folder("bundles", str(about["lock"]).removeprefix("sha256:"))
    while (member := tar.next()) is not None:
        progress.item(member.name)
        progress.advance(member.offset_data, total)
        if not member.isfile():
            raise _no_bundle(path, f"{member.name} is not a plain file")
        if found := _HASHED.match(member.name):
            _keep_hashed(tar, member, path, found["algorithm"], found["hex"])
        elif _GIT.match(member.name) and ".." not in PurePosixPath(member.name).parts:
            # Git checks these itself: every object's name is its hash.
            inner = PurePosixPath(member.name).relative_to("cache")
            _keep(tar, member, path, data.cache_root() / inner)
            # A repository needs this folder, and a tar of files has no empty ones.
            data.cache_root().joinpath(*inner.parts[:3], "refs").mkdir(exist_ok=True)
        elif _PROJECT.match(member.name):
            _keep(tar, member, path, project / PurePosixPath(member.name).relative_to("project"))
        else:
            raise _no_bundle(path, f"{member.name} does not belong in one")
    return Bundle(str(about["stack"]), str(about["lock"]), project)


def _keep_hashed(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path, algorithm: str, digest: str) -> None:
    target = data.cache_root() / algorithm / digest[:2] / digest
    if target.is_file() and target.stat().st_size == member.size:
        return
    _keep(tar, member, path, target, hashlib.new(algorithm, usedforsecurity=False), digest)


def _keep(
    tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path, target: Path, hasher: Any = None, digest: str = ""
) -> None:
    """Write a member to ``target`` through a temporary file, whole or not at all."""
    source = tar.extractfile(member)
    assert source is not None, "a plain file was asked for"
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".bundle.")
    try:
        size = 0
        with os.fdopen(handle, "wb") as stream:
            while chunk := source.read(_CHUNK):
                size += len(chunk)
                stream.write(chunk)
                if hasher is not None:
                    hasher.update(chunk)
        if size != member.size or (hasher is not None and hasher.hexdigest() != digest):
            raise IntegrityError(
                f"the bytes of {member.name} are not those of its name",
                place=Place(str(path)),
                cure="The bundle was damaged or changed: copy it again from where it was made.",
            )
        Path(temporary).chmod(0o444 if hasher is not None else 0o644)
        Path(temporary).replace(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path, limit: int) -> bytes:
    source = tar.extractfile(member) if member.isfile() else None
    if source is None or member.size > limit:
        raise _no_bundle(path, f"{member.name} is not what it should be")
    return source.read()


def _no_bundle(path: Path, why: str) -> InputError:
    return InputError(
        f"this is no bundle: {why}", place=Place(str(path)), cure="Make one: envbuilder bundle STACK FILE"
    )
