"""Choosing the next token on the device, with the processors of HF generate in their order."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. ``top_k`` 0 and ``top_p`` 1.0 switch their filters off; ``greedy`` takes the best."""

    greedy: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


def choose(logits: torch.Tensor, how: Sampling) -> torch.Tensor:
    """One token a row. ``logits``: [batch, vocabulary] float32, may be overwritten; returns [batch] int64.

    The draw is the exponential race (argmax of p / e with e exponential), which is what torch.multinomial does for
    one sample, and which a CUDA graph can hold.
    """
    if how.greedy:
        return logits.argmax(dim=-1)
    if how.temperature != 1.0:
        logits = logits / how.temperature
    if 0 < how.top_k < logits.shape[-1]:
        floor = logits.topk(how.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < floor, float("-inf"))
    if how.top_p < 1.0:
        # Ascending, as HF does it: the head of the sort whose mass is at most 1 - top_p goes, the best always stays.
        ordered, index = logits.sort(dim=-1)
        remove = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - how.top_p
        remove[:, -1] = False
        logits = logits.masked_fill(remove.scatter(1, index, remove), float("-inf"))
    probabilities = logits.softmax(dim=-1)
    return (probabilities / torch.empty_like(probabilities).exponential_(1.0)).argmax(dim=-1)
