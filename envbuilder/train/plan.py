"""How much memory a PPO step takes on one card, phase by phase and module by module, and the least time it can take.

The memory model is written from what verl 0.5.0, torch's AdamW and the attention of transformers keep alive, and was
held against 21 settings measured on a GPU (tests/data/memory): the test demands every peak within 10 %. What of LoRA
and offload was not among them, ``Setting.measured`` tells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from envbuilder.stack.gpu import GpuProfile
from envbuilder.train.decoder_config import DecoderConfig

_FLOAT = 4
GIB = 2**30
# cuBLAS work spaces, rotary tables, the graph's private pool: what was measured at rest beyond weights and states.
_CONSTANT = 90 * 2**20
# Numbers a layer keeps for its backward, per token: four tensors of the MLP's width (gate, its silu, up, their
# product) and the residual stream, norms, projections and rotated heads, which together measured 13.5 hidden sizes.
_MLP_KEPT = 4
_HIDDEN_KEPT = 13.5
# Logits that chunked log-probabilities hold at a time (envbuilder.train.step.chunked), and how many buffers of them.
_CHUNK = (1 << 25) * _FLOAT
_COMPUTED = "an estimate, not measured"


@dataclass(frozen=True)
class Setting:
    """What is trained with. Lengths in tokens; ``batch`` in sequences of one forward (micro batch).

    ``lora_rank``: adapters of that rank on every projection of the actor, 0 for none; the reference is then the actor
    without them, log-probabilities are made of whole logits, and the critic is trained whole. ``offload_optimiser``:
    states wait in host memory and are loaded for the update of their model. ``offload_reference``: so do the
    reference's weights, for the log-probs. ``accumulates``: a step has several forwards, whose gradients add up.
    """

    prompt: int = 256
    response: int = 256
    batch: int = 1
    checkpointing: bool = False
    attention: str = "eager"
    chunked: bool = True
    fused_optimiser: bool = True
    offload_optimiser: bool = False
    offload_reference: bool = False
    lora_rank: int = 0
    accumulates: bool = False

    @property
    def measured(self) -> bool:
        """Whether settings of this kind were measured on a GPU: offload with our step, LoRA alone with stock verl's."""
        offload = self.offload_optimiser or self.offload_reference
        if self.lora_rank:
            return not offload and not self.chunked
        return self.chunked or not offload

    @property
    def whole_logits(self) -> bool:
        """Whether logits exist for all tokens at once."""
        return not self.chunked or self.lora_rank > 0

    @property
    def tokens(self) -> int:
        """Tokens of one forward."""
        return (self.prompt + self.response) * self.batch


@dataclass(frozen=True)
class Plan:
    """Bytes by module at rest, bytes by phase at the peak, and the floor of the time in seconds by phase."""

    setting: Setting
    modules: dict[str, int]
    phases: dict[str, int]
    seconds: dict[str, float]

    @property
    def at_rest(self) -> int:
        """Bytes held between phases."""
        return sum(self.modules.values())

    @property
    def peak(self) -> int:
        """Bytes at the highest point of the step."""
        return max(self.phases.values())

    @property
    def peak_phase(self) -> str:
        """The phase with the highest point."""
        return max(self.phases, key=lambda name: self.phases[name])


def make_plan(model: DecoderConfig, setting: Setting, gpu: GpuProfile) -> Plan:
    """The plan for actor, critic and reference of the same model in float32 on one card."""
    actor, critic = model.causal_lm * _FLOAT, model.value_model * _FLOAT
    adapters = model.adapters(setting.lora_rank) * _FLOAT
    reference = 0 if setting.lora_rank else actor
    # What is trained, and so has gradients and two states.
    trained = {"actor": adapters or actor, "critic": critic}
    states = 0 if setting.offload_optimiser else 2
    modules = {
        "actor weights": actor + adapters,
        "actor optimiser": states * trained["actor"],
        "critic weights": critic,
        "critic optimiser": states * trained["critic"],
        "reference weights": 0 if setting.offload_reference else reference,
        "work spaces": _CONSTANT,
    }
    rest = sum(modules.values())
    loaded = reference if setting.offload_reference else 0
    phases = {
        "rollout": rest + _rollout(model, setting),
        "log-probs": rest + loaded + max(_forward(model, setting), _logits(model, setting, training=False)),
        "values": rest + _forward(model, setting),
        "actor": rest + _update(model, setting, trained["actor"], _logits(model, setting, training=True)),
        "critic": rest + _update(model, setting, trained["critic"], 0),
    }
    return Plan(setting, modules, phases, _seconds(model, setting, gpu))


def _rollout(model: DecoderConfig, setting: Setting) -> int:
    """The key-value cache twice (the prompt's own and the static one), and logits with the copies sampling makes."""
    cache = 2 * model.layers * model.kv_heads * model.head_dim * setting.tokens * _FLOAT
    logits = 4 * setting.batch * model.vocabulary * _FLOAT
    return cache * 2 + logits


