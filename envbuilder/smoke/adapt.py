"""Makes verl and transformers compute as the stack says, in this process and without touching one of their files.

``install`` does six things, each where no setting of verl reaches (docs/patch.md has the table of sites):

* autocast to bfloat16 or float16 does nothing;
* ``attn_implementation="flash_attention_2"`` becomes the stack's attention, and a hard-coded bfloat16 or float16
  ``torch_dtype`` the stack's dtype, where transformers' Auto classes read them;
* ``flash_attn.bert_padding`` is plain torch, while transformers still finds no flash attention;
* verl's ``masked_var`` has an answer for a mask with a single one;
* verl's HF rollout counts positions on while it generates;
* the reference policy stays on the card when its setting says so (``envbuilder.smoke.reference``).

It has verl's actors and critics say where their weights lie, for the guard (``envbuilder.smoke.placement``). It imports
neither verl nor transformers itself: each of them is adapted as soon as somebody imports it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import torch

from envbuilder.errors import HostError
from envbuilder.smoke import bert_padding, placement, reference

_NARROW = (torch.bfloat16, torch.float16)
_NARROW_NAMES = ("bfloat16", "float16", "torch.bfloat16", "torch.float16")
_installed: dict[str, str] = {}


def install(dtype: str = "float32", attention: str = "eager") -> None:
    """Adapt this process to a stack's ``dtype`` and ``attention``. A second call with the same values does nothing.

    Raises HostError when flash-attn is installed, or when the process was adapted to other values before.
    """
    wanted = {"dtype": dtype, "attention": attention}
    if _installed:
        if _installed != wanted:
            raise HostError(f"this process computes in {_installed} already and cannot change to {wanted}")
        return
    _serve_bert_padding()
    _silence_autocast()
    _after_import("transformers.models.auto.configuration_auto", lambda m: _adapt_config(m, attention))
    _after_import(
        "transformers.models.auto.auto_factory", lambda m: _adapt_factory(m, getattr(torch, dtype), attention)
    )
    _after_import("verl.utils.torch_functional", _adapt_masked_var)
    _after_import("verl.workers.rollout.hf_rollout", _adapt_hf_rollout)
    _after_import("verl.workers.fsdp_workers", reference.adapt)
    _after_import("verl.workers.actor.dp_actor", placement.adapt_actor)
    _after_import("verl.workers.critic.dp_critic", placement.adapt_critic)
    _installed.update(wanted)


def _serve_bert_padding() -> None:
    """Answer ``import flash_attn.bert_padding``. There is no distribution behind it, which is what transformers,
    peft and accelerate ask for, and no ``flash_attn.ops``, so verl keeps its own cross entropy."""
    try:
        found = version("flash-attn")
    except PackageNotFoundError:
        pass
    else:
        raise HostError(
            f"flash-attn {found} is installed, and libraries would use it",
            cure="Uninstall flash-attn: its kernels need a card of capability 8.0.",
        )
    package = ModuleType("flash_attn", "Stands in for flash-attn, whose kernels the card cannot run: padding only.")
    package.__path__ = []
    package.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None, is_package=True)
    package.bert_padding = bert_padding  # type: ignore[attr-defined]
    sys.modules["flash_attn"] = package
    sys.modules["flash_attn.bert_padding"] = bert_padding


def _silence_autocast() -> None:
    original = torch.autocast.__init__

    @functools.wraps(original)
    def init(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        wanted = torch.get_autocast_dtype(device_type) if dtype is None else dtype
        original(self, device_type, dtype, enabled and wanted not in _NARROW, cache_enabled)

    torch.autocast.__init__ = init


def _adapt_config(module: ModuleType, attention: str) -> None:
    original = module.AutoConfig.from_pretrained.__func__

    @functools.wraps(original)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return original(cls, *args, **_with_attention(kwargs, attention))

    module.AutoConfig.from_pretrained = classmethod(from_pretrained)


def _adapt_factory(module: ModuleType, dtype: torch.dtype, attention: str) -> None:
    for name in ("from_pretrained", "from_config"):
        setattr(module._BaseAutoModelClass, name, _wrapped(module._BaseAutoModelClass, name, dtype, attention))


def _wrapped(owner: Any, name: str, dtype: torch.dtype, attention: str) -> Any:
    original: Any = getattr(owner, name).__func__

    @functools.wraps(original)
    def adapted(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return original(cls, *args, **_with_dtype(_with_attention(kwargs, attention), dtype))

    return classmethod(adapted)


def _with_attention(kwargs: dict[str, Any], attention: str) -> dict[str, Any]:
    asked = kwargs.get("attn_implementation")
    return {**kwargs, "attn_implementation": attention} if str(asked).startswith("flash_attention") else kwargs


def _with_dtype(kwargs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    changed = {k: dtype for k in ("torch_dtype", "dtype") if kwargs.get(k) in (*_NARROW, *_NARROW_NAMES)}
    return {**kwargs, **changed}


def _adapt_masked_var(module: ModuleType) -> None:
    """Let ``masked_var`` of a mask with a single one be the plain variance, 0, where verl 0.5.0 raises.

    Bessel's correction n / (n - 1) has no value for n = 1: one sample says nothing of a spread. verl asks only in
    order to whiten, (x - mean) / sqrt(var + 1e-8), and there x - mean is 0 for the only sample, so the whitened value
    is 0 with any finite variance: a batch with a single token carries no advantage over its own mean, and gives
    no policy gradient. All other masks are left to verl.
    """
    original = module.masked_var
    try:
        original(torch.ones(1), torch.ones(1))
    except ValueError:
        pass
    else:
        return  # this verl was patched already, or needs none

    @functools.wraps(original)
    def masked_var(values: torch.Tensor, mask: torch.Tensor, unbiased: bool = True) -> torch.Tensor:
        result: torch.Tensor = original(values, mask, unbiased=unbiased and bool(mask.sum() != 1))
        return result

    module.masked_var = masked_var  # type: ignore[attr-defined]


def _adapt_hf_rollout(module: ModuleType) -> None:
    """Keep the prompt's position ids from ``generate``.

    transformers 4.56.1 takes the last of them for every new token, so that all of a response would be drawn at one
    position, while verl computes its log-probabilities at the right ones. Without them it counts on from the mask.
    Source: run with verl 0.5.0 and transformers 4.56.1 (tests/smoke/test_rollout.py).
    """
    original = module.HFRollout.__init__

    @functools.wraps(original)
    def init(self: Any, module: Any, config: Any) -> None:
        original(self, module, config)
        generate = module.generate

        def counting(*args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
            return generate(*args, **kwargs)

        module.generate = counting

    module.HFRollout.__init__ = init


def _after_import(name: str, adapt: Callable[[ModuleType], None]) -> None:
    """Call ``adapt`` with the module ``name``: now if it is imported, else as soon as it is."""
    if name in sys.modules:
        adapt(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, adapt))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module by whatever would find it otherwise, and adapts it once it has run."""

    def __init__(self, name: str, adapt: Callable[[ModuleType], None]) -> None:
        self._name, self._adapt = name, adapt

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the module with its loader wrapped, or None for any other module."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = _ask_others(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run, adapt = spec.loader.exec_module, self._adapt

            def exec_module(module: ModuleType) -> None:
                run(module)
                adapt(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _ask_others(
    fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(fullname, path, target)
        if spec is not None:
            return spec
    return None
