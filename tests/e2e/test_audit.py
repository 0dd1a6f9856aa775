"""Real wheels of the Python index, with the answers that are known of them. Several GB: run by ``make e2e``."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import uv

from envbuilder.audit.arch import Arch
from envbuilder.audit.audit import audit
from envbuilder.audit.cards import find_card
from envbuilder.audit.fatbin import Kind
from envbuilder.audit.slim import slim_tree
from envbuilder.audit.wheel import collect_wheel
from envbuilder.data import cache_root
from envbuilder.report.model import Verdict

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

WHEELS = {
    "torch==2.6.0": Verdict.YES,
    "torch==2.7.1": Verdict.YES,
    "torch==2.8.0": Verdict.NO,
    "vllm==0.8.5.post1": Verdict.NO,
    "xformers==0.0.29.post2": Verdict.YES,
    "torchvision==0.21.0": Verdict.YES,
    "nvidia-cudnn-cu12==9.10.2.21": Verdict.YES,
    "nvidia-cudnn-cu12==9.11.0.98": Verdict.NO,
    "nvidia-cublas-cu12==12.4.5.8": Verdict.YES,
    "nvidia-nccl-cu12==2.21.5": Verdict.YES,
    "nvidia-cufft-cu12==11.2.1.3": Verdict.YES,
    "bitsandbytes==0.50.2": Verdict.YES,
}


def wheel(requirement: str) -> Path:
    """The wheel of the client's own index, kept in envbuilder's cache between runs."""
    folder = cache_root() / "e2e" / requirement.replace("==", "-")
    if not list(folder.glob("*.whl")):
        python = ["--only-binary", ":all:", "--python-version", "3.11", "--platform", "manylinux_2_28_x86_64"]
        older = [
            "--platform",
            "manylinux2014_x86_64",
            "--platform",
            "manylinux1_x86_64",
            "--platform",
            "manylinux_2_24_x86_64",
        ]
        newer = ["--platform", "manylinux_2_27_x86_64"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        subprocess.run([*command, *python, *older, *newer, requirement], check=True)
    return next(folder.glob("*.whl"))


@pytest.mark.parametrize("requirement", WHEELS)
def test_the_answer_for_sm_61_is_the_known_one(requirement: str) -> None:
    report = audit([str(wheel(requirement))], find_card("p40"))
    assert report.verdict is WHEELS[requirement], report.summary


def test_torch_counts_every_unit_that_holds_kernels() -> None:
    report = audit([str(wheel("torch==2.6.0"))], find_card("sm_61"))
    (package,) = report.facts["targets"][0]["packages"]
    cuda = next(f for f in package["files"] if f["path"].endswith("libtorch_cuda.so"))
    assert cuda["sass"] == ["sm_60"]
    assert cuda["units"] == cuda["running"]


def test_all_five_files_of_vllm_say_no() -> None:
    report = audit([str(wheel("vllm==0.8.5.post1"))], find_card("p40"))
    (package,) = report.facts["targets"][0]["packages"]
    assert Counter(f["answer"] for f in package["files"]) == {"no": 5}


def test_the_variants_of_bitsandbytes_are_told_apart() -> None:
    report = audit([str(wheel("bitsandbytes==0.50.2"))], find_card("p40"))
    (package,) = report.facts["targets"][0]["packages"]
    running = {f["path"].rsplit("_", 1)[-1] for f in package["files"] if f["answer"] == "yes"}
    assert running == {"cuda118.so", "cuda121.so", "cuda124.so", "cuda126.so"}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with torch 2.6.0 and its NCCL, installed by uv."""
    root = tmp_path_factory.mktemp("env")
    subprocess.run([uv.find_uv_bin(), "venv", "--quiet", "--python", "3.11", str(root)], check=True)
    install = [uv.find_uv_bin(), "pip", "install", "--quiet", "--python", str(root / "bin" / "python")]
    subprocess.run(
        [*install, "--no-deps", "torch==2.6.0", "nvidia-nccl-cu12==2.21.5", "nvidia-cuda-cuobjdump"], check=True
    )
    return root


def test_image_counts_agree_with_cuobjdump(unpacked: Path) -> None:
    (library,) = unpacked.rglob("libtorch_cuda_linalg.so")
    (cuobjdump,) = unpacked.rglob("bin/cuobjdump")
    cuobjdump.chmod(0o755)
    listed = subprocess.run([cuobjdump, "-lelf", library], capture_output=True, text=True, check=True).stdout
    theirs = Counter(line.rsplit(".", 2)[-2] for line in listed.splitlines() if line.startswith("ELF file"))
    collection_images = audit([str(library)], find_card("sm_61")).facts["targets"][0]["images"][str(library)]
    ours = {name.removeprefix("SASS "): count for name, count in collection_images.items()}
    assert ours == theirs


def test_slim_keeps_a_third_of_torch_and_the_files_stay_valid(unpacked: Path) -> None:
    (library,) = unpacked.rglob("libtorch_cuda.so")
    (cuobjdump,) = unpacked.rglob("bin/cuobjdump")
    cuobjdump.chmod(0o755)
    before = library.stat().st_blocks
    record = slim_tree(unpacked, Arch(6, 1))
    assert {f.path.rsplit("/", 1)[-1] for f in record.files} == {
        "libtorch_cuda.so",
        "libtorch_cuda_linalg.so",
        "libnccl.so.2",
    }
    assert library.stat().st_blocks < 0.3 * before
    assert audit([str(unpacked)], find_card("p40")).verdict is Verdict.YES
    assert audit([str(unpacked)], find_card("sm_75")).verdict is Verdict.NO
    linalg = library.with_name("libtorch_cuda_linalg.so")
    subprocess.run([cuobjdump, "-lelf", linalg], capture_output=True, check=True)
    data = json.loads((unpacked / "envbuilder-slim.json").read_text())
    assert data["card"]["sm"] == "sm_61"


def test_a_stream_and_a_file_say_the_same_of_a_large_library(unpacked: Path) -> None:
    packed = collect_wheel(wheel("nvidia-nccl-cu12==2.21.5"), [Arch(6, 1)])
    (binary,) = [b for b in packed.binaries if b.path.endswith("libnccl.so.2")]
    kinds = Counter(image.kind for image in binary.images())
    assert kinds[Kind.SASS] >= 6
    assert binary.linkage is not None
