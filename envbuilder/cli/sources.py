"""``envbuilder sources``: does everything a stack needs answer from here?"""

from __future__ import annotations

import click


@click.command(name="sources")
@click.argument("stack")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(stack: str, as_json: bool) -> int:
    """Ask every source that STACK needs, and through which mirror. Exit code 4 when one does not answer.

    \b
    Example:
      envbuilder sources p40-debian
    """
    import json
    from dataclasses import asdict

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from envbuilder.errors import OK, SourceError
    from envbuilder.fetch.sources import ask_sources, sources_of
    from envbuilder.stack.loading import load_stack
    from envbuilder.stack.settings import load_settings

    loaded, _ = load_stack(stack)
    answers = ask_sources(sources_of(loaded, load_settings()))
    code = OK if all(answer.answers for answer in answers) else SourceError.exit_code
    if as_json:
        click.echo(json.dumps([asdict(answer) for answer in answers], indent=2))
        return code
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("source", "answers", "ms", "through", ""):
        table.add_column(column, overflow="fold", justify="right" if column == "ms" else "left")
    for answer in answers:
        mark = "[green]yes[/]" if answer.answers else "[red]no[/]"
        table.add_row(
            escape(answer.source), mark, str(answer.milliseconds), escape(answer.through), escape(answer.said)
        )
    Console(highlight=False).print(table)
    return code
