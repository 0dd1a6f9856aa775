"""Our rollout and step against transformers, verl and plain mathematics, on a CPU.

The CUDA kernels themselves need a GPU: what is held here is what stands around them, and the fall back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomli
import torch

from envbuilder.train.rollout.sampling import Sampling, choose
from envbuilder.train.step import chunked

ROOT = Path(__file__).parents[2]

_PRELUDE = """
import torch
import envbuilder.smoke.external_lib
from transformers import Qwen2Config, Qwen2ForCausalLM
torch.manual_seed(0)
shape = Qwen2Config(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                    num_attention_heads=2, num_key_value_heads=1, initializer_range=0.2)
shape._attn_implementation = "eager"
model = Qwen2ForCausalLM(shape).eval()
ids = torch.randint(3, 512, (2, 12))
mask = torch.ones_like(ids)
mask[1, :4] = 0
positions = (mask.cumsum(-1) - 1).clamp(min=0)
asked = dict(input_ids=ids, attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=2, pad_token_id=0)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    stack = tomli.loads((ROOT / "stacks" / "p40-debian.toml").read_text())
    gpu = tomli.loads((ROOT / "gpus" / "p40.toml").read_text())
    (tmp_path / "stack.json").write_text(json.dumps({"stack": stack, "gpu": gpu}, default=str))
    return {**os.environ, "ENVBUILDER_STACK": str(tmp_path / "stack.json"), "PYTHONPATH": str(ROOT)}


def python(code: str, environment: dict[str, str]) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


def test_given_position_ids_stand_still_and_the_adapted_rollout_counts_on(environment: dict[str, str]) -> None:
    code = _PRELUDE + (
        "seen = []\n"
        "model.model.layers[0].self_attn.register_forward_pre_hook(\n"
        "    lambda m, a, k: seen.append(k['position_ids'][0, -1].item()), with_kwargs=True)\n"
        "model.generate(position_ids=positions, **asked)\n"
        "print(','.join(map(str, seen))); seen.clear()\n"
        "from verl.workers.rollout.hf_rollout import HFRollout\n"
        "HFRollout(model, None)\n"
        "model.generate(position_ids=positions, **asked)\n"
        "print(','.join(map(str, seen)))\n"
    )
    stock, adapted = python(code, environment)[-2:]
    assert stock == "11,11,11,11,11,11"  # if transformers mends this, the adaptation can go
    assert adapted == "11,12,13,14,15,16"


def test_what_the_kernels_do_not_cover_goes_to_generate_with_a_reason(environment: dict[str, str]) -> None:
    code = _PRELUDE + (
        "from transformers import GenerationConfig\n"
        "from envbuilder.train.rollout.verl_rollout import GraphGenerate\n"
        "plain = model.generate(**asked)\n"
        "ours = GraphGenerate(model)\n"
        "config = GenerationConfig(do_sample=False, num_beams=1)\n"
        "result = ours(generation_config=config, position_ids=positions, return_dict_in_generate=True, **asked)\n"
        "print(torch.equal(result.sequences, plain), *[why.replace(' ', '_') for why in ours.reasons])\n"
    )
    equal, reason = python(code, environment)[-2:]
    assert equal == "True"
    assert "device_cpu" in reason


def test_the_actor_says_the_same_with_chunks_and_with_whole_logits(environment: dict[str, str]) -> None:
    code = _PRELUDE + (
        "from types import SimpleNamespace\n"
        "from verl.workers.actor.dp_actor import DataParallelPPOActor\n"
        "from envbuilder.train.step import actor\n"
        "stock = DataParallelPPOActor._forward_micro_batch\n"
        "actor.install()\n"
        "me = SimpleNamespace(use_remove_padding=False, use_fused_kernels=False, use_ulysses_sp=False,\n"
        "    device_name='cpu', actor_module=model, config=SimpleNamespace(entropy_checkpointing=False),\n"
        "    _envbuilder_stock=None)\n"
        "batch = dict(input_ids=ids, attention_mask=mask, position_ids=positions, responses=ids[:, -5:])\n"
        "def run(method):\n"
        "    model.zero_grad()\n"
        "    entropy, logprobs = method(me, batch, 0.7, True)\n"
        "    (entropy.sum() + 2 * logprobs.sum()).backward()\n"
        "    grads = torch.cat([p.grad.flatten() for p in model.parameters()])\n"
        "    return entropy.detach(), logprobs.detach(), grads\n"
        "a, b = run(stock), run(DataParallelPPOActor._forward_micro_batch)\n"
        "for x, y in zip(a, b): print(((x - y).abs().max() / x.abs().max()).item())\n"
    )
    assert all(float(gap) < 1e-5 for gap in python(code, environment)[-3:])


