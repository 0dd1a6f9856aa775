"""What the dispatcher does not see: Triton launches, their shared memory, and code that torch.compile made."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from envbuilder.smoke.guard_rules import Limits


class Hooks:
    """Wraps the launchers of Triton and the entry into compiled code, for as long as the guard runs.

    ``facts`` says which of them were found, so that a report never claims to have watched what it could not.
    """

    def __init__(self, limits: Limits, record: Callable[..., None]) -> None:
        self._limits = limits
        self._record = record
        self._undo: list[tuple[Any, str, Any]] = []
        self.facts: dict[str, Any] = {}

    def start(self) -> None:
        """Put the wrappers in place."""
        try:
            jit = importlib.import_module("triton.runtime.jit")
        except ImportError as error:
            # What cannot be imported cannot launch: Triton 3.2 without setuptools, for one.
            launches = f"none possible: {error}"
        else:
            launches = "watched"
            self._wrap(jit.JITFunction, "run", self._launch)
        frames = importlib.import_module("torch._dynamo.eval_frame")
        compiled = hasattr(frames, "_callback_from_stance")
        if compiled:
            self._wrap(frames, "_callback_from_stance", self._compiled)
        self.facts = {
            "Triton launches": launches,
            "compiled code": "watched" if compiled else "not watched: this torch has no known entry point",
        }

    def stop(self) -> None:
        """Take the wrappers off again."""
        while self._undo:
            owner, name, original = self._undo.pop()
            setattr(owner, name, original)

    def _wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self._undo.append((owner, name, original))
        setattr(owner, name, functools.wraps(original)(make(original)))

    def _launch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            function = getattr(kernel, "fn", kernel)
            name = getattr(function, "__qualname__", repr(kernel))
            if not self._limits.triton:
                self._record(
                    "guard-triton",
                    name,
                    f"Triton kernel {name}",
                    f"Triton does not compile for {self._limits.title}.",
                    (f"kernel defined in {getattr(function, '__module__', 'an unknown module')}",),
                )
            compiled = original(kernel, *args, **kwargs)
            shared = getattr(getattr(compiled, "metadata", None), "shared", None)
            if isinstance(shared, int) and shared > self._limits.shared_memory:
                self._record(
                    "guard-shared-memory",
                    name,
                    f"Triton kernel {name} takes {shared} bytes of shared memory",
                    f"{self._limits.title} has {self._limits.shared_memory} bytes of shared memory for a block.",
                )
            return compiled

        return run

    def _compiled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def entered(callback: Any) -> Any:
            answer = original(callback)
            # None and False are how torch switches compilation off for a stretch of code.
            if answer is not None and answer is not False:
                self._record(
                    "guard-compile",
                    "torch.compile",
                    "code compiled by torch.compile is called",
                    "torch.compile makes Triton kernels on a GPU, and the stack has it off.",
                )
            return answer

        return entered
