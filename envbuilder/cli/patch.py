"""``envbuilder patch``: change verl's source for an old card, and show or prove the change."""

from __future__ import annotations

from pathlib import Path

import click


@click.group(name="patch")
def command() -> None:
    """Change verl's source for an old card.

    \b
    Example:
      envbuilder patch verl verl-0.5.0/ --gpu p40 --diff
    """


@command.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--gpu", required=True, help="The card, by the name of its profile: p40.")
@click.option("--hook", is_flag=True, help="Leave to verl's external_lib hook what it carries, as the image does.")
@click.option("--diff", is_flag=True, help="Print the changes as a unified diff and write nothing.")
@click.option("--check", "only_check", is_flag=True, help="Say whether every site is covered, and write nothing.")
@click.option("--output", type=click.Path(path_type=Path), help="The patched wheel; needed when SOURCE is a wheel.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verl(source: Path, gpu: str, hook: bool, diff: bool, only_check: bool, output: Path | None, as_json: bool) -> int:
    """Rewrite what the card cannot run in the verl of SOURCE, and list every site.

    SOURCE is a folder that holds verl/ (a checkout, a site-packages), changed in place, or verl's wheel. A second run
    changes nothing. A site that is not understood stops the work before anything is written.

    \b
    Example:
      envbuilder patch verl checkout/ --gpu p40
      envbuilder patch verl checkout/ --gpu p40 --check
      envbuilder patch verl verl-0.5.0-py2.py3-none-any.whl --gpu p40 --hook --output patched/verl.whl
    """
    from envbuilder.patch import verl as patching
    from envbuilder.patch.target import Target
    from envbuilder.report.present import as_json as to_json
    from envbuilder.report.present import print_text
    from envbuilder.stack.gpu import load_gpu

    if diff and (only_check or as_json):
        raise click.UsageError("--diff prints a diff only: leave out --check and --json")
    writes = not (diff or only_check)
    if writes and source.is_file() and output is None:
        raise click.UsageError("a wheel is not changed in place: say with --output where the patched one goes")
    if output is not None and (source.is_dir() or not writes):
        raise click.UsageError("--output goes with a wheel that is to be patched")
    target = Target.of_card(load_gpu(gpu))
    if only_check:
        result = patching.check(source, target, hook=hook)
    else:
        plan = patching.plan_for(source, target, hook=hook)
        if diff:
            click.echo(plan.diff(), nl=False)
            return 0
        patching.apply(source, plan, output)
        result = patching.report(source, plan, written=output or source)
    if as_json:
        click.echo(to_json(result), nl=False)
    else:
        print_text(result)
    return result.verdict.exit_code
