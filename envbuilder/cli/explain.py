"""``envbuilder explain``: the cause and the cure of what a log shows."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.diagnose.context import Known
    from envbuilder.diagnose.model import Lang
    from envbuilder.report import Report


@click.command(name="explain")
@click.argument("log", nargs=-1, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--gpu", metavar="NAME", help="The card it is about (a GPU profile such as p40).")
@click.option("--stack", metavar="NAME", help="The stack at hand; its card is taken too.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of the texts.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--junit", type=click.Path(path_type=Path), help="Also write JUnit XML to this file.")
def command(
    log: tuple[Path, ...], gpu: str | None, stack: str | None, lang: Lang, as_json: bool, junit: Path | None
) -> int:
    """Name the cause, the evidence and the cure of what LOG shows; standard input when LOG is - or absent.

    Several logs (the build's, dmesg, nvidia-smi) are read as one. Secrets and personal paths are masked in what is
    printed and saved. Exit code: 0 nothing wrong found, 1 a fault found, 3 not enough in the log to tell.

    \b
    Example:
      envbuilder explain build.log
      dmesg | envbuilder explain - --gpu p40 --lang zh
    """
    from envbuilder.report import present

    report = _explain(log or (Path("-"),), _known(gpu, stack), lang)
    if as_json:
        click.echo(present.as_json(report), nl=False)
    else:
        present.print_text(report, lang=lang)
    if junit:
        present.write_junit(report, junit)
    return report.verdict.exit_code


def _known(gpu: str | None, stack: str | None) -> Known:
    from envbuilder.diagnose.context import Known
    from envbuilder.stack.gpu import load_gpu
    from envbuilder.stack.loading import load_stack

    if stack:
        loaded, card = load_stack(stack)
        return Known(load_gpu(gpu) if gpu else card, loaded)
    return Known(load_gpu(gpu) if gpu else None)


def _explain(paths: Sequence[Path], known: Known, lang: Lang) -> Report:
    from envbuilder.diagnose.explain import explain_streams
    from envbuilder.errors import InputError, Place

    with contextlib.ExitStack() as stack:
        streams: list[IO[bytes]] = []
        for path in paths:
            if str(path) == "-":
                streams.append(sys.stdin.buffer)
                continue
            try:
                streams.append(stack.enter_context(path.open("rb")))
            except OSError as error:
                raise InputError(
                    f"the log cannot be read: {error.strerror}",
                    place=Place(str(path)),
                    cure="Give the path of a log, or - for standard input.",
                ) from error
        subject = " ".join("standard input" if str(path) == "-" else str(path) for path in paths)
        return explain_streams(streams, known, subject=subject, lang=lang)
