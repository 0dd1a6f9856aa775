"""Compile CUDA C++ for the card at hand with NVRTC and launch it on torch's current stream.

Both libraries are already in the process or beside torch: NVRTC is a dependency of every CUDA build of torch, the
driver library is the host's. No compiler, no Triton and no build step is needed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch


class KernelError(RuntimeError):
    """NVRTC or the driver refused; the text holds their own words."""


def _find_nvrtc() -> ctypes.CDLL:
    major = (torch.version.cuda or "").split(".")[0]
    name = "libnvrtc.so.11.2" if major == "11" else f"libnvrtc.so.{major}"
    try:
        return ctypes.CDLL(name)
    except OSError:
        site = Path(torch.__file__).parents[1]
        for pattern in (f"torch/lib/{name}", f"nvidia/*/lib/{name}"):
            for path in sorted(site.glob(pattern)):
                return ctypes.CDLL(str(path))
        raise KernelError(f"{name} is not beside torch {torch.__version__}") from None


@lru_cache(maxsize=1)
def _nvrtc() -> ctypes.CDLL:
    return _find_nvrtc()


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise KernelError(f"the driver library is not there: {error}") from error


def _check(status: int, what: str) -> None:
    if status:
        name = ctypes.c_char_p()
        _driver().cuGetErrorName(status, ctypes.byref(name))
        raise KernelError(f"{what}: {(name.value or b'error %d' % status).decode()}")


def compile_cubin(source: str, macros: dict[str, int], capability: tuple[int, int]) -> bytes:
    """The SASS of ``source`` for ``capability`` with ``macros`` defined. Raises KernelError with the compiler's log."""
    lib = _nvrtc()
    program = ctypes.c_void_p()
    if lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None):
        raise KernelError("NVRTC cannot make a program")
    options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++14"]
    options += [f"-D{name}={value}" for name, value in macros.items()]
    argv = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    try:
        status = lib.nvrtcCompileProgram(program, len(options), argv)
        size = ctypes.c_size_t()
        if status:
            lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            lib.nvrtcGetProgramLog(program, log)
            raise KernelError(f"NVRTC for sm_{capability[0]}{capability[1]}: {log.value.decode(errors='replace')}")
        lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        lib.nvrtcGetCUBIN(program, cubin)
        return cubin.raw
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


class Module:
    """A loaded cubin. ``module.launch(name, grid, threads, *args)`` runs a kernel on the current stream."""

    def __init__(self, cubin: bytes) -> None:
        torch.cuda.current_stream()  # makes the primary context current
        self._cubin = cubin
        self._handle = ctypes.c_void_p()
        _check(_driver().cuModuleLoadData(ctypes.byref(self._handle), cubin), "loading the kernels")
        self._functions: dict[str, ctypes.c_void_p] = {}

    def _function(self, name: str) -> ctypes.c_void_p:
        if name not in self._functions:
            function = ctypes.c_void_p()
            _check(_driver().cuModuleGetFunction(ctypes.byref(function), self._handle, name.encode()), name)
            self._functions[name] = function
        return self._functions[name]

    def launch(self, name: str, grid: tuple[int, int], threads: int, args: Sequence[Any]) -> None:
        """Launch. Arguments are tensors (None is a null pointer), Python ints (int32) and floats (float32)."""
        holders: list[Any] = []
        for arg in args:
            if arg is None or isinstance(arg, torch.Tensor):
                holders.append(ctypes.c_void_p(0 if arg is None else arg.data_ptr()))
            elif isinstance(arg, float):
                holders.append(ctypes.c_float(arg))
            else:
                holders.append(ctypes.c_int(arg))
        pointers = (ctypes.c_void_p * len(holders))(*[ctypes.addressof(h) for h in holders])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = _driver().cuLaunchKernel(
            self._function(name), grid[0], grid[1], 1, threads, 1, 1, 0, stream, pointers, None
        )
        _check(status, name)
