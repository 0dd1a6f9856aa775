"""Images in a local store: buildah's and podman's containers storage, Docker's. Read where they lie, layer by layer."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envbuilder.audit.arch import Arch
from envbuilder.audit.collect import Collection
from envbuilder.audit.image import image_assembly, read_archive
from envbuilder.audit.layers import FolderLayer, Taker, take_layers
from envbuilder.audit.punch import punch_folder
from envbuilder.errors import HostError, Place
from envbuilder.report.progress import Progress, Silent

_PATIENCE = 60
_MAX_LAYERS = 1024


def collect_image(
    reference: str, cards: Sequence[Arch], progress: Progress | None = None, engine: str = ""
) -> Collection | None:
    """The image ``reference`` of a local store, or None when none has it. ``engine`` is buildah, docker or empty.

    Raises HostError when the store cannot be read.
    """
    assembly = image_assembly(reference, cards)
    found = read_image(reference, assembly, progress or Silent(), engine)
    return assembly.done() if found else None


def read_image(reference: str, taker: Taker, progress: Progress, engine: str = "") -> str | None:
    """Give the files of an image of a local store to ``taker``; the digest of its configuration (``sha256:...``).

    None when no store has it. Raises HostError when the store cannot be read.
    """
    if reference.startswith("-"):
        return None
    found = _identity(reference) if engine in ("", "buildah") else None
    if found:
        take_layers([FolderLayer(folder) for folder in _layer_folders(*found, reference)], taker, progress)
        return f"sha256:{found[1]}"
    if engine in ("", "docker"):
        return _docker(reference, taker, progress)
    return None


def punch_image(reference: str) -> int:
    """Give back the disk space of blanked code in an image of containers storage; the bytes, 0 where it is elsewhere.

    Its bytes, and so its digest, stay as they are.
    """
    found = _identity(reference)
    return sum(punch_folder(folder) for folder in _layer_folders(*found, reference)) if found else 0


def _identity(reference: str) -> tuple[Path, str] | None:
    """(root of the store, id) of an image in containers storage."""
    for program in ("buildah", "podman"):
        if not shutil.which(program):
            continue
        kind = ("--type", "image") if program == "buildah" else ()
        found = _output([program, "inspect", *kind, reference])
        if found is None:
            continue
        info = json.loads(_output([program, "info"]) or "{}").get("store", {})
        data = json.loads(found)
        data = data[0] if isinstance(data, list) else data
        return Path(_root(info)), str(data.get("FromImageID") or data.get("Id"))
    return None


def _root(info: dict[str, Any]) -> str:
    return str(info.get("GraphRoot") or info.get("graphRoot") or "/var/lib/containers/storage")


def _layer_folders(root: Path, identity: str, reference: str) -> list[Path]:
    """The folders of an image's layers, from the bottom up; the whole image as one folder in a vfs store."""
    try:
        for driver in ("overlay", "vfs"):
            if not (root / f"{driver}-images" / "images.json").is_file():
                continue
            images = json.loads((root / f"{driver}-images" / "images.json").read_bytes())
            image = next((i for i in images if i["id"] == identity), None)
            if image is None:
                continue
            if driver == "vfs":
                return [root / "vfs" / "dir" / image["layer"]]
            parents = {
                row["id"]: row.get("parent", "")
                for row in json.loads((root / "overlay-layers" / "layers.json").read_bytes())
            }
            chain: list[Path] = []
            layer = image["layer"]
            while layer and len(chain) < _MAX_LAYERS:
                chain.append(root / "overlay" / layer / "diff")
                layer = parents.get(layer, "")
            return list(reversed(chain))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HostError(
            f"the store of this image cannot be read: {error}",
            place=Place(str(root)),
            cure="Run as the user whose store it is, or save the image and audit the archive.",
        ) from error
    raise HostError(f"the store holds no layers of {reference}", place=Place(str(root)), cure="Build or pull it again.")


def _docker(reference: str, taker: Taker, progress: Progress) -> str | None:
    if not shutil.which("docker"):
        return None
    found = _output(["docker", "image", "inspect", reference])
    if found is None:
        return None
    image = json.loads(found)[0]
    driver = image.get("GraphDriver") or {}
    data = driver.get("Data") or {}
    if driver.get("Name") == "overlay2" and data.get("UpperDir"):
        folders = [Path(p) for p in (data["UpperDir"], *filter(None, data.get("LowerDir", "").split(":")))]
        if all(_readable(folder) for folder in folders):
            take_layers([FolderLayer(folder) for folder in reversed(folders)], taker, progress)
            return str(image["Id"])
    return _saved(reference, taker, progress)


def _readable(folder: Path) -> bool:
    try:
        return folder.is_dir() and any(True for _ in folder.iterdir()) is not None
    except OSError:
        return False


def _saved(reference: str, taker: Taker, progress: Progress) -> str:
    """Through ``docker save``, where the store's own folders are not ours to read (or are no folders)."""
    with tempfile.TemporaryDirectory(prefix="envbuilder-audit-") as scratch:
        path = Path(scratch) / "image.tar"
        done = subprocess.run(
            ["docker", "save", "--output", str(path), reference], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise HostError(
                f"docker cannot save {reference}", detail=done.stderr, cure="Free some space, or audit its environment."
            )
        return read_archive(path, taker, progress)


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
