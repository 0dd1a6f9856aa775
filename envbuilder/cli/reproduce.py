"""``envbuilder reproduce``: rebuild an image from its lock and compare."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="reproduce")
@click.argument("image", metavar="REF")
@click.option(
    "--engine",
    type=click.Choice(["auto", "docker", "buildah"]),
    default="auto",
    help="Where the image is and what rebuilds it. auto: the store that has it; for a file, a Docker daemon that "
    "answers, else buildah.",
)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Take stack, lock and files from this bundle.",
)
@click.option("--compare", "other", metavar="OTHER", help="Compare REF with this image; nothing is rebuilt.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(image: str, engine: str, bundle: Path | None, other: str | None, as_json: bool) -> None:
    """Rebuild the image REF from the lock it records, with no layer that is there already, and compare the two.

    REF is an image in the engine's store, or an archive or OCI layout on disk. Nothing in it is run. When the digests
    differ, all files and settings are compared, and each difference is told with its cause. The rebuilt image is
    removed.

    Exit code 0: digest-equal or content-equal (the report says which); 1: different; 3: the lock is not here.

    \b
    Example:
      envbuilder reproduce localhost/envbuilder/p40-debian:runtime
      envbuilder reproduce p40-debian.tar --bundle p40-debian.bundle
      envbuilder reproduce first.tar --compare second.tar
    """
    import sys

    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.publish.reproduce import compare, reproduce
    from envbuilder.report.present import as_json as report_as_json
    from envbuilder.report.present import print_text

    if other is not None and bundle is not None:
        raise click.UsageError("--bundle is for a rebuild; --compare rebuilds nothing.")
    with TerminalProgress() as progress:
        report = compare(image, other, engine, progress) if other else reproduce(image, engine, bundle, progress)
    if as_json:
        click.echo(report_as_json(report), nl=False)
    else:
        print_text(report)
    sys.exit(report.verdict.exit_code)
