"""What a host reports decides the verdict: the public cases, and one host for every other kind of fault."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from envbuilder.errors import InputError
from envbuilder.image.probing import replay_file
from envbuilder.report.present import print_text
from envbuilder.smoke.manifest import Manifest
from envbuilder.smoke.reading import parse_facts, read_facts
from envbuilder.smoke.replay import replay
from envbuilder.stack.compat.torch_builds import builds_for
from envbuilder.stack.loading import load_stack
from envbuilder.stack.manifest import image_manifest

PROBES = Path(__file__).parents[2] / "data" / "probes"
BUILDS = {f"{a}.{b}": [f"{v}+{tag}" for v, tag in builds_for((a, b))] for a, b in ((6, 0), (6, 1), (7, 0))}
P40 = {"index": 0, "name": "Tesla P40", "cc": "6.1"}
TORCH = {
    "version": "2.6.0+cu118",
    "cuda": "11.8",
    "arch_list": ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_37", "sm_90"],
}


def manifest(name: str = "p40") -> Manifest:
    data = image_manifest(*load_stack(name), lock_digest="")
    return Manifest(data["stack"], data["gpu"], data["lock"], data["builds"])


def judged(data: Any, gpus: tuple[int, ...] = (0,), stack: Manifest | None = None) -> tuple[int, str]:
    """The exit code, and all that the text report says, on one line."""
    facts = read_facts(data) if isinstance(data, Path) else parse_facts(data)
    report = replay(facts, gpus, stack, BUILDS)
    stream = io.StringIO()
    print_text(report, stream)
    # The table folds words; the JSON does not.
    text = " ".join((stream.getvalue() + json.dumps(report.to_dict()["checks"])).split())
    return report.verdict.exit_code, text


@pytest.mark.parametrize(
    ("case", "gpus", "code", "says", "never"),
    [
        ("A02", (0, 1), 1, ["6.0", "6.1", "sm_75"], ["defective"]),  # turboderp-org/exllamav2#786
        ("A04", (0,), 1, ["sm_60", "kernel"], ["GPU OK"]),  # Kaggle/kaggle-cli#1151
        ("B05", (0,), 0, ["emulat", "8.0"], ["bf16: supported"]),  # MakazhanAlpamys/Soup#387
        ("E06", (0,), 0, ["9.1.0", "8.9.7"], ["mismatch"]),
        ("F10", (0,), 0, ["PCI_BUS_ID", "UUID"], []),  # gpustack/gpustack#1633
        ("F11", (0,), 1, ["MIG"], ["no GPU"]),  # pytorch/pytorch#95784
        ("G11", (0,), 0, ["sm_60"], ["P40 requires CUDA 11.8"]),  # sasha0552/vllm-ci#4
        ("J02", (0,), 1, ["temperature", "Xid 79", "airflow"], ["driver bug"]),  # illinois-scicomp/...#80
    ],
)
def test_public_cases(case: str, gpus: tuple[int, ...], code: int, says: list[str], never: list[str]) -> None:
    found, text = judged(PROBES / f"{case}.probe.json", gpus)
    assert found == code, text
    assert [word for word in says if word.lower() not in text.lower()] == []
    assert [word for word in never if word.lower() in text.lower()] == []


FAULTS = [
    # driver
    ({"driver": "515.65.01", "gpus": [P40], "torch": {"version": "2.6.0+cu124", "cuda": "12.4"}},
     1, ["515.65.01", "525.60.13", "450.80.02"]),
    ({"driver": "515.65.01", "gpus": [P40], "torch": TORCH}, 0, ["450.80.02"]),
    ({"driver": "390.157", "gpus": [P40], "torch": TORCH}, 1, ["390.157", "450.80.02"]),
    ({"driver": "595.10", "gpus": [P40], "torch": TORCH}, 1, ["595.10", "580", "too new"]),
    ({"driver": "595.10", "gpus": [{"index": 0, "name": "Tesla T4", "cc": "7.5"}], "torch": TORCH}, 0, ["sm_75"]),
    ({"driver": "580.95.05", "gpus": [P40], "torch": TORCH}, 0, ["580.95.05"]),
    ({"nvml_error": "Failed to initialize NVML: Driver/library version mismatch", "driver_module": "550.54.15"},
     1, ["Reboot", "550.54.15"]),
    ({"driver": "550.90.07", "driver_module": "535.183.01", "gpus": [P40]}, 1, ["535.183.01", "550.90.07", "Reboot"]),
    ({"driver": None, "gpus": []}, 1, ["no NVIDIA driver"]),
    ({"driver": "550.90.07", "driver_open": True, "gpus": [P40]}, 1, ["open kernel modules", "proprietary"]),
    ({"driver": "550.90.07", "gpus": [], "dmesg": [
        "NVRM: installed in this system is not supported by open nvidia.ko because it does not include the required GSP"]},
     1, ["proprietary"]),
    ({"driver": "595.10", "gpus": [], "dmesg": [
        "NVRM: The NVIDIA GPU 0000:03:00.0 (PCI ID: 10de:1b38) is supported through the NVIDIA 580.xx Legacy drivers."]},
     1, ["580", "never update beyond"]),
    ({"driver": "535.1", "gpus": [], "dmesg": ["NVRM: BAR1 is 0M @ 0x0 (PCI:0000:03:00.0)"]}, 1, ["Above 4G"]),
    ({"driver": "535.1", "nvidia_smi": "No devices were found"}, 1, ["shows no GPU", "lspci"]),
    ({"nvidia_smi": "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error"}, 1, ["lost", "Hardware"]),
    # container
    ({"gpus": [P40], "nvidia_runtime": False}, 1, ["nvidia-container-toolkit"]),
    ({"gpus": [P40], "docker_runtimes": ["runc", "io.containerd.runc.v2"]}, 1, ["nvidia-container-toolkit"]),
    ({"gpus": [P40], "devices": {"/dev/nvidia0": True, "/dev/nvidiactl": True, "/dev/nvidia-uvm": False}},
     1, ["/dev/nvidia-uvm", "modprobe nvidia_uvm"]),
    ({"gpus": [P40], "devices": ["/dev/nvidia0", "/dev/nvidiactl"]}, 1, ["/dev/nvidia-uvm"]),
    ({"gpus": [P40], "torch": {**TORCH, "device_count": 0, "is_available": False}, "env": {"CUDA_VISIBLE_DEVICES": ""}},
     1, ["CUDA_VISIBLE_DEVICES", "Unset"]),
    ({"gpus": [P40], "torch": {**TORCH, "device_count": 1}, "env": {"CUDA_VISIBLE_DEVICES": "3"}}, 1, ["names no card"]),
    ({"gpus": [P40], "torch": {"version": "2.6.0+cpu", "is_available": False}}, 1, ["without CUDA"]),
    # binaries
    ({"gpus": [P40], "torch": {"version": "2.8.0+cu128", "arch_list": ["sm_70", "sm_75", "sm_120"]}},
     1, ["sm_60", "2.6.0+cu118"]),
    ({"gpus": [P40], "torch": {"version": "x", "arch_list": ["sm_50", "compute_60"]}}, 0, ["compute_60"]),
    ({"gpus": [{"index": 0, "name": "Tesla P100", "cc": "6.0"}], "torch": {"version": "x", "arch_list": ["sm_61"]}},
     1, ["6.0", "sm_60"]),  # code for 6.1 does not run on 6.0
    ({"gpus": [{"index": 0, "name": "H100", "cc": "9.0"}], "torch": {"version": "x", "arch_list": ["sm_100", "sm_90a"]}},
     0, ["sm_90a"]),
    ({"gpus": [{"index": 0, "name": "Some card"}], "torch": TORCH}, 3, ["not known"]),
    ({"gpus": [{"index": 0, "name": "NVIDIA Tesla P4"}], "torch": TORCH}, 0, ["6.1"]),
    ({"gpus": [P40], "torch": {**TORCH, "error": "ImportError: libcudnn.so.9: cannot open shared object file"}},
     1, ["no cuDNN", "wheel"]),
    ({"gpus": [P40], "torch": {"version": "2.6.0+cu118", "cudnn": None, "cudnn_path": ""}, "system": {"cudnn": "8.9.7"}},
     1, ["loads no cuDNN", "8.9.7"]),
    ({"gpus": [P40], "torch": {**TORCH, "cudnn": 90100, "cudnn_path": "/v/nvidia/cudnn/lib/libcudnn.so.9"},
      "system": {"cudnn": "9.5.1", "path": "/usr/local/cudnn/lib/libcudnn.so.9"},
      "env": {"LD_LIBRARY_PATH": "/usr/local/cudnn/lib"}}, 1, ["LD_LIBRARY_PATH", "RUNPATH"]),
    # order
    ({"nvidia_smi": [{"index": 0, "name": "Tesla P40", "uuid": "GPU-a"}, {"index": 1, "name": "RTX 3090", "uuid": "GPU-b"}],
      "cuda": [{"index": 0, "name": "RTX 3090", "uuid": "GPU-b"}, {"index": 1, "name": "Tesla P40", "uuid": "GPU-a"}],
      "env": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}}, 1, ["swapped", "RTX 3090"]),
    # health
    ({"gpus": [{**P40, "temp": 91}]}, 1, ["91 C", "airflow"]),
    ({"gpus": [{**P40, "temperature": 60, "throttle_reasons": ["SW power cap"]}]}, 0, ["60 C"]),
    ({"gpus": [{**P40, "temp": 50, "throttle": "HW Thermal Slowdown"}]}, 1, ["HW Thermal Slowdown"]),
    ({"gpus": [P40], "dmesg": ["NVRM: Xid (PCI:0000:02:00): 48, pid=1, DBE"]}, 1, ["Xid 48", "ECC"]),
    ({"gpus": [P40], "dmesg": ["NVRM: Xid (PCI:0000:02:00): 31, pid=1, MMU Fault"]}, 0, ["Xid 31"]),
    ({"gpus": [P40], "xid": [79]}, 1, ["Xid 79", "does not say why"]),
    ({"gpus": [P40], "dmesg": ["pcieport 0000:00:01.0: AER: Corrected error received: 0000:03:00.0"]}, 1, ["PCIe", "riser"]),
    ({"gpus": [{**P40, "ecc_uncorrected": 3}]}, 1, ["3 uncorrected"]),
    ({"gpus": [{**P40, "ecc_mode": "Enabled", "retired_pending": "Yes"}]}, 1, ["Reboot"]),
    ({"gpus": [{**P40, "ecc_mode": "Disabled", "ecc_corrected": 2}]}, 0, ["ECC off"]),
    ({"gpus": [{**P40, "pcie_width": "x4", "pcie_width_max": 16}]}, 1, ["x4", "x16"]),
    ({"gpus": [{**P40, "pcie_width": 8, "pcie_width_max": 16}]}, 0, ["x8 of x16"]),
    ({"gpus": [{**P40, "memory_total": "24576 MiB", "memory_used": "20000 MiB",
                "processes": [{"pid": 7, "name": "python", "used_memory": 19900}]}]}, 1, ["20000", "python (pid 7"]),
    ({"gpus": [{**P40, "compute_mode": "Prohibited"}]}, 1, ["Prohibited"]),
    ({"gpus": [{**P40, "memory_used_mib": 3, "processes": [], "clocks.sm": 544, "power_limit": 250,
                "persistence_mode": "Disabled"}]}, 0, ["544", "250 W", "persistence off"]),
    # too little
    ({}, 3, ["too little"]),
    ({"gpus": [P40]}, 3, ["too little"]),
]  # fmt: skip
# ruff: noqa: E501  # a report a line reads better than one broken in three


@pytest.mark.parametrize(("data", "code", "says"), FAULTS)
def test_every_kind_of_report(data: dict[str, Any], code: int, says: list[str]) -> None:
    found, text = judged(data)
    assert found == code, text
    assert [word for word in says if word.lower() not in text.lower()] == [], text


def test_a_build_that_is_only_named_is_looked_up(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    for version, driver, code in (
        ("2.8.0+cu128", "570.1", 1),  # no code for the card
        ("2.6.0+cu124", "570.1", 0),
        ("2.6.0+cu124", "515.1", 1),  # the tag alone says CUDA 12
        ("2.6.0+cu118", "515.1", 0),
    ):
        path.write_text(json.dumps({"driver": driver, "gpus": [P40], "torch": {"version": version}}))
        assert replay_file(path, (0,), None).verdict.exit_code == code, version


def test_the_stack_makes_a_wrong_card_and_its_own_floor_count() -> None:
    v100 = {"driver": "535.1", "gpus": [{"index": 0, "name": "Tesla V100-SXM2-16GB", "cc": "7.0"}], "torch": TORCH}
    code, text = judged(v100, stack=manifest())
    assert code == 1
    assert "7.0" in text
    assert "6.1" in text
    assert judged(v100)[0] == 0
    old = {"driver": "470.1", "gpus": [P40], "torch": {**TORCH, "cuda": ""}}
    assert judged(old, stack=manifest("p40"))[0] == 0
    assert judged(old, stack=manifest("p40-debian"))[0] == 1


def test_an_index_that_is_not_there_is_wrong_use() -> None:
    with pytest.raises(InputError) as caught:
        judged({"gpus": [P40]}, (1,))
    assert "no GPU 1" in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"gpus": 3}',
        '{"gpus": [3]}',
        '{"gpus": [{"temp": "hot"}]}',
        '{"torch": 7}',
        '{"gpus": [{"cc": []}]}',
    ],
)
def test_a_broken_probe_is_a_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_facts(path)
    assert caught.value.place is not None
    assert caught.value.cure


def test_a_key_that_nothing_reads_is_shown() -> None:
    facts = parse_facts({"gpus": [{**P40, "colour": "grey"}], "weather": "fine"})
    assert facts.unread == ("weather", "gpus.colour")
    assert replay(facts, (0,), None, BUILDS).facts["not read"] == ["weather", "gpus.colour"]


def test_facts_survive_being_written_and_read_again() -> None:
    for path in sorted(PROBES.glob("*.json")):
        facts = read_facts(path)
        again = parse_facts(json.loads(json.dumps(facts.to_dict())))
        assert again == facts, path.name
