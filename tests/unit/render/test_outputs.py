"""What is rendered: byte-stable, current in the project, safe."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from envbuilder.cli.render import command
from envbuilder.lock.model import BaseImage, DebArtifact, DebianBase, Lock, PythonArtifact
from envbuilder.lock.reading import load_lock
from envbuilder.render.dockerfile import dockerfile
from envbuilder.render.groups import python_groups
from envbuilder.render.outputs import outputs, render_stacks, stale
from envbuilder.render.templates import qualified
from envbuilder.stack.loading import load_stack

ROOT = Path(__file__).parents[3]
STACKS = ["p40", "p40-debian"]


def wheel(name, version="1.0", number=0):
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return PythonArtifact(name=name, version=version, filename=filename, sha256=f"{number:064x}", size=1000)


def deb(name, target, number):
    fields = {"version": "1:2.0", "architecture": "amd64", "suite": "bookworm", "component": "main"}
    path = f"pool/main/{name[0]}/{name}/{name}_2.0_amd64.deb"
    return DebArtifact(name=name, path=path, sha256=f"{number:064x}", size=10, target=target, **fields)


@pytest.fixture
def small_lock():
    names = ["setuptools", "nvidia-cublas-cu12", "torch", "triton", "numpy", "verl", "wandb"]
    packages = (deb("bash", "runtime", 91), deb("nvidia-cuda-toolkit", "devel", 92))
    return Lock(
        stack="p40-debian",
        digest=f"sha256:{7:064x}",
        python=tuple(wheel(name, number=i) for i, name in enumerate(names, start=1)),
        debian=DebianBase(suite="bookworm", release="12.15", security=False, packages=packages),
    )


def test_debian_dockerfile(small_lock, snapshot):
    assert dockerfile(*load_stack("p40-debian"), small_lock) == snapshot


def test_conda_files(snapshot):
    images = tuple(
        BaseImage(target=target, reference=f"nvidia/cuda:11.8.0-{target}", digest=f"sha256:{number:064x}")
        for number, target in enumerate(("devel", "runtime", "installer"), start=1)
    )
    lock = Lock(stack="p40", digest=f"sha256:{7:064x}", python=(wheel("torch"),), images=images)
    files = outputs(*load_stack("p40"), lock)
    assert sorted(files) == ["Dockerfile.p40", "environment.p40.yml", "stack.p40.json"]
    assert files["Dockerfile.p40"] == snapshot
    assert files["environment.p40.yml"] == snapshot
    assert json.loads(files["stack.p40.json"])["lock"] == lock.digest


def test_the_committed_files_are_what_is_rendered_now(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert stale(render_stacks(STACKS)) == [], "render them anew: envbuilder render"


def test_every_group_is_a_layer_and_every_package_is_in_one(small_lock):
    groups = python_groups(small_lock)
    assert [g.name for g in groups] == ["tools", "cuda", "torch", "libraries", "verl"]
    assert sorted(a.name for g in groups for a in g.artifacts) == sorted(a.name for a in small_lock.python)


def test_a_changed_hash_changes_its_own_layer_only(small_lock):
    changed = small_lock.model_copy(
        update={"python": tuple(wheel("verl", number=99) if a.name == "verl" else a for a in small_lock.python)}
    )
    before, after = ({g.name: g.digest for g in python_groups(lock)} for lock in (small_lock, changed))
    assert [name for name in before if before[name] != after[name]] == ["verl"]


@pytest.mark.parametrize("name", STACKS)
def test_a_dockerfile_keeps_the_rules(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    stack, gpu = load_stack(name)
    text = dockerfile(stack, gpu, load_lock(stack))
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", text, re.M)
    known = {stage for _, stage in stages}
    for source, _ in stages:
        assert source == "scratch" or source in known or re.search(r"@sha256:[0-9a-f]{64}$", source), source
    assert stages[-1][1] == "runtime", "the default target is the last stage"
    assert ":latest" not in text
    assert not re.search(r"(curl|wget)\b.*\|\s*(ba)?sh", text)
    assert "USER trainer" in text.split("AS runtime")[1]
    assert "--require-hashes" in text
    for match in re.finditer(r"(?:pip|uv pip) install(.*?)\n(?! )", text, re.S):
        assert "--no-index" in match[1] or "--require-hashes" in match[1]


def test_a_stack_without_base_digests_is_told_to_lock(small_lock):
    from envbuilder.errors import InputError

    with pytest.raises(InputError, match="names no digest of its devel image") as caught:
        dockerfile(*load_stack("p40"), Lock(stack="p40", digest=f"sha256:{7:064x}", python=()))
    assert caught.value.cure == "Lock the stack: envbuilder lock p40"


def test_a_pattern_with_a_quote_cannot_leave_its_string(small_lock):
    stack, gpu = load_stack("p40-debian")
    hostile = stack.debian.model_copy(update={"devel_exclude": ("/x'; touch /pwned; echo '",)})
    text = dockerfile(stack.model_copy(update={"debian": hostile}), gpu, small_lock)
    assert """'path-exclude=/x'"'"'; touch /pwned; echo '"'"''""" in text


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("nvidia/cuda:1", "docker.io/nvidia/cuda:1"),
        ("nvcr.io/a/b:1", "nvcr.io/a/b:1"),
        ("localhost:5000/a", "localhost:5000/a"),
    ],
)
def test_references_name_their_registry(given, wanted):
    assert qualified(given) == wanted


def test_check_writes_nothing_and_fails_on_a_stale_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = CliRunner().invoke(command, ["p40-debian", "--check"], standalone_mode=False)
    assert missing.return_value == 1
    assert list(tmp_path.iterdir()) == []
    assert CliRunner().invoke(command, ["p40-debian"], standalone_mode=False).return_value == 0
    assert CliRunner().invoke(command, ["p40-debian", "--check"], standalone_mode=False).return_value == 0
    path = tmp_path / "Dockerfile.p40-debian"
    path.write_text(path.read_text() + "\n")
    answer = CliRunner().invoke(command, ["p40-debian", "--check", "--json"], standalone_mode=False)
    assert answer.return_value == 1
    assert json.loads(answer.output.split("Render")[0])["files"] == [{"file": path.name, "current": False}]


@pytest.mark.parametrize(
    ("nvcc", "torch", "gcc", "said"),
    [
        ("11.8", "11.8", "11.4.0", None),
        ("12.4", "11.8", "11.4.0", "nvcc is release 12.4, this stack compiles with 11.8"),
        ("11.8", "12.4", "11.4.0", "torch was built for CUDA 12.4, nvcc is 11.8"),
        ("11.8", "11.8", "12", "g++ is 12, nvcc 11.8 takes none newer than 11"),
    ],
)
def test_the_compiler_check_says_what_is_wrong_and_what_to_do(tmp_path, monkeypatch, nvcc, torch, gcc, said):
    """The step itself, run by sh with stand-ins for nvcc, python and g++ that only tell a version."""
    monkeypatch.chdir(ROOT)
    stack, gpu = load_stack("p40")
    text = dockerfile(stack, gpu, load_lock(stack))
    step = re.search(r"^RUN (: 'compilers fit PyTorch'.*?[^\\])\n", text, re.S | re.M)[1].replace("\\\n", "")
    programs = {
        "nvcc": f"echo 'Cuda compilation tools, release {nvcc}, V{nvcc}.89'",
        "python": f"echo {torch}",
        "g++": f"echo {gcc}",
    }
    (tmp_path / "bin").mkdir()
    for name, line in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "CUDA_HOME": str(tmp_path)}
    done = subprocess.run(["/bin/sh", "-c", step], env=env, capture_output=True, text=True, check=False)
    if said is None:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 1
        assert said in done.stderr
        assert "\ndo: " in done.stderr
