"""The layers of an image, from the top down: what an upper layer replaces or deletes is not looked at below.

A layer is a tar archive (OCI layouts, docker archives), packed or not, in which ``.wh.NAME`` deletes NAME and
``.wh..wh..opq`` empties its folder; or a folder of an overlay store, in which a character device 0/0 deletes and an
attribute empties.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol

from envbuilder.audit.sources import CHUNK
from envbuilder.errors import InputError, Place
from envbuilder.report.progress import Progress

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_OPAQUE_ATTRIBUTES = ("trusted.overlay.opaque", "user.overlay.opaque")
_MAX_PATHS = 4_000_000


class Hidden:
    """What the layers above have replaced or deleted."""

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._folders: set[str] = set()
        self._next_paths: set[str] = set()
        self._next_folders: set[str] = set()

    def hides(self, path: str) -> bool:
        """Whether ``path`` of this layer is not seen in the image."""
        if path in self._paths or path in self._folders:
            return True
        end = path.rfind("/")
        while end > 0:
            if path[:end] in self._folders or path[:end] in self._paths:
                return True
            end = path.rfind("/", 0, end)
        return False

    def replace(self, path: str) -> None:
        """A file of this layer: the layers below show no file of this path, nor anything below it."""
        self._next_paths.add(path)

    def delete(self, path: str) -> None:
        """A whiteout of this layer."""
        self._next_folders.add(path)

    def next_layer(self) -> None:
        """What this layer says holds for those below it."""
        self._paths |= self._next_paths
        self._folders |= self._next_folders
        self._next_paths, self._next_folders = set(), set()
        if len(self._paths) + len(self._folders) > _MAX_PATHS:
            raise InputError("the image holds more files than can be kept in mind", cure="Audit its environment.")


class Taker(Protocol):
    """Takes the files of an image one after another, from the top layer down."""

    def seen(self, path: str, link: str) -> None:
        """A file, link or device of the image; ``link`` is where a symbolic link points to, otherwise empty."""

    def unseen(self, what: str) -> None:
        """Something that cannot be read, and why."""

    def wants(self, path: str) -> bool:
        """Whether the regular file ``path`` is worth opening."""

    def add_file(self, path: str, file: Path) -> None:
        """The content of a wanted file, as a file on disk."""

    def add_stream(self, path: str, stream: IO[bytes], size: int) -> None:
        """The content of a wanted file, as a stream of ``size`` bytes that is read once, now."""


class Layer(Protocol):
    """One layer."""

    def give(self, taker: Taker, hidden: Hidden, progress: Progress) -> None:
        """Give the files of this layer that are seen in the image, and tell ``hidden`` what it replaces."""


def take_layers(layers: Sequence[Layer], taker: Taker, progress: Progress) -> None:
    """Give the files of ``layers``, which stand from the bottom up as in a manifest, to ``taker``."""
    hidden = Hidden()
    for number, layer in enumerate(reversed(layers)):
        progress.item(f"layer {len(layers) - number} of {len(layers)}")
        layer.give(taker, hidden, progress)
        hidden.next_layer()


class TarLayer:
    """A layer as a tar stream. ``open_stream`` gives the unpacked bytes, ``name`` stands for it in errors."""

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        self._name = name
        self._stream = stream

    def give(self, taker: Taker, hidden: Hidden, progress: Progress) -> None:
        """See Layer."""
        try:
            with tarfile.open(fileobj=self._stream, mode="r|", bufsize=CHUNK) as archive:
                for member in archive:
                    archive.members = []  # type: ignore[attr-defined]  # it would keep every header it has passed
                    self._give(archive, member, taker, hidden, progress)
        except (tarfile.TarError, EOFError, OSError, ValueError) as error:
            raise InputError(
                f"this layer of the image is damaged: {error}",
                place=Place(self._name),
                cure="Save or pull the image again.",
            ) from error

    def _give(
        self, archive: tarfile.TarFile, member: tarfile.TarInfo, taker: Taker, hidden: Hidden, progress: Progress
    ) -> None:
        parts = [p for p in member.name.split("/") if p not in ("", ".")]
        if not parts or ".." in parts:
            return
        path, name = "/".join(parts), parts[-1]
        if name == _OPAQUE:
            hidden.delete("/".join(parts[:-1]))
        elif name.startswith(_WHITEOUT):
            hidden.delete("/".join([*parts[:-1], name.removeprefix(_WHITEOUT)]))
        elif not member.isdir():
            seen = not hidden.hides(path)
            hidden.replace(path)
            if not seen:
                return
            taker.seen(path, member.linkname if member.issym() else "")
            if member.isreg() and taker.wants(path):
                stream = archive.extractfile(member)
                assert stream is not None
                progress.item(name)
                taker.add_stream(path, stream, member.size)


class FolderLayer:
    """A layer as a folder of an overlay store."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def give(self, taker: Taker, hidden: Hidden, progress: Progress) -> None:
        """See Layer."""
        pending = [""]
        while pending:
            folder = pending.pop()
            try:
                with os.scandir(self._root / folder) as entries:
                    found = sorted(entries, key=lambda e: e.name)
            except OSError as error:
                taker.unseen(f"{error.filename}: {error.strerror}")
                continue
            for entry in found:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                    if _is_opaque(entry.path):
                        hidden.delete(path)
                    continue
                seen = not hidden.hides(path)
                if _is_whiteout(entry):
                    hidden.delete(path)
                    continue
                hidden.replace(path)
                if not seen:
                    continue
                # The link's text as it stands; a Path would tidy it up.
                taker.seen(path, os.readlink(entry.path) if entry.is_symlink() else "")  # noqa: PTH115
                if entry.is_file(follow_symlinks=False) and taker.wants(path):
                    progress.item(entry.name)
                    taker.add_file(path, Path(entry.path))


def _is_whiteout(entry: os.DirEntry[str]) -> bool:
    if entry.is_file(follow_symlinks=False) or entry.is_symlink():
        return False
    status = entry.stat(follow_symlinks=False)
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _is_opaque(path: str) -> bool:
    for name in _OPAQUE_ATTRIBUTES:
        try:
            if os.getxattr(path, name, follow_symlinks=False) == b"y":
                return True
        except OSError:
            continue
    return False
