"""An FSDP unit a layer in verl's actor, as verl makes them in the critic and the reference.

verl 0.5.0 gives an actor that rolls out with Hugging Face one unit in all, since with several ranks the collectives of
units hang where ranks generate different lengths (its own remark names Gemma). In one unit the gradients of all weights
are concatenated at the end of a backward, which takes the size of the model once more. One rank has no collectives.
Source: ``ActorRolloutRefWorker._build_model_optimizer`` of verl 0.5.0.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def install() -> None:
    """On one rank, without LoRA, an actor with the HF rollout keeps the policy that
    ``fsdp_config.wrap_policy`` asks for. Safe to call twice.
    """
    from verl.workers import fsdp_workers as module

    original = module.ActorRolloutRefWorker._build_model_optimizer
    if hasattr(original, "_envbuilder_wraps"):
        return

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device_mesh.size() > 1 or self._is_lora:
            return original(self, *args, **kwargs)
        with _policy_kept(module):
            return original(self, *args, **kwargs)

    build._envbuilder_wraps = True  # type: ignore[attr-defined]
    module.ActorRolloutRefWorker._build_model_optimizer = build


@contextmanager
def _policy_kept(module: ModuleType) -> Iterator[None]:
    """Within the block FSDP gets the policy that verl made last, also where verl has dropped it since."""
    make, wrapper = module.get_fsdp_wrap_policy, module.FSDP
    made: list[Any] = []

    def get_policy(*args: Any, **kwargs: Any) -> Any:
        made.append(make(*args, **kwargs))
        return made[-1]

    def wrap(*args: Any, **kwargs: Any) -> Any:
        return wrapper(*args, **{**kwargs, "auto_wrap_policy": made[-1]})

    module.get_fsdp_wrap_policy, module.FSDP = get_policy, wrap  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.get_fsdp_wrap_policy, module.FSDP = make, wrapper  # type: ignore[attr-defined]
