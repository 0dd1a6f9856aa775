"""``envbuilder fetch``: have every file of a lock on this host."""

from __future__ import annotations

import click


@click.command(name="fetch")
@click.argument("stack")
@click.option(
    "--target",
    type=click.Choice(["runtime", "devel"]),
    default="devel",
    show_default=True,
    help="What for: the runtime image alone, or the devel image too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(stack: str, target: str, as_json: bool) -> None:
    """Download every file of STACK's lock into the cache, verified, going on where an earlier run stopped.

    Files come from where pip, uv and apt are set to on this host. With all of them there, nothing is asked.

    \b
    Example:
      envbuilder fetch p40-debian
      envbuilder fetch p40-debian --target runtime
    """
    import json
    import time

    from envbuilder.cli.borrowed import tell_borrowed
    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.data import cache_root
    from envbuilder.fetch.fetching import TARGETS, fetch
    from envbuilder.lock.reading import load_lock
    from envbuilder.stack.loading import load_stack

    started = time.monotonic()
    loaded, _ = load_stack(stack)
    tell_borrowed(loaded.name)
    with TerminalProgress() as progress:
        done = fetch(loaded, load_lock(loaded), progress, TARGETS if target == "devel" else (target,))
    seconds = time.monotonic() - started
    if as_json:
        row = {
            "stack": stack,
            "python": len(done.python),
            "debian": len(done.debs),
            "bytes": done.size,
            "downloaded": done.downloaded,
            "seconds": round(seconds, 1),
            "cache": str(cache_root()),
        }
        click.echo(json.dumps(row, indent=2))
        return
    click.echo(
        f"{stack}: {len(done.python)} Python packages, {len(done.debs)} Debian packages, {done.size / 1e9:.2f} GB, "
        f"in {cache_root()}"
    )
    click.echo(f"  {done.downloaded / 1e9:.2f} GB downloaded now" if done.downloaded else "  everything was there")
