"""How long work tells what it is doing. The work knows this interface; the terminal is one listener."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What a long piece of work reports. Calls may come from several threads."""

    def stage(self, title: str) -> None:
        """A new stage has begun; the one before it is done."""

    def item(self, text: str) -> None:
        """What is being worked on now within the stage: a package, a layer, a check."""

    def advance(self, done: int, total: int | None = None) -> None:
        """Bytes done so far within the stage, of ``total`` where that is known."""

    def log(self, line: str) -> None:
        """A line for the full log."""


class Silent:
    """A listener that hears nothing."""

    def stage(self, title: str) -> None:
        """Ignore."""

    def item(self, text: str) -> None:
        """Ignore."""

    def advance(self, done: int, total: int | None = None) -> None:
        """Ignore."""

    def log(self, line: str) -> None:
        """Ignore."""
