"""Telling what a target is, and collecting it."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from envbuilder.audit.arch import Arch
from envbuilder.audit.collect import Collection
from envbuilder.audit.image import collect_archive, collect_layout, is_archive, is_layout
from envbuilder.audit.remote import WheelList, collect_list
from envbuilder.audit.store import collect_image
from envbuilder.audit.tree import collect_file, collect_tree
from envbuilder.audit.wheel import collect_wheel
from envbuilder.errors import InputError, Place
from envbuilder.report.progress import Progress, Silent

Locator = Callable[[Path], WheelList]
# Lock and requirements files are told by their names: their text could be anything's.
LIST_SUFFIXES = (".txt", ".in")
_MB = 1e6
# By kind, what is said of a target without any binary. A wheel or an environment of pure Python runs on any card.
_NOTHING = {
    "file": "it is no library, object, archive or device code",
    "directory": "no library, no device code and no installed package lies in it",
    "image": "no library and no device code lies in it",
}


def collect(
    target: str, cards: Sequence[Arch], progress: Progress | None = None, locate: Locator | None = None
) -> Collection:
    """Collect a target: a path, or an image of a local store. ``locate`` finds the wheels that a list names.

    Raises InputError when there is nothing of that name.
    """
    collection = _collect(target, cards, progress or Silent(), locate)
    if not collection.nothing and not collection.unseen and not any(b.is_binary for b in collection.binaries):
        collection.nothing = _NOTHING.get(collection.kind, "")
    return collection


def _collect(target: str, cards: Sequence[Arch], progress: Progress, locate: Locator | None) -> Collection:
    path = Path(target)
    if path.is_dir():
        return collect_layout(path, cards, progress) if is_layout(path) else collect_tree(path, cards, progress)
    if path.is_file():
        if path.suffix == ".whl" or zipfile.is_zipfile(path):
            return collect_wheel(path, cards, progress)
        if is_archive(path):
            return collect_archive(path, cards, progress)
        if locate and path.suffix in LIST_SUFFIXES:
            return _collect_list(path, cards, progress, locate)
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


def _collect_list(path: Path, cards: Sequence[Arch], progress: Progress, locate: Locator) -> Collection:
    named = locate(path)
    collection, fetched, total = collect_list(str(path), named, cards, progress)
    cut = [b for b in collection.binaries if b.cut]
    collection.note = f"looked at {fetched / _MB:.0f} MB of {total / _MB:.0f} MB of wheels with binaries"
    if cut:
        collection.note += f"; of {len(cut)} libraries only the beginning"
    if named.sources:
        collection.note += f"; what is built of {', '.join(named.sources)} is not known"
    return collection
