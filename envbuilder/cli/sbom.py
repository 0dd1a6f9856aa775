"""``envbuilder sbom``: what is inside an image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from envbuilder.report.model import Report


@click.command(name="sbom")
@click.argument("target", metavar="STACK|IMAGE|ARCHIVE")
@click.option("--format", "form", type=click.Choice(["cyclonedx", "spdx"]), default="cyclonedx", show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the document to this file.")
@click.option("--check", "checking", is_flag=True, help="Hold the document against the image's package databases.")
@click.option(
    "--vulnerabilities",
    "databases",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Tell what a database in the OSV format (a zip or JSON file) knows of the packages. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report of --check or --vulnerabilities as JSON.")
def command(
    target: str, form: str, out: Path | None, checking: bool, databases: tuple[Path, ...], as_json: bool
) -> int:
    """What is inside an image, as a software bill of materials: CycloneDX 1.6 or SPDX 2.3.

    Read from the image's own databases (dpkg, Python's METADATA and RECORD, conda) and from its lock, which gives the
    digest of the very file each package was installed from. Nothing in the image is run. The same image and lock give
    the same document.

    Exit code of --check 0: every package that owns a file is named and locked; 1: one is not; 3: a part of the image
    could not be read. Of --vulnerabilities 0: none is known; 1: one is; 3: some packages could not be looked up.

    \b
    Example:
      envbuilder sbom p40-debian > p40-debian.cdx.json
      envbuilder sbom p40-debian --format spdx --out p40-debian.spdx.json
      envbuilder sbom image.tar --check
      envbuilder sbom p40-debian --vulnerabilities PyPI.zip --vulnerabilities Debian.zip
    """
    if checking and databases:
        raise click.UsageError("--check and --vulnerabilities are two questions: ask one at a time.")
    if as_json and not (checking or databases):
        raise click.UsageError("--json is for --check and --vulnerabilities; the document itself is JSON already.")
    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.errors import InputError
    from envbuilder.files import write_text
    from envbuilder.publish.sbom.cyclonedx import cyclonedx_text
    from envbuilder.publish.sbom.inventory import contents_of
    from envbuilder.publish.sbom.spdx import spdx_text

    with TerminalProgress() as progress:
        image = _image_of(target)
        try:
            contents = contents_of(image, progress)
        except InputError as error:
            if image != target:
                error.cure = f"Build it: envbuilder build {target}; or pull it, or name an archive."
            raise
        document = ""
        if out or not databases:
            progress.stage(f"write it as {form}")
            document = (spdx_text if form == "spdx" else cyclonedx_text)(contents)
        if out:
            write_text(out, document)
        if databases:
            from envbuilder.publish.vulnerabilities.reporting import known_vulnerabilities

            report = known_vulnerabilities(contents, databases, target, progress)
    if databases:
        return _present(report, as_json)
    if checking:
        from envbuilder.publish.sbom.checking import check

        return _present(check(contents, document, target), as_json)
    if not out:
        click.echo(document, nl=False)
    return 0


def _image_of(target: str) -> str:
    """The image of a stack, or ``target`` itself."""
    from envbuilder.image.names import image_tag
    from envbuilder.stack.loading import stack_names

    return image_tag(target) if target in stack_names() and not Path(target).exists() else target


def _present(report: Report, as_json: bool) -> int:
    from envbuilder.report.present import as_json as to_json
    from envbuilder.report.present import print_text

    if as_json:
        click.echo(to_json(report), nl=False)
    else:
        print_text(report)
    return report.verdict.exit_code
