"""``envbuilder lock``: resolve a stack into its lock files."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from envbuilder.lock.model import Lock


class DefaultGroup(click.Group):
    """A group whose first argument may be left out: what names no command goes to the command ``default``."""

    default = "stack"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command's name before arguments that name none."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of the default command, then the other commands."""
        params = [*self.commands[self.default].params, *self.get_params(ctx)]
        records = [record for param in params if (record := param.get_help_record(ctx))]
        with formatter.section("Options"):
            formatter.write_dl(records)
        self.format_commands(ctx, formatter)


@click.group(name="lock", cls=DefaultGroup, options_metavar="", subcommand_metavar="[STACK] [OPTIONS]")
def command() -> None:
    """Resolve STACK (all stacks, without it) into exact files, by name, version, SHA-256 and size.

    The same stack gives the same lock, byte for byte, behind any mirror. Nothing is written unless all of it
    could be resolved.

    \b
    Example:
      envbuilder lock p40-debian
      envbuilder lock p40 --update transformers
      envbuilder lock p40 --check
      envbuilder lock diff before/locks/p40.requirements.txt locks/p40.requirements.txt
    """


@command.command("stack", hidden=True)
@click.argument("stack", required=False)
@click.option(
    "--security/--no-security",
    default=None,
    help="Read Debian's security archive too, which moves. By default as the lock was made before.",
)
@click.option("--offline", is_flag=True, help="Resolve from what earlier runs have kept, without the network.")
@click.option(
    "--cutoff", type=click.DateTime(["%Y-%m-%d"]), help="Consider files uploaded before this day, not the stack's."
)
@click.option("--update", multiple=True, metavar="PACKAGE", help="Move this package alone; may be given several times.")
@click.option("--solver", metavar="PROGRAM", help="Solve the conda half with micromamba, mamba, conda or a path.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def lock(
    stack: str | None,
    security: bool | None,
    offline: bool,
    cutoff: datetime | None,
    update: tuple[str, ...],
    solver: str | None,
    as_json: bool,
) -> None:
    """Lock one stack, or all."""
    import json

    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.lock.locking import Wish, lock_stack
    from envbuilder.stack.loading import load_stack, stack_names

    wish = Wish(
        security=security,
        offline=offline,
        cutoff=cutoff.date() if cutoff else None,
        update=update,
        solver=solver,
    )
    rows = []
    for name in [stack] if stack else stack_names():
        with TerminalProgress() as progress:
            done = lock_stack(load_stack(name)[0], wish, progress)
        rows.append(
            {
                "stack": done.now.stack,
                "digest": done.now.digest,
                "python": len(done.now.python),
                "conda": len(done.now.conda),
                "debian": len(done.now.debs),
                "notes": list(done.notes),
                "changed": [str(path) for path in done.changed],
            }
        )
        if not as_json:
            click.echo(f"{name}: {_counts(done.now)}")
            click.echo(f"  lock {done.now.digest}")
            for path in done.changed:
                click.echo(f"  wrote {path}")
            if not done.changed:
                click.echo("  nothing changed")
            for note in done.notes:
                click.echo(f"  note: {note}")
    if as_json:
        click.echo(json.dumps(rows, indent=2))


def _counts(lock: Lock) -> str:
    counts = [
        (len(lock.python), "Python packages"),
        (len(lock.conda), "conda packages"),
        (len(lock.debs), "Debian packages"),
        (len(lock.images), "base images"),
        (len(lock.git), "source trees"),
    ]
    return ", ".join(f"{count} {what}" for count, what in counts if count)
