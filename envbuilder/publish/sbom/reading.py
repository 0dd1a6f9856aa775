"""Reading the package databases of an image, out of its layers, without running anything in it."""

from __future__ import annotations

import hashlib
import posixpath
import re
from functools import lru_cache
from pathlib import Path
from typing import IO

from envbuilder.audit.image import is_archive, is_layout, open_image, read_archive, read_layout
from envbuilder.audit.store import read_image
from envbuilder.errors import HostError, InputError, IntegrityError, Place
from envbuilder.image.choose import choose_engine
from envbuilder.publish.installing import diff_ids_of
from envbuilder.publish.layer_bytes import chunks_of
from envbuilder.report.progress import Progress

# What is opened: the databases, licences and what the image says of itself. Everything else counts by its path alone.
_WANTED = re.compile(
    r"^var/lib/dpkg/(?:status|diversions|info/[^/]+\.list)$"
    r"|^usr/share/doc/[^/]+/copyright$"
    r"|^(?:usr/lib|etc)/os-release$"
    r"|\.dist-info/(?:METADATA|RECORD)$"
    r"|(?:^|/)conda-meta/[^/]+\.json$"
    r"|/site-packages/envbuilder/(?:__init__\.py|smoke/verl_edits\.json)$"
    r"|^opt/envbuilder/stack\.json$"
)
_LONGEST = 16 << 20
_MOST = 1 << 30
_LINKS = 16


class Reading:
    """Takes an image: all its paths, the targets of its links, and the text of its databases."""

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.missed: list[str] = []
        self._read = 0
        self._folder = lru_cache(maxsize=100_000)(self._follow)

    def seen(self, path: str, link: str) -> None:
        """See Taker."""
        self.paths[path] = link

    def unseen(self, what: str) -> None:
        """See Taker."""
        self.missed.append(what)

    def wants(self, path: str) -> bool:
        """See Taker."""
        return _WANTED.search(path) is not None

    def add_file(self, path: str, file: Path) -> None:
        """See Taker."""
        try:
            with file.open("rb") as stream:
                self._add(path, stream)
        except OSError as error:
            self.missed.append(f"{path}: {error.strerror}")

    def add_stream(self, path: str, stream: IO[bytes], size: int) -> None:
        """See Taker."""
        self._add(path, stream)

    def _add(self, path: str, stream: IO[bytes]) -> None:
        text = stream.read(_LONGEST)
        self._read += len(text)
        if self._read > _MOST:
            raise InputError(
                "the package databases of this image are larger than any real one",
                place=Place(path),
                cure="Build the image anew; this one is damaged or made to do harm.",
            )
        if stream.read(1):
            self.missed.append(f"{path}: longer than {_LONGEST >> 20} MiB")
        self.texts[path] = text.decode("utf-8", "replace")

    def real(self, path: str) -> str:
        """Where ``path`` lies when the links among its folders are followed (/bin is a link to /usr/bin)."""
        folder, _, name = path.strip("/").rpartition("/")
        folder = self._folder(folder)
        return f"{folder}/{name}" if folder else name

    def _follow(self, folder: str) -> str:
        done: list[str] = []
        pending = [part for part in reversed(folder.split("/")) if part]
        followed = 0
        while pending:
            done.append(pending.pop())
            here = "/".join(done)
            link = self.paths.get(here)
            if link and followed < _LINKS:
                followed += 1
                target = link.lstrip("/") if link.startswith("/") else posixpath.join(*done[:-1], link)
                done = []
                pending += [part for part in reversed(posixpath.normpath(target).split("/")) if part not in ("", "..")]
        return "/".join(done)

    def text_of(self, path: str) -> str:
        """The text of a database, also where it or its folder is a link; empty when there is none."""
        path = self.real(path)
        if link := self.paths.get(path):
            path = self.real(posixpath.normpath(posixpath.join("/", posixpath.dirname(path), link)))
        return self.texts.get(path, "")


def read_contents(target: str, reading: Reading, progress: Progress, engine: str = "") -> str:
    """Give the image ``target`` (an archive, an OCI layout, the name of an image in a local store) to ``reading``.

    ``engine`` is the one whose store is meant, empty for any. The digest of the configuration comes back. Raises
    InputError when there is no such image or it is damaged, IntegrityError when a layer is not the configuration's.
    """
    path = Path(target)
    if path.is_dir() and is_layout(path):
        _check_layers(path, progress)
        return read_layout(path, reading, progress)
    if path.is_file() and is_archive(path):
        _check_layers(path, progress)
        return read_archive(path, reading, progress)
    digest = None if path.is_file() else read_image(target, reading, progress, engine)
    if digest is None:
        raise InputError(
            "there is no such image" if not path.is_file() else "this file is no image archive",
            place=Place(target),
            cure="Give a stack, the name of an image in the local store, an image archive or an OCI layout.",
        )
    return _as_published(digest, progress)


def _check_layers(path: Path, progress: Progress) -> None:
    """The bill names the image by the digest of its configuration, which names each layer by its hash."""
    progress.stage(f"hash the layers of {path}")
    with open_image(path) as (config, layers):
        for diff_id, stream in zip(diff_ids_of(config), layers, strict=True):
            found = hashlib.sha256()
            for chunk in chunks_of(stream, str(path)):
                found.update(chunk)
            if f"sha256:{found.hexdigest()}" != diff_id:
                raise IntegrityError(
                    "a layer of this image is not what its configuration says it is",
                    place=Place(str(path)),
                    cure="It was changed or damaged on the way: take it anew, and do not use this one.",
                    detail=f"layer  {diff_id}\nfile   sha256:{found.hexdigest()}",
                )


def _as_published(digest: str, progress: Progress) -> str:
    """The id with which an image of a store leaves it."""
    try:
        engine = choose_engine("buildah")
    except HostError:
        return digest
    image = engine.image(digest)
    return engine.identity(image, progress) if image else digest
