"""What an image says it was made of, and the stack and lock of exactly that, found on this host."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from envbuilder import data
from envbuilder.audit.image import is_archive, is_layout, read_archive, read_layout
from envbuilder.audit.store import read_image
from envbuilder.errors import EnvbuilderError, InputError, NotEnoughError, Place
from envbuilder.image.building import Recipe
from envbuilder.image.bundling import unpack_bundle
from envbuilder.image.names import TARGET_LABEL
from envbuilder.image.slimming import SLIM_LABEL
from envbuilder.lock.reading import load_lock
from envbuilder.report.progress import Progress
from envbuilder.stack.loading import load_stack

LOCK_LABEL, STACK_LABEL = "io.envbuilder.lock", "io.envbuilder.stack"
_MANIFEST = "opt/envbuilder/stack.json"
_OWN = re.compile(r"/site-packages/envbuilder/__init__\.py$")
_ENVIRONMENT = re.compile(r"/pyvenv\.cfg$")
_VERSION = re.compile(r"""^__version__ = ["']([^"']+)["']""", re.MULTILINE)
_UV = re.compile(r"^uv = (\S+)", re.MULTILINE)
_LONGEST = 4 << 20


@dataclass
class Recorded:
    """The labels of an image, what stands in its /opt/envbuilder/stack.json, the envbuilder and the uv of its making.

    It takes the image's layers (see ``audit.layers.Taker``); nothing of the image is run.
    """

    labels: Mapping[str, str]
    manifest: dict[str, Any] = field(default_factory=dict)
    envbuilder: str = ""
    uv: str = ""

    def seen(self, path: str, link: str) -> None:
        """See Taker."""

    def unseen(self, what: str) -> None:
        """See Taker."""

    def wants(self, path: str) -> bool:
        """See Taker."""
        return path == _MANIFEST or bool(_OWN.search(path) or _ENVIRONMENT.search(path))

    def add_file(self, path: str, file: Path) -> None:
        """See Taker."""
        with file.open("rb") as stream:
            self.add_stream(path, stream, 0)

    def add_stream(self, path: str, stream: IO[bytes], size: int) -> None:
        """See Taker."""
        text = stream.read(_LONGEST).decode("utf-8", "replace")
        if path == _MANIFEST:
            try:
                found = json.loads(text)
            except (ValueError, RecursionError):
                found = None
            self.manifest = found if isinstance(found, dict) else {}
        elif _OWN.search(path):
            self.envbuilder = match[1] if (match := _VERSION.search(text)) else ""
        elif match := _UV.search(text):
            self.uv = match[1]

    @property
    def lock(self) -> str:
        """The digest of the lock."""
        return str(self.labels.get(LOCK_LABEL) or self.manifest.get("lock") or "")

    @property
    def stack(self) -> str:
        """The name of the stack."""
        return str(self.labels.get(STACK_LABEL, ""))


def read_recorded(reference: str, engine: str, labels: Mapping[str, str], progress: Progress) -> Recorded:
    """What the image ``reference`` (of ``engine``'s store, an archive, a layout) records.

    Raises InputError for an image that envbuilder did not make.
    """
    if not labels.get(LOCK_LABEL) or not labels.get(STACK_LABEL):
        raise InputError(
            "this image was not made by envbuilder: no label says which stack and lock it was made of",
            place=Place(reference),
            cure="Compare it with another: envbuilder reproduce IMAGE --compare OTHER",
        )
    progress.stage("read what the image was made of")
    recorded = Recorded(labels)
    path = Path(reference)
    if path.is_dir() and is_layout(path):
        read_layout(path, recorded, progress)
    elif path.is_file() and is_archive(path):
        read_archive(path, recorded, progress)
    else:
        read_image(reference, recorded, progress, engine)
    return recorded


def find_recipe(recorded: Recorded, bundle: Path | None, progress: Progress) -> tuple[Recipe, Path | None]:
    """The stack and the lock that ``recorded`` names: of ``bundle``, the project, envbuilder, bundles unpacked before.

    With it comes the folder it is to be read from (``data.reading_from``), None for the project's own. Raises
    NotEnoughError when none of them has that very lock, or has it with another stack or card.
    """
    seen: list[str] = []
    for place, folder in _places(recorded, bundle, progress):
        recipe = _recipe_in(folder, recorded, place, seen)
        if recipe is not None:
            return recipe, folder
    raise NotEnoughError(
        f"the lock that the image was made of is not here: {recorded.lock}",
        detail="\n".join(seen) or None,
        cure=f"Give a bundle of it (--bundle FILE, made there by `envbuilder bundle {recorded.stack} FILE`), or run "
        f"this in a checkout of the project at the commit whose locks/{recorded.stack}.* have that digest.",
    )


def _places(recorded: Recorded, bundle: Path | None, progress: Progress) -> Iterator[tuple[str, Path | None]]:
    if bundle is not None:
        yield str(bundle), unpack_bundle(bundle, progress).project
        return
    yield "the project and envbuilder itself", None
    hexadecimal = recorded.lock.removeprefix("sha256:")
    unpacked = data.cache_root() / "bundles" / hexadecimal
    if re.fullmatch(r"[0-9a-f]{64}", hexadecimal) and unpacked.is_dir():
        yield "a bundle unpacked before", unpacked


def _recipe_in(folder: Path | None, recorded: Recorded, place: str, seen: list[str]) -> Recipe | None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", recorded.stack):
        raise InputError(f"the image names a stack that cannot be one: {recorded.stack!r}")
    try:
        if folder is None:
            stack, gpu = load_stack(recorded.stack)
            lock = load_lock(stack)
        else:
            with data.reading_from(folder):
                stack, gpu = load_stack(recorded.stack)
                lock = load_lock(stack)
    except EnvbuilderError as error:
        seen.append(f"{place}: {error.message}")
        return None
    if lock.digest != recorded.lock:
        seen.append(f"{place}: the lock of {stack.name} is {lock.digest}")
        return None
    unlike = [
        *_unlike(stack, recorded.manifest.get("stack"), "stack"),
        *_unlike(gpu, recorded.manifest.get("gpu"), "gpu"),
    ]
    if unlike:
        seen.append(f"{place}: the lock is the same, but not {', '.join(unlike)}")
        return None
    labels = recorded.labels
    return Recipe(stack, gpu, lock, labels.get(TARGET_LABEL, "runtime"), SLIM_LABEL in labels)


def _unlike(model: Any, recorded: Any, name: str) -> list[str]:
    """The fields in which a stack or card here is not the one recorded; what is written otherwise is the same."""
    try:
        other = type(model).model_validate(recorded)
    except ValidationError as error:
        return [f"{name}.{'.'.join(map(str, e['loc']))} (not known to this envbuilder)" for e in error.errors()[:5]]
    fields = type(model).model_fields
    return [f"{name}.{field}" for field in fields if getattr(model, field) != getattr(other, field)]
