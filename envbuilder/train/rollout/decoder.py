"""Decoding with a static KV cache and one captured CUDA graph a token, on the weights of a Hugging Face model.

The weights are the model's own: the graph holds their addresses, nothing is copied, and an optimiser step that
writes them in place is seen by the next rollout. The prompt goes through the model's own forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch

from envbuilder.train.rollout.nvrtc import Module, compile_cubin
from envbuilder.train.rollout.sampling import Sampling, choose

_THREADS = 256
_ROWS = 8  # output rows a block of norm_qkv, norm_gate_up and norm_logits takes
_PROJECT_ROWS = 4  # output rows a block of project_* takes
MAX_BATCH = 8
_SHARED_BYTES = 48 * 1024  # what a block may use on every card since Kepler
_CHECK_EVERY = 16  # steps between two looks at whether all sequences have ended


class UnsupportedError(Exception):
    """The model or the request is not one these kernels cover; the text says why."""


@dataclass(frozen=True)
class Shape:
    """The shape of a decoder: sizes as in its config."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float

    @staticmethod
    def of(config: Any) -> Shape:
        """The shape in a model's config. Raises UnsupportedError for one the kernels do not cover."""
        if config.model_type not in ("qwen2", "llama"):
            raise UnsupportedError(f"model type {config.model_type!r}; the kernels know qwen2 and llama")
        if config.hidden_act != "silu":
            raise UnsupportedError(f"activation {config.hidden_act!r}; the kernels know silu")
        if getattr(config, "use_sliding_window", False):
            raise UnsupportedError("sliding-window attention")
        if getattr(config, "mlp_bias", False) or getattr(config, "attention_bias", False):
            raise UnsupportedError("biases on the output or MLP projections")
        heads = config.num_attention_heads
        shape = Shape(
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            layers=config.num_hidden_layers,
            heads=heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocabulary=config.vocab_size,
            eps=config.rms_norm_eps,
        )
        if shape.head_dim not in (64, 128) or shape.hidden % 128 or shape.intermediate % 128:
            raise UnsupportedError(f"head dimension {shape.head_dim}, hidden {shape.hidden}, MLP {shape.intermediate}")
        return shape


def local(parameter: torch.Tensor | None) -> torch.Tensor | None:
    """The plain tensor behind a parameter, also when FSDP2 made a DTensor of it on a single rank."""
    if parameter is None:
        return None
    whole = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    if whole.shape != parameter.shape or not whole.is_contiguous():
        raise UnsupportedError("the weights are sharded over several ranks")
    return whole.detach()


@lru_cache(maxsize=8)
def _module(macros: tuple[tuple[str, int], ...], capability: tuple[int, int]) -> Module:
    source = files("envbuilder.train.rollout").joinpath("kernels.cu").read_text()
    return Module(compile_cubin(source, dict(macros), capability))


