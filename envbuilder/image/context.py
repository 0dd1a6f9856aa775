"""What a build is given: the context and the named contexts, laid out as links to the cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import uv

from envbuilder.errors import IntegrityError, Place
from envbuilder.fetch.fetching import Cached, Fetched
from envbuilder.fetch.view import folder_of
from envbuilder.files import sha256_of
from envbuilder.lock.model import Lock
from envbuilder.lock.reading import CONDA, REQUIREMENTS, lock_folder
from envbuilder.render.groups import python_groups
from envbuilder.report.progress import Progress
from envbuilder.stack.gpu import GpuProfile
from envbuilder.stack.manifest import image_manifest_text
from envbuilder.stack.model import Stack

_PACKAGE = Path(__file__).resolve().parent.parent
_SECOND = 10**9
# What runs inside the image: the suite, what it reports with, and what verl's workers import in a training run. Nothing
# else of envbuilder is needed there.
_KINDS = (".py", ".json", ".toml", ".cu")
_TRAINING = ("train/__init__.py", "train/external_lib.py", "train/rollout", "train/step")
_IN_THE_IMAGE = ("__init__.py", "errors.py", "report", "smoke", *_TRAINING)


def wheels_context(folder: Path, lock: Lock, files: Mapping[str, Cached]) -> None:
    """One folder a layer: the locked files (by their SHA-256 in ``files``), their hashes, and the installer."""
    for group in python_groups(lock):
        layer = folder_of((files[a.sha256] for a in group.artifacts), folder / group.name)
        (layer / "requirements.txt").write_text(group.requirements, encoding="utf-8")
        shutil.copyfile(uv.find_uv_bin(), layer / "uv")
        (layer / "uv").chmod(0o755)


def debs_context(folder: Path, lock: Lock, files: Mapping[str, Cached]) -> None:
    """The Debian packages of the devel target, in the folder ``devel``."""
    devel = (deb.sha256 for deb in lock.debs if deb.target == "devel")
    folder_of((files[sha256] for sha256 in devel if sha256 in files), folder / "devel")


def check_bytes(files: Mapping[str, Cached], progress: Progress) -> None:
    """Hold every file against the SHA-256 it is known by: what lies in a cache may have been changed since.

    Raises IntegrityError naming the file. The installers look too, but not all of them and not all as clearly.
    """
    total, done = sum(file.size for file in files.values()), 0
    progress.stage(f"check {len(files)} files against the lock")
    for sha256, file in files.items():
        progress.item(file.filename)
        if sha256_of(file.path) != sha256:
            raise IntegrityError(
                f"the bytes of {file.filename} in the cache are not those of the lock",
                place=Place(str(file.path)),
                cure="Remove the file and run the command again: it is fetched anew.",
            )
        done += file.size
        progress.advance(done, total)


def own_files(folder: Path, stack: Stack, gpu: GpuProfile, lock: Lock) -> None:
    """The part of envbuilder that runs in the image, and what it needs to know of stack, card and lock."""
    for name in _IN_THE_IMAGE:
        source = _PACKAGE / name
        for path in [source] if source.is_file() else sorted(p for p in source.rglob("*") if p.suffix in _KINDS):
            target = folder / "envbuilder" / path.relative_to(_PACKAGE)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o644)
    (folder / f"stack.{stack.name}.json").write_text(image_manifest_text(stack, gpu, lock.digest), encoding="utf-8")


def same_everywhere(folder: Path, time: int) -> None:
    """Give all of ``folder`` the same times (seconds since 1970), modes and owners on every host.

    The engine's history holds a hash of what a COPY copies, with all of these. The group would otherwise be the
    parent folder's where that is shared (setgid). BuildKit takes a file of the same size and time as that of an
    earlier build to be the same one, so files of other content differ in their nanoseconds, which no layer holds.
    """
    for path in (folder, *folder.rglob("*")):
        os.chown(path, os.geteuid(), os.getegid())
        path.chmod(0o755 if path.is_dir() else 0o644)
        moment = time * _SECOND + (0 if path.is_dir() else 1 + int(sha256_of(path), 16) % (_SECOND - 1))
        os.utime(path, ns=(moment, moment))


def lock_files(folder: Path, stack: str) -> None:
    """The lock files that a Dockerfile with a conda environment copies."""
    source = lock_folder(stack)
    assert source is not None, "the lock was loaded before"
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    for suffix in (CONDA, REQUIREMENTS):
        shutil.copyfile(source / f"{stack}{suffix}", folder / "locks" / f"{stack}{suffix}")


def files_context(folder: Path, lock: Lock, fetched: Fetched) -> None:
    """What a Dockerfile with a conda environment would download: ``conda`` with its explicit list, and ``wheels``."""
    folder_of(fetched.conda, folder / "conda")
    lines = [f"file:///mnt/conda/{package.filename}#{package.md5}" for package in lock.conda]
    (folder / "conda" / "explicit.txt").write_text("\n".join(["@EXPLICIT", *lines]) + "\n", encoding="utf-8")
    folder_of(fetched.python, folder / "wheels")
