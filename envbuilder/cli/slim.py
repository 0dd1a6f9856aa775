"""``envbuilder slim``: blank device code that the target card can never run."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="slim")
@click.argument("root", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--gpu", metavar="CARD", required=True, help="The card to keep code for: p40, sm_61 or 6.1.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(root: Path, gpu: str, as_json: bool) -> int:
    """Blank the device code that one card can never run, in an environment that serves only this card.

    Only binaries whose licence allows modification are touched (torch, torchvision, torchaudio, NCCL). Every file stays
    valid and keeps its size; what was code for other cards becomes zeros, which take no space on filesystems with holes
    and next to none in an image layer. RECORD is rewritten, and DIR/envbuilder-slim.json says what was done.

    \b
    Example:
      envbuilder slim .venv --gpu p40
    """
    from envbuilder.audit.cards import find_card
    from envbuilder.audit.slim import slim_tree
    from envbuilder.audit.slim_report import slim_report
    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.report.present import as_json as to_json
    from envbuilder.report.present import print_text

    card = find_card(gpu)
    with TerminalProgress() as progress:
        progress.stage(f"slim {root} for {card}")
        record = slim_tree(root, card.arch, progress)
    report = slim_report(root, record, card)
    if as_json:
        click.echo(to_json(report), nl=False)
    else:
        print_text(report)
    return report.verdict.exit_code
