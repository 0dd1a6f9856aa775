"""verl and transformers under the adaptation, in processes of their own: an adapted process stays adapted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomli

from envbuilder.smoke import guard_worker
from envbuilder.smoke.verl_overrides import verl_overrides

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    stack = tomli.loads((ROOT / "stacks" / "p40-debian.toml").read_text())
    gpu = tomli.loads((ROOT / "gpus" / "p40.toml").read_text())
    (tmp_path / "stack.json").write_text(json.dumps({"stack": stack, "gpu": gpu}, default=str))
    return {**os.environ, "ENVBUILDER_STACK": str(tmp_path / "stack.json"), "PYTHONPATH": str(ROOT)}


def python(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


# verl asks torch whether there is CUDA, and imports flash-attn when there is: the answer is all that is changed here.
_CUDA_IS_THERE = "import torch; torch.cuda.is_available = lambda: True; "


def test_verl_fails_to_import_on_cuda_without_the_adaptation(environment: dict[str, str]) -> None:
    code = _CUDA_IS_THERE + "import verl.workers.actor.dp_actor"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert "No module named 'flash_attn'" in done.stderr


def test_classes_imported_directly_and_everything_they_meet(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "guard"
    code = f"""
import envbuilder.smoke.external_lib
import torch
torch.cuda.is_available = lambda: True
import verl.workers.actor.dp_actor as actor, verl.workers.critic.dp_critic, verl.workers.fsdp_workers
torch.cuda.is_available = lambda: False
import verl.utils.torch_functional as functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification, Qwen2Config
from transformers.utils import is_flash_attn_2_available
assert not is_flash_attn_2_available()
assert not functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE
assert actor.unpad_input.__module__ == "envbuilder.smoke.bert_padding"

sizes = dict(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1)
model = AutoModelForCausalLM.from_config(Qwen2Config(**sizes), torch_dtype=torch.bfloat16)
assert model.dtype is torch.float32
state = {{name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}}
model.save_pretrained({str(tmp_path)!r}, state_dict=state)
"""
    python(code, environment)
    code = f"""
import envbuilder.smoke.external_lib, torch, sys
path = {str(tmp_path)!r}
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification
config = AutoConfig.from_pretrained(path, attn_implementation="flash_attention_2")
assert config._attn_implementation == "eager"
model = AutoModelForTokenClassification.from_pretrained(
    path, config=config, torch_dtype=torch.bfloat16, attn_implementation="flash_attention_2")
assert (model.dtype, model.config._attn_implementation) == (torch.float32, "eager")
model = AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.float32, config=config)
tokens = torch.ones(2, 5, dtype=torch.long)
with torch.autocast("cpu", dtype=torch.bfloat16):
    model(input_ids=tokens, labels=tokens).loss.backward()
    model.generate(tokens, max_new_tokens=2)
torch.optim.AdamW(model.parameters(), fused=True).step()
"""
    python(code, {**environment, "ENVBUILDER_GUARD": str(folder)})
    findings, processes = guard_worker.collect(folder)
    assert findings == ()
    assert len(processes) == 1
    assert processes[0]["operations watched"] > 300
    assert processes[0]["checkpoint casts excepted"] > 0


def test_a_fault_in_a_guarded_process_reaches_the_collector_even_when_it_is_killed(
    environment: dict[str, str], tmp_path: Path
) -> None:
    code = "import envbuilder.smoke.external_lib, torch, os, time; torch.ones(2).half(); "
    code += "time.sleep(4); os.kill(os.getpid(), 9)"
    environment["ENVBUILDER_GUARD"] = str(tmp_path / "guard")
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=60).returncode == -9
    findings, processes = guard_worker.collect(tmp_path / "guard")
    assert [finding.rule for finding in findings] == ["guard-dtype"]
    assert processes[0]["faults"] == 1


def test_a_response_of_one_token_at_batch_one_has_an_advantage_of_zero(environment: dict[str, str]) -> None:
    code = """
import torch
import verl.utils.torch_functional as before
mask = torch.tensor([[1.0, 0.0, 0.0]])
try:
    before.masked_whiten(torch.tensor([[3.0, 5.0, 7.0]]), mask)
except ValueError as error:
    print(error)
import envbuilder.smoke.external_lib
from verl.trainer.ppo.core_algos import compute_gae_advantage_return, compute_policy_loss
reward, value = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.3, 0.2, 0.1]])
advantages, returns = compute_gae_advantage_return(reward, value, mask, gamma=torch.tensor(1.0), lam=torch.tensor(1.0))
assert torch.isfinite(advantages).all() and torch.isfinite(returns).all()
assert advantages[0, 0] == 0, advantages
log_prob = torch.full((1, 3), -1.0, requires_grad=True)
loss = compute_policy_loss(log_prob.detach(), log_prob, advantages, mask, cliprange=0.2)[0]
loss.backward()
assert torch.equal(log_prob.grad, torch.zeros(1, 3)), log_prob.grad
values, mask = torch.randn(4, 6), torch.ones(4, 6)
torch.testing.assert_close(before.masked_var(values, mask), values.var())
"""
    assert "The sum of the mask is one" in python(code, environment)


def test_padding_and_back_is_the_identity_and_differentiable(environment: dict[str, str]) -> None:
    code = """
import torch
from envbuilder.smoke.bert_padding import index_first_axis, pad_input, rearrange, unpad_input
x = torch.randn(3, 5, 2, requires_grad=True)
mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
tokens, indices, ends, longest, used = unpad_input(x, mask)
assert tokens.shape == (9, 2) and longest == 5
assert ends.tolist() == [0, 3, 8, 9] and ends.dtype == torch.int32 and used.tolist() == [3, 5, 1]
back = pad_input(tokens, indices, 3, 5)
torch.testing.assert_close(back, x * mask[..., None])
back.sum().backward()
torch.testing.assert_close(x.grad, mask[..., None].expand(3, 5, 2).float())
position = torch.arange(30).view(3, 2, 5)
assert torch.equal(rearrange(position, "c b s ... -> (b s) c ...")[7], position[:, 1, 2])
assert torch.equal(rearrange(x, "b s ... -> (b s) ..."), x.flatten(0, 1))
"""
    python(code, environment)


def test_another_stack_in_the_same_process_is_refused(environment: dict[str, str]) -> None:
    code = """
from envbuilder.errors import HostError
from envbuilder.smoke import adapt
adapt.install("float32", "eager")
adapt.install("float32", "eager")
try:
    adapt.install("float32", "sdpa")
except HostError:
    print("refused")
"""
    assert python(code, environment) == "refused\n"


def test_the_overrides_compose_with_verls_own_configuration(environment: dict[str, str]) -> None:
    code = f"""
from pathlib import Path
import hydra, verl
with hydra.initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
    config = hydra.compose("ppo_trainer", overrides={verl_overrides()!r})
print(config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype, config.critic.model.external_lib,
      config.reward_model.model.external_lib, config.actor_rollout_ref.rollout.dtype)
"""
    lib = "envbuilder.smoke.external_lib"
    assert python(code, environment) == f"fp32 {lib} {lib} float32\n"
