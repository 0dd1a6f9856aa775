"""FP32 matrix products and convolutions against a float64 reference, and their rate beside the card's roofline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from envbuilder.smoke.check import Outcome, Spec, failed, passed
from envbuilder.smoke.context import Context

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

# Of a sum of n products in float32, the relative error grows like sqrt(n) * 2^-24 for random signs; 16 leaves room for
# blocking and FMA, and is far from what TF32 (2^-11) or bfloat16 (2^-8) would give.
_ROOM = 16.0


def relative_error(got: torch.Tensor, reference: torch.Tensor) -> float:
    """The Frobenius norm of the difference over that of the float64 reference. NaN where ``got`` holds one."""
    return float((got.double() - reference).norm() / reference.norm())


def judge_error(error: float, terms: int, what: str, **evidence: Any) -> Outcome:
    """The outcome for a relative error of sums over ``terms`` products."""
    allowed = _ROOM * terms**0.5 * 2.0**-24
    evidence = {"relative error": f"{error:.1e}", "allowed": f"{allowed:.1e}", **evidence}
    if error != error:
        return failed(
            f"{what} holds NaN",
            "The card or its memory is faulty, or a library is: run it again with --only.",
            **evidence,
        )
    if error > allowed:
        hint = " (TF32 or a half type would look like this)" if error > 2.0**-13 else ""
        return failed(
            f"{what} is off by {error:.1e}, {allowed:.1e} is allowed{hint}",
            "Look for NVIDIA_TF32_OVERRIDE, torch.set_float32_matmul_precision or autocast; else the card is faulty.",
            **evidence,
        )
    return passed(**evidence)


def rate(context: Context, work: Callable[[], object], flops: float) -> float:
    """TFLOP/s of ``work``: the best of a few runs, after one to warm up."""
    best = float("inf")
    for _ in range(6 if context.on_gpu else 3):
        context.synchronize()
        begin = time.perf_counter()
        work()
        context.synchronize()
        best = min(best, time.perf_counter() - begin)
    return flops / best / 1e12


def _beside_roofline(context: Context, tflops: float) -> dict[str, Any]:
    if not context.on_gpu:
        return {"rate": "not proven here: no card"}
    roof = float(context.manifest.fact("fp32_tflops"))
    return {"TFLOP/s": round(tflops, 2), "of the profile's TFLOP/s": roof, "share": f"{tflops / roof:.0%}"}


def matmul(context: Context) -> Outcome:
    """A float32 product of random matrices, n by n."""
    import torch

    n = 4096 if context.on_gpu else 768
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(n, n, generator=generator).to(context.device) for _ in range(2))
    got = a @ b
    rows = slice(0, 256)  # FP64 is 1/32 of the FP32 rate: a part of the rows is enough
    error = relative_error(got[rows].cpu(), a[rows].cpu().double() @ b.cpu().double())
    if not bool(torch.isfinite(got).all()):
        error = float("nan")
    tflops = rate(context, lambda: a @ b, 2.0 * n**3)
    return judge_error(error, n, "the product", n=n, **_beside_roofline(context, tflops))


def convolution(context: Context) -> Outcome:
    """A 3 by 3 float32 convolution, as cuDNN (or the CPU's library) computes it."""
    import torch
    from torch.nn.functional import conv2d

    channels, size = (128, 56) if context.on_gpu else (32, 28)
    batch = 16 if context.on_gpu else 2
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(batch, channels, size, size, generator=generator).to(context.device)
    weight = torch.randn(channels, channels, 3, 3, generator=generator).to(context.device)
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        got = conv2d(x, weight, padding=1)
        tflops = rate(context, lambda: conv2d(x, weight, padding=1), 2.0 * got.numel() * channels * 9)
    finally:
        torch.backends.cudnn.allow_tf32 = tf32
    error = relative_error(got[:1].cpu(), conv2d(x[:1].cpu().double(), weight.cpu().double(), padding=1))
    return judge_error(error, channels * 9, "the convolution", **_beside_roofline(context, tflops))


MATMUL = Spec(
    "matmul", "FP32 matrix product", "float32 products are right to float32's precision; on a card, how fast", matmul
)
CONVOLUTION = Spec(
    "convolution", "FP32 convolution", "float32 convolutions are right; on a card, cuDNN runs on it, and how fast",
    convolution,
)  # fmt: skip
