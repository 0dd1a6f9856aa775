"""Putting what was found file by file into a collection: by package, with clashes and torch's CUDA release."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from envbuilder.audit.arch import Arch
from envbuilder.audit.binary import Binary, read_binary, read_stream
from envbuilder.audit.collect import Collection, Package, is_candidate
from envbuilder.audit.owners import Owners, torch_cuda
from envbuilder.audit.sources import CHUNK, FileSource

LONGEST_TEXT = 64 << 20
_GLIBC = re.compile(rb"GNU C Library [^\n]{0,120}release version (\d+\.\d+)")
_LIBC = ("libc.so.6", "libc-2.")


class Assembly:
    """Takes the files of a tree or of an image's layers one after another."""

    def __init__(self, subject: str, kind: str, cards: Sequence[Arch]) -> None:
        self.collection = Collection(subject, kind)
        self.cards = cards
        self._owners = Owners()
        self._binaries: list[Binary] = []

    @staticmethod
    def wants(path: str) -> bool:
        """Whether a file is worth opening."""
        name = path.rsplit("/", 1)[-1]
        return is_candidate(name) or _is_text(path)

    def seen(self, path: str, link: str) -> None:
        """See Taker; only what is wanted counts here."""

    def unseen(self, what: str) -> None:
        """See Taker."""
        self.collection.unseen.append(what)

    def add_file(self, path: str, file: Path) -> None:
        """A file on disk, which has the name ``path`` in the target."""
        if _is_text(path):
            self._add_text(path, _bytes(file).decode("utf-8", "replace"))
            return
        if _is_libc(path):
            self._add_libc(_bytes(file))
        self._binaries.append(read_file(file, path, self.cards))

    def add_stream(self, path: str, stream: IO[bytes], size: int) -> None:
        """The same, as a stream of ``size`` bytes."""
        if _is_text(path):
            self._add_text(path, stream.read(LONGEST_TEXT).decode("utf-8", "replace"))
        elif _is_libc(path):
            data = stream.read(LONGEST_TEXT)
            self._add_libc(data)
            self._binaries.append(read_stream(path, iter([data]), len(data)))
        else:
            self._binaries.append(read_stream(path, _chunks(stream), size))

    def _add_libc(self, data: bytes) -> None:
        """The base's C library, for its release."""
        match = _GLIBC.search(data)
        if match and not self.collection.glibc:
            self.collection.glibc = match.group(1).decode()

    def _add_text(self, path: str, text: str) -> None:
        if path.endswith("torch/version.py"):
            self.collection.cuda = torch_cuda(text)
        elif path.endswith("/RECORD") or path == "RECORD":
            parts = path.split("/")
            self._owners.add_record("/".join(parts[:-2]), parts[-2], text)
        else:
            self._owners.add_conda(path.rpartition("conda-meta/")[0], text)
        if self.collection.kind == "directory" and not path.endswith("torch/version.py"):
            self.collection.kind = "environment"

    def done(self) -> Collection:
        """The collection, packages sorted by name."""
        packages: dict[tuple[str, str], Package] = {}
        for binary in self._binaries:
            owner = self._owners.of(binary.path)
            packages.setdefault(owner, Package(*owner)).binaries.append(binary)
        self.collection.packages = [packages[key] for key in sorted(packages)]
        self.collection.clashes = self._owners.clashes
        return self.collection


def read_file(file: Path, name: str, cards: Sequence[Arch]) -> Binary:
    """A binary on disk, under the name it has in the target."""
    try:
        with FileSource(file) as source:
            return read_binary(name, source, cards)
    except OSError as error:
        return Binary(name, doubts=[f"it cannot be read: {error.strerror}"])


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(LONGEST_TEXT)
    except OSError:
        return b""


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while data := stream.read(CHUNK):
        yield data


def _is_libc(path: str) -> bool:
    """Whether a file is a base's C library."""
    folder, _, name = path.rpartition("/")
    return name.startswith(_LIBC) and folder.split("/")[0] in ("lib", "usr", "lib64")


def _is_text(path: str) -> bool:
    return (
        path.endswith((".dist-info/RECORD", "torch/version.py"))
        or path.startswith("conda-meta/")
        or "/conda-meta/" in path
    ) and not path.endswith((".so", "history"))
