"""The dispatch mode of the guard: looks at every operation that torch dispatches, forward and backward."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from envbuilder.smoke.guard_rules import ATTENTION_NAMESPACES, ATTENTION_OPS, CPU_ATTENTION_OP, Limits

# The one exception: reading a checkpoint that is stored in a type the card lacks. See `GuardMode._loads_checkpoint`.
_CASTS = frozenset({"aten::_to_copy", "aten::copy_"})
_VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        *("alias", "as_strided", "clone", "detach", "empty", "empty_strided", "lift_fresh", "reshape", "select"),
        *("set_", "slice", "view", "_reshape_alias", "_unsafe_view", "narrow", "resize_"),
    )
)
_LOADERS = (
    "safetensors",
    "torch.serialization",
    "torch._utils",
    "transformers.modeling_utils",
    "transformers.core_model_loading",
)
_LISTS = (list, tuple)
_LOADER_FUNCTIONS = frozenset({"load_state_dict", "_load_from_state_dict"})


class GuardMode(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Hands every fault to ``record``. ``owner`` is the thread that entered the guard.

    A dispatch mode belongs to a thread; torch carries it into the autograd threads of a backward that starts here.
    The fused and foreach operations of optimisers take lists of tensors, which are looked into one level deep (no
    operation of torch nests them deeper).
    """

    def __init__(self, limits: Limits, record: Callable[..., None], owner: int) -> None:
        super().__init__()
        self.owner = owner
        self.operations = 0
        self.excepted = 0
        self._limits = limits
        self._narrow = limits.dtypes
        self._attention: dict[Any, str] = {}
        self._record = record

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # A tensor subclass such as FSDP2's DTensor is asked first, so that the operations on its local parts, which
        # are what runs on the card, come back here one by one.
        if types and any(t not in (torch.Tensor, torch.nn.Parameter) for t in types):
            # A fake tensor has a shape and no values, so nothing is computed: its own mode, below this one, takes it.
            if any(issubclass(t, FakeTensor) for t in types):
                return func(*args, **(kwargs or {}))
            return NotImplemented
        self.operations += 1
        name = self._attention.get(func)
        if name is None:
            name = self._attention[func] = _attention_name(func._schema.name)
        if name:
            self._check_attention(name)
        result = func(*args, **kwargs) if kwargs else func(*args)
        # This runs for every operation: tensors are told by their dtype, which nothing else among arguments has.
        narrow = self._narrow
        for value in args:
            if value.__class__ in _LISTS:
                if any(getattr(part, "dtype", None) in narrow for part in value):
                    break
            elif getattr(value, "dtype", None) in narrow:
                break
        else:
            if kwargs and any(getattr(value, "dtype", None) in narrow for value in kwargs.values()):
                pass
            elif result.__class__ in _LISTS:
                if not any(getattr(part, "dtype", None) in narrow for part in result):
                    return result
            elif getattr(result, "dtype", None) not in narrow:
                return result
        self._check_narrow(func._schema.name, args, kwargs, result)
        return result

    def _check_narrow(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> None:
        read = [t for t in _tensors((*args, *(kwargs or {}).values())) if t.dtype in self._narrow]
        made = [t for t in _tensors((result,)) if t.dtype in self._narrow]
        if all(t.is_meta for t in (*read, *made)):
            return  # a tensor on the meta device is a shape without data, and nothing is computed
        if self._loads_checkpoint(name, read, made):
            self.excepted += 1
            return
        verb, tensors = ("makes", made) if made else ("reads", read)
        dtype = _short(tensors[0].dtype)
        self._record(
            "guard-dtype",
            f"{name} {verb} {dtype}",
            f"{name} {verb} {dtype}",
            f"{self._limits.title} does not compute in {dtype}.",
            (
                "reads " + (", ".join(map(_describe, read[:4])) or "none of that type"),
                "makes " + (", ".join(map(_describe, made[:4])) or "none of that type"),
            ),
        )

    def _loads_checkpoint(self, name: str, read: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
        """Whether this is the cast that loads a checkpoint: nothing narrow is on a GPU, the operation is either
        the cast itself (narrow in, nothing narrow out) or a view or allocation that presents the file's bytes, and
        it is called from within a loader (safetensors, torch.load, transformers' loading, load_state_dict)."""
        if any(t.device.type != "cpu" for t in (*read, *made)):
            return False
        cast = name in _CASTS and bool(read) and not made
        return (cast or name in _VIEWS) and _within_loader()

    def _check_attention(self, name: str) -> None:
        op = name.removeprefix("aten::")
        backend = ATTENTION_OPS.get(op)
        if name.partition("::")[0] in ATTENTION_NAMESPACES:
            self._refuse_attention(name, "flash")
        elif backend and backend not in self._limits.attention:
            self._refuse_attention(name, backend)
        elif op == CPU_ATTENTION_OP:
            # A CPU always runs its own kernel, which says nothing of what CUDA would choose. It is a fault only when
            # the program has left no back end enabled that the card has, so that CUDA could not choose one.
            enabled = {
                "flash": torch.backends.cuda.flash_sdp_enabled(),
                "mem_efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
                "math": torch.backends.cuda.math_sdp_enabled(),
                "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
            }
            asked = sorted(name for name, on in enabled.items() if on)
            if not self._limits.attention.intersection(asked):
                self._refuse_attention(f"aten::{op}", " or ".join(asked))

    def _refuse_attention(self, op: str, backend: str) -> None:
        self._record(
            "guard-attention",
            op,
            f"{backend} attention ({op})",
            f"{self._limits.title} has {', '.join(sorted(self._limits.attention))} attention only.",
        )


def _attention_name(name: str) -> str:
    """The operation's name if it is an attention, empty for any other."""
    namespace, _, op = name.partition("::")
    known = namespace in ATTENTION_NAMESPACES or op in ATTENTION_OPS or op == CPU_ATTENTION_OP
    return name if known else ""


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (part for part in value if isinstance(part, torch.Tensor))


def _within_loader() -> bool:
    frame = sys._getframe(3)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_LOADERS) or (
            name == "torch.nn.modules.module" and frame.f_code.co_name in _LOADER_FUNCTIONS
        ):
            return True
        frame = frame.f_back  # type: ignore[assignment]  # the last frame has none
    return False


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _describe(tensor: torch.Tensor) -> str:
    return f"{_short(tensor.dtype)}{list(tensor.shape)} on {tensor.device}"
