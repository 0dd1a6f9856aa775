"""The four functions verl takes from ``flash_attn.bert_padding``, in plain torch.

They move the tokens that count out of a padded batch and back again. ``adapt.install`` serves this module under that
name, because verl imports it without condition on CUDA and flash-attn does not build for old cards; the codemod of
``envbuilder patch`` puts a copy into verl. It imports nothing but torch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as functional
from torch import Tensor

# The two patterns verl uses: a batch [batch, length, ...] as one row of tokens; the same for [axis, batch, length].
_PATTERNS: dict[str, Callable[[Tensor], Tensor]] = {
    "b s ... -> (b s) ...": lambda t: t.flatten(0, 1),
    "c b s ... -> (b s) c ...": lambda t: t.movedim(0, 2).flatten(0, 1),
}


def rearrange(tensor: Tensor, pattern: str) -> Tensor:
    """einops' ``rearrange`` for the two patterns verl gives it. Raises ValueError for any other."""
    if pattern not in _PATTERNS:
        raise ValueError(f"rearrange knows {', '.join(map(repr, _PATTERNS))} only, not {pattern!r}: use einops")
    return _PATTERNS[pattern](tensor)


def index_first_axis(tensor: Tensor, indices: Tensor) -> Tensor:
    """The rows ``indices`` (shape [n], int64) of ``tensor`` (shape [rows, ...]): shape [n, ...], differentiable."""
    return tensor.index_select(0, indices)


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Take out the tokens that count.

    ``hidden_states`` [batch, length, ...]; ``attention_mask`` [batch, length], true where a token counts;
    ``unused_mask`` the same for tokens that take up room without counting. Returns the tokens [total, ...], their
    indices into the flattened batch [total], the cumulative lengths [batch + 1] (int32), the greatest length, and
    the number of counting tokens of each sequence [batch] (int32).
    """
    mask = attention_mask.bool()
    taken = mask if unused_mask is None else mask | unused_mask.bool()
    lengths = taken.sum(dim=-1, dtype=torch.int32)
    indices = taken.flatten().nonzero().flatten()
    ends = functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    tokens = index_first_axis(hidden_states.flatten(0, 1), indices)
    return tokens, indices, ends, int(lengths.max()), mask.sum(dim=-1, dtype=torch.int32)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Put tokens [total, ...] back at ``indices`` of a batch of zeros: shape [batch, seqlen, ...], differentiable."""
    empty = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
    return empty.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))
