"""What torch and the container say, beside what NVML said on the host."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from envbuilder.smoke.facts import Card, HostFacts, Torch

_ENV = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "LD_LIBRARY_PATH",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_TF32_OVERRIDE",
)
_SYSTEM_CUDNN = (
    "usr/local/cuda*/lib64/libcudnn.so.*",
    "usr/lib/x86_64-linux-gnu/libcudnn.so.*",
    "opt/conda/lib/libcudnn.so.*",
)


def complete(facts: HostFacts, on_gpu: bool) -> HostFacts:
    """``facts`` with torch's view, the environment, the device files and the system's cuDNN added."""
    torch_facts = _torch(on_gpu)
    version, path = _system_cudnn()
    kernel_ok, kernel_error = _launch() if on_gpu and torch_facts.device_count else (None, "")
    seen = _cuda_cards() if on_gpu and torch_facts.device_count else ()
    return replace(
        facts,
        torch=torch_facts,
        env={**facts.env, **{name: os.environ[name] for name in _ENV if name in os.environ}},
        devices=facts.devices or _devices() if on_gpu else {},
        cuda=facts.cuda or seen,
        # Without NVML's word the cards are those CUDA sees; engines pass one card, so index 0 is it.
        cards=facts.cards if facts.cards is not None or not on_gpu else seen or None,
        driver=facts.driver or _driver_of_module(),
        system_cudnn=facts.system_cudnn or version,
        system_cudnn_path=facts.system_cudnn_path or path,
        kernel_ok=kernel_ok,
        kernel_error=kernel_error,
        shm_mib=shutil.disk_usage("/dev/shm").total / 2**20 if Path("/dev/shm").is_dir() else None,  # noqa: S108 - read only
    )


def loaded_cudnn() -> str:
    """The path of the libcudnn that is mapped into this process, or nothing."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        name = line.rsplit(" ", 1)[-1]
        if "/libcudnn.so" in name:
            return name
    return ""


def _torch(on_gpu: bool) -> Torch:
    import torch

    try:
        cudnn = torch.backends.cudnn.version()
        error = ""
    except RuntimeError as problem:
        cudnn, error = None, str(problem)
    # get_arch_list() is empty without a GPU; the flags it splits are there all the same.
    flags: str = torch._C._cuda_getArchFlags() if torch.version.cuda else ""
    count = torch.cuda.device_count() if on_gpu else None
    return Torch(
        version=torch.__version__,
        cuda=torch.version.cuda or "",
        arch_list=tuple(flags.split()),
        is_available=torch.cuda.is_available() if on_gpu else None,
        device_count=count,
        is_bf16_supported=torch.cuda.is_bf16_supported() if count else None,
        cudnn=cudnn,
        cudnn_path=loaded_cudnn(),
        error=error,
    )


def _cuda_cards() -> tuple[Card, ...]:
    import torch

    cards = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        cards.append(
            Card(
                index=index,
                name=properties.name,
                uuid=f"GPU-{uuid}" if uuid else "",
                cc=(properties.major, properties.minor),
                memory_mib=properties.total_memory / 2**20,
            )
        )
    return tuple(cards)


def _launch() -> tuple[bool, str]:
    import torch

    try:
        a = torch.arange(16, dtype=torch.float32, device="cuda").reshape(4, 4)
        total = float(((a @ a) + 1).sum())
    except RuntimeError as error:
        return False, str(error).splitlines()[0]
    expected = float(((torch.arange(16.0).reshape(4, 4) @ torch.arange(16.0).reshape(4, 4)) + 1).sum())
    return (True, "") if total == expected else (False, f"a 4 by 4 product sums to {total}, not {expected}")


def _devices() -> dict[str, bool]:
    found = {path: True for path in sorted(map(str, Path("/dev").glob("nvidia*"))) if not Path(path).is_dir()}
    found.setdefault("/dev/nvidia-uvm", False)
    return found


def _driver_of_module() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return ""
    words = text.splitlines()[0].split()
    return next((word for word in words if word[:1].isdigit() and word.count(".") >= 1), "")


def _system_cudnn() -> tuple[str, str]:
    for pattern in _SYSTEM_CUDNN:
        for path in sorted(map(str, Path("/").glob(pattern)), key=len, reverse=True):
            return os.path.realpath(path).rsplit(".so.", 1)[-1], path
    return "", ""
