"""Seeded faults under the guard, each on a CPU with the real torch. Run in the smoke environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tomli
import torch
import torch.nn.functional as functional
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from envbuilder.errors import InputError
from envbuilder.smoke.guard import Guard, GuardFaultError

PROFILE = tomli.loads((Path(__file__).parents[2] / "gpus" / "p40.toml").read_text())


def rules(guard: Guard) -> list[str]:
    return [finding.rule for finding in guard.findings]


def here(guard: Guard) -> bool:
    return all(finding.place.file == __file__ for finding in guard.findings)


def test_a_float32_training_step_is_clean() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
    optimiser = torch.optim.AdamW(model.parameters(), foreach=True)
    with Guard(PROFILE) as guard:
        model(torch.randn(4, 8)).square().mean().backward()
        optimiser.step()
    assert guard.findings == ()
    assert guard.facts["operations watched"] > 30
    assert guard.facts["memory"] == "not watched: no CUDA device"


class Casting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.bfloat16).float()  # seeded


def test_one_bfloat16_cast_is_found_with_operation_module_and_line() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(Casting()))
    line = Casting.forward.__code__.co_firstlineno + 1
    with Guard(PROFILE) as guard, torch.no_grad():
        model(torch.randn(4, 8))
    first = guard.findings[0]
    assert first.title == "aten::_to_copy makes bfloat16"
    assert (first.place.file, first.place.line) == (__file__, line)
    assert "module: 1.0 (Casting in Sequential)" in first.evidence


def test_one_float16_matmul_is_found() -> None:
    with Guard(PROFILE) as guard:
        torch.ones(4, 4, dtype=torch.float16) @ torch.ones(4, 4, dtype=torch.float16)
    assert "aten::mm makes float16" in [finding.title for finding in guard.findings]
    assert here(guard)


def test_bfloat16_autocast_is_found() -> None:
    with Guard(PROFILE) as guard, torch.autocast("cpu", dtype=torch.bfloat16):
        nn.Linear(4, 4)(torch.ones(2, 4))
    assert set(rules(guard)) == {"guard-dtype"}


def test_float64_is_no_fault() -> None:
    with Guard(PROFILE) as guard:
        torch.ones(4, dtype=torch.float64).sum()
    assert guard.findings == ()


class NarrowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        return grad.to(torch.bfloat16).float()


def test_bfloat16_in_the_backward_pass_only_is_found() -> None:
    x = torch.ones(4, requires_grad=True)
    with Guard(PROFILE) as guard:
        y = NarrowBackward.apply(x).sum()
        assert guard.findings == ()
        y.backward()
    assert "in the backward pass: NarrowBackwardBackward" in guard.findings[0].evidence
    assert here(guard)


@pytest.mark.parametrize("kind", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_an_optimiser_on_bfloat16_parameters_is_found(kind: dict[str, bool]) -> None:
    parameter = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    parameter.grad = torch.ones(4, dtype=torch.bfloat16)
    optimiser = torch.optim.AdamW([parameter], **kind)
    with Guard(PROFILE) as guard:
        optimiser.step()
    assert set(rules(guard)) == {"guard-dtype"}


def test_flash_attention_that_the_program_insists_on_is_found() -> None:
    q = torch.randn(1, 2, 8, 8)
    with Guard(PROFILE) as guard, sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        functional.scaled_dot_product_attention(q, q, q)
    assert rules(guard) == ["guard-attention"]
    assert here(guard)


def test_sdpa_that_could_choose_another_back_end_is_no_fault_on_a_cpu() -> None:
    q = torch.randn(1, 2, 8, 8)
    with Guard(PROFILE) as guard:
        functional.scaled_dot_product_attention(q, q, q)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            functional.scaled_dot_product_attention(q, q, q)
    assert guard.findings == ()


@pytest.mark.parametrize("before", [True, False], ids=["compiled before", "compiled within"])
def test_entering_compiled_code_is_found(before: bool) -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled = torch.compile(double, backend="eager")
    with Guard(PROFILE) as guard:
        (compiled if before else torch.compile(double, backend="eager"))(torch.ones(2))
    assert rules(guard) == ["guard-compile"]
    assert here(guard)


def test_wrapping_without_a_call_is_no_fault() -> None:
    with Guard(PROFILE) as guard:
        torch.compile(lambda x: x)
    assert guard.findings == ()


def test_a_checkpoint_in_bfloat16_may_be_loaded(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    state = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    torch.save(state, tmp_path / "model.pt")
    with Guard(PROFILE) as guard:
        model.load_state_dict(load_file(tmp_path / "model.safetensors"))
        model.load_state_dict(torch.load(tmp_path / "model.pt"))
        assert guard.findings == ()
        assert guard.facts["checkpoint casts excepted"] > 0
        state["0.weight"].float()  # the same cast, but nobody loads a checkpoint here
    assert rules(guard) == ["guard-dtype"]


def test_keeping_a_checkpoint_in_bfloat16_is_found(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_file({"weight": torch.ones(4, 4, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    with Guard(PROFILE) as guard:
        load_file(tmp_path / "model.safetensors")["weight"].sum()
    assert [f.title for f in guard.findings] == ["aten::sum makes bfloat16"]


def test_stopping_at_the_first_fault_names_the_place() -> None:
    with pytest.raises(GuardFaultError) as caught, Guard(PROFILE, stop=True):
        torch.ones(2).to(torch.float16)
    assert caught.value.place is not None
    assert caught.value.place.file == __file__


def test_the_same_fault_is_one_finding_with_a_count() -> None:
    with Guard(PROFILE) as guard:
        for _ in range(3):
            torch.ones(2).half()
    assert len(guard.findings) == 1
    assert "met 3 times" in guard.findings[0].evidence


def test_nothing_is_left_behind() -> None:
    import torch._dynamo.eval_frame as frames

    before = frames._callback_from_stance
    with Guard(PROFILE) as guard:
        assert frames._callback_from_stance is not before
    assert frames._callback_from_stance is before
    torch.ones(2).half()
    assert guard.findings == ()


def test_a_profile_without_a_fact_is_an_error_that_names_it() -> None:
    with pytest.raises(InputError, match="usable_memory_gib"):
        Guard({key: value for key, value in PROFILE.items() if key != "usable_memory_gib"})


def test_a_card_that_computes_in_float16_may_use_it() -> None:
    profile = json.loads(json.dumps(PROFILE))
    profile["dtypes"]["float16"]["usable"] = True
    with Guard(profile) as guard:
        torch.ones(2).half()
    assert guard.findings == ()


def test_the_local_parts_of_a_distributed_tensor_are_looked_into(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        whole = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])
        with Guard(PROFILE) as guard:
            (whole @ whole).sum()
            assert guard.findings == ()
            before = guard.facts["operations watched"]
            whole.to(torch.bfloat16)
        assert before > 0
        assert "aten::_to_copy makes bfloat16" in [finding.title for finding in guard.findings]
    finally:
        dist.destroy_process_group()
