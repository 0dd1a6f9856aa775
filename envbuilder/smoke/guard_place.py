"""Where an operation was called: the line in the source, the path of the module, the node of the backward pass."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from torch import nn

from envbuilder.errors import Place

# Frames of these are how the operation was carried out, not where it was asked for.
_CARRIERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent / "guard"), "<")


@dataclass(frozen=True)
class Spot:
    """A place in the source, the nn.Module path that was running (``model.layers.0.mlp (Qwen2MLP)``), and the
    autograd node in whose backward the operation ran; the last two empty when there is none."""

    place: Place
    module: str = ""
    backward: str = ""


def find_spot(owner: int) -> Spot:
    """The spot of the operation being dispatched.

    An autograd thread has no Python frames of the program: there, the thread ``owner`` (who waits in ``backward()``)
    tells the line.
    """
    frame: FrameType | None = sys._getframe(1)
    line = _line(frame)
    if line is None:
        frame = sys._current_frames().get(owner)
        line = _line(frame)
    node = torch._C._current_autograd_node()
    return Spot(line or Place(), _module(frame), node.name() if node is not None else "")


def spot_of_error(error: BaseException) -> Spot:
    """The innermost line of the program that ``error`` came through."""
    trace, place, frame = error.__traceback__, Place(), None
    while trace is not None:
        frame = trace.tb_frame
        if not _carries(frame):
            place = Place(frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return Spot(place, _module(frame))


def _line(frame: FrameType | None) -> Place | None:
    while frame is not None:
        if not _carries(frame):
            return Place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def _carries(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return frame.f_code.co_filename.startswith(_CARRIERS) or name.startswith("triton.")


def _module(frame: FrameType | None) -> str:
    """The path from the outermost running nn.Module to the innermost."""
    inner: nn.Module | None = None
    outer: nn.Module | None = None
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self":
            this = frame.f_locals.get("self")
            if isinstance(this, nn.Module):
                inner = this if inner is None else inner
                outer = this
        frame = frame.f_back
    if inner is None or outer is None:
        return ""
    kind = type(inner).__name__
    if inner is outer:
        return kind
    path = next((name for name, module in outer.named_modules() if module is inner), "")
    return f"{path} ({kind} in {type(outer).__name__})" if path else f"{kind} under {type(outer).__name__}"
