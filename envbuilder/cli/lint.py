"""``envbuilder lint``: faults in files that describe an environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from envbuilder.diagnose.lint import Linted
    from envbuilder.diagnose.model import Lang


@click.command(name="lint")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--gpu", metavar="NAME", help="The card(s): a profile (p40), a name ('GTX 1080 Ti') or a capability (6.1)."
)
@click.option("--stack", metavar="NAME", help="Take the card of this stack.")
@click.option("--fix", is_flag=True, help="Apply the safe fixes and show them as a diff.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
    help="sarif for code scanning, github for annotations of a workflow.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of the texts.")
def command(
    paths: tuple[Path, ...], gpu: str | None, stack: str | None, fix: bool, style: str, as_json: bool, lang: Lang
) -> int:
    """Find the faults in PATHS before they cost a build.

    Dockerfiles, requirements, environment.yml, pyproject.toml, lock files, compose files, launch scripts, verl
    settings, stacks, CMake files. In a folder every file of a known format is read. Without --gpu or --stack the
    card is the one a file names in a comment ("# target: Tesla P40"), else the Tesla P40. A finding is silenced where
    it stands: "# envbuilder: ignore[rule-id] the reason".

    Exit code: 0 nothing or advice only, 1 a fault found, 3 no format that lint knows.

    \b
    Example:
      envbuilder lint Dockerfile requirements.txt
      envbuilder lint --fix --gpu "GTX 1080 Ti" .
      envbuilder lint --format sarif . > lint.sarif
    """
    from envbuilder.diagnose.lint import lint
    from envbuilder.diagnose.lint.reporting import report_of
    from envbuilder.report import present

    if stack and not gpu:
        from envbuilder.stack.loading import load_stack

        gpu = load_stack(stack)[1].name
    done = lint(paths, gpu, lang)
    if fix:
        _fix(done)
        done = lint(paths, gpu, lang)
    report = report_of(done, " ".join(str(path) for path in paths), lang)
    style = "json" if as_json else style
    if style == "json":
        click.echo(present.as_json(report), nl=False)
    elif style == "sarif":
        click.echo(present.as_sarif(report), nl=False)
    elif style == "github":
        click.echo(present.as_github(report), nl=False)
    else:
        present.print_text(report, lang=lang)
    return report.verdict.exit_code


def _fix(done: Linted) -> None:
    from envbuilder.diagnose.lint.fixing import diff
    from envbuilder.files import write_text

    for result in done.results:
        if result.fixed != result.text:
            write_text(Path(result.file), result.fixed)
            click.echo(diff(result.file, result.text, result.fixed), nl=False, err=True)
