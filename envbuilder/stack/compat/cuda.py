"""CUDA toolkits, driver branches and distributions' compilers (``cuda.toml``)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from envbuilder.stack.fields import Strict, load_model


class Toolkit(Strict):
    """CUDA releases that share their limits. ``max_gcc``: the newest major of GCC that nvcc takes."""

    release: tuple[str, ...]
    minimum_driver: str
    packaged_driver: str = ""
    max_gcc: int | None = None
    first_capability: str
    last_capability: str
    source: str = Field(min_length=8)

    def compiles_for(self, capability: tuple[int, int]) -> bool:
        """Whether nvcc of these releases knows the capability."""
        first, last = (tuple(int(p) for p in text.split(".")) for text in (self.first_capability, self.last_capability))
        return first <= capability <= last


class DriverBranch(Strict):
    """The newest driver branch that knows these architectures."""

    branch: int
    status: str
    architectures: tuple[str, ...]
    source: str = Field(min_length=8)


class Distro(Strict):
    """A distribution, its default GCC (major), the CUDA of its own nvidia-cuda-toolkit, the month support ended."""

    name: tuple[str, ...]
    gcc: int
    eol: str = ""
    nvidia_cuda_toolkit: str = ""
    codename: str
    source: str = Field(min_length=8)


class CudaTable(Strict):
    """The table."""

    schema_: Literal[1] = Field(alias="schema")
    toolkit: tuple[Toolkit, ...]
    driver: tuple[DriverBranch, ...]
    distro: tuple[Distro, ...]


@lru_cache(maxsize=1)
def cuda_table() -> CudaTable:
    """The whole table."""
    return load_model(CudaTable, Path(__file__).with_name("cuda.toml"))


def toolkit(release: str) -> Toolkit | None:
    """The row of a release given as major.minor(.patch); None where nothing is known."""
    short = ".".join(release.split(".")[:2])
    return next((row for row in cuda_table().toolkit if short in row.release), None)


def distro(name: str) -> Distro | None:
    """The row of ``ubuntu22.04``, ``jammy``, ``debian12`` and the like."""
    return next((row for row in cuda_table().distro if name.lower() in row.name), None)


def last_branch(architecture: str) -> DriverBranch | None:
    """The last driver branch for an architecture (``Pascal (GP102)`` counts as Pascal); None while it is current."""
    word = architecture.split(" ")[0]
    return next((row for row in cuda_table().driver if word in row.architectures), None)


def cuda_of_tag(tag: str) -> str:
    """``11.8`` of ``cu118``, ``12.4`` of ``cu124``; empty when it is no such tag."""
    digits = tag.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}" if tag.startswith("cu") and digits.isdigit() and len(digits) >= 2 else ""


def tag_of_cuda(release: str) -> str:
    """``cu118`` of ``11.8`` or ``11.8.0``."""
    return "cu" + "".join(release.split(".")[:2])
