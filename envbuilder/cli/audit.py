"""``envbuilder audit``: which GPUs can these binaries run on?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from envbuilder.audit.remote import WheelList


@click.command(name="audit")
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("--gpu", metavar="CARD", help="A card: p40, sm_61 or 6.1. Without it, every known card is judged.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), help="Also write JUnit XML to this file.")
def command(targets: tuple[str, ...], gpu: str | None, as_json: bool, junit: Path | None) -> int:
    """Which GPUs can these binaries run on? Read from the code itself, without a GPU.

    A TARGET is a library, object or static library, a cubin, fat binary or PTX file, a folder or virtual environment,
    a wheel, an OCI layout, an image archive, an image in the local store, a lock or a requirements file (of which only
    as much of each wheel is fetched as an answer takes).

    Exit code 0: it runs; 1: it does not, or another fault was found; 3: it cannot be told.

    \b
    Example:
      envbuilder audit .venv --gpu p40
      envbuilder audit vllm-0.8.5.post1-cp38-abi3-manylinux1_x86_64.whl --gpu sm_61
      envbuilder audit requirements.txt --gpu 6.1 --json
      envbuilder audit libcufft.so.11
    """
    from envbuilder.audit.audit import audit
    from envbuilder.audit.cards import find_card
    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.report.present import as_json as to_json
    from envbuilder.report.present import print_text, write_junit

    card = find_card(gpu) if gpu else None
    with TerminalProgress() as progress:
        report = audit(targets, card, progress, _locate)
    if junit:
        write_junit(report, junit)
    if as_json:
        click.echo(to_json(report), nl=False)
    else:
        print_text(report)
    return report.verdict.exit_code


def _locate(path: Path) -> WheelList:
    # Imported late: only lists of requirements need the index.
    from envbuilder.fetch.remote_wheels import locate

    return locate(path)
