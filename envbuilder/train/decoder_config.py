"""The sizes of a decoder model out of its config.json, and how many parameters that makes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from envbuilder.errors import InputError, NotEnoughError, Place

# Architectures whose parameter count below was checked against the models themselves.
_KNOWN = ("qwen2", "llama")


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes as config.json names them."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    qkv_bias: bool

    @property
    def embedding(self) -> int:
        """Parameters of the token embedding."""
        return self.vocabulary * self.hidden

    @property
    def body(self) -> int:
        """Parameters without the language-model head: embedding, layers, last norm."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (q + 2 * kv) + q * self.hidden + (q + 2 * kv if self.qkv_bias else 0)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.embedding + self.layers * layer + self.hidden

    @property
    def causal_lm(self) -> int:
        """Parameters of the causal language model."""
        return self.body + (0 if self.tied else self.embedding)

    @property
    def value_model(self) -> int:
        """Parameters of the critic: the body and one output with its bias."""
        return self.body + self.hidden + 1

    def adapters(self, rank: int) -> int:
        """Parameters of LoRA adapters of ``rank`` on every projection of every layer (peft's ``all-linear``)."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        widths = 2 * (self.hidden + q) + 2 * (self.hidden + kv) + 3 * (self.hidden + self.intermediate)
        return self.layers * rank * widths


def read_decoder_config(folder: Path) -> DecoderConfig:
    """The sizes in ``folder/config.json``. Raises InputError, or NotEnoughError for an architecture not known here."""
    path = folder / "config.json" if folder.is_dir() else folder
    place = Place(str(path))
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        kind = raw["model_type"]
        if kind not in _KNOWN:
            raise NotEnoughError(
                f"nothing is known of the memory of a {kind!r} model", place=place, cure=f"Known: {', '.join(_KNOWN)}."
            )
        heads = int(raw["num_attention_heads"])
        config = DecoderConfig(
            hidden=int(raw["hidden_size"]),
            intermediate=int(raw["intermediate_size"]),
            layers=int(raw["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads", heads)),
            head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
            vocabulary=int(raw["vocab_size"]),
            tied=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=kind == "qwen2",
        )
        sizes = (config.hidden, config.intermediate, config.layers, heads, config.kv_heads, config.vocabulary)
        if min(*sizes, config.head_dim) < 1:
            raise ValueError("a size in it is not above zero")
        return config
    except FileNotFoundError:
        raise InputError("there is no config.json", place=place, cure="Give the model's folder.") from None
    except KeyError as error:
        raise InputError(f"config.json lacks {error}", place=place, cure="Fetch it again.") from error
    except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise InputError(f"config.json cannot be read: {error}", place=place, cure="Fetch it again.") from error
