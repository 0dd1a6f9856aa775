"""Makes ``actor_rollout_ref.ref.fsdp_config.param_offload`` decide where verl's reference policy lies.

verl 0.4.1, 0.5.0 and 0.6.1 give the reference's FSDP an offload to the CPU whatever that setting says, so that its
weights cross the bus in every step. Source: ``ActorRolloutRefWorker._build_model_optimizer`` of these releases.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from envbuilder.errors import HostError

# The lines that force it, of the first and of the second FSDP, as all three releases have them.
_FORCED = (
    'cpu_offload = None if role == "actor" else CPUOffload(offload_params=True)',
    'cpu_offload = None if role == "actor" else CPUOffloadPolicy(pin_memory=True)',
)


def adapt(module: ModuleType) -> None:
    """Adapt ``verl.workers.fsdp_workers``: with param_offload=False the reference stays on its device, with True it is
    offloaded as verl does it. A verl that forces no offload is left alone; one that offloads in another way refuses
    to build a reference that is not to be offloaded (HostError).
    """
    original = module.ActorRolloutRefWorker._build_model_optimizer
    source = inspect.getsource(original)
    if "CPUOffload" not in source:
        return
    known = all(line in source for line in _FORCED)

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(self, *args, **kwargs).arguments
        if given.get("role") != "ref" or given["fsdp_config"].get("param_offload", False):
            return original(self, *args, **kwargs)
        if not known:
            raise HostError(
                "this verl decides in a way that is not known here whether the reference policy is offloaded",
                cure="Use verl 0.5.0, or set actor_rollout_ref.ref.fsdp_config.param_offload=True.",
            )
        with _without_offload(module):
            return original(self, *args, **kwargs)

    module.ActorRolloutRefWorker._build_model_optimizer = build


@contextmanager
def _without_offload(module: ModuleType) -> Iterator[None]:
    """Within the block FSDP is told of no offload: the names by which ``module`` calls both kinds answer so."""
    wrapper, policy = module.FSDP, module.CPUOffloadPolicy

    def wrap(*args: Any, **kwargs: Any) -> Any:
        return wrapper(*args, **{**kwargs, "cpu_offload": None})

    def no_policy(**_: Any) -> None:
        """What is handed to FSDP2, and to the loading of the weights, in place of a policy."""

    module.FSDP, module.CPUOffloadPolicy = wrap, no_policy  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.FSDP, module.CPUOffloadPolicy = wrapper, policy  # type: ignore[attr-defined]
