"""What verl is to compute in: the dtype, the attention, and whether code may be compiled."""

from __future__ import annotations

from dataclasses import dataclass

from envbuilder.errors import NotEnoughError
from envbuilder.stack.gpu import GpuProfile
from envbuilder.stack.model import Compute

# torch's names and verl's short ones.
SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Target:
    """``dtype`` as torch names it, ``attention`` as transformers does, ``compile`` whether Triton runs."""

    dtype: str
    attention: str
    compile: bool

    @staticmethod
    def of_stack(compute: Compute) -> Target:
        """What a stack asks for."""
        return Target(compute.dtype, compute.attention, compute.compile)

    @staticmethod
    def of_card(gpu: GpuProfile) -> Target:
        """What a card can: its first usable dtype and first allowed attention. Raises NotEnoughError."""
        usable = [name for name, dtype in gpu.dtypes.items() if dtype.native and dtype.usable]
        if not usable:
            raise NotEnoughError(f"the profile of {gpu.title} names no usable dtype")
        eager = "eager" in gpu.attention.allowed
        return Target(usable[0], "eager" if eager else "sdpa", gpu.triton.supported)

    @property
    def narrow(self) -> frozenset[str]:
        """The reduced dtypes, in torch's and verl's names, that are not the target's."""
        return frozenset(n for long in ("bfloat16", "float16") if long != self.dtype for n in (long, SHORT[long]))

    def named_like(self, name: str) -> str:
        """The target's dtype in the naming of ``name``: ``fp32`` for ``bf16``, ``float32`` for ``bfloat16``."""
        return SHORT[self.dtype] if name in SHORT.values() else self.dtype
