"""Images for the registries of the tests: the small stack as a project of its own, and a tiny image that is a stand-in.

The tiny one holds noise that does not pack, so that a line has something to carry, and many zeros, so that an engine
has something to do; it can be run nowhere.
"""

import io
import json
import random
import tarfile
from dataclasses import dataclass
from pathlib import Path

import tomlkit

from envbuilder.data import builtin_root
from envbuilder.image.names import image_tag
from envbuilder.lock.requirements_file import requirements_text
from envbuilder.lock.sources_file import Sources, sources_text
from envbuilder.publish.export import Exported, export
from envbuilder.publish.push import push
from envbuilder.publish.remote import Remote
from envbuilder.report.progress import Silent
from tests.e2e.hosts import RESULTS, Host
from tests.small_stack import SMALL, small_stack
from tests.unit.publish.stand_ins import StandInEngine

MIB = 2**20
TINY = image_tag("tiny")
# A host where nothing but the tiny image is left.
DONE = {**RESULTS, "images": [TINY]}
_ZEROS = 96 * MIB


def write_small_project(folder: Path) -> None:
    """The small stack and its lock as files. The stack pins torch, as each must; its lock goes without."""
    text = tomlkit.parse((builtin_root() / "stacks" / "p40-debian.toml").read_text())
    text["name"] = "small"
    packages = text["python"]["packages"]
    for name in [name for name in packages if name not in (*SMALL, "torch")]:
        del packages[name]
    stack, _, lock = small_stack()
    files = {
        "stacks/small.toml": tomlkit.dumps(text),
        "locks/small.requirements.txt": requirements_text(stack, lock.python),
        "locks/small.sources.toml": sources_text(Sources(stack="small", debian=lock.debian)),
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


@dataclass(frozen=True)
class Tiny:
    """The tiny image in a registry: digests of its manifest, its configuration and its layers, and what they weigh."""

    digest: str
    config: str
    layers: tuple[str, ...]
    size: int

    def at(self, host: str) -> str:
        """What is pulled, from ``host``."""
        return f"{host}/team/tiny@{self.digest}"


def publish_tiny(host: str, repository: str = "team/tiny", megabytes: int = 12) -> Tiny:
    """Push the tiny image to ``host``: two layers of ``megabytes`` of noise each, and one of zeros."""
    engine = StandInEngine()
    noise = [random.Random(seed).randbytes(megabytes * MIB) for seed in (1, 2)]
    bodies = [_tar(f"noise-{number}", body) for number, body in enumerate(noise)] + [_tar("zeros", bytes(_ZEROS))]
    engine.make(TINY, bodies, {"io.envbuilder.stack": "tiny"})
    exported: Exported = export(engine, TINY, Silent())
    push(exported, Remote.open(f"{host}/{repository}:1"), Silent())
    layers = tuple(layer.digest for layer in exported.layers)
    return Tiny(exported.digest, exported.config.digest, layers, exported.size)


def comes_whole(second: Host, reference: str) -> None:
    """What was begun comes to its end; nothing else is left."""
    done = second.envbuilder("pull", reference)
    assert done.returncode == 0, done.stderr
    assert second.left() == DONE
    assert second.fetched() == 0


def digests(pusher: Host, digest: str) -> tuple[str, list[str]]:
    """Configuration and layers of what a host has pushed, the largest layer last."""
    manifest = json.loads(next(pusher.cache.glob(f"images/*/blobs/sha256/{digest[7:]}")).read_bytes())
    layers = sorted(manifest["layers"], key=lambda layer: layer["size"])
    return manifest["config"]["digest"], [layer["digest"] for layer in layers]


def _tar(name: str, body: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(body)
        tar.addfile(member, io.BytesIO(body))
    return out.getvalue()
