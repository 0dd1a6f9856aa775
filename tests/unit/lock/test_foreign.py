"""Somebody's environment.yml: locked when its lock can be trusted, else told why not."""

from pathlib import Path

import pytest

from envbuilder.cli import run
from envbuilder.errors import InputError
from envbuilder.lock.conda import CondaOptions
from envbuilder.lock.environment_file import read_environment
from envbuilder.lock.foreign import check_environment, lock_environment
from envbuilder.report.model import Verdict
from envbuilder.report.progress import Silent
from tests.channels import lay_out, record

VIRTUAL = 'subdirs: {linux-64: {packages: {__cuda: "11.8", __glibc: "2.35", __unix: "0"}}}\n'
CUDA = "py310_cuda11.8_1"


def environment(folder: Path, *requirements: str, virtual: str | None = VIRTUAL) -> Path:
    path = folder / "mine.environment.yml"
    lines = "".join(f"  - {requirement}\n" for requirement in requirements)
    path.write_text(f"name: mine\nchannels: [conda-forge]\ndependencies:\n{lines}")
    if virtual is not None:
        (folder / "virtual-packages.yml").write_text(virtual)
    return path


def rules(path: Path) -> dict[str, str]:
    return {finding.rule: finding.title for finding in check_environment(read_environment(path))}


@pytest.mark.parametrize(
    "name", ["cudatoolkit =11.8", "conda-forge::cudnn=8.9", "cuda-nvcc", "pytorch=*=*cuda*", "cupy"]
)
def test_cuda_without_virtual_packages_depends_on_the_host(tmp_path: Path, name: str) -> None:
    assert (
        "__cuda and __glibc are not fixed" in rules(environment(tmp_path, name, virtual=None))["lock-virtual-packages"]
    )
    assert rules(environment(tmp_path, name)) == {}
    only_glibc = 'subdirs: {linux-64: {packages: {__glibc: "2.35"}}}\n'
    assert "packages __cuda are not" in rules(environment(tmp_path, name, virtual=only_glibc))["lock-virtual-packages"]


def test_without_cuda_nothing_is_asked_for(tmp_path: Path) -> None:
    assert rules(environment(tmp_path, "python=3.10", "numpy", virtual=None)) == {}


@pytest.mark.parametrize(
    ("requirements", "says"),
    [
        (["pytorch", "torchdata"], "torchdata has been built against the CPU build alone"),
        (["pytorch=2.1", "cudatoolkit=11.3"], "nothing forces the CUDA build of pytorch"),
        (["pytorch", "cpuonly"], "cpuonly asks for the CPU build of pytorch"),
        (["tensorflow=2.15"], "nothing forces the CUDA build of tensorflow"),
    ],
)
def test_a_cpu_build_may_slip_in(tmp_path: Path, requirements: list[str], says: str) -> None:
    assert says in rules(environment(tmp_path, *requirements))["lock-cpu-variant"]


@pytest.mark.parametrize(
    "requirements",
    [["pytorch=2.1=*cuda*"], ["pytorch=*=*cuda*"], ["pytorch 2.1 *cuda118*"], ["pytorch", "pytorch-cuda=11.8"],
     ["pytorch", "pytorch-gpu"], ["pytorch", "pytorch-mutex=1.0=cuda"]],
)  # fmt: skip
def test_a_forced_build_is_fine(tmp_path: Path, requirements: list[str]) -> None:
    assert rules(environment(tmp_path, *requirements)) == {}


def test_the_requirement_that_forces_the_cpu_build_is_found(tmp_path: Path) -> None:
    mirrors = lay_out(
        [
            record("pytorch", "1.11", "py310_cpu_0", ["pytorch-cuda"]),
            record("pytorch", "1.11", CUDA, ["__cuda", "pytorch-cuda"]),
            record("pytorch-cuda", "11.8", "0"),
            record("data", "0.3", "0", ["pytorch 1.11 py310_cpu_0"]),
            record("numpy", "1.26", "0"),
        ],
        tmp_path / "channels",
    )
    options = CondaOptions(mirrors=mirrors)
    path = environment(tmp_path, "numpy", "data", "pytorch", "pytorch-cuda")
    report, written = lock_environment(read_environment(path), options, Silent())
    assert report.verdict is Verdict.NO
    assert written is None
    (finding,) = report.findings
    assert finding.title == "the solver takes the CPU build of pytorch because of data"
    path = environment(tmp_path, "numpy", "pytorch", "pytorch-cuda")
    report, written = lock_environment(read_environment(path), options, Silent())
    assert report.verdict is Verdict.YES
    assert written == tmp_path / "mine.conda-lock.yml"
    assert CUDA in written.read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no such file"),
        ("a: [", "not YAML"),
        ("- a\n", "no list of dependencies"),
        ("dependencies: {a: 1}\n", "no list of dependencies"),
        ("dependencies: [1, 2]\n", "1 is not a requirement"),
        ("channels: 5\ndependencies: [a]\n", "channels must be a list"),
    ],
)
def test_what_is_no_environment_file_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "environment.yml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_environment(path)
    assert says in caught.value.message


def test_a_broken_file_of_virtual_packages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="says nothing of linux-64"):
        read_environment(environment(tmp_path, "numpy", virtual="subdirs: {osx-64: {}}\n"))


def test_the_command_says_it_and_leaves_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = environment(tmp_path, "pytorch", "torchdata", "cudatoolkit=11.3", virtual=None)
    assert run(["lock", str(path)]) == 1
    said = capsys.readouterr().out
    assert "virtual packages" in said
    assert "CPU build" in said
    assert "torchdata" in said
    assert "Traceback" not in said
