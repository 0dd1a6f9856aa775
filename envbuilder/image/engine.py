"""The one interface to what builds and runs images. Each engine is a module of its own beside this one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from envbuilder.report.progress import Progress


@dataclass(frozen=True)
class BuildRequest:
    """What to build.

    ``context`` holds what the Dockerfile copies. ``contexts`` are further named build contexts (folders).
    ``images`` are OCI layouts by what stands behind FROM: they are taken, and no registry is asked. ``secrets`` are
    files by secret id, seen by RUN steps only and never in a layer. ``network`` is False for a build that has fetched
    everything beforehand. ``cache`` is False to build every layer anew.
    """

    dockerfile: Path
    context: Path
    target: str
    tag: str
    source_date_epoch: int
    labels: Mapping[str, str] = field(default_factory=dict)
    contexts: Mapping[str, Path] = field(default_factory=dict)
    images: Mapping[str, Path] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    network: bool = False
    cache: bool = True


@dataclass(frozen=True)
class Layer:
    """A layer: its digest, its bytes as the engine stores it, and the instruction that made it."""

    digest: str
    size: int
    made_by: str


@dataclass(frozen=True)
class ImageInfo:
    """An image in the engine's store.

    ``digest`` is that of the manifest, ``id`` that of the configuration, both as ``sha256:...``. Sizes are bytes
    as the engine stores them: uncompressed with buildah.
    """

    reference: str
    id: str
    digest: str
    layers: tuple[Layer, ...]
    labels: Mapping[str, str]

    @property
    def size(self) -> int:
        """The sum of the layers, in bytes."""
        return sum(layer.size for layer in self.layers)


@dataclass(frozen=True)
class RunRequest:
    """What to run: ``command`` in ``image``, as the image's user, without network unless asked for.

    ``gpu`` is None, "all", an index or a UUID. ``mounts`` maps a host path to a read-only path in the container,
    ``writable`` a host folder to a path that the command may write: it then runs as the folder's owner, or as the
    image's user where that is root, who is given the folder (``envbuilder.image.ownership``).
    """

    image: str
    command: tuple[str, ...]
    gpu: str | None = None
    mounts: Mapping[Path, str] = field(default_factory=dict)
    writable: Mapping[Path, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    network: bool = False
    shm_mib: int = 1024


class Run(Protocol):
    """A running command. Iterate for its output lines (standard output); ``wait`` gives the exit code."""

    def __iter__(self) -> Iterator[str]:
        """Lines of standard output as they come, without the newline."""

    def wait(self) -> int:
        """The exit code; the container is gone afterwards."""

    def errors(self) -> str:
        """The tail of standard error."""

    def stop(self) -> None:
        """End the command and remove its container. Safe to call twice, and after ``wait``."""


class Contents(Protocol):
    """An image's own bytes, read once: first its layers, then its configuration."""

    def size(self, wanted: Callable[[str], bool]) -> int:
        """Bytes of the unpacked layers whose digest is wanted, as far as the engine tells."""

    def layers(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str | None, Iterator[bytes]]]:
        """Unpacked layers (tar archives) whose digest is wanted, or which the engine names by no digest: None."""

    def config(self) -> bytes:
        """The configuration that names these layers."""


class Engine(Protocol):
    """An engine. Every method raises HostError with a cure when the engine or what it needs is not there."""

    name: str

    def version(self) -> str:
        """The engine and its version, as one line for the build record."""

    def storage(self) -> Path | None:
        """The folder images are stored under, None where it is not on this host."""

    def driver(self) -> str:
        """The kind of its store, as the engine calls it, such as ``overlay``."""

    def build(self, request: BuildRequest, progress: Progress) -> ImageInfo:
        """Build and store an image. Raises BuildError with the failing step and the last lines."""

    def image(self, reference: str) -> ImageInfo | None:
        """The image ``reference`` (a tag, an id or a digest) in the store, or None."""

    def run(self, request: RunRequest) -> Run:
        """Start a command in an image."""

    def contents(self, image: ImageInfo) -> Contents:
        """The image's bytes as they leave the store."""

    def identity(self, image: ImageInfo, progress: Progress) -> str:
        """The digest of the configuration with which the image leaves the store: the same in every storage of the
        engine, and the id that the image has wherever it is pulled.
        """

    def load(self, source: Path, ids: Collection[str], name: str, progress: Progress) -> ImageInfo:
        """Take in an image: an OCI layout (a folder) with one manifest, or an archive that names it ``name``.

        ``ids`` are the digests of its manifest and of its configuration; the engine takes one of them for its id. Only
        an image that has such an id is named ``name``. Raises IntegrityError for another, HostError when the engine
        does not take it; nothing of it is then left.
        """

    def remove(self, reference: str) -> None:
        """Take a name from an image; with its last name go the image and those of its steps. No such name: nothing."""
