"""``envbuilder image``: from nothing to a verified image. What ``make image`` runs."""

from __future__ import annotations

import time

import click


@click.command(name="image")
@click.argument("stack", required=False)
@click.option(
    "--engine",
    type=click.Choice(["auto", "docker", "buildah"]),
    default="auto",
    help="auto: a Docker daemon that answers, else buildah.",
)
def command(stack: str | None, engine: str) -> int:
    """Build STACK's image and show what a CPU can show of it; nothing is done twice.

    Without STACK, the first of p40 and p40-debian whose sources all answer. As root on Debian, missing build tools
    are installed; otherwise the one command that does it is printed.

    \b
    Example:
      envbuilder image
      envbuilder image p40-debian
    """
    from envbuilder.cli.build import build, show
    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.errors import FAILED, OK
    from envbuilder.image.making import choose_stack, failures, ready_engine, report_path, verify_on_cpu
    from envbuilder.report.present import print_text
    from envbuilder.stack.loading import load_stack

    started = time.monotonic()
    with TerminalProgress() as progress:
        choice = choose_stack(stack, engine, progress)
    click.echo(f"{choice.stack}: {choice.why.removeprefix(f'{choice.stack}: ')}")
    with TerminalProgress() as progress:
        chosen = ready_engine(engine, progress)
    record, path = build(choice.stack, "runtime", chosen.name)
    show(record, path)
    image = chosen.image(record["image"])
    assert image is not None
    loaded, gpu = load_stack(choice.stack)
    with TerminalProgress() as progress:
        report, anew = verify_on_cpu(loaded, gpu, image, chosen, progress)
    failed = failures(report)
    if anew or failed:
        click.echo()
        print_text(report)
    else:
        click.echo(f"  verify  nothing failed on the CPU when this image was verified: {report_path(choice.stack)}")
    if failed:
        click.echo(f"\nThe image was built, and {len(failed)} checks failed in it.", err=True)
        return FAILED
    click.echo(
        f"\n{record['image']} is ready, in {time.monotonic() - started:.0f} s. A CPU proves nothing of a card; "
        f"next, on a host with a {gpu.title}:\n  envbuilder verify --gpu 0 --stack {choice.stack}"
    )
    return OK
