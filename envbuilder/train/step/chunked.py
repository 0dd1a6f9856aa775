"""Log-probabilities and entropy of chosen tokens without ever holding all logits.

A vocabulary of 152k makes one float32 row of logits 0.6 MB; verl's stock path holds several copies of all of them
for prompt and response. Here the logits of a few hundred positions exist at a time, in the forward and again in the
backward, which computes them anew.
"""

from __future__ import annotations

from typing import Any

import torch

# Logits held at once, in numbers: 2^25 float32 are 128 MiB, enough to keep the matrix product busy.
_NUMBERS = 1 << 25


def _rows(vocabulary: int) -> int:
    return max(16, _NUMBERS // vocabulary)


class _ChunkedLogProbs(torch.autograd.Function):  # type: ignore[misc]  # torch is not there when types are checked
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor, temperature: float, entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = hidden.shape[0]
        logprobs = hidden.new_empty(count)
        normaliser = hidden.new_empty(count)
        entropies = hidden.new_zeros(count)
        for begin in range(0, count, _rows(weight.shape[0])):
            part = slice(begin, begin + _rows(weight.shape[0]))
            logits = (hidden[part] @ weight.t()).div_(temperature)
            lse = torch.logsumexp(logits, dim=-1)
            normaliser[part] = lse
            logprobs[part] = logits.gather(-1, tokens[part, None]).squeeze(-1) - lse
            if entropy:
                # H = lse - sum(p z); p is made in a second buffer, z is spent by the product.
                p = torch.softmax(logits, dim=-1)
                entropies[part] = lse - p.mul_(logits).sum(dim=-1)
        ctx.save_for_backward(hidden, weight, tokens, normaliser, entropies)
        ctx.temperature, ctx.entropy = temperature, entropy
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, grad_entropy: torch.Tensor) -> tuple[Any, ...]:
        hidden, weight, tokens, normaliser, entropies = ctx.saved_tensors
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for begin in range(0, hidden.shape[0], _rows(weight.shape[0])):
            part = slice(begin, begin + _rows(weight.shape[0]))
            z = (hidden[part] @ weight.t()).div_(ctx.temperature).sub_(normaliser[part, None])  # log p
            g = grad[part, None]
            if ctx.entropy:
                # dH/dz = -p (log p + H), dlogp/dz = onehot - p
                p = z.exp()
                z.add_(entropies[part, None]).mul_(grad_entropy[part, None]).add_(g).mul_(p).neg_()
                del p
            else:
                z.exp_().mul_(-g)
            z.scatter_add_(1, tokens[part, None], g)
            z.div_(ctx.temperature)
            torch.matmul(z, weight, out=d_hidden[part])
            if d_weight is not None:
                d_weight.addmm_(z.t(), hidden[part])
        return d_hidden, d_weight, None, None, None


def chunked_log_probs(
    hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor, temperature: float, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability of ``tokens`` and, if asked for, the entropy of the distribution at each position.

    ``hidden``: [batch, length, hidden size]; ``weight``: [vocabulary, hidden size]; ``tokens``: [batch, length];
    both results: [batch, length], float32, differentiable.
    """
    batch, length, size = hidden.shape
    logprobs, entropies = _ChunkedLogProbs.apply(
        hidden.reshape(-1, size), weight, tokens.reshape(-1), float(temperature), entropy
    )
    return logprobs.view(batch, length), entropies.view(batch, length) if entropy else None
