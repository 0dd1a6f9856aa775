"""``envbuilder compat``: which builds run on a card, by the tables."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from envbuilder.stack.compat.answers import Question


@click.command(name="compat")
@click.option("--gpu", metavar="NAME", help="Cards, by profile (p40), name or capability; several with commas.")
@click.option("--torch", metavar="VERSION", default="", help="Ask of one release: 2.9, 2.6.0, 2.6.0+cu118.")
@click.option("--want", "wants", metavar="NAME", multiple=True, help="A library on top: flash-attn, vllm==0.8.4, verl.")
@click.option("--driver", metavar="VERSION", default="", help="The host's driver; builds it cannot run are left out.")
@click.option("--probe", type=click.Path(path_type=Path), help="Take cards, driver, torch from a host's report.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(gpu: str | None, torch: str, wants: tuple[str, ...], driver: str, probe: Path | None, as_json: bool) -> int:
    """Tell which builds of PyTorch run on a card, which is the newest, and what to take instead of what cannot.

    Every answer comes from a table whose rows name their source; what is not in a table is not known, which is no claim
    that it cannot run. Exit code: 0 there is a build, 1 what was asked for cannot run, 3 not known.

    \b
    Example:
      envbuilder compat --gpu p40
      envbuilder compat --gpu p40 --torch 2.9 --want flash-attn
      envbuilder compat --probe host.json
    """
    from envbuilder.report import present
    from envbuilder.stack.compat.answers import answer

    report = answer(_question(gpu, torch, wants, driver, probe))
    if as_json:
        click.echo(present.as_json(report), nl=False)
    else:
        present.print_text(report)
    return report.verdict.exit_code


def _question(gpu: str | None, torch: str, wants: tuple[str, ...], driver: str, probe: Path | None) -> Question:
    from envbuilder.errors import InputError
    from envbuilder.stack.compat.answers import Question
    from envbuilder.stack.compat.cards import find_card
    from envbuilder.stack.compat.probe import read_probe

    if driver and not re.fullmatch(r"\d+(\.\d+){0,2}", driver):
        raise InputError(f"{driver!r} is no driver version", cure="Give what nvidia-smi shows, such as 535.183.01.")
    if probe:
        question = read_probe(probe)
        question = replace(question, torch=torch or question.torch, wants=wants, driver=driver or question.driver)
        return replace(question, cards=tuple(map(find_card, gpu.split(",")))) if gpu else question
    cards = tuple(find_card(name.strip()) for name in (gpu or "p40").split(","))
    return Question(cards, torch, wants, driver)
