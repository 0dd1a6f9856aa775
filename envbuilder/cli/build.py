"""``envbuilder build``: a stack's image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command(name="build")
@click.argument("stack", required=False)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Build from this bundle: its stack, its lock, its files; no network is asked.",
)
@click.option(
    "--target", type=click.Choice(["runtime", "devel"]), default="runtime", help="devel adds the CUDA toolkit."
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "docker", "buildah"]),
    default="auto",
    help="auto: a Docker daemon that answers, else buildah.",
)
@click.option("--no-cache", is_flag=True, help="Build every layer anew.")
@click.option("--slim", is_flag=True, help="Blank device code that the stack's card can never run (another image).")
@click.option("--json", "as_json", is_flag=True, help="Print the build record.")
def command(
    stack: str | None,
    bundle: Path | None,
    target: str,
    engine: str,
    no_cache: bool,
    slim: bool,
    as_json: bool,
) -> None:
    """Build the image of STACK out of its lock: fetched and verified first, then built without network.

    The same lock gives the same id with the same engine, whoever builds. The log and the record lie in ./build.

    \b
    Example:
      envbuilder build p40-debian
      envbuilder build p40-debian --target devel
      envbuilder build p40-debian --slim
      envbuilder build --bundle p40-debian.bundle
    """
    import json

    if (stack is None) == (bundle is None):
        raise click.UsageError("Give either STACK or --bundle FILE.")
    if bundle is not None:
        record, path = build_bundle(bundle, target, engine, no_cache, slim=slim)
    else:
        record, path = build(str(stack), target, engine, no_cache, slim=slim)
    if as_json:
        click.echo(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        show(record, path)


def build(
    stack: str, target: str, engine: str, no_cache: bool = False, *, slim: bool = False
) -> tuple[dict[str, Any], Path]:
    """Build with progress on the terminal and the full log in a file; the record and where it was written."""
    from envbuilder.cli.borrowed import tell_borrowed
    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.cli.why import explain_log
    from envbuilder.errors import BuildError
    from envbuilder.image.building import build_stack
    from envbuilder.image.choose import choose_engine
    from envbuilder.image.record import build_record, log_path, write_record
    from envbuilder.lock.reading import load_lock
    from envbuilder.stack.loading import load_stack

    loaded, gpu = load_stack(stack)
    tell_borrowed(loaded.name)
    lock = load_lock(loaded)
    chosen = choose_engine(engine)
    log = log_path(loaded.name, target)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as stream:
        try:
            with TerminalProgress(stream) as progress:
                built = build_stack(loaded, gpu, lock, chosen, progress, target=target, cache=not no_cache, slim=slim)
        except BaseException as error:
            if isinstance(error, BuildError):
                explain_log(log, gpu, loaded)
            click.echo(f"full log: {log}", err=True)
            raise
    if not built.anew:
        log.unlink()
    record = build_record(built, lock, chosen, log if built.anew else None)
    return record, write_record(record)


def build_bundle(
    bundle: Path, target: str, engine: str, no_cache: bool = False, *, slim: bool = False
) -> tuple[dict[str, Any], Path]:
    """Unpack a bundle into the cache and build from it; as ``build``."""
    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.data import reading_from
    from envbuilder.image.bundling import unpack_bundle

    with TerminalProgress() as progress:
        unpacked = unpack_bundle(bundle, progress)
    with reading_from(unpacked.project):
        return build(unpacked.stack, target, engine, no_cache, slim=slim)


def show(record: dict[str, Any], path: Path) -> None:
    """Print what was built: image, id, layers, size, time, files."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    if not record["built"]:
        console.print(f"[bold green]up to date[/]: {record['image']} was made of exactly this lock; nothing was built")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    for layer in record["layers"]:
        table.add_row(f"{layer['size'] / 1e6:.1f} MB", layer["title"])
    console.print(table)
    rows = {
        "image": record["image"],
        "id": record["id"],
        "size": f"{record['size'] / 1e9:.2f} GB in {len(record['layers'])} layers",
        "time": f"{record['seconds']:.1f} s",
        "lock": record["lock"],
        "audit": record["audit"] and record["audit"]["summary"],
        "by": record["builder"]["engine"],
        "record": str(path),
        "log": record["log"],
    }
    for key, value in rows.items():
        if value:
            console.print(f"{key:>8}  {value}")
