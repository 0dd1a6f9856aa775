"""The GPU profile: facts of a card, each with its source."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from pydantic import Field

from envbuilder import data
from envbuilder.stack.fields import Strict, load_model

T = TypeVar("T")
State = Literal["verified-by-two", "one-source", "measured"]


class Fact(Strict, Generic[T]):
    """A value, how well it is confirmed, and where it comes from."""

    value: T
    status: State
    source: str = Field(min_length=8)


class DriverBranches(Strict):
    """The last driver branch (major version) that knows the card."""

    last_branch: int
    status: State
    source: str


class CudaRange(Strict):
    """The first and last CUDA release (major.minor) that compile for the card."""

    first: str
    last: str
    status: State
    source: str


class Dtype(Strict):
    """Whether the card computes in a dtype itself, and whether doing so makes sense."""

    native: bool
    usable: bool = True
    source: str


class Attention(Strict):
    """The attention back ends that can run on the card."""

    allowed: tuple[Literal["eager", "math", "mem_efficient", "flash", "cudnn"], ...]
    source: str


class Triton(Strict):
    """Whether Triton compiles for the card."""

    supported: bool
    minimum_capability: str
    source: str


class Belief(Strict):
    """Something commonly said of the card that is wrong, and what is so."""

    claim: str
    truth: str
    source: str


class GpuProfile(Strict):
    """All that is known of a card. ``gpus/NAME.toml``. Units stand in the field names."""

    schema_: Literal[1] = Field(alias="schema")
    name: str
    title: str
    architecture: str
    names: tuple[str, ...] = Field(description="What nvidia-smi calls the card.")
    capability: Fact[str]
    memory_mib: Fact[int]
    usable_memory_gib: Fact[float]
    memory_bandwidth_gb_s: Fact[float]
    fp32_tflops: Fact[float]
    fp16_tflops: Fact[float]
    fp64_ratio: Fact[int]
    shared_memory_per_block_bytes: Fact[int]
    shared_memory_per_sm_bytes: Fact[int]
    tdp_w: Fact[int]
    pcie: Fact[str]
    driver: DriverBranches
    cuda: CudaRange
    dtypes: dict[str, Dtype]
    attention: Attention
    triton: Triton
    published_ppo_steps_s: tuple[Fact[float], ...] = Field(
        (), description="Seconds of a PPO step with verl that others published for the card."
    )
    belief: tuple[Belief, ...] = ()

    @property
    def sm(self) -> str:
        """The capability as the compilers write it: ``sm_61``."""
        return "sm_" + self.capability.value.replace(".", "")

    @property
    def major_minor(self) -> tuple[int, int]:
        """The capability as numbers: (6, 1)."""
        major, minor = self.capability.value.split(".")
        return int(major), int(minor)


def load_gpu(name: str) -> GpuProfile:
    """The profile ``gpus/NAME.toml``. Raises InputError when there is none or it is wrong."""
    return load_model(GpuProfile, data.find("gpus", f"{name}.toml"))


def gpu_names() -> list[str]:
    """The cards there are profiles of."""
    return data.names("gpus", ".toml")
