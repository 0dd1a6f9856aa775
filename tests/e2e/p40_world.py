"""Every source that the stack p40 has, on loopback, and a project that asks them; stand_ins.py says what is real."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import rattler
import yaml
from pytest_httpserver import HTTPServer

import envbuilder
from envbuilder.data import builtin_root
from envbuilder.errors import Place
from envbuilder.fetch.cache import path_of
from envbuilder.fetch.fetching import fetch, item_of
from envbuilder.fetch.view import folder_of
from envbuilder.image.rootfs import rootfs
from envbuilder.lock import images
from envbuilder.lock.indexes import Wanted, index_named, recorded_file
from envbuilder.lock.python import python_tags, target_of
from envbuilder.lock.reading import load_lock
from envbuilder.report.progress import Silent
from envbuilder.stack.loading import load_stack
from tests.channels import lay_out
from tests.e2e import stand_ins
from tests.e2e.loopback import NamedHosts, Registry
from tests.python_index import Index

TORCH = f"torch-2.6.0+cu118-{stand_ins.TORCH_TAG}.whl"
CUDA_DEBS = ("nvidia-cuda-toolkit", "nvidia-cuda-dev", "libnvvm4", "libcudart11.0")
# p40-debian's base has the user that p40's Dockerfile makes.
RUNTIME = """
FROM scratch
ADD rootfs.tar /
RUN userdel --remove trainer
"""
DEVEL = rf"""
{RUNTIME}
RUN --mount=type=bind,from=debs,target=/mnt set -e; \
    for deb in /mnt/*.deb; do dpkg-deb --fsys-tarfile $deb \
      | tar -x -C / --exclude=*_static*.a --exclude=./usr/share/* --exclude=*/compute-sanitizer/*; done; \
    dpkg-deb --fsys-tarfile /mnt/nvidia-cuda-dev*.deb | tar -x -C / ./usr/lib/x86_64-linux-gnu/libcudart_static.a; \
    ln -sfn /usr /usr/local/cuda; ln -sf g++-11 /usr/bin/g++; ln -sf gcc-11 /usr/bin/gcc
COPY stand-in /opt/stand-in
"""


def buildah(*arguments: str) -> str:
    done = subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.strip()


@dataclass
class World:
    """Every source p40 has, on loopback."""

    folder: Path
    index: Index
    pytorch: HTTPServer
    named: NamedHosts
    layouts: dict[str, Path] = field(default_factory=dict)
    registry: Registry = field(init=False)

    def layout(self, name: str, dockerfile: str, context: Path, **contexts: Path) -> Path:
        """Build an image and write it as an OCI layout."""
        path = self.folder / f"{name}.Dockerfile"
        path.write_text(dockerfile)
        tag = f"localhost/envbuilder-e2e/{name}"
        flags = [flag for key, value in contexts.items() for flag in ("--build-context", f"{key}={value}")]
        common = ["--isolation", "oci", "--runtime", "runc", "--network", "none", "--tag", tag, "--file", str(path)]
        buildah("build", "--layers", *common, *flags, str(context))
        layout = self.folder / "layouts" / name
        layout.parent.mkdir(exist_ok=True)
        buildah("push", "--quiet", "--disable-compression", tag, f"oci:{layout}")
        return layout

    def serve_torch(self, cuda: str) -> None:
        """Serve the stand-in of torch, built for a CUDA release, as the PyTorch index does."""
        stack, _ = load_stack(str(builtin_root() / "stacks" / "p40.toml"))
        torch = recorded_file(
            index_named("pytorch-cu118", Place()), Wanted("torch", "2.6.0+cu118", python_tags(target_of(stack)))
        )
        assert torch is not None
        files = {name: text.replace("{cuda}", cuda) for name, text in stand_ins.TORCH.items()}
        data = stand_ins.wheel(self.folder / TORCH, files, torch.requires)
        sha256 = hashlib.sha256(data).hexdigest()
        name = TORCH.replace("+", "%2B")
        self.pytorch.clear()
        page = f'<a href="/whl/cu118/{name}#sha256={sha256}">{TORCH}</a>'
        requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in torch.requires)
        metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0+cu118\n{requires}"
        self.pytorch.expect_request("/whl/cu118/torch/").respond_with_data(page, content_type="text/html")
        self.pytorch.expect_request(f"/whl/cu118/{TORCH}.metadata").respond_with_data(metadata)
        self.pytorch.expect_request(f"/whl/cu118/{TORCH}").respond_with_data(data, content_type="application/zip")


@pytest.fixture(scope="module")
def world(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("p40")
    with pytest.MonkeyPatch.context() as patch, HTTPServer() as simple, HTTPServer() as pytorch, ExitStack() as closing:
        named = NamedHosts(folder, folder / "git", folder / "channels", pytorch.url_for("").rstrip("/"))
        closing.callback(named.close)
        world = World(folder, Index(simple), pytorch, named)
        _images(world)
        records = _conda(folder)
        _python(world)
        commit = stand_ins.apex_repository(folder / "git" / "NVIDIA" / "apex")
        world.registry = Registry(world.layouts)
        closing.callback(world.registry.close)
        world.serve_torch("11.8")
        _project(world, commit, lay_out(records, folder / "channels"), world.registry.host)
        patch.setattr(images, "recorded_images", dict)
        patch.setenv("UV_DEFAULT_INDEX", world.index.url)
        patch.setenv("UV_CACHE_DIR", str(folder / "uv"))
        patch.setenv("ENVBUILDER_CACHE", str(folder / "cache"))
        patch.chdir(folder / "project")
        yield world


def _images(world: World) -> None:
    """The base images and micromamba's, out of the packages that p40-debian's lock names."""
    stack, _ = load_stack("p40-debian")
    lock = load_lock(stack)
    fetched = fetch(stack, lock, Silent())
    files = {file.path.name: file for file in fetched.debs}
    runtime = tuple(deb for deb in lock.debs if deb.target == "runtime")
    compilers = tuple(deb for deb in lock.debs if deb.target == "runtime" or deb.component == "main")
    for name, debs in (("runtime", runtime), ("devel", compilers)):
        context = world.folder / "contexts" / name
        context.mkdir(parents=True)
        shutil.copyfile(rootfs("bookworm", debs, files, stack.source_date_epoch, Silent()), context / "rootfs.tar")
    tools = world.folder / "contexts" / "devel" / "stand-in"
    for package in (rattler, envbuilder, yaml):
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, tools / source.name, ignore=shutil.ignore_patterns("__pycache__", "_data"))
    debs_folder = folder_of([files[d.sha256] for d in lock.debs if d.name in CUDA_DEBS], world.folder / "debs")
    world.layouts["stand-in/devel"] = world.layout(
        "devel", DEVEL, world.folder / "contexts" / "devel", debs=debs_folder
    )
    world.layouts["stand-in/runtime"] = world.layout("runtime", RUNTIME, world.folder / "contexts" / "runtime")
    program = world.folder / "contexts" / "installer" / "micromamba"
    program.parent.mkdir()
    program.write_text(stand_ins.MICROMAMBA)
    program.chmod(0o755)
    world.layouts["mambaorg/micromamba"] = world.layout(
        "installer", "FROM scratch\nCOPY micromamba /bin/micromamba\n", program.parent
    )


def _conda(folder: Path) -> list[dict[str, object]]:
    stand_ins.python_files(folder / "files" / "python")
    stand_ins.installed_files(folder / "files" / "pip", "pip")
    label, forge = "nvidia/label/cuda-11.8.0", "conda-forge"
    packages = [
        ("python", "3.11.2", [], forge),
        ("pip", "24.2", ["python"], forge),
        ("ninja", "1.12.1", [], forge),
        ("cuda-version", "11.8", [], forge),
        ("cudnn", "8.9.7.29", ["cuda-version >=11.0,<12.0a0", "__cuda"], forge),
        ("cuda-nvcc", "11.8.89", [], label),
        ("cuda-cudart-dev", "11.8.89", [], label),
        ("libcublas-dev", "11.11.3.6", [], label),
    ]
    return [stand_ins.conda_package(folder, *package) for package in packages]


def _python(world: World) -> None:
    """Stand-ins of everything in p40's lock; verl and setuptools as they are."""
    stack, _ = load_stack("p40-debian")
    lock = load_lock(stack)
    real = {a.name: a for a in lock.python if a.name in ("verl", "setuptools")}
    fetch(stack, lock, Silent(), ("runtime",))
    for artifact in real.values():
        world.index.add(artifact.filename, path_of(item_of(artifact)).read_bytes())
    wheels = world.folder / "wheels"
    wheels.mkdir()
    for artifact in load_lock(load_stack("p40")[0]).python:
        if artifact.name not in real and artifact.index is None:
            module = artifact.name.replace("-", "_")
            name = f"{module}-{artifact.version}-py3-none-any.whl"
            world.index.add(name, stand_ins.wheel(wheels / name, {f"{module}_stand_in.py": ""}))


def _project(world: World, commit: str, channels: dict[str, list[str]], registry: str) -> None:
    text = (builtin_root() / "stacks" / "p40.toml").read_text()
    for old, new in (
        ("nvidia/cuda:11.8.0-devel-ubuntu22.04", "stand-in/devel:1"),
        ("nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04", "stand-in/runtime:1"),
        ('version = "3.10.12"', 'version = "3.11.2"'),
        ('[python]\nversion = "3.10"', '[python]\nversion = "3.11"'),
        ("379937e1719b8190f38f3e666e2a8d32c97e221f", commit),
    ):
        assert old in text
        text = text.replace(old, new)
    project = world.folder / "project"
    # A checkout holds envbuilder itself, whose suite Dockerfile.p40 copies.
    source = builtin_root()
    shutil.copytree(source / "envbuilder", project / "envbuilder", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(source / "Dockerfile.p40.dockerignore", project / "Dockerfile.p40.dockerignore")
    (project / "stacks").mkdir(parents=True)
    (project / "stacks" / "p40.toml").write_text(text)
    replace = {
        **channels,
        "https://download.pytorch.org/whl": [world.pytorch.url_for("/whl")],
        "https://github.com": [(world.folder / "git").as_uri()],
        "docker.io": [registry],
    }
    lines = [f'"{prefix}" = {json.dumps(addresses)}' for prefix, addresses in replace.items()]
    (project / "envbuilder.toml").write_text("[mirrors.replace]\n" + "\n".join(lines) + "\n")
