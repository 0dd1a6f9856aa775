"""What NVML says: the driver and every card. Needs the module ``pynvml`` (nvidia-ml-py) or Ray's copy of it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from envbuilder.smoke.facts import Card, HostFacts

_THROTTLE = {
    0x4: "SW power cap", 0x8: "HW slowdown", 0x20: "SW thermal slowdown", 0x40: "HW thermal slowdown",
    0x80: "HW power brake slowdown",
}  # fmt: skip
_COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")


def collect() -> HostFacts:
    """Everything NVML tells, what it does not tell left unknown. A host without a driver is a fact, not an error."""
    pynvml = _bindings()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _without_nvml(error, pynvml)
    try:
        driver, cuda = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion_v2()
        cards = tuple(_card(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()
    module, licence = _module()
    return HostFacts(
        driver=driver,
        driver_cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        driver_module=module,
        driver_open=licence,
        cards=tuple(sorted(cards, key=lambda card: card.index)),
        log=kernel_log(),
    )


def of_card(gpu: str) -> HostFacts:
    """What NVML says, of all cards only the one that ``gpu`` names: an index, a UUID, or the beginning of one."""
    facts = collect()
    if facts.cards is None:
        return facts
    mine = tuple(card for card in facts.cards if gpu == str(card.index) or (card.uuid and card.uuid.startswith(gpu)))
    return replace(facts, cards=mine)


def _bindings() -> Any:
    """nvidia-ml-py where it is installed; an image has Ray's copy of it."""
    try:
        return import_module("pynvml")
    except ImportError:
        return import_module("ray._private.thirdparty.pynvml")


def _without_nvml(error: Exception, pynvml: Any) -> HostFacts:
    module, licence = _module()
    code = getattr(error, "value", None)
    absent = code in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED) and not module
    return HostFacts(
        driver_module=module, driver_open=licence, no_driver=absent, nvml_error=str(error), log=kernel_log()
    )


def _card(nvml: Any, index: int) -> Card:
    """One card. Every question may go unanswered: Pascal does not know them all, and a lost card knows none."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(name: str, *arguments: Any, of: Callable[[Any], Any] = lambda value: value) -> Any:
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            return of(getattr(nvml, name)(handle, *arguments))
        return None

    reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    memory = ask("nvmlDeviceGetMemoryInfo")
    running = ask("nvmlDeviceGetComputeRunningProcesses") or []
    volatile = nvml.NVML_VOLATILE_ECC
    return Card(
        index=index,
        name=ask("nvmlDeviceGetName") or "",
        uuid=ask("nvmlDeviceGetUUID") or "",
        pci=ask("nvmlDeviceGetPciInfo", of=lambda info: info.busId) or "",
        cc=ask("nvmlDeviceGetCudaComputeCapability", of=tuple),
        mig=bool(ask("nvmlDeviceGetMigMode", of=lambda mode: mode[0])),
        memory_mib=memory.total / 2**20 if memory else None,
        memory_used_mib=memory.used / 2**20 if memory else None,
        temp_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        temp_slowdown_c=ask("nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        throttle=tuple(text for bit, text in _THROTTLE.items() if reasons & bit),
        power_w=ask("nvmlDeviceGetPowerUsage", of=lambda milliwatts: milliwatts / 1000),
        power_limit_w=ask("nvmlDeviceGetPowerManagementLimit", of=lambda milliwatts: milliwatts / 1000),
        persistence=ask("nvmlDeviceGetPersistenceMode", of=bool),
        compute_mode=ask("nvmlDeviceGetComputeMode", of=lambda mode: _COMPUTE_MODES[mode]) or "",
        ecc=ask("nvmlDeviceGetEccMode", of=lambda mode: bool(mode[0])),
        ecc_corrected=ask("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile),
        ecc_uncorrected=ask("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile),
        retired_pages_pending=ask("nvmlDeviceGetRetiredPagesPendingStatus", of=bool),
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        pcie_gen=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_gen_max=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        processes=tuple(_process(nvml, row) for row in running),
    )


def _process(nvml: Any, row: Any) -> str:
    name = ""
    with contextlib.suppress(nvml.NVMLError):
        name = nvml.nvmlSystemGetProcessName(row.pid)
    used = f", {row.usedGpuMemory / 2**20:.0f} MiB" if row.usedGpuMemory else ""
    return f"{name} (pid {row.pid}{used})".strip()


def _module() -> tuple[str, bool | None]:
    """The loaded kernel module's version, and whether it is the open one."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "", None
    line = text.splitlines()[0]
    words = [word for word in line.split() if word[:1].isdigit() and "." in word]
    return (words[0] if words else ""), "Open Kernel Module" in line


def kernel_log() -> tuple[str, ...]:
    """The kernel log's lines of the NVIDIA driver and of PCIe errors, where this user may read them."""
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    wanted = ("NVRM", "AER:", "PCIe Bus Error", "nvidia")
    return tuple(line for line in done.stdout.splitlines() if any(word in line for word in wanted))[-200:]
