"""The conda half, solved by a real conda-lock over real records laid out as local channels."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import conda_lock
import fastjsonschema
import pytest
from ruamel.yaml import YAML

from envbuilder.data import builtin_root
from envbuilder.errors import InputError, IntegrityError, Place, SourceError
from envbuilder.lock.checksum import check_seal
from envbuilder.lock.conda import CondaOptions, render_explicit
from envbuilder.lock.conda_cuda import check_release
from envbuilder.lock.conda_file import parse_conda_lock, read_conda_lock
from envbuilder.lock.conda_half import lock_conda
from envbuilder.lock.conda_inputs import CondaInputs, stack_inputs
from envbuilder.lock.conda_solvers import own_solver
from envbuilder.report.progress import Silent
from envbuilder.stack.loading import load_stack
from envbuilder.stack.model import Stack
from tests.channels import P40_CHANNELS, lay_out, real_records, record

LOCKS = builtin_root() / "locks"
COMMITTED = LOCKS / "p40.conda-lock.yml"


class Log(Silent):
    """A listener that keeps the log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return lay_out(real_records(), tmp_path_factory.mktemp("channels"))


@pytest.fixture(scope="module")
def stack() -> Stack:
    return load_stack("p40")[0]


@pytest.fixture(scope="module")
def inputs(stack: Stack) -> CondaInputs:
    found = stack_inputs(stack, "stacks/p40.toml")
    assert found is not None
    return found


def asking(*requirements: str, channels: tuple[str, ...] = P40_CHANNELS, **virtual: str) -> CondaInputs:
    return CondaInputs(
        "test", channels, requirements, virtual or {"__cuda": "11.8", "__glibc": "2.35"}, Place("test.toml")
    )


