"""``envbuilder bundle``: everything a build needs, in one file for a host without a network."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="bundle")
@click.argument("stack")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(stack: str, file: Path, as_json: bool) -> None:
    """Pack STACK, its lock, its Dockerfile and every file the lock names into FILE, a tar.

    What is missing is fetched first. On a host without a network, `envbuilder build --bundle FILE` builds from it.

    \b
    Example:
      envbuilder bundle p40-debian p40-debian.bundle
      envbuilder build --bundle p40-debian.bundle
    """
    import json

    from envbuilder.cli.borrowed import tell_borrowed
    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.image.bundling import write_bundle
    from envbuilder.lock.reading import load_lock
    from envbuilder.stack.loading import load_stack

    loaded, gpu = load_stack(stack)
    tell_borrowed(loaded.name)
    lock = load_lock(loaded)
    with TerminalProgress() as progress:
        size = write_bundle(loaded, gpu, lock, file, progress)
    if as_json:
        click.echo(json.dumps({"stack": loaded.name, "lock": lock.digest, "file": str(file), "bytes": size}, indent=2))
        return
    click.echo(f"{file}: {loaded.name}, lock {lock.digest}, {size / 1e9:.2f} GB")
    click.echo(f"  on the other host: envbuilder build --bundle {file.name}")