class Decoder:
    """Generates with one model for one batch size, prompt and response length. Make another for other sizes."""

    def __init__(self, model: Any, batch: int, length: int, how: Sampling) -> None:
        """``model``: a Hugging Face causal LM in float32 on CUDA; ``length``: prompt and response, in tokens.

        Raises UnsupportedError when the kernels do not cover the model, the batch or the length.
        """
        self.model, self.batch, self.how = model, batch, how
        self.shape = shape = Shape.of(model.config)
        self.length = -(-length // 64) * 64
        self._weights = self._collect(model)
        self.pointers = self._pointers()
        used = 4 * max(batch * shape.hidden, self.length + 2 * 1024) + 1024
        if batch > MAX_BATCH or used > _SHARED_BYTES:
            raise UnsupportedError(f"batch {batch} at length {self.length} exceeds a block's shared memory of 48 KiB")
        device = self._weights["embed"].device
        if device.type != "cuda":
            raise UnsupportedError(f"device {device.type}")
        macros = {
            "NB": batch,
            "H": shape.hidden,
            "I": shape.intermediate,
            "NH": shape.heads,
            "NKV": shape.kv_heads,
            "HD": shape.head_dim,
            "S": self.length,
        }
        self._module = _module(tuple(macros.items()), torch.cuda.get_device_capability(device))
        self._processors = torch.cuda.get_device_properties(device).multi_processor_count

        def empty(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.cache = [
            (
                empty(batch, shape.kv_heads, self.length, shape.head_dim),
                empty(batch, shape.kv_heads, self.length, shape.head_dim),
            )
            for _ in range(shape.layers)
        ]
        self._hidden = empty(batch, shape.hidden)
        self._qkv = empty(batch, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
        self._context = empty(batch, shape.heads * shape.head_dim)
        self._mlp = empty(batch, shape.intermediate)
        self._logits = empty(batch, shape.vocabulary)
        self._position = empty(1, dtype=torch.int32)
        self._pad = empty(batch, dtype=torch.int32)
        self._token = empty(batch, dtype=torch.int64)
        self._ended = empty(batch, dtype=torch.bool)
        self._output = empty(batch, self.length, dtype=torch.int64)
        self._column = empty(1, dtype=torch.int64)
        self._stop = empty(1, dtype=torch.int64)
        self._filler = empty(1, dtype=torch.int64)
        self._graph: torch.cuda.CUDAGraph | None = None

    def _collect(self, model: Any) -> dict[str, Any]:
        if hasattr(model, "peft_config"):
            raise UnsupportedError("adapters (LoRA); the kernels read plain weights")
        body = model.model
        layers = []
        for layer in body.layers:
            attention, mlp = layer.self_attn, layer.mlp
            if attention.o_proj.bias is not None:
                raise UnsupportedError("a bias on the output projection")
            layers.append(
                {
                    "norm1": local(layer.input_layernorm.weight),
                    "q": local(attention.q_proj.weight),
                    "k": local(attention.k_proj.weight),
                    "v": local(attention.v_proj.weight),
                    "bq": local(attention.q_proj.bias),
                    "bk": local(attention.k_proj.bias),
                    "bv": local(attention.v_proj.bias),
                    "o": local(attention.o_proj.weight),
                    "norm2": local(layer.post_attention_layernorm.weight),
                    "gate": local(mlp.gate_proj.weight),
                    "up": local(mlp.up_proj.weight),
                    "down": local(mlp.down_proj.weight),
                }
            )
        rotary = body.rotary_emb
        if getattr(rotary, "rope_type", "default") not in ("default", "llama3"):
            raise UnsupportedError(f"rotary embedding of type {rotary.rope_type}")
        weights = {
            "embed": local(body.embed_tokens.weight),
            "norm": local(body.norm.weight),
            "head": local(model.lm_head.weight),
            "frequencies": rotary.inv_freq.float(),
            "scale": float(rotary.attention_scaling),
            "layers": layers,
        }
        for tensor in (weights["embed"], weights["head"], *(w for layer in layers for w in layer.values())):
            if tensor is not None and tensor.dtype != torch.float32:
                raise UnsupportedError(f"weights in {tensor.dtype}; the kernels compute in float32")
        return weights

    def _pointers(self) -> tuple[int, ...]:
        flat = [self._weights["embed"], self._weights["norm"], self._weights["head"]]
        flat += [w for layer in self._weights["layers"] for w in layer.values() if w is not None]
        return tuple(t.data_ptr() for t in flat)

    def still_valid(self, model: Any) -> bool:
        """Whether the model's weights still lie where the captured graph reads them."""
        fresh = self._collect(model)
        flat = [fresh["embed"], fresh["norm"], fresh["head"]]
        flat += [w for layer in fresh["layers"] for w in layer.values() if w is not None]
        return tuple(t.data_ptr() for t in flat) == self.pointers

    def _forward(self) -> None:
        """The hidden state of ``_token`` through all layers, and its logits."""
        w, s, run = self._weights, self.shape, self._module.launch
        torch.index_select(w["embed"], 0, self._token, out=self._hidden)
        x = self._hidden
        qkv_rows = (s.heads + 2 * s.kv_heads) * s.head_dim
        for layer, (keys, values) in zip(w["layers"], self.cache, strict=True):
            run(
                "norm_qkv",
                (-(-qkv_rows // _ROWS), 1),
                _THREADS,
                (
                    x,
                    layer["norm1"],
                    s.eps,
                    layer["q"],
                    layer["k"],
                    layer["v"],
                    layer["bq"],
                    layer["bk"],
                    layer["bv"],
                    self._qkv,
                ),
            )
            run(
                "attend",
                (s.heads, self.batch),
                _THREADS,
                (self._qkv, w["frequencies"], w["scale"], self._position, self._pad, keys, values, self._context),
            )
            run("project_attention", (s.hidden // _PROJECT_ROWS, 1), _THREADS, (self._context, layer["o"], x))
            run(
                "norm_gate_up",
                (-(-s.intermediate // _ROWS), 1),
                _THREADS,
                (x, layer["norm2"], s.eps, layer["gate"], layer["up"], self._mlp),
            )
            run("project_mlp", (s.hidden // _PROJECT_ROWS, 1), _THREADS, (self._mlp, layer["down"], x))
        run(
            "norm_logits",
            (min(self._processors * 8, -(-s.vocabulary // _ROWS)), 1),
            _THREADS,
            (x, w["norm"], s.eps, w["head"], s.vocabulary, self._logits),
        )

    def _step(self) -> None:
        """One token: forward of the last one, choice of the next, bookkeeping. All of it on the device."""
        self._forward()
        self._take(choose(self._logits, self.how))
        self._position.add_(1)

    def _take(self, token: torch.Tensor) -> None:
        token = torch.where(self._ended, self._filler, token)
        self._output.index_copy_(1, self._column, token[:, None])
        self._ended.logical_or_((token[:, None] == self._stop[None, :]).any(dim=1))
        self._token.copy_(token)
        self._column.add_(1)

    def _capture(self) -> torch.cuda.CUDAGraph:
        saved = [t.clone() for t in self._state()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step()  # loads every kernel and workspace before the capture
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may ask for free memory
            self._step()
        for tensor, value in zip(self._state(), saved, strict=True):
            tensor.copy_(value)
        return graph

    def _state(self) -> list[torch.Tensor]:
        return [self._position, self._token, self._ended, self._output, self._column]

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        new_tokens: int,
        stop: list[int],
        filler: int,
    ) -> torch.Tensor:
        """Response tokens, [batch, new_tokens] int64, ``filler`` after a sequence's first stop token.

        Inputs are [batch, prompt], padded on the left. Raises UnsupportedError for a mask with
        a hole in it or a prompt that does not fit.
        """
        with torch.no_grad():
            return self._generate(input_ids, attention_mask, new_tokens, stop, filler)

    def _generate(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, new_tokens: int, stop: list[int], filler: int
    ) -> torch.Tensor:
        batch, prompt = input_ids.shape
        if batch != self.batch or prompt + new_tokens > self.length:
            raise UnsupportedError(
                f"batch {batch}, {prompt}+{new_tokens} tokens: this decoder holds {self.batch}, {self.length}"
            )
        pad = (attention_mask == 0).sum(dim=1)
        if not torch.equal(attention_mask.bool(), torch.arange(prompt, device=pad.device)[None] >= pad[:, None]):
            raise UnsupportedError("an attention mask that is not left padding")
        self._pad.copy_(pad)
        if self._stop.numel() != len(stop) or self._graph is None:
            self._stop = torch.tensor(stop, dtype=torch.int64, device=input_ids.device)
            self._graph = None
        self._stop.copy_(torch.tensor(stop, dtype=torch.int64))
        self._filler.fill_(filler)
        self._prefill(input_ids, attention_mask)
        if self._graph is None and new_tokens > 1:
            self._graph = self._capture()
        for step in range(1, new_tokens):
            self._graph.replay()  # type: ignore[union-attr]  # captured above whenever there is a second token
            if step % _CHECK_EVERY == 0 and bool(self._ended.all()):
                break
        self._output[:, int(self._column) : new_tokens] = filler
        return self._output[:, :new_tokens].clone()

    def _prefill(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> None:
        """The prompt through the model's own forward; keys and values into the static cache; the first token."""
        prompt = input_ids.shape[1]
        positions = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
        result = self.model.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=True
        )
        logits = self.model.lm_head(result.last_hidden_state[:, -1])
        for index, (keys, values) in enumerate(self.cache):
            key, value = result.past_key_values[index][:2]
            keys[:, :, :prompt].copy_(key)
            values[:, :, :prompt].copy_(value)
        self._position.fill_(prompt)
        self._column.zero_()
        self._ended.zero_()
        self._take(choose(logits, self.how))
