"""``envbuilder pull``: an image by its digest, verified, into this host's engine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from envbuilder.errors import FAILED

if TYPE_CHECKING:
    from envbuilder.publish.pull import Pulled
    from envbuilder.report.model import Report


@click.command(name="pull")
@click.argument("reference", metavar="REF@sha256:...")
@click.option("--engine", type=click.Choice(["auto", "docker", "buildah"]), default="auto", help="Whose store.")
@click.option("--allow-tag", is_flag=True, help="Take a tag for whatever it points to now.")
@click.option("--verify", is_flag=True, help="Then prove the image on the cards of this host.")
@click.option(
    "--gpu", default=None, metavar="N|all", help="With --verify: the cards, as nvidia-smi counts (default 0)."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(reference: str, engine: str, allow_tag: bool, verify: bool, gpu: str | None, as_json: bool) -> None:
    """Pull the image REF@sha256:... into this host's engine; each byte is held against its digest first.

    A broken download goes on where it stopped, also in the next run. Mirrors of the registry are taken from
    envbuilder.toml (docs/mirrors.md). The image gets its name only when all of it is there. Where a policy in
    envbuilder.toml asks for a signature, an image without it is refused (docs/signing.md).

    \b
    Example:
      envbuilder pull registry.example/team/p40-debian@sha256:DIGEST
      envbuilder pull registry.example/team/p40-debian@sha256:DIGEST --verify --gpu all
    """
    import json

    if gpu is not None and not verify:
        raise click.UsageError("--gpu is for --verify.")
    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.image.choose import choose_engine
    from envbuilder.lock.mirrors import mirrors_of
    from envbuilder.publish.pull import check_pinned, pull
    from envbuilder.publish.verifying import admit_published
    from envbuilder.stack.settings import load_settings

    mirrors = mirrors_of(load_settings())
    if not allow_tag:
        check_pinned(reference, mirrors)
    chosen = choose_engine(engine)
    with TerminalProgress() as progress:
        pulled = pull(reference, chosen, mirrors, progress, admit_published)
    if not as_json:
        _show(pulled)
    reports = _verified(chosen, pulled.name, gpu, as_json) if verify else []
    if as_json:
        result = {**_result(pulled), **({"verify": [report.to_dict() for report in reports]} if verify else {})}
        click.echo(json.dumps(result, indent=2, ensure_ascii=False))
    if reports:
        # A card that failed counts for more than one of which nothing can be said.
        codes = {report.verdict.exit_code for report in reports}
        sys.exit(FAILED if FAILED in codes else max(codes))


def _verified(engine: Any, image: str, gpu: str | None, quiet: bool) -> list[Report]:
    from envbuilder.cli.verify import prove_cards
    from envbuilder.report.present import print_text

    reports = []
    for report in prove_cards(engine, image, gpu or "0"):
        reports.append(report)
        if not quiet:
            click.echo()
            print_text(report)
    return reports


def _result(pulled: Pulled) -> dict[str, Any]:
    return {
        "image": pulled.name,
        "pinned": pulled.pinned,
        "digest": pulled.digest,
        "id": pulled.id,
        "bytes_moved": pulled.moved,
        "bytes_skipped": max(0, pulled.size - pulled.moved),
        "pulled": pulled.anew,
        "signed_by": list(pulled.signed_by),
    }


def _show(pulled: Pulled) -> None:
    result = _result(pulled)
    if not pulled.anew:
        click.echo(f"{click.style('up to date', fg='green', bold=True)}: the engine has exactly this image")
    moved, skipped = result["bytes_moved"] / 1e6, result["bytes_skipped"] / 1e6
    click.echo(f"   image  {pulled.name}")
    click.echo(f"  digest  {pulled.digest}")
    for who in pulled.signed_by:
        click.echo(f"  signed  by {who}")
    click.echo(f"   moved  {moved:.1f} MB" + (f"; {skipped:.1f} MB was here already" if skipped else ""))
    click.echo(f"    next  envbuilder verify --gpu 0 --image {pulled.name}")
