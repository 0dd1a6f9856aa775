"""A stack and its lock as a Dockerfile."""

from __future__ import annotations

from datetime import datetime, timezone

from envbuilder.lock.model import Lock
from envbuilder.render.groups import debs_digest, python_groups
from envbuilder.render.templates import render
from envbuilder.stack.gpu import GpuProfile
from envbuilder.stack.model import Stack


def dockerfile(stack: Stack, gpu: GpuProfile, lock: Lock) -> str:
    """The text of the stack's Dockerfile: the same bytes for the same stack, card and lock."""
    if stack.debian:
        devel = tuple(deb for deb in lock.debs if deb.target == "devel")
        return render(
            "debian.Dockerfile.j2",
            stack=stack,
            gpu=gpu,
            groups=python_groups(lock),
            devel_debs=devel,
            devel_digest=debs_digest(devel),
            labels=labels(stack, gpu, lock),
        )
    raise NotImplementedError


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
