"""An engine that keeps images in memory."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from envbuilder.errors import IntegrityError
from envbuilder.image.archives import blob, unpacked, unpacked_file
from envbuilder.image.engine import ImageInfo, Layer
from envbuilder.image.layouts import manifest_of
from envbuilder.report.progress import Progress


def digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def config_of(layers: list[bytes], labels: dict[str, str] | None = None) -> bytes:
    rootfs = {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]}
    # Bytes that no other program would choose: they must stay as they are.
    return json.dumps({"config": {"Labels": labels or {}}, "rootfs": rootfs}, indent=3).encode()


class StandInEngine:
    """An engine. ``read`` are the layers that were asked for, ``loaded`` counts what it took in."""

    name = "stand-in"

    def __init__(self) -> None:
        self.images: dict[str, tuple[bytes, list[bytes]]] = {}
        self.names: dict[str, str] = {}
        self.read: list[str] = []
        self.loaded = 0
        self.fault: Exception | None = None

    def make(self, name: str, layers: list[bytes], labels: dict[str, str] | None = None) -> str:
        """An image as if it had been built; its id."""
        config = config_of(layers, labels)
        self.images[digest_of(config)] = (config, layers)
        self.names[name] = digest_of(config)
        return digest_of(config)

    def version(self) -> str:
        return "stand-in 1"

    def storage(self) -> Path | None:
        return None

    def driver(self) -> str:
        return "overlay"

    def image(self, reference: str) -> ImageInfo | None:
        identity = self.names.get(reference, reference)
        if identity not in self.images:
            return None
        config, bodies = self.images[identity]
        layers = tuple(Layer(digest_of(body), len(body), "") for body in bodies)
        labels = json.loads(config)["config"]["Labels"]
        return ImageInfo(reference, identity, "sha256:-", layers, labels)

    def contents(self, image: ImageInfo) -> "StandInContents":
        return StandInContents(self, *self.images[image.id])

    def identity(self, image: ImageInfo, progress: Progress) -> str:
        return image.id

    def load(self, source: Path, ids: Collection[str], name: str, progress: Progress) -> ImageInfo:
        if self.fault:
            raise self.fault
        config, layers = _of_archive(source) if source.is_file() else _of_layout(source)
        assert [digest_of(layer) for layer in layers] == json.loads(config)["rootfs"]["diff_ids"]
        if digest_of(config) not in ids:
            raise IntegrityError("another image")
        self.loaded += 1
        self.images[digest_of(config)] = (config, layers)
        self.names[name] = digest_of(config)
        found = self.image(name)
        assert found
        return found


class StandInContents:
    def __init__(self, engine: StandInEngine, config: bytes, layers: list[bytes]) -> None:
        self._engine, self._config, self._layers = engine, config, layers

    def size(self, wanted: Callable[[str], bool]) -> int:
        return sum(len(body) for body in self._layers if wanted(digest_of(body)))

    def layers(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Iterator[bytes]]]:
        for body in self._layers:
            if wanted(digest_of(body)):
                self._engine.read.append(digest_of(body))
                yield digest_of(body), iter([body])

    def config(self) -> bytes:
        return self._config


def _of_layout(folder: Path) -> tuple[bytes, list[bytes]]:
    parts: dict[str, Any] = json.loads((folder / blob(manifest_of(folder))).read_bytes())
    layers = []
    for layer in parts["layers"]:
        with (folder / blob(layer["digest"])).open("rb") as stream:
            layers.append(b"".join(unpacked(stream)))
    return (folder / blob(parts["config"]["digest"])).read_bytes(), layers


def _of_archive(path: Path) -> tuple[bytes, list[bytes]]:
    """As Docker reads it: by manifest.json."""
    whole = io.BytesIO(b"".join(unpacked_file(path, lambda count: None)))
    with tarfile.open(fileobj=whole) as tar:
        bodies = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    listed = json.loads(bodies["manifest.json"])[0]
    return bodies[listed["Config"]], [bodies[name] for name in listed["Layers"]]
