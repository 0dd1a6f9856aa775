"""All the files that are rendered from a stack, and whether those on disk are still the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from envbuilder import data
from envbuilder.lock.model import Lock
from envbuilder.lock.reading import load_lock
from envbuilder.render.dockerfile import dockerfile, index_urls
from envbuilder.render.templates import render
from envbuilder.stack.gpu import GpuProfile
from envbuilder.stack.loading import load_stack
from envbuilder.stack.manifest import image_manifest_text
from envbuilder.stack.model import Stack


def outputs(stack: Stack, gpu: GpuProfile, lock: Lock) -> dict[str, str]:
    """The files of a stack: name below the project's folder, and text.

    A stack with a base image can be built by hand, so it also gets what its image says of itself; one with a conda
    half gets an environment file.
    """
    files = {f"Dockerfile.{stack.name}": dockerfile(stack, gpu, lock)}
    if stack.conda:
        files[f"stack.{stack.name}.json"] = image_manifest_text(stack, gpu, lock.digest)
        files[f"environment.{stack.name}.yml"] = render(
            "environment.yml.j2", stack=stack, apex=stack.sources.get("apex"), indexes=index_urls(stack)
        )
    return files


def render_stacks(names: list[str]) -> dict[Path, str]:
    """Path and text of every file of the stacks named, in the project's folder.

    Raises InputError for a stack without a lock, IntegrityError for a lock edited by hand.
    """
    files: dict[Path, str] = {}
    for name in names:
        stack, gpu = load_stack(name)
        for filename, text in outputs(stack, gpu, load_lock(stack)).items():
            files[data.project_root() / filename] = text
    return files


def stale(files: Mapping[Path, str]) -> list[Path]:
    """Those files that are missing or whose bytes differ from what would be rendered now."""
    return [path for path, text in files.items() if not path.is_file() or path.read_bytes() != text.encode()]
