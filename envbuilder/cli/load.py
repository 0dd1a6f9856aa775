"""``envbuilder load``: an image out of an archive into this host's engine."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="load")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--engine", type=click.Choice(["auto", "docker", "buildah"]), default="auto", help="Whose store.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: Path, engine: str, as_json: bool) -> None:
    """Load the image in FILE, which `envbuilder save` wrote; every byte is verified before the engine sees any.

    FILE may be packed with zstd or gzip.

    \b
    Example:
      envbuilder load p40-debian.tar
      envbuilder load p40-debian.tar.zst
    """
    import json

    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.image.choose import choose_engine
    from envbuilder.publish.archive import load
    from envbuilder.publish.verifying import admit_archive

    chosen = choose_engine(engine)
    with TerminalProgress() as progress:
        loaded = load(file, chosen, progress, admit_archive)
    if as_json:
        result = {"image": loaded.name, "digest": loaded.digest, "id": loaded.id, "loaded": loaded.anew}
        more = {"referrers": loaded.referrers, "signed_by": list(loaded.signed_by)}
        click.echo(json.dumps({**result, **more}, indent=2))
        return
    if not loaded.anew:
        click.echo(f"{click.style('up to date', fg='green', bold=True)}: the engine has exactly this image")
    click.echo(f"   image  {loaded.name}")
    click.echo(f"  digest  {loaded.digest}, as it is published")
    for who in loaded.signed_by:
        click.echo(f"  signed  by {who}")
    if loaded.referrers:
        click.echo(f"    with  {loaded.referrers} documents attached to it")
    click.echo(f"    next  envbuilder verify --gpu 0 --image {loaded.name}")