def test_adapters_go_the_stock_way(environment: dict[str, str]) -> None:
    code = _PRELUDE + (
        "from peft import LoraConfig, get_peft_model\n"
        "from transformers import GenerationConfig\n"
        "from envbuilder.train.rollout.verl_rollout import GraphGenerate\n"
        "from envbuilder.train.step import actor\n"
        "lora = get_peft_model(model, LoraConfig(r=4, target_modules='all-linear', init_lora_weights=False)).eval()\n"
        "plain = lora.generate(**asked)\n"
        "ours = GraphGenerate(lora)\n"
        "config = GenerationConfig(do_sample=False, num_beams=1)\n"
        "result = ours(generation_config=config, position_ids=positions, return_dict_in_generate=True, **asked)\n"
        "print(torch.equal(result.sequences, plain), *[why.replace(' ', '_') for why in ours.reasons])\n"
        "print(actor.can_chunk(model), actor.can_chunk(lora))\n"
    )
    equal, reason, whole, adapted = python(code, environment)[-4:]
    assert equal == "True"
    assert "adapters" in reason
    assert (whole, adapted) == ("True", "False")


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("numbers", [1 << 8, 1 << 25])
def test_chunked_log_probs_and_their_gradients_are_exact(
    monkeypatch: pytest.MonkeyPatch, entropy: bool, numbers: int
) -> None:
    monkeypatch.setattr(chunked, "_NUMBERS", numbers)
    torch.manual_seed(1)
    hidden = torch.randn(3, 17, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(97, 16, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(0, 97, (3, 17))
    ours, ours_entropy = chunked.chunked_log_probs(hidden, weight, tokens, 0.7, entropy)
    whole = (hidden @ weight.t() / 0.7).log_softmax(-1)
    wanted = whole.gather(-1, tokens[..., None]).squeeze(-1)
    wanted_entropy = -(whole.exp() * whole).sum(-1)
    grad, grad_entropy = torch.randn_like(wanted), torch.randn_like(wanted)
    torch.testing.assert_close(ours, wanted)
    total, wanted_total = (ours * grad).sum(), (wanted * grad).sum()
    if entropy:
        assert ours_entropy is not None
        torch.testing.assert_close(ours_entropy, wanted_entropy)
        total = total + (ours_entropy * grad_entropy).sum()
        wanted_total = wanted_total + (wanted_entropy * grad_entropy).sum()
    else:
        assert ours_entropy is None
    for mine, other in zip(
        torch.autograd.grad(total, (hidden, weight)), torch.autograd.grad(wanted_total, (hidden, weight)), strict=True
    ):
        torch.testing.assert_close(mine, other)


def warped(logits: torch.Tensor, how: Sampling) -> torch.Tensor:
    """The distribution that transformers' own processors make."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    ids = torch.zeros(len(logits), 1, dtype=torch.long)
    logits = TemperatureLogitsWarper(how.temperature)(ids, logits)
    if how.top_k:
        logits = TopKLogitsWarper(how.top_k)(ids, logits)
    if how.top_p < 1:
        logits = TopPLogitsWarper(how.top_p)(ids, logits)
    return logits.softmax(-1)


@pytest.mark.parametrize(
    "how",
    [Sampling(), Sampling(temperature=0.5), Sampling(top_k=5), Sampling(top_p=0.8), Sampling(False, 0.7, 8, 0.9)],
    ids=str,
)
def test_tokens_are_drawn_from_the_distribution_of_transformers(how: Sampling) -> None:
    """Chi-squared over 40,000 draws; beyond the filters nothing is ever drawn."""
    torch.manual_seed(2)
    logits = torch.randn(1, 24) * 2
    wanted = warped(logits.clone(), how)[0]
    drawn = choose(logits.repeat(40_000, 1), how)
    counts = torch.bincount(drawn, minlength=24).double()
    assert counts[wanted == 0].sum() == 0
    keep = wanted > 0
    expected = wanted[keep].double() * 40_000
    statistic = ((counts[keep] - expected) ** 2 / expected).sum().item()
    degrees = int(keep.sum()) - 1
    assert statistic < degrees + 5 * (2 * degrees) ** 0.5 + 5


def test_greedy_takes_the_best() -> None:
    logits = torch.randn(4, 50)
    assert torch.equal(choose(logits, Sampling(greedy=True)), logits.argmax(-1))
