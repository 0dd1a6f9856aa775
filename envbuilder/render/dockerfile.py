"""A stack and its lock as a Dockerfile."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from envbuilder import toml
from envbuilder.errors import InputError, Place
from envbuilder.lock.indexes import index_named
from envbuilder.lock.model import BaseImage, Lock
from envbuilder.patch.manifest import find_manifest
from envbuilder.patch.target import Target
from envbuilder.render.groups import debs_digest, python_groups
from envbuilder.render.templates import render
from envbuilder.stack.gpu import GpuProfile
from envbuilder.stack.model import Stack


def dockerfile(stack: Stack, gpu: GpuProfile, lock: Lock, slim: str = "") -> str:
    """The text of the stack's Dockerfile: the same bytes for the same stack, card and lock.

    ``slim`` is the digest of what blanks code for other cards, for a slim image; only a Debian base can have one.
    """
    if stack.conda is None:
        devel = tuple(deb for deb in lock.debs if deb.target == "devel")
        return render(
            "debian.Dockerfile.j2",
            stack=stack,
            gpu=gpu,
            groups=python_groups(lock),
            devel_debs=devel,
            devel_digest=debs_digest(devel),
            labels=labels(stack, gpu, lock),
            patched=_patched(stack),
            slim=slim,
        )
    table = toml.load(Path(__file__).with_name("conda_image.toml"))
    return render(
        "conda.Dockerfile.j2",
        stack=stack,
        gpu=gpu,
        compile_only=[row for row in table["compile_only"]["packages"] if row in stack.conda.packages],
        images=_images(stack, lock),
        apex=stack.sources.get("apex"),
        newest_gcc=int(stack.cuda.host_compiler.rsplit("-", 1)[1]),
        indexes=index_urls(stack),
        labels=labels(stack, gpu, lock),
        patched=_patched(stack),
    )


def index_urls(stack: Stack) -> list[str]:
    """The addresses of the package indexes that the stack names beside the client's own."""
    pins = stack.python.packages.items()
    named = {pin.index: name for name, pin in pins if pin.index}
    places = {
        index: Place(f"stacks/{stack.name}.toml", field=f"python.packages.{named[index]}.index") for index in named
    }
    return [index_named(index, places[index]).url for index in sorted(named)]


def _patched(stack: Stack) -> bool:
    """Whether the image patches verl: a release with a manifest for what the stack computes in."""
    pin = stack.python.packages.get("verl")
    return pin is not None and find_manifest(pin.version, Target.of_stack(stack.compute), hook=True) is not None


def _images(stack: Stack, lock: Lock) -> dict[str, BaseImage]:
    images: dict[str, BaseImage] = {image.target: image for image in lock.images}
    for target in ("devel", "runtime", "installer"):
        if target not in images:
            raise InputError(
                f"the lock of {stack.name} names no digest of its {target} image",
                place=Place(f"locks/{stack.name}.sources.toml"),
                cure=f"Lock the stack: envbuilder lock {stack.name}",
            )
    return images


def labels(stack: Stack, gpu: GpuProfile, lock: Lock) -> dict[str, str]:
    """What the image says of itself. ``io.envbuilder.lock`` is the digest over the stack's lock files."""
    created = datetime.fromtimestamp(stack.source_date_epoch, tz=timezone.utc)
    return {
        "org.opencontainers.image.title": stack.name,
        "org.opencontainers.image.description": stack.title,
        "org.opencontainers.image.created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "io.envbuilder.stack": stack.name,
        "io.envbuilder.lock": lock.digest,
        "io.envbuilder.gpu": gpu.title,
        "io.envbuilder.gpu.capability": gpu.capability.value,
        "io.envbuilder.driver.minimum": stack.cuda.minimum_driver,
    }
