"""Where the weights and optimiser states of verl's actor, reference and critic lie while they train.

``adapt_actor`` and ``adapt_critic`` make verl's own classes known here as they are built, and have all of them looked
at whenever one of them begins to work: what is offloaded between its own phases lies elsewhere in another's.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import torch


@dataclass
class Placement:
    """Of one role, over all looks: the most bytes of weights and of optimiser states; the most bytes of both that lay
    off the device; whether FSDP was told to offload."""

    weights_bytes: int = 0
    optimiser_bytes: int = 0
    off_device_bytes: int = 0
    fsdp_offloads: bool = False
    looks: int = 0

    def add(self, module: torch.nn.Module, optimiser: Any, device: str) -> None:
        """Look once."""
        weights, states = list(_local(module.parameters())), list(_local(_states(optimiser)))
        off = sum(t.nbytes for t in (*weights, *states) if t.device.type != device)
        self.weights_bytes = max(self.weights_bytes, sum(t.nbytes for t in weights))
        self.optimiser_bytes = max(self.optimiser_bytes, sum(t.nbytes for t in states))
        self.off_device_bytes = max(self.off_device_bytes, off)
        self.fsdp_offloads = self.fsdp_offloads or any(_offloads(part) for part in module.modules())
        self.looks += 1


class PlacementWatch:
    """Collects while it is the current one: one at a time, started with a guard. ``device``: ``cuda`` or ``cpu``."""

    def __init__(self) -> None:
        self.device = ""
        self.roles: dict[str, Placement] = {}

    @property
    def facts(self) -> dict[str, Any]:
        """JSON-typed: the device, and of each role that was met what was seen."""
        return {"device": self.device, "roles": {name: asdict(seen) for name, seen in list(self.roles.items())}}

    def start(self) -> None:
        """Become the current one."""
        global _watch
        # As verl chooses its device.
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        _watch = self

    def stop(self) -> None:
        """Look no more."""
        global _watch
        if _watch is self:
            _watch = None

    def look(self) -> None:
        """Look at everything that is known and alive."""
        for role, (module, optimiser) in list(_known.items()):
            alive = module()
            if alive is not None:
                self.roles.setdefault(role, Placement()).add(alive, optimiser and optimiser(), self.device)


_watch: PlacementWatch | None = None
_listeners: list[Callable[[], None]] = []
_known: dict[str, tuple[weakref.ref[torch.nn.Module], weakref.ref[Any] | None]] = {}


def listen(listener: Callable[[], None]) -> None:
    """Call ``listener`` whenever an actor, reference or critic begins to work, for as long as the process lives."""
    _listeners.append(listener)


def adapt_actor(module: ModuleType) -> None:
    """Adapt ``verl.workers.actor.dp_actor``. The reference policy is its actor without an optimiser."""
    _announce(module.DataParallelPPOActor, ("compute_log_prob", "update_policy"))


def adapt_critic(module: ModuleType) -> None:
    """Adapt ``verl.workers.critic.dp_critic``."""
    _announce(module.DataParallelPPOCritic, ("compute_values", "update_critic"))


def _announce(cls: Any, phases: Sequence[str]) -> None:
    original = cls.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        trained = getattr(self, "actor_optimizer", None)
        if hasattr(self, "critic_module"):
            _remember("critic", self.critic_module, self.critic_optimizer)
        else:
            _remember("reference" if trained is None else "actor", self.actor_module, trained)

    cls.__init__ = init
    for name in phases:
        setattr(cls, name, _looking(getattr(cls, name)))


def _remember(role: str, module: torch.nn.Module, optimiser: Any) -> None:
    _known[role] = (weakref.ref(module), None if optimiser is None else weakref.ref(optimiser))


def _looking(original: Any) -> Any:
    @functools.wraps(original)
    def phase(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _watch is not None:
            _watch.look()
        for listener in _listeners:
            listener()
        return original(self, *args, **kwargs)

    return phase


def _states(optimiser: Any) -> Iterator[torch.Tensor]:
    """An optimiser's states. Adam's count of steps is a single number, which torch keeps on the CPU by design."""
    for state in optimiser.state.values() if optimiser is not None else ():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor) and value.numel() > 1)


def _local(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What lies in this process of each: of FSDP2's distributed tensors their local part."""
    return (getattr(tensor, "_local_tensor", tensor) for tensor in tensors)


def _offloads(module: torch.nn.Module) -> bool:
    """Whether this module's FSDP, of either kind, offloads: on a CPU, where all memory is one, this still tells."""
    if getattr(getattr(module, "cpu_offload", None), "offload_params", False):
        return True
    state = getattr(module, "_get_fsdp_state", None)
    group = getattr(state(), "_fsdp_param_group", None) if state is not None else None
    return type(getattr(group, "offload_policy", None)).__name__ == "CPUOffloadPolicy"
