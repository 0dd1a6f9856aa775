"""What training does, on a GPU, each result as a digest: the same code must give the same bits. Prints JSON."""

import hashlib
import json
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name


def digest(*tensors: torch.Tensor) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().contiguous().cpu().reshape(-1)
        total.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return total.hexdigest()


def linear_algebra() -> dict[str, str]:
    found = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        a = torch.randn(1024, 768, device="cuda").to(dtype)
        b = torch.randn(768, 512, device="cuda").to(dtype)
        found[f"matmul {dtype}"] = digest(a @ b)
        found[f"batched matmul {dtype}"] = digest(torch.bmm(a.view(16, 64, 768), b.expand(16, 768, 512)))
    a = torch.randn(256, 256, device="cuda")
    spd = a @ a.T + 256 * torch.eye(256, device="cuda")
    found["cholesky"] = digest(torch.linalg.cholesky(spd))
    found["solve"] = digest(torch.linalg.solve(spd, a))
    found["fft"] = digest(torch.view_as_real(torch.fft.fft2(a)))
    return found


def elementwise() -> dict[str, str]:
    x = torch.randn(513, 1027, device="cuda")
    values, order = torch.sort(x, dim=1)
    found = {
        "sort": digest(values, order),
        "topk": digest(*torch.topk(x, 17)),
        "scan": digest(torch.cumsum(x, 1), torch.cumprod(x, 0)),
        "softmax": digest(torch.softmax(x, 1), torch.log_softmax(x.half(), 1)),
        "reduce": digest(x.sum(), x.mean(0), x.std(1), x.amax(1), torch.logsumexp(x, 1), x.norm()),
        "elementwise": digest(x.exp().log1p(), x.tanh(), torch.erf(x), F.gelu(x), F.silu(x), x.clamp(-1, 1).pow(3)),
        "index": digest(x[:, order[0, :100]], torch.where(x > 0, x, -x), torch.gather(x, 1, order), x.tril()),
        "random": digest(torch.rand(1000, device="cuda"), torch.randperm(1000, device="cuda"), F.dropout(x, 0.3)),
        "unique": digest(*torch.unique((x * 10).round(), return_counts=True)),
    }
    found["multinomial"] = digest(torch.multinomial(torch.softmax(x, 1), 3))
    return found


def convolution() -> dict[str, str]:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, stride=2), torch.nn.GroupNorm(8, 64), torch.nn.AdaptiveAvgPool2d(1),
    ).cuda()  # fmt: skip
    x = torch.randn(8, 3, 64, 64, device="cuda", requires_grad=True)
    out = net(x)
    out.square().sum().backward()
    return {
        "convolution forward": digest(out),
        "convolution backward": digest(x.grad, *[p.grad for p in net.parameters()]),
    }


def transformer_step() -> dict[str, str]:
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(1)
        embed = torch.nn.Embedding(1000, 256).cuda().to(dtype)
        layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True).cuda().to(dtype)
        head = torch.nn.Linear(256, 1000).cuda().to(dtype)
        parameters = [*embed.parameters(), *layer.parameters(), *head.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        tokens = torch.randint(0, 1000, (4, 128), device="cuda")
        losses = []
        for _ in range(3):
            loss = F.cross_entropy(head(layer(embed(tokens))).flatten(0, 1).float(), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            losses.append(loss)
        found[f"transformer, three steps, {dtype}"] = digest(*losses, *parameters)
    return found


def attention() -> dict[str, str]:
    q, k, v = (torch.randn(2, 8, 256, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3))
    found = {}
    for backend in ("MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION"):
        try:
            with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                found[f"attention {backend}"] = digest(out, *torch.autograd.grad(out.sum(), (q, k, v)))
        except RuntimeError as error:
            found[f"attention {backend}"] = f"not available: {str(error).splitlines()[0]}"
    return found


def all_reduce() -> dict[str, str]:
    from torch import distributed

    distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:29417", rank=0, world_size=1)
    x = torch.arange(1000.0, device="cuda")
    distributed.all_reduce(x)
    distributed.destroy_process_group()
    return {"NCCL all-reduce of one": digest(x)}


def main() -> int:
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    found: dict[str, str] = {"torch": torch.__file__}
    for part in (linear_algebra, elementwise, convolution, transformer_step, attention, all_reduce):
        torch.manual_seed(0)
        found.update(part())
    torch.cuda.synchronize()
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
