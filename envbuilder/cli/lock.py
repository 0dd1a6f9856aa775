"""``envbuilder lock``: resolve a stack into its lock files."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from envbuilder.cli.lock_diff import as_json_rows, as_text, diff

if TYPE_CHECKING:
    from envbuilder.lock.locking import Locked, Wish


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
    could be resolved. STACK may also be somebody's environment.yml: it is locked through conda-lock, unless its lock
    would depend on the host or on chance (exit code 1).

    \b
    Example:
      envbuilder lock p40
      envbuilder lock p40 --update transformers
      envbuilder lock p40 --check
      envbuilder lock diff before/locks/p40.requirements.txt locks/p40.requirements.txt
    """


command.add_command(diff)


@command.command("stack", hidden=True)
@click.argument("stack", required=False)
@click.option(
    "--check", is_flag=True, help="Say whether the lock still fits the stack; asks no network, writes nothing."
)
@click.option("--update", multiple=True, metavar="PACKAGE", help="Move this package alone; may be given several times.")
@click.option(
    "--cutoff", type=click.DateTime(["%Y-%m-%d"]), help="Consider files uploaded before this day, not the stack's."
)
@click.option("--offline", is_flag=True, help="Resolve from what earlier runs have kept, without the network.")
@click.option("--unified", is_flag=True, help="Also write both halves as one file for a stock conda-lock install.")
@click.option("--solver", metavar="PROGRAM", help="Solve the conda half with micromamba, mamba, conda or a path.")
@click.option(
    "--security/--no-security",
    default=None,
    help="Read Debian's security archive too, which moves. By default as the lock was made before.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def lock(
    stack: str | None,
    check: bool,
    update: tuple[str, ...],
    cutoff: datetime | None,
    offline: bool,
    unified: bool,
    solver: str | None,
    security: bool | None,
    as_json: bool,
) -> int:
    """Lock one stack, or all."""
    from envbuilder.stack.loading import stack_names

    if stack and stack.endswith((".yml", ".yaml")):
        return _lock_file(stack, offline, solver, as_json)
    names = [stack] if stack else stack_names()
    if check:
        return _check(names, as_json)
    from envbuilder.lock.locking import Wish

    wish = Wish(
        security=security,
        offline=offline,
        cutoff=cutoff.date() if cutoff else None,
        update=update,
        solver=solver,
    )
    return _lock_all(names, wish, unified, as_json)


def _lock_all(names: list[str], wish: Wish, unified: bool, as_json: bool) -> int:
    import json
    import textwrap

    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.lock.compare import compare, entries_of
    from envbuilder.lock.locking import lock_stack
    from envbuilder.lock.unified import write_unified
    from envbuilder.stack.loading import load_stack

    rows = []
    for name in names:
        loaded, _ = load_stack(name)
        with TerminalProgress() as progress:
            done = lock_stack(loaded, wish, progress)
            extra = [write_unified(loaded, done.now, offline=wish.offline)] if unified else []
        changed = [str(path) for path in (*done.changed, *extra)]
        moved = compare(entries_of(done.before), entries_of(done.now)) if done.before else None
        counts = _counts(done)
        row = {"stack": name, "digest": done.now.digest, **counts, "notes": list(done.notes), "changed": changed}
        rows.append({**row, "moved": as_json_rows(moved)["changes"] if moved else None})
        if as_json:
            continue
        click.echo(f"{name}: " + ", ".join(f"{count} {what}" for what, count in counts.items() if count))
        click.echo(f"  lock {done.now.digest}")
        for path in changed:
            click.echo(f"  wrote {path}")
        if not changed:
            click.echo("  nothing changed")
        if moved and moved.changes:
            click.echo(textwrap.indent(as_text(moved), "  "))
        for note in done.notes:
            click.echo(f"  note: {note}")
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    return 0


def _counts(done: Locked) -> dict[str, int]:
    now = done.now
    parts = {"python": now.python, "conda": now.conda, "debian": now.debs, "images": now.images, "sources": now.git}
    return {what: len(artifacts) for what, artifacts in parts.items()}


def _check(names: list[str], as_json: bool) -> int:
    from envbuilder.cli.borrowed import tell_borrowed
    from envbuilder.lock.check import check_lock
    from envbuilder.report.present import as_json as json_of
    from envbuilder.report.present import print_text
    from envbuilder.stack.loading import load_stack

    code = 0
    for name in names:
        loaded, _ = load_stack(name)
        tell_borrowed(loaded.name)
        report = check_lock(loaded)
        code = max(code, report.verdict.exit_code)
        if as_json:
            click.echo(json_of(report), nl=False)
        else:
            print_text(report)
    return code


def _lock_file(path: str, offline: bool, solver: str | None, as_json: bool) -> int:
    from pathlib import Path

    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.data import cache_root
    from envbuilder.lock.conda import CondaOptions
    from envbuilder.lock.conda_solvers import find_solver
    from envbuilder.lock.environment_file import read_environment
    from envbuilder.lock.foreign import lock_environment
    from envbuilder.lock.mirrors import mirrors_of
    from envbuilder.report.present import as_json as json_of
    from envbuilder.report.present import print_text
    from envbuilder.stack.settings import load_settings

    environment = read_environment(Path(path))
    options = CondaOptions(
        solver=find_solver(solver),
        mirrors=mirrors_of(load_settings()).of_channels(environment.channels or ("conda-forge",)),
        cache=cache_root() / "repodata",
        offline=offline,
    )
    with TerminalProgress() as progress:
        report, _ = lock_environment(environment, options, progress)
    if as_json:
        click.echo(json_of(report), nl=False)
    else:
        print_text(report)
    return report.verdict.exit_code
