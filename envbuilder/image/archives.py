"""Images as one tar that every engine loads: an OCI layout and what ``docker save`` writes, in one and the same file.

Both name the same blobs. The bytes follow from the image alone: fixed order, times, modes and owners. Which engine
takes which packing of layers was tried: docs/publish.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard
from isal import igzip

from envbuilder.errors import IntegrityError, Place

_CHUNK = 1024 * 1024
_BLOCK = tarfile.BLOCKSIZE
_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
# How many bytes a layer is when unpacked, as an annotation of it: known before it is unpacked.
UNPACKED_SIZE = "io.envbuilder.layer.unpacked"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Member:
    """One file of an archive: its name, its size in bytes, and its bytes when they are wanted."""

    name: str
    size: int
    chunks: Callable[[], Iterator[bytes]]


def blob(digest: str) -> str:
    """The name of a blob in a layout."""
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def packed_members(layout: Path, manifest: str, names: Sequence[str] = (), *, without: int = 0) -> list[Member]:
    """The image ``manifest`` of the layout with its blobs as they are, without the lowest layers an engine has."""
    body = (layout / blob(manifest)).read_bytes()
    parts: dict[str, Any] = json.loads(body)
    blobs = [_file(layout, part["digest"]) for part in (parts["config"], *parts["layers"][without:])]
    digests = [layer["digest"] for layer in parts["layers"]]
    return [*_about(manifest, len(body), parts["config"]["digest"], digests, names), text(blob(manifest), body), *blobs]


def unpacked_members(layout: Path, manifest: str, names: Sequence[str] = (), *, without: int = 0) -> list[Member]:
    """The same image with its layers unpacked, for every engine there is; its configuration, and so its id, stays."""
    parts: dict[str, Any] = json.loads((layout / blob(manifest)).read_bytes())
    config = (layout / blob(parts["config"]["digest"])).read_bytes()
    diff_ids: list[str] = json.loads(config)["rootfs"]["diff_ids"]
    layers = [
        _layer(diff_id, layout / blob(part["digest"]), (part.get("annotations") or {}).get(UNPACKED_SIZE))
        for diff_id, part in zip(diff_ids, parts["layers"], strict=True)
    ]
    sizes = [(diff_id, layer.size) for diff_id, layer in zip(diff_ids, layers, strict=True)]
    about = about_unpacked(parts["config"], sizes, names)
    return [*about, _file(layout, parts["config"]["digest"]), *layers[without:]]


def diff_ids_in(layout: Path, manifest: str) -> list[str]:
    """The digests of the image's unpacked layers, from the bottom up."""
    parts = json.loads((layout / blob(manifest)).read_bytes())
    found: list[str] = json.loads((layout / blob(parts["config"]["digest"])).read_bytes())["rootfs"]["diff_ids"]
    return found


def about_unpacked(config: dict[str, Any], layers: Sequence[tuple[str, int]], names: Sequence[str]) -> list[Member]:
    """What names the parts of an unpacked image, with ``layers`` as digest and size."""
    described: list[dict[str, Any]] = [{"mediaType": _LAYER, "digest": digest, "size": size} for digest, size in layers]
    body = json_bytes({"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": described})
    digests = [layer["digest"] for layer in described]
    manifest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    return [*_about(manifest, len(body), config["digest"], digests, names), text(blob(manifest), body)]


