"""Our rollout as verl's own: the class that takes the place of verl's HFRollout.

verl calls ``module.generate`` once a minibatch. That call is answered by the static decoder where it can, and by the
model's own ``generate`` where it cannot; which of the two, and why, is in ``GraphGenerate.reasons``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from envbuilder.train.rollout.decoder import MAX_BATCH, Decoder, UnsupportedError
from envbuilder.train.rollout.nvrtc import KernelError
from envbuilder.train.rollout.sampling import Sampling

# What a generation config may hold for the decoder to give the same distribution. Anything else set means fall back.
_NEUTRAL: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "force_words_ids": None,
    "constraints": None,
    "min_length": 0,
    "min_new_tokens": None,
    "min_p": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "num_beams": 1,
    "penalty_alpha": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "guidance_scale": None,
    "watermarking_config": None,
    "stop_strings": None,
}


@dataclass
class Sequences:
    """What generate returns with ``return_dict_in_generate``: prompt and response, [batch, tokens]."""

    sequences: torch.Tensor


class GraphGenerate:
    """A ``generate`` that decodes with captured graphs. Decoders are kept by their sizes and sampling."""

    def __init__(self, model: Any) -> None:
        """``model``: the Hugging Face model, possibly inside FSDP."""
        self._model = getattr(model, "_fsdp_wrapped_module", model)
        self._fallback = self._model.generate
        self._decoders: dict[tuple[int, int, Sampling], Decoder] = {}
        self.reasons: dict[str, int] = {}

    def __call__(self, **kwargs: Any) -> Any:
        """Same arguments as verl's call of ``generate``; an object with ``sequences``."""
        try:
            return self._decode(**kwargs)
        except (UnsupportedError, KernelError) as why:
            if str(why) not in self.reasons:
                print(f"rollout: Hugging Face generate is used: {why}", flush=True)
            self.reasons[str(why)] = self.reasons.get(str(why), 0) + 1
            kwargs.pop("position_ids", None)  # for the reason given in envbuilder.smoke.adapt
            return self._fallback(**kwargs)

    def _decode(self, **kwargs: Any) -> Sequences:
        input_ids, mask = kwargs["input_ids"], kwargs["attention_mask"]
        new_tokens: int = kwargs["max_new_tokens"]
        how, copies = self._sampling(kwargs)
        stop = kwargs["eos_token_id"]
        stop = [stop] if isinstance(stop, int) else list(stop)
        input_ids = input_ids.repeat_interleave(copies, dim=0)
        mask = mask.repeat_interleave(copies, dim=0)
        parts = []
        for ids, part_mask in zip(input_ids.split(MAX_BATCH), mask.split(MAX_BATCH), strict=True):
            decoder = self._decoder(ids.shape[0], ids.shape[1] + new_tokens, how)
            parts.append(decoder.generate(ids, part_mask, new_tokens, stop, kwargs["pad_token_id"]))
        return Sequences(torch.cat([input_ids, torch.cat(parts)], dim=1))

    def _decoder(self, batch: int, length: int, how: Sampling) -> Decoder:
        key = (batch, length, how)
        decoder = self._decoders.get(key)
        if decoder is None or not decoder.still_valid(self._model):
            decoder = self._decoders[key] = Decoder(self._model, batch, length, how)
        return decoder

    def _sampling(self, kwargs: dict[str, Any]) -> tuple[Sampling, int]:
        config = kwargs.get("generation_config")
        effective, _ = self._model._prepare_generation_config(config, do_sample=kwargs.get("do_sample"))
        for name, neutral in _NEUTRAL.items():
            if getattr(effective, name, neutral) not in (neutral, None):
                raise UnsupportedError(f"generation setting {name}={getattr(effective, name)!r}")
        how = Sampling(
            greedy=not effective.do_sample,
            temperature=float(effective.temperature or 1.0) if effective.do_sample else 1.0,
            top_k=int(effective.top_k or 0) if effective.do_sample else 0,
            top_p=float(1.0 if effective.top_p is None else effective.top_p) if effective.do_sample else 1.0,
        )
        return how, int(effective.num_return_sequences or 1)


def install() -> None:
    """Make verl's ``HFRollout`` (rollout.name=hf) decode with captured graphs. Safe to call twice."""
    import verl.workers.rollout as rollouts
    from verl.workers.rollout import hf_rollout

    if getattr(hf_rollout.HFRollout, "graph", False):
        return

    class GraphRollout(hf_rollout.HFRollout):  # type: ignore[misc]  # verl is not there when types are checked
        """verl's HF rollout with ``module.generate`` answered by captured graphs."""

        graph = True

        def __init__(self, module: Any, config: Any) -> None:
            super().__init__(module, config)
            module.generate = GraphGenerate(module)

    rollouts.HFRollout = hf_rollout.HFRollout = GraphRollout
