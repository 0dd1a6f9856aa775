"""A running training on the terminal: a live table, plain lines where there is no terminal, or JSON lines."""

from __future__ import annotations

import json
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

GIB = 2**30
_ROWS = 12
_PHASES = (("rollout", ("rollout",)), ("log-probs", ("log-probs", "advantage")), ("update", ("actor", "critic")))


class View(Protocol):
    """What shows a run."""

    def __enter__(self) -> View:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""

    def event(self, event: dict[str, Any]) -> None:
        """Show one event of ``envbuilder.train.watching`` and ``envbuilder.train.running``."""


def view(as_json: bool, live: bool) -> View:
    """JSON lines, a live table, or plain lines."""
    return JsonView() if as_json else LiveView() if live else PlainView()


class JsonView:
    """One JSON object a line. The trainer's own lines are in the log."""

    def __enter__(self) -> JsonView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def event(self, event: dict[str, Any]) -> None:
        """Print it."""
        if event["event"] != "line":
            click.echo(json.dumps(event, ensure_ascii=False))


class PlainView(JsonView):
    """A line a step."""

    def event(self, event: dict[str, Any]) -> None:
        """Print what a person wants to know of it."""
        if event["event"] == "step":
            values = dict(zip(_COLUMNS, cells(event), strict=True))
            click.echo("step " + "  ".join([values.pop("step"), *(f"{k} {v}" for k, v in values.items() if v)]))
        elif (text := sentence(event)) is not None:
            click.echo(text)


class LiveView:
    """The last steps as a table that is drawn again with each, the trainer's last line below it."""

    def __init__(self) -> None:
        self._steps: deque[dict[str, Any]] = deque(maxlen=_ROWS)
        self._said: list[str] = []
        self._line = "starting"
        self._begin = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> LiveView:
        from rich.live import Live

        self._live = Live(get_renderable=self.picture, refresh_per_second=2, redirect_stdout=False)
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._line = ""
            self._live.stop()

    def event(self, event: dict[str, Any]) -> None:
        """Take it into the picture."""
        if event["event"] == "step":
            self._steps.append(event)
        elif event["event"] == "line":
            self._line = event["text"]
        elif (text := sentence(event)) is not None:
            self._said.append(text)

    def picture(self) -> Group:
        """Table, what was said, the trainer's last line."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in _COLUMNS:
            table.add_column(column, justify="right", no_wrap=True)
        for step in self._steps:
            table.add_row(*cells(step))
        parts: list[Any] = [table] if self._steps else []
        parts += [Text(text, style="yellow" if text.startswith("warning") else "") for text in self._said]
        if self._line:
            elapsed = time.strftime("%H:%M:%S", time.gmtime(time.monotonic() - self._begin))
            parts.append(Text(f"{elapsed}  {self._line}", style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*parts)


_COLUMNS = ("step", "score", "KL", "policy", "value", *(name for name, _ in _PHASES), "step s", "tok/s", "GiB", "left")


def cells(event: dict[str, Any]) -> tuple[str, ...]:
    """A step as text, a cell a column; empty where nothing is known."""
    phases = [f"{sum(event['seconds'][part] for part in parts):.2f}" for _, parts in _PHASES]
    memory = f"{event['memory_bytes'] / GIB:.1f}/{event['peak_bytes'] / GIB:.1f}" if event["peak_bytes"] else ""
    return (
        f"{event['step']}/{event['of']}",
        _short(event["score"], ".3f"),
        _short(event["kl"], ".4f"),
        _short(event["policy_loss"], ".4f"),
        _short(event["value_loss"], ".4f"),
        *phases,
        f"{event['step_s']:.2f}",
        _short(event["tokens_s"], ".0f"),
        memory,
        duration(event["left_s"]),
    )


def sentence(event: dict[str, Any]) -> str | None:
    """An event other than a step as one line; None for what a person need not see."""
    kind = event["event"]
    if kind == "warning":
        return f"warning: {event['text']}"
    if kind == "note":
        return str(event["text"])
    if kind == "ready":
        # What was chosen and what is left out; that the rest is in order shows by itself.
        return "\n".join(f"{name}: {event['checks'][name]}" for name in ("plan", "data", "reward"))
    if kind == "begin":
        going_on = f"going on from the checkpoint of step {event['from']}, " if event["from"] else ""
        return f"{going_on}{event['steps']} steps in all; everything the trainer prints goes to {event['log']}"
    if kind == "checkpoint":
        return f"checkpoint of step {event['step']}"
    return None


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3 h 05``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02}"


def _short(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
