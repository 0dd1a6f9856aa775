"""Apex: the package, amp where the pinned version has it, a fused kernel against its reference."""

from __future__ import annotations

import importlib
from typing import Any

from envbuilder.smoke.check import Outcome, Spec, failed, not_proven, passed
from envbuilder.smoke.context import Context


def run(context: Context) -> Outcome:
    """Import Apex and its extensions; on a card, hold fused layer norm and fused Adam against torch's own."""
    if not context.manifest.has_apex:
        return not_proven("Apex is not in this stack", stack=context.manifest.stack["name"])
    tag = context.manifest.stack["sources"]["apex"]["tag"]
    for name in ("apex", "amp_C", "fused_layer_norm_cuda"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            kind = "Apex is not installed" if name == "apex" else f"Apex was built without its extension {name}"
            return failed(
                f"{kind}: {error}", "Build it with --cpp_ext --cuda_ext; `pip install apex` is another package."
            )
    apex = importlib.import_module("apex")
    amp = hasattr(apex, "amp")
    evidence: dict[str, Any] = {"tag": tag, "amp": "there" if amp else "not in this version"}
    if not context.on_gpu:
        return not_proven("Apex and its extensions import; its kernels need a GPU", **evidence)
    return _kernels(context, evidence)


def _kernels(context: Context, evidence: dict[str, Any]) -> Outcome:
    import torch
    from apex.normalization import FusedLayerNorm
    from apex.optimizers import FusedAdam

    torch.manual_seed(3)
    x = torch.randn(64, 896, device=context.device)
    fused, plain = FusedLayerNorm(896).to(context.device), torch.nn.LayerNorm(896).to(context.device)
    error = float((fused(x) - plain(x)).abs().max())
    weights = [torch.nn.Parameter(torch.ones(1000, device=context.device)) for _ in range(2)]
    steps = [
        FusedAdam(weights[:1], lr=1e-2, adam_w_mode=True, weight_decay=0.0),
        torch.optim.AdamW(weights[1:], lr=1e-2, weight_decay=0.0),
    ]
    for weight, optimiser in zip(weights, steps, strict=True):
        weight.grad = torch.linspace(-1, 1, 1000, device=context.device)
        optimiser.step()
    adam = float((weights[0] - weights[1]).abs().max())
    evidence |= {"layer norm error": f"{error:.1e}", "Adam error": f"{adam:.1e}"}
    if error > 1e-4 or adam > 1e-4 or error != error or adam != adam:
        return failed(
            "a fused kernel differs from torch's own",
            "Rebuild Apex with TORCH_CUDA_ARCH_LIST for the card.",
            **evidence,
        )
    return passed(**evidence)


APEX = Spec("apex", "Apex", "Apex's own kernels run on the card and agree with torch's", run, limit_s=120)