def packages(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = YAML(typ="safe").load(path.read_text())["package"]
    return found


def test_the_committed_lock_is_what_the_real_solve_gives(
    stack: Stack, inputs: CondaInputs, channels: dict[str, list[str]]
) -> None:
    text = lock_conda(stack, inputs, None, CondaOptions(mirrors=channels), Silent())
    assert text == COMMITTED.read_text()
    assert inputs.environment_text() == (LOCKS / inputs.environment_name).read_text()
    assert inputs.virtual_text() == (LOCKS / inputs.virtual_name).read_text()


def test_the_committed_lock_holds_the_pins_and_nothing_of_another_cuda(stack: Stack) -> None:
    locked = {package.name: package for package in read_conda_lock(COMMITTED)}
    assert locked["python"].version == "3.10.12"
    assert (locked["cudnn"].version, locked["cudnn"].build) == ("8.9.7.29", "hbc23b4c_3")
    assert locked["cuda-nvcc"].version == "11.8.89"
    check_release(locked.values(), "11.8", Place())
    assert stack.conda is not None
    for name, pin in stack.conda.packages.items():
        assert locked[name].version == pin.version


def test_every_digest_and_address_of_the_committed_lock_is_one_of_the_records() -> None:
    known = {(r["url"], r["md5"], r.get("sha256")) for r in real_records()}
    locked = read_conda_lock(COMMITTED)
    assert len(locked) > 30
    for package in locked:
        assert (package.url, package.md5, package.sha256) in known


def test_the_committed_lock_fits_the_schema_that_conda_lock_ships() -> None:
    schema = next(Path(conda_lock.__file__).parent.rglob("conda-lock-v1.schema.json"))
    validate = fastjsonschema.compile(json.loads(schema.read_text()))
    validate(YAML(typ="safe").load(COMMITTED.read_text()))


def test_stock_conda_lock_accepts_it(tmp_path: Path, inputs: CondaInputs) -> None:
    for name in (inputs.environment_name, inputs.virtual_name, inputs.lock_name):
        (tmp_path / name).write_text((LOCKS / name).read_text())
    (tmp_path / "names.json").write_text("{}")
    command = [sys.executable, "-m", "conda_lock", "lock", "--conda", own_solver(), "--check-input-hash"]
    command += ["--file", inputs.environment_name, "--virtual-package-spec", inputs.virtual_name]
    command += ["--lockfile", inputs.lock_name, "--pypi_to_conda_lookup_file", (tmp_path / "names.json").as_uri()]
    said = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Skipping solve" in said.stderr
    explicit = render_explicit(tmp_path / inputs.lock_name, tmp_path, Silent()).read_text()
    for package in read_conda_lock(COMMITTED):
        assert f"{package.url}#{package.md5}" in explicit


def test_an_edit_by_hand_is_noticed() -> None:
    text = COMMITTED.read_text()
    check_seal(text, "p40.conda-lock.yml", "p40")
    with pytest.raises(IntegrityError):
        check_seal(text.replace("hbc23b4c_3", "h092f7fd_3"), "p40.conda-lock.yml", "p40")


@pytest.mark.parametrize(
    ("requirements", "says"),
    [
        (
            ["python ==3.10.12", "cudnn ==9.3.0.75", "cuda-version ==11.8", "ninja"],
            "cudnn 9.3.0.75 and cuda-version 11.8 contradict one another: cudnn 9.3.0.75 requires cuda-version >=12",
        ),
        (
            ["ninja", "python ==3.10.12", "cudnn ==9.3.0.75"],
            "python 3.10.12 and cudnn 9.3.0.75 contradict one another: cudnn 9.3.0.75 requires libzlib >=1.3.1,<2.0a0; "
            "python 3.10.12 requires libzlib >=1.2.13,<1.3.0a0",
        ),
        (["python ==3.10.12", "nninja"], "no channel holds a package named nninja"),
        (["cudnn ==8.9.9", "ninja"], "no channel holds cudnn 8.9.9; cudnn is there as 9.10.2.21, "),
    ],
)
def test_contradicting_pins_are_named_in_a_sentence(
    requirements: list[str], says: str, stack: Stack, channels: dict[str, list[str]]
) -> None:
    log = Log()
    with pytest.raises(InputError) as caught:
        lock_conda(stack, asking(*requirements), None, CondaOptions(mirrors=channels), log)
    assert says in caught.value.message
    assert "\n" not in caught.value.message
    assert "ninja " not in caught.value.message
    assert caught.value.cure
    # The solver's own account goes to the log.
    assert any("Cannot solve the request" in line for line in log.lines)


def test_conda_forge_first_lets_cuda_12_in_and_is_refused(stack: Stack, channels: dict[str, list[str]]) -> None:
    turned = asking("cuda-cudart-dev ==11.8.89", channels=("conda-forge", "nvidia/label/cuda-11.8.0"))
    with pytest.raises(InputError, match=r"another CUDA release than 11\.8.*cuda-cudart 12\.") as caught:
        lock_conda(stack, turned, None, CondaOptions(mirrors=channels), Silent())
    assert "nvidia/label/cuda-11.8.0 first" in (caught.value.cure or "")


def test_a_cuda_package_of_another_release_is_refused(stack: Stack, tmp_path: Path) -> None:
    mirrors = lay_out([record("cuda-nvcc", "12.6.85", "0"), record("libcublas", "12.9.1.4", "0")], tmp_path)
    with pytest.raises(InputError, match=r"2 packages of another CUDA release than 11\.8.*cuda-nvcc 12\.6\.85"):
        lock_conda(
            stack,
            asking("cuda-nvcc", "libcublas", channels=("conda-forge",)),
            None,
            CondaOptions(mirrors=mirrors),
            Silent(),
        )


def test_the_virtual_packages_are_the_targets_not_the_hosts(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", "12.9")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "virtual-packages.yml").write_text('subdirs: {linux-64: {packages: {__cuda: "12.9"}}}\n')
    mirrors = lay_out(
        [record("tool", "1.0", "for11_0", ["__cuda <12"]), record("tool", "2.0", "for12_0", ["__cuda >=12"])], tmp_path
    )
    options = CondaOptions(mirrors=mirrors)
    text = lock_conda(stack, asking("tool", channels=("conda-forge",)), None, options, Silent())
    assert [p.version for p in parse_conda_lock(text, "test")] == ["1.0"]
    without = asking("tool", channels=("conda-forge",), __glibc="2.35")
    with pytest.raises(InputError, match="virtual package __cuda"):
        lock_conda(stack, without, None, options, Silent())


def test_updating_one_package_leaves_the_others(stack: Stack, tmp_path: Path) -> None:
    old = [record("a", "1.0", "h_0", ["b"]), record("b", "1.0", "h_0")]
    mirrors = lay_out(old, tmp_path / "channels")
    wanted = asking("a", "b", channels=("conda-forge",))
    lock = tmp_path / wanted.lock_name
    lock.write_text(lock_conda(stack, wanted, None, CondaOptions(mirrors=mirrors), Silent()))
    lay_out([*old, record("a", "2.0", "h_0", ["b"]), record("b", "2.0", "h_0")], tmp_path / "channels")
    text = lock_conda(stack, wanted, lock, CondaOptions(mirrors=mirrors, update=("a",)), Silent())
    assert [(p.name, p.version) for p in parse_conda_lock(text, "test")] == [("a", "2.0"), ("b", "1.0")]


def test_a_channel_that_is_not_there_is_named(stack: Stack, tmp_path: Path) -> None:
    missing = {"https://conda.anaconda.org/conda-forge": ["http://127.0.0.1:9/conda-forge"]}
    with pytest.raises(SourceError) as caught:
        lock_conda(stack, asking("python", channels=("conda-forge",)), None, CondaOptions(mirrors=missing), Silent())
    assert "https://conda.anaconda.org/conda-forge cannot be read" in caught.value.message
    assert "http://127.0.0.1:9/conda-forge" in (caught.value.detail or "")


def test_a_stack_without_cuda_among_its_virtual_packages_is_refused(stack: Stack) -> None:
    assert stack.conda is not None
    conda = stack.conda.model_copy(update={"virtual_packages": {"__glibc": "2.35"}})
    with pytest.raises(InputError, match="virtual package __cuda is not given"):
        stack_inputs(stack.model_copy(update={"conda": conda}), "p40.toml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not YAML"),
        ("version: 2\npackage: []\n", "not a conda-lock file of version 1"),
        ("[]", "not a conda-lock file of version 1"),
        (
            "version: 1\npackage: [{name: a, version: '1', manager: conda, platform: linux-64, "
            "url: 'https://c/linux-64/a-1-0.conda', hash: {sha256: ''}}]",
            "package a: md5",
        ),
        (
            "version: 1\npackage: [{name: a, version: '1', manager: conda, platform: linux-64, "
            "url: 'https://c/linux-64/..%2f..%2fa', hash: {md5: 00000000000000000000000000000000}}]",
            "package a: filename",
        ),
    ],
)
def test_a_file_that_is_no_conda_lock_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_conda_lock(text, "x.yml")
    assert says in caught.value.message
