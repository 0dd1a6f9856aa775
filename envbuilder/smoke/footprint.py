"""How much memory is used: torch's allocator on a GPU, the process's resident memory on a CPU. In bytes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def used(on_gpu: bool) -> int:
    """Bytes in use now: allocated tensors on a GPU; resident memory on a CPU, freed pages given back first."""
    if on_gpu:
        import torch

        return int(torch.cuda.memory_allocated())
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak(on_gpu: bool) -> int:
    """The most bytes in use since ``reset_peak``; on a CPU, since the process began."""
    if on_gpu:
        import torch

        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak(on_gpu: bool) -> None:
    """Begin a new peak. A CPU's cannot be reset."""
    if on_gpu:
        import torch

        torch.cuda.reset_peak_memory_stats()


def of_module(module: torch.nn.Module) -> int:
    """Bytes of a module's parameters, shared ones counted once."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def of_optimiser(optimiser: torch.optim.Optimizer) -> int:
    """Bytes of an optimiser's states."""
    import torch

    states = (v for state in optimiser.state.values() for v in state.values())
    return sum(v.numel() * v.element_size() for v in states if isinstance(v, torch.Tensor))


def stand_in_for_cpu_memory(on_gpu: bool) -> None:
    """Give ``torch.cpu`` the memory calls that verl makes on whatever device it runs on. Nothing on a GPU."""
    if on_gpu:
        return
    import torch

    def nothing(*_: Any, **__: Any) -> int:
        return 0

    def mem_get_info(*_: Any, **__: Any) -> tuple[int, int]:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), total

    cpu: Any = torch.cpu
    for name in (
        "empty_cache",
        "memory_allocated",
        "memory_reserved",
        "max_memory_allocated",
        "max_memory_reserved",
        "reset_peak_memory_stats",
        "manual_seed",
        "manual_seed_all",
        "ipc_collect",
    ):
        if not hasattr(cpu, name):
            setattr(cpu, name, nothing)
    if not hasattr(cpu, "mem_get_info"):
        cpu.mem_get_info = mem_get_info
