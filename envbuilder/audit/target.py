"""Telling what a target is, and collecting it."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

from envbuilder.audit.arch import Arch
from envbuilder.audit.collect import Collection
from envbuilder.audit.image import collect_archive, collect_layout, is_archive, is_layout
from envbuilder.audit.store import collect_image
from envbuilder.audit.tree import collect_file, collect_tree
from envbuilder.audit.wheel import collect_wheel
from envbuilder.errors import InputError, Place
from envbuilder.report.progress import Progress, Silent


def collect(target: str, cards: Sequence[Arch], progress: Progress | None = None) -> Collection:
    """Collect a target: a path, or an image of a local store. Raises InputError when there is nothing of that name."""
    progress = progress or Silent()
    path = Path(target)
    if path.is_dir():
        return collect_layout(path, cards, progress) if is_layout(path) else collect_tree(path, cards, progress)
    if path.is_file():
        if zipfile.is_zipfile(path):
            return collect_wheel(path, cards, progress)
        if is_archive(path):
            return collect_archive(path, cards, progress)
        return collect_file(path, cards)
    image = collect_image(target, cards, progress)
    if image is not None:
        return image
    raise InputError(
        "there is no such file, folder or image",
        place=Place(target),
        cure="Give a library, a wheel, a folder, an OCI layout, an image archive, a lock or requirements file, "
        "or the name of an image in the local store.",
    )
