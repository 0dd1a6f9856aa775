"""A stack, its lock and an engine: an image. Everything is fetched and verified first; no step uses the network."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envbuilder import data
from envbuilder.audit.store import punch_image
from envbuilder.errors import InputError
from envbuilder.fetch.fetching import Cached, fetch
from envbuilder.fetch.git import checkout
from envbuilder.fetch.images import oci_layout
from envbuilder.fetch.view import folder_of
from envbuilder.image import space
from envbuilder.image.alone import alone
from envbuilder.image.audited import audited
from envbuilder.image.context import (
    check_bytes,
    debs_context,
    files_context,
    lock_files,
    own_files,
    same_everywhere,
    wheels_context,
)
from envbuilder.image.engine import BuildRequest, Engine, ImageInfo
from envbuilder.image.names import TARGET_LABEL, image_tag
from envbuilder.image.rootfs import rootfs
from envbuilder.image.scratch import scratch
from envbuilder.image.slimming import SLIM_LABEL, slim_digest, slim_source
from envbuilder.image.uv_version import uv_version
from envbuilder.lock.model import Lock
from envbuilder.render.dockerfile import dockerfile
from envbuilder.render.groups import python_groups
from envbuilder.render.templates import pinned
from envbuilder.report.progress import Progress
from envbuilder.stack.gpu import GpuProfile
from envbuilder.stack.model import Stack

TARGETS = ("runtime", "devel")
# Bytes of an image for a byte of packed wheels, conda packages and layers, with the stages in between.
_UNPACKED = 4
# What the image was made of: Dockerfile, own files, installer. An image that bears the same is not built again.
INPUTS_LABEL = "io.envbuilder.inputs"


@dataclass(frozen=True)
class Recipe:
    """What an image is made of: a stack with its card and lock, the target, and whether it is slim."""

    stack: Stack
    gpu: GpuProfile
    lock: Lock
    target: str = "runtime"
    slim: bool = False


@dataclass(frozen=True)
class Built:
    """The outcome. ``anew`` is False when the image was there already; ``seconds`` is the time of this run.

    ``identity`` is the id that the image has wherever it is pulled (``Engine.identity``).
    ``audit`` is what the audit of the image found, for the build record.
    """

    image: ImageInfo
    identity: str
    target: str
    inputs: str
    anew: bool
    seconds: float
    audit: Mapping[str, Any] | None = None
    slim: bool = False


def build_stack(
    stack: Stack,
    gpu: GpuProfile,
    lock: Lock,
    engine: Engine,
    progress: Progress,
    *,
    target: str = "runtime",
    cache: bool = True,
    slim: bool = False,
) -> Built:
    """Build the image of ``stack`` unless it is there. Another build of the same image is waited for.

    ``slim`` blanks device code that the stack's card can never run, in an image of its own name.

    Raises SourceError and IntegrityError as fetching does, HostError (no mmdebstrap, too little space), BuildError:
    a step failed, or the image's CUDA code cannot run on the card.
    """
    if target not in TARGETS:
        raise InputError(f"there is no target {target!r}", cure=f"One of: {', '.join(TARGETS)}.")
    if slim and not stack.debian:
        raise InputError(
            f"{stack.name} has no Debian base, and only such an image can be built slim",
            cure="Build it without --slim, then slim its environment: envbuilder slim DIR --gpu CARD",
        )
    started = time.monotonic()
    recipe = Recipe(stack, gpu, lock, target, slim)
    tag = image_tag(stack.name, target, slim=slim)
    with alone(_lock_file(tag), f"another build of {tag}", progress), scratch() as folder:
        text, inputs = _lay_out(folder / "context", recipe)
        there = engine.image(tag) if cache else None
        if there and there.labels.get(INPUTS_LABEL) == inputs:
            found = audited(there, engine, gpu, progress)
            identity = engine.identity(there, progress)
            return Built(there, identity, target, inputs, False, time.monotonic() - started, found, slim)
        request = _request(recipe, tag, folder, text, inputs, engine, progress)
        image = engine.build(replace(request, cache=cache), progress)
        found = audited(image, engine, gpu, progress)
        if slim and engine.name == "buildah":
            progress.stage("give back the disk space of blanked code")
            progress.log(f"{punch_image(tag)} bytes")
        identity = engine.identity(image, progress)
        return Built(image, identity, target, inputs, True, time.monotonic() - started, found, slim)


def rebuild(recipe: Recipe, tag: str, engine: Engine, progress: Progress) -> ImageInfo:
    """Build an image once more under the name ``tag``, no layer of it out of the engine's store; it is not audited.

    Raises as ``build_stack`` does.
    """
    with scratch() as folder:
        request = _request(recipe, tag, folder, *_lay_out(folder / "context", recipe), engine, progress)
        return engine.build(replace(request, cache=False), progress)


def inputs_digest(recipe: Recipe) -> str:
    """What an image built now would bear as INPUTS_LABEL."""
    with scratch() as folder:
        return _lay_out(folder / "context", recipe)[1]


def _request(
    recipe: Recipe, tag: str, folder: Path, text: str, inputs: str, engine: Engine, progress: Progress
) -> BuildRequest:
    """The build of what ``_lay_out`` put into ``folder``, with all that the lock names fetched and beside it."""
    slim = {SLIM_LABEL: recipe.gpu.sm} if recipe.slim else {}
    request = BuildRequest(
        dockerfile=folder / "Dockerfile",
        context=folder / "context",
        target=recipe.target,
        tag=tag,
        source_date_epoch=recipe.stack.source_date_epoch,
        labels={INPUTS_LABEL: inputs, TARGET_LABEL: recipe.target, **slim},
    )
    request.dockerfile.write_text(text, encoding="utf-8")
    if not recipe.stack.debian:
        return _fetched_conda(request, folder, recipe.stack, recipe.lock, engine, progress)
    request = _fetched(request, folder, recipe.stack, recipe.lock, engine, progress)
    for layer in (folder / "wheels").iterdir() if recipe.slim else ():
        slim_source(layer / "slim")
    return request


def _lock_file(tag: str) -> Path:
    """Two builds of one image would only do the same work twice: the second waits and finds it done."""
    return data.cache_root() / "locks" / f"{hashlib.sha256(tag.encode()).hexdigest()[:16]}.build"


def current_image(stack: Stack, gpu: GpuProfile, lock: Lock, engine: Engine, target: str = "runtime") -> bool:
    """Whether the engine has the image made of exactly this stack, lock and envbuilder."""
    there = engine.image(image_tag(stack.name, target))
    return there is not None and there.labels.get(INPUTS_LABEL) == inputs_digest(Recipe(stack, gpu, lock, target))


def _lay_out(context: Path, recipe: Recipe) -> tuple[str, str]:
    """Put envbuilder's own files and the lock's into ``context``; the Dockerfile's text and the digest of it all."""
    stack, gpu, lock = recipe.stack, recipe.gpu, recipe.lock
    own_files(context, stack, gpu, lock)
    if stack.conda:
        lock_files(context, stack.name)
    same_everywhere(context, stack.source_date_epoch)
    text = dockerfile(stack, gpu, lock, slim_digest() if recipe.slim else "")
    parts = {"dockerfile": text, "target": recipe.target, "uv": uv_version()}
    for path in sorted(p for p in context.rglob("*") if p.is_file()):
        parts[str(path.relative_to(context))] = path.read_text(encoding="utf-8")
    return text, f"sha256:{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()}"


