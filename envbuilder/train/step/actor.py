"""verl's actor with chunked log-probabilities in the place of whole logits."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from envbuilder.train.step.chunked import chunked_log_probs


@dataclass
class ChunkedOutput:
    """What the model's forward gives when log-probabilities were asked for: both [batch, response]."""

    log_probs: torch.Tensor
    entropy: torch.Tensor | None


def _chunking(model: Any) -> Any:
    """The forward of ``model``; given ``chunked`` it ends in log-probabilities of the response, not in logits."""
    stock = model.forward

    # generate() reads the signature of forward to see which arguments it takes: `wraps` shows it the stock one.
    @functools.wraps(stock)
    def forward(*args: Any, chunked: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        if chunked is None:
            return stock(*args, **kwargs)
        hidden = model.model(*args, **kwargs).last_hidden_state
        tokens = chunked["tokens"]
        positions = hidden[:, -tokens.shape[1] - 1 : -1]
        return ChunkedOutput(
            *chunked_log_probs(positions, model.lm_head.weight, tokens, chunked["temperature"], chunked["entropy"])
        )

    return forward


def can_chunk(module: Any) -> bool:
    """Whether ``module`` (possibly in FSDP) is a plain causal LM: a body under ``model`` and a head without bias.

    A model with adapters (LoRA) is none: it passes the names of the model inside it on as its own.
    """
    inner = getattr(module, "_fsdp_wrapped_module", module)
    own = dict(inner.named_children())
    head = own.get("lm_head")
    return isinstance(head, torch.nn.Linear) and head.bias is None and "model" in own


def _forward_micro_batch(
    self: Any, micro_batch: Any, temperature: float, calculate_entropy: bool = False
) -> tuple[Any, Any]:
    """verl's method of this name for plain text models without packing: (entropy or None, log-probs)."""
    if self.use_remove_padding or "multi_modal_inputs" in micro_batch or not can_chunk(self.actor_module):
        return self._envbuilder_stock(micro_batch, temperature, calculate_entropy)  # type: ignore[no-any-return]
    inner = getattr(self.actor_module, "_fsdp_wrapped_module", self.actor_module)
    if "forward" not in vars(inner):
        inner.forward = _chunking(inner)
    output = self.actor_module(
        input_ids=micro_batch["input_ids"],
        attention_mask=micro_batch["attention_mask"],
        position_ids=micro_batch["position_ids"],
        use_cache=False,
        chunked={"tokens": micro_batch["responses"], "temperature": temperature, "entropy": calculate_entropy},
    )
    return output.entropy, output.log_probs


def install() -> None:
    """Give verl's DataParallelPPOActor chunked log-probabilities and AdamW its fused form. Safe to call twice."""
    from verl.workers.actor.dp_actor import DataParallelPPOActor

    if not hasattr(DataParallelPPOActor, "_envbuilder_stock"):
        DataParallelPPOActor._envbuilder_stock = DataParallelPPOActor._forward_micro_batch
        DataParallelPPOActor._forward_micro_batch = _forward_micro_batch
    torch.optim.AdamW = FusedAdamW


class FusedAdamW(torch.optim.AdamW):  # type: ignore[misc]  # torch is not there when types are checked
    """AdamW whose step is one kernel a tensor: the default one holds copies of all states while it steps."""

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        params = list(params)
        first = next((p for p in params if isinstance(p, torch.Tensor)), None)
        fusable = first is not None and first.is_cuda and "foreach" not in kwargs
        super().__init__(params, *args, **({"fused": True} | kwargs if fusable else kwargs))
