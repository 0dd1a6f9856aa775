"""What the card lacks, read from its profile into the form the guard compares with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from envbuilder.errors import InputError, Place

# Floating types narrower than 32 bits. What a profile does not list of these does not exist on its card; float64
# and the complex types are computed by every CUDA card.
_NARROW = tuple(
    name
    for name in (
        "float16",
        "bfloat16",
        *sorted(n for n in dir(torch) if n.startswith("float8_") or n == "float4_e2m1fn_x2"),
    )
    if isinstance(getattr(torch, name, None), torch.dtype)
)


@dataclass(frozen=True)
class Limits:
    """The limits of a card, as the guard needs them. Sizes in bytes."""

    title: str
    dtypes: frozenset[torch.dtype]
    attention: frozenset[str]
    triton: bool
    memory: int
    shared_memory: int

    @staticmethod
    def of(profile: Mapping[str, Any]) -> Limits:
        """The limits in a GPU profile (JSON-typed data of ``gpus/NAME.toml``). Raises InputError for a missing fact."""
        try:
            known = profile["dtypes"]
            usable = {name for name, row in known.items() if row["native"] and row.get("usable", True)}
            return Limits(
                title=str(profile["title"]),
                dtypes=frozenset(getattr(torch, name) for name in _NARROW if name not in usable),
                attention=frozenset(profile["attention"]["allowed"]),
                triton=bool(profile["triton"]["supported"]),
                memory=int(float(profile["usable_memory_gib"]["value"]) * 2**30),
                shared_memory=int(profile["shared_memory_per_block_bytes"]["value"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(
                f"the GPU profile lacks a fact the guard needs: {error}",
                place=Place(field=str(error).strip("'")),
                cure="Give the guard a whole profile, as gpus/NAME.toml holds it.",
            ) from error


# The operations SDPA chooses among, and which back end each of them is. The math back end decomposes into plain
# matrix products before it reaches the dispatcher, so it has no operation of its own except on some devices.
ATTENTION_OPS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_flash_attention_forward": "flash",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_cudnn_attention_forward": "cudnn",
    "_scaled_dot_product_efficient_attention": "mem_efficient",
    "_efficient_attention_forward": "mem_efficient",
    "_scaled_dot_product_fused_attention_overrideable": "overrideable",
}
# On a CPU, SDPA runs this one by default, whatever CUDA would choose: see GuardMode for when it counts.
CPU_ATTENTION_OP = "_scaled_dot_product_flash_attention_for_cpu"
# Libraries that bring attention kernels of their own and register them as torch operations.
ATTENTION_NAMESPACES = frozenset({"flash_attn", "flash_attn_2", "flash_attn_3", "vllm_flash_attn", "sageattention"})
