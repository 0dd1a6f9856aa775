"""``envbuilder render``: Dockerfiles and environment files out of stacks and locks."""

from __future__ import annotations

import click


@click.command(name="render")
@click.argument("stack", required=False)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a file on disk is not what would be rendered.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(stack: str | None, check: bool, as_json: bool) -> int:
    """Write Dockerfile.STACK (and environment.STACK.yml, where there is a conda half) into the current folder.

    Without STACK, for all stacks. The same stack and lock give the same bytes.

    \b
    Example:
      envbuilder render
      envbuilder render p40 --check
    """
    import json

    from envbuilder.cli.borrowed import tell_borrowed
    from envbuilder.files import write_text
    from envbuilder.render.outputs import render_stacks, stale
    from envbuilder.stack.loading import stack_names

    names = [stack] if stack else stack_names()
    files = render_stacks(names)
    for name in names:
        tell_borrowed(name)
    changed = stale(files)
    if not check:
        for path in changed:
            write_text(path, files[path])
    if as_json:
        rows = [{"file": path.name, "current": path not in changed} for path in files]
        click.echo(json.dumps({"written": not check, "files": rows}, indent=2))
    else:
        words = ("current", "stale" if check else "written")
        for path in files:
            click.echo(f"{words[path in changed]:>8}  {path.name}")
    if check and changed:
        click.echo("Render them anew: envbuilder render", err=True)
        return 1
    return 0