def _fetched(
    request: BuildRequest, folder: Path, stack: Stack, lock: Lock, engine: Engine, progress: Progress
) -> BuildRequest:
    """Fetch what the lock names and lay it out as the base's tar and the named contexts."""
    assert stack.debian
    target = request.target
    fetched = fetch(stack, lock, progress, TARGETS if target == "devel" else ("runtime",))
    # A file of the cache is named by its SHA-256.
    files = {file.path.name: file for file in (*fetched.python, *fetched.debs)}
    check_bytes(files, progress)
    storage = engine.storage()
    if storage is not None:
        layers = _layers(lock, files, target, engine.image(request.tag))
        space.check_build_space(storage, space.peak(layers, engine.driver()), engine.driver())
    debs = tuple(deb for deb in lock.debs if deb.target == "runtime")
    tar = rootfs(stack.debian.suite, debs, files, stack.source_date_epoch, progress)
    # Not folder_of: the context already holds our own files.
    folder_of([Cached("rootfs.tar", tar, tar.stat().st_size)], folder / "base")
    (folder / "base" / "rootfs.tar").rename(request.context / "rootfs.tar")
    wheels_context(folder / "wheels", lock, files)
    debs_context(folder / "debs", lock, files)
    return replace(request, contexts={"wheels": folder / "wheels", "debs": folder / "debs"})


def _fetched_conda(
    request: BuildRequest, folder: Path, stack: Stack, lock: Lock, engine: Engine, progress: Progress
) -> BuildRequest:
    """Fetch what the lock names; base images, source trees and packages stand in for what the steps would download."""
    fetched = fetch(stack, lock, progress)
    storage = engine.storage()
    if storage is not None:
        space.check_build_space(storage, _UNPACKED * fetched.size, engine.driver())
    files_context(folder / "files", lock, fetched)
    trees = {artifact.name: checkout(artifact, folder / "git" / artifact.name) for artifact in lock.git}
    images = {pinned(f.image): oci_layout(f, folder / "images" / f.image.target) for f in fetched.images}
    return replace(request, contexts={"files": folder / "files", **trees}, images=images)


def _layers(lock: Lock, files: dict[str, Cached], target: str, there: ImageInfo | None) -> list[int]:
    """Bytes of the layers that are built; those that the image of the last build holds are there already."""
    known = " ".join(layer.made_by for layer in there.layers) if there else ""
    layers = [space.base_size(files[deb.sha256].size for deb in lock.debs if deb.target == "runtime")]
    for group in python_groups(lock):
        if group.digest not in known:
            cached = [files[artifact.sha256] for artifact in group.artifacts]
            layers.append(sum(space.unpacked_size(file.path, file.filename) for file in cached))
    if target == "devel":
        layers.append(space.devel_size(files[deb.sha256].size for deb in lock.debs if deb.target == "devel"))
    return layers
