"""Where weights and optimiser states lie. There is no card here: the meta device stands in for one in these tests."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from envbuilder.report.model import Status
from envbuilder.smoke import placement
from envbuilder.smoke.checks.placed import evidence, offload_fault
from envbuilder.smoke.guard import Guard
from tests.smoke.test_guard import PROFILE

CARD = "meta"  # stands in for cuda


class StandInActor:
    def __init__(self, config: Any, actor_module: nn.Module, actor_optimizer: Any = None) -> None:
        self.actor_module, self.actor_optimizer = actor_module, actor_optimizer

    def compute_log_prob(self) -> None: ...

    def update_policy(self) -> None: ...


class StandInCritic:
    def __init__(self, config: Any, critic_module: nn.Module, critic_optimizer: Any) -> None:
        self.critic_module, self.critic_optimizer = critic_module, critic_optimizer

    def compute_values(self) -> None: ...

    def update_critic(self) -> None: ...


placement.adapt_actor(SimpleNamespace(DataParallelPPOActor=StandInActor))  # type: ignore[arg-type]
placement.adapt_critic(SimpleNamespace(DataParallelPPOCritic=StandInCritic))  # type: ignore[arg-type]


def trained(device: str = CARD) -> tuple[nn.Module, torch.optim.Optimizer]:
    module = nn.Linear(64, 64, bias=False, device=device)
    optimiser = torch.optim.AdamW(module.parameters(), foreach=False)
    module.weight.grad = torch.zeros_like(module.weight)
    optimiser.step()
    return module, optimiser


class Roles:
    """Actor, reference and critic on the card that stands in, and a watch over them."""

    def __init__(self) -> None:
        self.actor_module, self.actor_optimiser = trained()
        self.reference_module = nn.Linear(64, 64, bias=False, device=CARD)
        self.critic_module, self.critic_optimiser = trained()
        self.actor = StandInActor({}, self.actor_module, self.actor_optimiser)
        self.reference = StandInActor({}, self.reference_module)
        self.critic = StandInCritic({}, self.critic_module, self.critic_optimiser)
        self.watch = placement.PlacementWatch()
        self.watch.start()
        self.watch.device = CARD

    def step(self) -> None:
        """The phases in which one of them works."""
        self.actor.compute_log_prob()
        self.reference.compute_log_prob()
        self.critic.compute_values()
        self.critic.update_critic()
        self.actor.update_policy()


@pytest.fixture
def roles() -> Iterator[Roles]:
    made = Roles()
    yield made
    made.watch.stop()


def test_everything_on_the_card_is_evidence(roles: Roles) -> None:
    roles.step()
    facts = roles.watch.facts
    assert offload_fault([facts]) is None
    mib = 64 * 64 * 4
    assert facts["roles"]["actor"] == {
        "weights_bytes": mib, "optimiser_bytes": 2 * mib, "off_device_bytes": 0, "fsdp_offloads": False, "looks": 5,
    }  # fmt: skip
    assert facts["roles"]["reference"]["optimiser_bytes"] == 0
    held = "meta holds weights + optimiser states, MiB"
    told = f"{held}: actor 0.0 + 0.0, reference 0.0, critic 0.0 + 0.0; looked at 5 times"
    assert evidence([facts]) == {"nothing off the device": told}


def test_a_reference_that_lies_elsewhere_is_seen(roles: Roles) -> None:
    roles.reference_module.weight = nn.Parameter(torch.zeros(64, 64))
    roles.step()
    outcome = offload_fault([roles.watch.facts])
    assert outcome is not None
    assert outcome.status is Status.FAILED
    assert "MiB of the reference lay off the device" in outcome.message


def test_an_actor_that_is_back_whenever_it_works_is_seen_in_the_phases_of_others(roles: Roles) -> None:
    """verl's param_offload: loaded for its own phases, on the CPU in between."""
    weight = roles.actor_module.weight
    roles.actor.compute_log_prob()
    roles.actor_module.weight = nn.Parameter(torch.zeros(64, 64))
    roles.critic.update_critic()
    roles.actor_module.weight = weight
    roles.actor.update_policy()
    outcome = offload_fault([roles.watch.facts])
    assert outcome is not None
    assert "of the actor lay off the device" in outcome.message


def test_optimiser_states_that_lie_elsewhere_are_seen(roles: Roles) -> None:
    for state in roles.critic_optimiser.state.values():
        state["exp_avg"] = torch.zeros(64, 64)
    roles.step()
    outcome = offload_fault([roles.watch.facts])
    assert outcome is not None
    assert "0.0 MiB of the critic lay off the device" in outcome.message


def test_an_fsdp_that_offloads_is_seen_where_all_memory_is_one(roles: Roles) -> None:
    roles.reference_module.cpu_offload = SimpleNamespace(offload_params=True)  # as FSDP of the first kind has it
    roles.step()
    outcome = offload_fault([roles.watch.facts])
    assert outcome is not None
    assert "FSDP offloads the reference to the CPU" in outcome.message


def test_a_role_that_nobody_looked_at_is_a_fault(roles: Roles) -> None:
    outcome = offload_fault([roles.watch.facts])
    assert outcome is not None
    assert "nobody looked where the actor lies" in outcome.message
    assert offload_fault([]) is not None


def test_models_that_are_gone_are_forgotten_and_a_stopped_watch_sees_nothing(roles: Roles) -> None:
    del roles.reference_module, roles.reference.actor_module
    roles.step()
    assert set(roles.watch.facts["roles"]) == {"actor", "critic"}
    roles.watch.stop()
    roles.step()
    assert roles.watch.facts["roles"]["actor"]["looks"] == 5


def test_a_guard_watches_for_as_long_as_it_runs() -> None:
    module, optimiser = trained("cpu")
    actor = StandInActor({}, module, optimiser)
    with Guard(PROFILE) as guard:
        actor.update_policy()
    actor.update_policy()
    assert guard.facts["placement"]["device"] == "cpu"
    assert guard.facts["placement"]["roles"]["actor"]["looks"] == 1