def _forward(model: DecoderConfig, setting: Setting) -> int:
    """What one layer holds at once without a backward: the MLP's three tensors, or the attention's scores."""
    mlp = 3 * model.intermediate * setting.tokens
    length = setting.prompt + setting.response
    scores = 3 * model.heads * length * setting.tokens if setting.attention == "eager" else 0
    return (max(mlp, scores) + 4 * model.hidden * setting.tokens) * _FLOAT


def _logits(model: DecoderConfig, setting: Setting, training: bool) -> int:
    """Logits and what is made of them. Stock verl holds them for prompt and response, and a gradient of each."""
    response = setting.response * setting.batch * model.vocabulary * _FLOAT
    whole = setting.tokens * model.vocabulary * _FLOAT
    if not setting.whole_logits:
        return min(2 * _CHUNK, 2 * response) + (model.embedding * _FLOAT if training else 0)
    return 2 * whole + response // max(1, setting.batch) if training else whole + response // max(1, setting.batch)


def _update(model: DecoderConfig, setting: Setting, trained: int, logits: int) -> int:
    """The highest of: start of the backward (activations and logits), its end (all gradients), the optimiser's step.

    ``trained``: bytes of the weights that have gradients."""
    # The head and the embedding are one matrix: their two gradients exist side by side before they are added.
    double = model.embedding * _FLOAT if model.tied and logits and not setting.lora_rank else 0
    one_layer = _activations(model, setting, layers=1)
    kept = _activations(model, setting, layers=model.layers)
    if setting.checkpointing:
        kept = model.layers * model.hidden * setting.tokens * _FLOAT + one_layer
    # From the second micro batch on, the gradients of those before lie beside its activations.
    start = kept + logits + (trained if setting.accumulates else 0)
    end = trained + double + one_layer // 2
    step = trained + (0 if setting.fused_optimiser else trained)
    states = 2 * trained if setting.offload_optimiser else 0  # verl loads them before the update begins
    return states + max(start, end, step)


def _activations(model: DecoderConfig, setting: Setting, layers: int) -> int:
    length = setting.prompt + setting.response
    numbers = _MLP_KEPT * model.intermediate + _HIDDEN_KEPT * model.hidden
    if setting.attention == "eager":
        numbers += model.heads * length  # the probabilities
    return int(layers * numbers * setting.tokens * _FLOAT)


def _seconds(model: DecoderConfig, setting: Setting, gpu: GpuProfile) -> dict[str, float]:
    """The roofline: no step can be faster on the card. A token reads all weights once; a forward is 2 FLOP a weight."""
    bandwidth, rate = gpu.memory_bandwidth_gb_s.value * 1e9, gpu.fp32_tflops.value * 1e12
    forward = 2 * (model.causal_lm - (0 if model.tied else model.embedding)) * setting.tokens / rate
    decode = setting.response * max(model.causal_lm * _FLOAT / bandwidth, 2 * model.causal_lm * setting.batch / rate)
    prefill = forward * setting.prompt / (setting.prompt + setting.response)
    passes = 4 if setting.checkpointing else 3
    return {
        "rollout": decode + prefill,
        "log-probs": 2 * forward,
        "values": forward,
        "actor": passes * forward,
        "critic": passes * forward,
    }


def advice(model: DecoderConfig, setting: Setting, gpu: GpuProfile) -> list[tuple[str, Plan]]:
    """What to change first when a setting does not fit, cheapest in time first, each with the plan it gives."""
    changes: list[tuple[str, Setting]] = []
    if not setting.chunked and not setting.lora_rank:
        changes.append(
            ("chunked log-probabilities and the fused optimiser", replace(setting, chunked=True, fused_optimiser=True))
        )
    if setting.attention == "eager":
        changes.append(("attention sdpa instead of eager", replace(setting, attention="sdpa")))
    if not setting.checkpointing:
        changes.append(
            ("gradient checkpointing (a third more work in the updates)", replace(setting, checkpointing=True))
        )
    if setting.batch > 1:
        changes.append(
            (
                f"micro batch {setting.batch // 2} instead of {setting.batch}",
                replace(setting, batch=setting.batch // 2, accumulates=True),
            )
        )
    if not setting.offload_reference and not setting.lora_rank:
        changes.append(
            (
                "the reference in host memory (it crosses PCIe once a step)",
                replace(setting, offload_reference=True),
            )
        )
    if not setting.offload_optimiser:
        changes.append(
            (
                "optimiser states in host memory (slow: they cross PCIe every step)",
                replace(setting, offload_optimiser=True),
            )
        )
    if not setting.lora_rank:
        changes.append(
            (
                "LoRA of rank 16 for the actor (rollout by Hugging Face's generate)",
                replace(setting, lora_rank=16),
            )
        )
    return [
        (text if changed.measured else f"{text}; {_COMPUTED}", make_plan(model, changed, gpu))
        for text, changed in changes
    ]
