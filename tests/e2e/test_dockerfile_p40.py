"""Dockerfile.p40 built whole, with buildah and with BuildKit, by a user's own commands; stand_ins.py: what is real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.cli import run
from envbuilder.image.buildah import Buildah
from envbuilder.image.docker import Docker
from envbuilder.image.engine import Engine, RunRequest
from envbuilder.lock.reading import load_lock
from envbuilder.stack.loading import load_stack
from tests.e2e import stand_ins
from tests.e2e.docker_daemon import docker_daemon
from tests.e2e.p40_world import World, buildah, world  # noqa: F401
from tests.engine.conftest import programs, store  # noqa: F401

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("p40")]

IMPORTS = "import torch, amp_C, apex_C, fused_layer_norm_cuda, importlib.metadata as m; print(m.version('verl'))"
COMPILED = "nvcc -shared -Xcompiler -fPIC -gencode arch=compute_61,code=sm_61"
# What is broken, by a step over the devel base; what is said; what there is to do.
FAULTS = {
    "nvcc": (
        "RUN rm /usr/local/cuda && mkdir -p /usr/local/cuda/bin && "
        "printf '#!/bin/sh\\necho release 12.4, V12.4.131\\n' > /usr/local/cuda/bin/nvcc && "
        "chmod +x /usr/local/cuda/bin/nvcc",
        "nvcc is release 12.4, this stack compiles with 11.8",
        "take the base image of the lock",
    ),
    "newer-gxx": (
        "RUN rm /usr/bin/g++ && printf '#!/bin/sh\\necho 12.2.0\\n' > /usr/bin/g++ && chmod +x /usr/bin/g++",
        "g++ is 12.2.0, nvcc 11.8 takes none newer than 11",
        "install g++-11",
    ),
    "no-gxx": ("RUN rm /usr/bin/g++", "there is no g++, which nvcc compiles with", "install g++-11"),
}


@pytest.fixture(scope="module", params=["buildah", "docker"])
def engine(
    request: pytest.FixtureRequest,
    world: World,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Engine]:
    if request.param == "buildah":
        yield Buildah()
        return
    instead = [("/etc/hosts", world.named.hosts), ("/etc/ssl/certs/ca-certificates.crt", world.named.certificate)]
    with docker_daemon(tmp_path_factory.mktemp("docker"), world.registry.host, instead):
        yield Docker()


def made(engine: Engine, *more: str) -> int:
    """Lock, render and build, as a user does."""
    for command in (["lock", "p40"], ["render", "p40"]):
        code = run(command)
        if code:
            return code
    return run(["build", "p40", "--engine", engine.name, *more])


def by_hand(world: World) -> subprocess.CompletedProcess[str]:  # noqa: F811
    """``docker build`` as the Dockerfile's head says it, with an own certificate and an own package index.

    The tests' daemon has no network of its own (``--network``), and the names lead to loopback (``--add-host``).
    """
    pip = world.folder / "pip.conf"
    pip.write_text(f"[global]\nindex-url = {world.index.url}\n")
    command = ["docker", "build", "-f", "Dockerfile.p40", "-t", "envbuilder/p40:by-hand", "--progress", "plain"]
    command += ["--secret", f"id=ca,src={world.named.certificate}", "--secret", f"id=pip,src={pip}"]
    command += ["--network", "host", *(f"--add-host={name}:{world.named.ADDRESS}" for name in world.named.NAMES), "."]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def in_image(engine: Engine, tag: str, *command: str) -> list[str]:
    started = engine.run(RunRequest(tag, command))
    lines = list(started)
    assert started.wait() == 0, started.errors()
    return lines


def test_it_is_built_whole_and_its_extensions_are_for_the_card(
    world: World,  # noqa: F811
    engine: Engine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with capsys.disabled():
        print(f"\n{engine.version()}\n{stand_ins.__doc__}")
    assert made(engine, "--target", "devel", "--no-cache") == 0, capsys.readouterr().err
    assert made(engine, "--target", "runtime") == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "its CUDA code runs on Tesla P40 (sm_61)" in said
    for target in ("devel", "runtime"):
        assert in_image(engine, f"localhost/envbuilder/p40:{target}", "python", "-c", IMPORTS) == ["0.5.0"]
    listing = " ".join(in_image(engine, "localhost/envbuilder/p40:runtime", "ls", "/opt/env/conda-meta"))
    assert "cudnn-8.9.7.29" in listing
    assert "cuda-nvcc" not in listing
    logs = (world.folder / "project" / "build" / "logs").glob("p40-devel-*.log")
    assert COMPILED in "".join(path.read_text() for path in logs)
    if engine.name == "buildah":
        strays = [name for name in buildah("images", "--format", "{{.Name}}").split() if "/images/" in name]
        assert strays == [], "base images are known by their digest, not by a folder that is gone"


@pytest.mark.parametrize("engine", ["docker"], indirect=True)
def test_by_hand_it_downloads_from_the_real_names(world: World, engine: Engine) -> None:  # noqa: F811
    assert run(["lock", "p40"]) == 0
    assert run(["render", "p40"]) == 0
    built = by_hand(world)
    Path("by-hand.log").write_text(built.stderr)
    assert built.returncode == 0, built.stderr[-4000:]
    for said in (
        "downloaded https://conda.anaconda.org/nvidia/label/cuda-11.8.0/linux-64/cuda-nvcc-11.8.89",
        "Downloading https://download.pytorch.org/whl/cu118/torch-2.6.0",
        "https://github.com/NVIDIA/apex.git#",
        COMPILED,
    ):
        assert said in built.stderr
    assert in_image(engine, "envbuilder/p40:by-hand", "python", "-c", IMPORTS) == ["0.5.0"]


def test_a_bundle_builds_it_where_there_is_no_network(
    world: World,  # noqa: F811
    engine: Engine,
    tmp_path: Path,
) -> None:
    assert run(["lock", "p40"]) == 0
    assert run(["bundle", "p40", str(tmp_path / "p40.bundle")]) == 0
    command = [sys.executable, "-m", "envbuilder", "build", "--bundle", "p40.bundle", "--engine", engine.name, "--json"]
    # Another host: nothing in the cache, no project, no mirror, and no network at all.
    elsewhere = {**os.environ, "ENVBUILDER_CACHE": str(tmp_path / "cache"), "UV_CACHE_DIR": str(tmp_path / "uv")}
    built = subprocess.run(
        ["unshare", "--net", *command], cwd=tmp_path, env=elsewhere, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr[-4000:]
    assert json.loads(built.stdout)["lock"] == load_lock(load_stack("p40")[0]).digest


@pytest.mark.parametrize("fault", list(FAULTS))
def test_compilers_that_do_not_fit_stop_it_with_the_cure(
    world: World,  # noqa: F811
    engine: Engine,
    fault: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    step, says, cure = FAULTS[fault]
    good = world.layouts["stand-in/devel"]
    dockerfile = f"FROM localhost/envbuilder-e2e/devel\n{step}\n"
    world.layouts["stand-in/devel"] = world.layout(f"devel-{fault}", dockerfile, world.folder / "git")
    try:
        code = made(engine)
    finally:
        world.layouts["stand-in/devel"] = good
    said = capsys.readouterr().err
    assert code == 7, said
    assert says in said
    assert cure in said


def test_a_torch_for_another_cuda_stops_it_with_the_cure(
    world: World,  # noqa: F811
    engine: Engine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world.serve_torch("12.4")
    try:
        code = made(engine)
        hand = by_hand(world) if isinstance(engine, Docker) else None
    finally:
        world.serve_torch("11.8")
    built = capsys.readouterr().err
    assert code == 7, built
    for said in (built, *([hand.stderr] if hand else [])):
        assert "torch was built for CUDA 12.4, nvcc is 11.8" in said
        assert "lock a torch for CUDA 11.8 (+cu118)" in said
    if hand:
        assert hand.returncode != 0
