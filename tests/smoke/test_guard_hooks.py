"""Triton launches and CUDA memory. Without a GPU a kernel cannot run: the tests with a stand-in say so by name."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from envbuilder.smoke.guard import Guard
from tests.smoke.test_guard import PROFILE, rules


class StandInJITFunction:
    """Has the shape of triton.runtime.jit.JITFunction: ``fn``, and ``run`` returning the compiled kernel."""

    def __init__(self, fn: Any, shared: int) -> None:
        self.fn, self.shared = fn, shared

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return types.SimpleNamespace(metadata=types.SimpleNamespace(shared=self.shared))


@pytest.fixture
def stand_in_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    jit = types.ModuleType("triton.runtime.jit")
    jit.JITFunction = StandInJITFunction  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)


def kernel() -> None: ...


@pytest.mark.usefixtures("stand_in_triton")
def test_a_stand_in_triton_launch_is_found() -> None:
    launched = StandInJITFunction(kernel, shared=1024)
    with Guard(PROFILE) as guard:
        launched.run(grid=(1,))
    launched.run(grid=(1,))
    assert [(f.rule, f.title) for f in guard.findings] == [("guard-triton", "Triton kernel kernel")]
    assert guard.findings[0].place.file == __file__


@pytest.mark.usefixtures("stand_in_triton")
def test_a_stand_in_kernel_beyond_the_shared_memory_is_found_on_a_card_with_triton() -> None:
    profile = {**PROFILE, "triton": {**PROFILE["triton"], "supported": True}}
    with Guard(profile) as guard:
        StandInJITFunction(kernel, shared=49152).run()
        StandInJITFunction(kernel, shared=81920).run()
    assert rules(guard) == ["guard-shared-memory"]
    assert "81920" in guard.findings[0].title


def test_a_real_triton_launch_is_found_before_it_fails_for_want_of_a_gpu() -> None:
    import triton

    kernel_of_triton = triton.jit(real_kernel)
    with Guard(PROFILE) as guard, pytest.raises(RuntimeError, match="driver"):
        kernel_of_triton[(1,)](torch.zeros(4))
    assert rules(guard) == ["guard-triton"]
    assert guard.findings[0].place.file == __file__


def real_kernel(x) -> None:  # type: ignore[no-untyped-def]  # triton reads the annotations
    pass


def test_a_triton_that_cannot_be_imported_is_said_to_launch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", None)
    with Guard(PROFILE) as guard:
        pass
    assert guard.facts["Triton launches"].startswith("none possible")


class StandInCuda:
    """Answers the memory calls of torch.cuda as an 80 GiB card would."""

    total = 80 * 2**30

    def __init__(self, peak: int) -> None:
        self.peak = peak
        self.fractions: list[float] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answers: dict[str, Any] = {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "get_device_properties": lambda device: types.SimpleNamespace(total_memory=self.total),
            "set_per_process_memory_fraction": lambda fraction, device: self.fractions.append(fraction),
            "reset_peak_memory_stats": lambda device: None,
            "max_memory_reserved": lambda device: self.peak,
            "mem_get_info": lambda device: (self.total - self.peak, self.total),
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)


def test_a_stand_in_peak_above_the_card_is_found_and_the_cap_is_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = StandInCuda(peak=23 * 2**30)
    cuda.install(monkeypatch)
    with Guard(PROFILE) as guard:
        pass
    assert rules(guard) == ["guard-memory"]
    assert "23.00 GiB" in guard.findings[0].title
    assert cuda.fractions == [22.5 / 80, 1.0]


def test_a_stand_in_peak_below_the_card_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    StandInCuda(peak=20 * 2**30).install(monkeypatch)
    with Guard(PROFILE) as guard:
        pass
    assert guard.findings == ()
    assert guard.facts["memory peak reserved bytes"] == 20 * 2**30


def test_running_out_of_the_capped_memory_of_a_stand_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    StandInCuda(peak=20 * 2**30).install(monkeypatch)
    guard = Guard(PROFILE, stop=True)
    with pytest.raises(torch.OutOfMemoryError), guard:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB.")
    assert rules(guard) == ["guard-memory"]
    assert "Tried to allocate 4.00 GiB" in guard.findings[0].title
    assert guard.findings[0].place.file == __file__
