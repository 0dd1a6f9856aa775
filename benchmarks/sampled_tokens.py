"""Were these tokens drawn from the model's own distribution? Three statistics over whole responses.

Each token of a response is held against the distribution that the model's own forward gives after the tokens before
it, filtered by transformers' own processors. A fault of the cache, of a position, of a filter or of the draw shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

_BINS = 20
_AT_ONCE = 256  # positions whose logits exist at a time


@dataclass(frozen=True)
class Warp:
    """Sampling settings, named as verl's meta_info names them."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """[rows, vocabulary] in float64, by transformers' processors in generate's order."""
        from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

        if self.temperature != 1.0:
            logits = TemperatureLogitsWarper(self.temperature)(None, logits)
        if self.top_k:
            logits = TopKLogitsWarper(self.top_k)(None, logits)
        if self.top_p < 1.0:
            logits = TopPLogitsWarper(self.top_p)(None, logits)
        return logits.double().softmax(-1)


def held_against(model: Any, made: Any, warp: Warp) -> dict[str, float]:
    """The statistics; each ``z`` is standard normal when all is well, and beyond 4 in one of 16,000 such tests.

    ``made``: verl's batch of a rollout. ``z of log-probability``: sum of log p + entropy over its own deviation, which
    a wrong temperature or a wrong prefix moves. ``z of position``: mean place of the token in the cumulative
    distribution over the vocabulary. ``z of bins``: chi-squared of that place in 20 bins, as a normal deviate.
    ``outside``: share of tokens that a filter forbids, which rounding at the filter's edge can make a trifle.
    """
    was_training = model.training
    model.eval()
    generator = torch.Generator().manual_seed(0)
    prompt = made["prompts"].shape[1]
    surprise = variance = 0.0
    places = []
    outside = count = 0
    with torch.no_grad():
        hidden = model.model(
            input_ids=made["input_ids"], attention_mask=made["attention_mask"], position_ids=made["position_ids"]
        ).last_hidden_state[:, prompt - 1 : -1]
        hidden, tokens = hidden.reshape(-1, hidden.shape[-1]), made["responses"].reshape(-1)
        for begin in range(0, len(tokens), _AT_ONCE):
            chosen = tokens[begin : begin + _AT_ONCE, None]
            p = warp.probabilities(model.lm_head(hidden[begin : begin + _AT_ONCE]))
            log = torch.where(p > 0, p, 1.0).log()
            mine = p.gather(1, chosen).squeeze(1)
            allowed = mine > 0
            entropy = -(p * log).sum(1)
            surprise += float((log.gather(1, chosen).squeeze(1) + entropy)[allowed].sum())
            variance += float(((p * log**2).sum(1) - entropy**2)[allowed].sum())
            below = p.cumsum(1).gather(1, chosen).squeeze(1) - mine
            places.append((below.cpu() + torch.rand(len(mine), generator=generator) * mine.cpu())[allowed.cpu()])
            outside += int((~allowed).sum())
            count += len(mine)
    model.train(was_training)
    place = torch.cat(places)
    expected = len(place) / _BINS
    chi = float(((torch.histc(place, _BINS, 0.0, 1.0) - expected) ** 2 / expected).sum())
    return {
        "tokens": count,
        "z of log-probability": round(surprise / math.sqrt(max(variance, 1e-12)), 3),
        "z of position": round(math.sqrt(12 * len(place)) * (float(place.mean()) - 0.5), 3),
        "z of bins": round((chi - (_BINS - 1)) / math.sqrt(2 * (_BINS - 1)), 3),
        "outside": round(outside / count, 6),
    }