def _about(manifest: str, size: int, config: str, layers: Sequence[str], names: Sequence[str]) -> list[Member]:
    entry: dict[str, Any] = {
        "mediaType": _MANIFEST,
        "digest": manifest,
        "size": size,
        "platform": {"architecture": "amd64", "os": "linux"},
    }
    # containerd takes the first for the name, the others' layouts the second for the tag.
    named = [
        {**entry, "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}}
        for name in names
    ]
    # A layer that stands twice is one blob and two entries.
    listed = {"Config": blob(config), "RepoTags": list(names) or None, "Layers": [blob(layer) for layer in layers]}
    return [
        text("oci-layout", json_bytes({"imageLayoutVersion": "1.0.0"})),
        text("index.json", json_bytes({"schemaVersion": 2, "mediaType": _INDEX, "manifests": named or [entry]})),
        text("manifest.json", json_bytes([listed])),
    ]


def tar_of(members: Sequence[Member], advance: Callable[[int], None] = lambda count: None) -> Iterator[bytes]:
    """The tar, as it comes; a name that stands twice goes in once. ``advance`` is told of bytes."""
    seen = set()
    for member in members:
        if member.name in seen:
            continue
        seen.add(member.name)
        header = tarfile.TarInfo(member.name)
        header.size, header.mode = member.size, 0o644
        yield header.tobuf(tarfile.GNU_FORMAT)
        for chunk in member.chunks():
            advance(len(chunk))
            yield chunk
        yield bytes(-member.size % _BLOCK)
    yield bytes(2 * _BLOCK)


def unpacked_file(path: Path, advance: Callable[[int], None]) -> Iterator[bytes]:
    """The bytes of an archive, unpacked where it is packed; ``advance`` is told of the bytes that were read of it."""
    with path.open("rb", buffering=0) as stream:
        yield from unpacked(io.BufferedReader(_Told(stream, advance), _CHUNK))


def unpacked_stream(stream: io.RawIOBase, advance: Callable[[int], None]) -> io.BufferedReader:
    """``unpacked_file`` of an open file, as a file."""
    return io.BufferedReader(Chunks(unpacked(io.BufferedReader(_Told(stream, advance), _CHUNK))), _CHUNK)


class _Told(io.RawIOBase):
    """A file that tells how much of it was read."""

    def __init__(self, stream: io.RawIOBase, told: Callable[[int], None]) -> None:
        self._stream = stream
        self._told = told

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """As ever, and tell of it."""
        count = self._stream.readinto(buffer) or 0
        self._told(count)
        return count


def size_of(members: Sequence[Member]) -> int:
    """Bytes of the tar."""
    sizes = {member.name: member.size for member in members}
    return sum(_BLOCK + size + -size % _BLOCK for size in sizes.values()) + 2 * _BLOCK


def unpacked(stream: io.BufferedReader) -> Iterator[bytes]:
    """A layer's tar, unpacked as it is read: gzip, zstd or neither, told by its first bytes."""
    head = stream.peek(len(_ZSTD))
    source: Any = stream
    if head.startswith(_GZIP):
        source = igzip.IGzipFile(fileobj=stream, mode="rb")  # type: ignore[no-untyped-call]  # its stub lacks a type
    elif head.startswith(_ZSTD):
        source = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    while chunk := source.read(_CHUNK):
        yield chunk


def is_packed(head: bytes) -> bool:
    """Whether bytes that begin so are gzip's or zstd's."""
    return head.startswith((_GZIP, _ZSTD))


def _layer(diff_id: str, path: Path, told: str | None) -> Member:
    """A packed layer as it is unpacked; ``told`` is its size where that is known."""

    def chunks() -> Iterator[bytes]:
        with path.open("rb") as stream:
            left = size
            for chunk in unpacked(stream):
                left -= len(chunk)
                if left < 0:
                    break
                yield chunk
        if left:
            raise IntegrityError(
                f"a layer does not unpack to the {size} bytes it should have",
                place=Place(str(path)),
                cure="Remove the file, then pull or build the image again.",
            )

    size = int(told) if told and told.isdigit() else _count(path)
    return Member(blob(diff_id), size, chunks)


def _count(path: Path) -> int:
    with path.open("rb") as stream:
        return sum(len(chunk) for chunk in unpacked(stream))


def _file(layout: Path, digest: str) -> Member:
    path = layout / blob(digest)

    def chunks() -> Iterator[bytes]:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk

    return Member(blob(digest), path.stat().st_size, chunks)


def text(name: str, body: bytes) -> Member:
    """A small file."""
    return Member(name, len(body), lambda: iter([body]))


def json_bytes(value: Any) -> bytes:
    """JSON whose bytes follow from the value alone."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class Chunks(io.RawIOBase):
    """Chunks as a file to read from."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill ``buffer`` with what is there of the present chunk."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
