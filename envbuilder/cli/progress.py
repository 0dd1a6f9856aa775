"""Progress on the terminal: stage, item, bytes and elapsed time; plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import IO, TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class TerminalProgress:
    """Shows progress on standard error and keeps the full log in ``log_file`` when one is given."""

    def __init__(self, log_file: IO[str] | None = None) -> None:
        self._log = log_file
        self._started = time.monotonic()
        self._stage_started = self._started
        self._title = ""
        # Plain lines need none of rich, whose import takes longer than many a command.
        self._live = _live() if sys.stderr.isatty() else None
        self._task: TaskID | None = None

    def __enter__(self) -> TerminalProgress:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish_stage(failed=error is not None)
        if self._live:
            self._live.stop()

    def stage(self, title: str) -> None:
        """Print the stage before with its time, and begin ``title``."""
        self._finish_stage()
        self._title, self._stage_started = title, time.monotonic()
        self.log(f"== {title}")
        if self._live:
            self._task = self._live.add_task("", total=None, title=title, item="")
        else:
            click.echo(f"{title} ...", err=True)

    def item(self, text: str) -> None:
        """Show ``text`` beside the bar."""
        if self._live and self._task is not None:
            self._live.update(self._task, item=text)

    def advance(self, done: int, total: int | None = None) -> None:
        """Move the bar to ``done`` of ``total`` bytes."""
        if self._live and self._task is not None:
            self._live.update(self._task, completed=done, total=total)

    def log(self, line: str) -> None:
        """Write to the log file only."""
        if self._log:
            self._log.write(line.rstrip("\n") + "\n")
            self._log.flush()

    def _finish_stage(self, failed: bool = False) -> None:
        if not self._title:
            return
        if self._live and self._task is not None:
            self._live.remove_task(self._task)
            self._task = None
        seconds = time.monotonic() - self._stage_started
        mark = click.style("failed", fg="red") if failed else click.style("done", fg="green")
        click.echo(f"{mark}  {self._title}  {seconds:.1f} s", err=True)
        self._title = ""


def _live() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.fields[title]}", markup=False),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[item]}", markup=False),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )
