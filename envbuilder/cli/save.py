"""``envbuilder save``: a stack's image as one file."""

from __future__ import annotations

from pathlib import Path

import click

from envbuilder.cli.image_options import image_options
from envbuilder.cli.sign import open_signer, signing_options


@click.command(name="save")
@click.argument("stack")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@image_options
@signing_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    stack: str, file: Path, target: str, slim: bool, engine: str, key: Path | None, keyless: bool, as_json: bool
) -> None:
    """Write STACK's image to FILE, with what is attached to it: for hosts without a registry.

    The same image gives the same bytes. `envbuilder load FILE` verifies all of it first; docker load, podman load
    and buildah pull docker-archive:FILE take it too.

    \b
    Example:
      envbuilder save p40-debian p40-debian.tar
      zstd -T0 --rm p40-debian.tar
    """
    import json

    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.cli.push import exported_image
    from envbuilder.publish.archive import save

    signer = open_signer(key, keyless=keyless)
    with TerminalProgress() as progress:
        exported = exported_image(stack, target, engine, progress, slim=slim, signer=signer)
        saved = save(exported, file, progress)
    if as_json:
        result = {"image": exported.image.reference, "file": str(file), "bytes": saved.size, "sha256": saved.sha256}
        click.echo(json.dumps({**result, "digest": saved.digest, "config": exported.config.digest}, indent=2))
        return
    click.echo(f"   image  {exported.image.reference}")
    click.echo(f"  digest  {saved.digest}")
    click.echo(f"    file  {file}, {saved.size / 1e9:.2f} GB")
    click.echo(f"  sha256  {saved.sha256}")
    click.echo(f"\non the other host:\n  envbuilder load {file.name}")
