"""Images as they lie on disk: OCI layouts (folder or tar), docker archives, and what the layers of each are."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from envbuilder.audit.arch import Arch
from envbuilder.audit.assemble import Assembly
from envbuilder.audit.collect import Collection
from envbuilder.audit.layers import Taker, TarLayer, take_layers
from envbuilder.errors import InputError, Place
from envbuilder.report.progress import Progress, Silent

_LARGEST_JSON = 16 << 20
_MAX_LAYERS = 1024
_MAX_DEPTH = 8


class _Blobs(Protocol):
    """The files of a layout or an archive, by name."""

    def names(self) -> set[str]:
        """Their names."""

    def open(self, name: str) -> IO[bytes]:
        """One of them. Raises KeyError when there is none."""


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> set[str]:
        return {p.name for p in self._root.iterdir()}

    def open(self, name: str) -> IO[bytes]:
        path = self._root / name
        if ".." in PurePosixPath(name).parts or not path.is_file() or path.is_symlink():
            raise KeyError(name)
        return path.open("rb")


class _Archive:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._members = {m.name.removeprefix("./"): m for m in archive.getmembers()}

    def names(self) -> set[str]:
        return set(self._members)

    def open(self, name: str) -> IO[bytes]:
        member = self._members[name]
        # docker save of older engines makes a layer that stands twice a link to the first.
        stream = self._archive.extractfile(member)
        if stream is None:
            raise KeyError(name)
        return stream


def is_layout(path: Path) -> bool:
    """Whether a folder is an OCI layout."""
    return (path / "oci-layout").is_file() and (path / "index.json").is_file()


def is_archive(path: Path) -> bool:
    """Whether a file is a tar archive, so perhaps an image."""
    try:
        return tarfile.is_tarfile(path)
    except OSError:
        return False


def collect_layout(root: Path, cards: Sequence[Arch], progress: Progress | None = None) -> Collection:
    """The image of an OCI layout. Raises InputError when it is damaged."""
    assembly = image_assembly(str(root), cards)
    read_layout(root, assembly, progress or Silent())
    return assembly.done()


def collect_archive(
    path: Path, cards: Sequence[Arch], progress: Progress | None = None, *, subject: str = ""
) -> Collection:
    """The image of a docker archive or an OCI layout in a tar file. Raises InputError when there is none in it."""
    assembly = image_assembly(subject or str(path), cards)
    read_archive(path, assembly, progress or Silent())
    return assembly.done()


def image_assembly(subject: str, cards: Sequence[Arch]) -> Assembly:
    """What takes the binaries of a whole image."""
    assembly = Assembly(subject, "image", cards)
    assembly.collection.complete = True
    return assembly


def read_layout(root: Path, taker: Taker, progress: Progress) -> str:
    """Give the files of an OCI layout's image to ``taker``; the digest of its configuration (``sha256:...``).

    Raises InputError when it is damaged.
    """
    return _read(str(root), _Folder(root), taker, progress)


def read_archive(path: Path, taker: Taker, progress: Progress) -> str:
    """Like read_layout, for a docker archive or an OCI layout in a tar file."""
    try:
        with tarfile.open(path) as archive:
            return _read(str(path), _Archive(archive), taker, progress)
    except (tarfile.TarError, EOFError) as error:
        raise _damaged(str(path), error) from error


@contextmanager
def open_image(path: Path) -> Iterator[tuple[bytes, Iterator[IO[bytes]]]]:
    """The configuration and the unpacked layers, from the bottom up, of the image in an archive or an OCI layout.

    Raises InputError when there is none in it or it is damaged.
    """
    with ExitStack() as stack:
        if is_layout(path):
            blobs: _Blobs = _Folder(path)
        else:
            try:
                blobs = _Archive(stack.enter_context(tarfile.open(path)))
            except (tarfile.TarError, EOFError) as error:
                raise _damaged(str(path), error) from error
        with _told_as_damage(str(path)):
            config, layers = _parts(str(path), blobs)
            with blobs.open(config) as stream:
                body = stream.read(_LARGEST_JSON)
        yield body, (_unpacked(blobs, name) for name in layers)


def _read(subject: str, blobs: _Blobs, taker: Taker, progress: Progress) -> str:
    with _told_as_damage(subject):
        config, layers = _parts(subject, blobs)
        take_layers([TarLayer(f"{subject}: {name}", _unpacked(blobs, name)) for name in layers], taker, progress)
        with blobs.open(config) as stream:
            return f"sha256:{hashlib.sha256(stream.read(_LARGEST_JSON)).hexdigest()}"


def _parts(subject: str, blobs: _Blobs) -> tuple[str, list[str]]:
    """The names of the configuration and of the layers."""
    names = blobs.names()
    if "manifest.json" in names:
        return _docker_image(blobs)
    if "index.json" in names:
        return _oci_image(blobs, _json(blobs, "index.json"), 0)
    raise InputError(
        "this archive holds no image",
        place=Place(subject),
        cure="Give what `docker save` or `buildah push IMAGE oci-archive:FILE` writes.",
    )


@contextmanager
def _told_as_damage(subject: str) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(
            f"this image is damaged: {error!r} is missing or not what it should be",
            place=Place(subject),
            cure="Save or pull the image again.",
        ) from error


def _damaged(subject: str, error: Exception) -> InputError:
    return InputError(f"this archive is damaged: {error}", place=Place(subject), cure="Save the image again.")


def _docker_image(blobs: _Blobs) -> tuple[str, list[str]]:
    """The names of the configuration and of the layers."""
    image = _json(blobs, "manifest.json")[0]
    return str(image["Config"]), [str(name) for name in image["Layers"][:_MAX_LAYERS]]


def _oci_image(blobs: _Blobs, index: Any, depth: int) -> tuple[str, list[str]]:
    if depth > _MAX_DEPTH:
        raise ValueError("index in index in index")
    if "layers" in index:
        return _blob(index["config"]["digest"]), [_blob(layer["digest"]) for layer in index["layers"][:_MAX_LAYERS]]
    # What is said of an image (signatures, bills of materials) may lie beside it: an artifact, or of no known platform.
    images = [m for m in index["manifests"] if not m.get("artifactType")]
    choices = [m for m in images if m.get("platform", {}).get("architecture") != "unknown"]
    amd64 = [m for m in choices if m.get("platform", {}).get("architecture", "amd64") == "amd64"]
    chosen = (amd64 or choices)[0]
    return _oci_image(blobs, _json(blobs, _blob(chosen["digest"])), depth + 1)


def _blob(digest: str) -> str:
    algorithm, _, hexadecimal = digest.partition(":")
    if not hexadecimal.isalnum() or not algorithm.isalnum():
        raise ValueError(digest)
    return f"blobs/{algorithm}/{hexadecimal}"


def _json(blobs: _Blobs, name: str) -> Any:
    with blobs.open(name) as stream:
        return json.loads(stream.read(_LARGEST_JSON))


def _unpacked(blobs: _Blobs, name: str) -> IO[bytes]:
    """A layer's tar stream, unpacked as it is read: gzip, zstd or neither, told by its first bytes."""
    stream = blobs.open(name)
    magic = stream.read(4)
    stream.seek(0)
    if magic[:2] == b"\x1f\x8b":
        from isal import igzip

        packed: IO[bytes] = igzip.open(stream, "rb")  # type: ignore[no-untyped-call]  # its stub lacks a type
        return packed
    if magic == b"\x28\xb5\x2f\xfd":
        import zstandard

        return zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(stream, read_across_frames=True)
    return stream
