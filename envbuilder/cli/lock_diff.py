"""``envbuilder lock diff``: what changed between two locks, as text, JSON or Markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from envbuilder.lock.compare import Change, Comparison

_SIGNS = {"added": "+", "removed": "-", "version": "~", "bytes": "!"}
_TITLES = {"added": "Added", "removed": "Removed", "version": "Changed version", "bytes": "Other bytes, same version"}


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for a pull request.")
def diff(before: Path, after: Path, as_json: bool, markdown: bool) -> None:
    """Compare two lock files, or two folders each holding the locks of one stack.

    \b
    Example:
      envbuilder lock diff old/p40.requirements.txt locks/p40.requirements.txt
      envbuilder lock diff --markdown old/p40.conda-lock.yml locks/p40.conda-lock.yml
    """
    from envbuilder.lock.compare import compare, read_entries

    found = compare(read_entries(before), read_entries(after))
    if as_json:
        click.echo(json.dumps(as_json_rows(found), indent=2))
    elif markdown:
        click.echo(_markdown(found))
    else:
        click.echo(as_text(found))


def as_text(found: Comparison) -> str:
    """A line a change, and a summary."""
    lines = [f"{_SIGNS[c.what]} {c.kind:<7} {c.name}  {_versions(c)}{_size(c)}" for c in found.changes]
    return "\n".join([*lines, _summary(found)])


def _markdown(found: Comparison) -> str:
    lines = [f"**{_summary(found)}**"]
    for what, title in _TITLES.items():
        if changes := found.of(what):
            lines += [
                "",
                f"#### {title} ({len(changes)})",
                "",
                "| kind | package | version | size |",
                "|---|---|---|---|",
            ]
            lines += [f"| {c.kind} | `{c.name}` | {_versions(c)} | {_size(c).strip(' ()')} |" for c in changes]
    return "\n".join(lines)


def _versions(change: Change) -> str:
    if change.before is None or change.after is None:
        entry = change.before or change.after
        assert entry is not None
        return entry.version
    if change.what == "bytes":
        return f"{change.after.version}, {change.before.bytes[:12]} -> {change.after.bytes[:12]}"
    return f"{change.before.version} -> {change.after.version}"


def _size(change: Change) -> str:
    sizes = [entry.size for entry in (change.before, change.after) if entry is not None]
    if any(size is None for size in sizes):
        return ""
    difference = ((change.after.size or 0) if change.after else 0) - ((change.before.size or 0) if change.before else 0)
    return f"  ({_megabytes(difference)})" if difference else ""


def _summary(found: Comparison) -> str:
    if not found.changes:
        return "the same packages, the same bytes"
    counts = ", ".join(f"{len(found.of(what))} {what}" for what in _TITLES if found.of(what))
    return f"{counts}; size {_megabytes(found.size_after - found.size_before)}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:+.1f} MB"


def as_json_rows(found: Comparison) -> dict[str, object]:
    """The comparison as JSON types."""

    def entry(change: Change) -> dict[str, object]:
        row: dict[str, object] = {"what": change.what, "kind": change.kind, "name": change.name}
        for side in ("before", "after"):
            value = getattr(change, side)
            row[side] = value and {"version": value.version, "bytes": value.bytes, "size": value.size}
        return row

    return {
        "changes": [entry(change) for change in found.changes],
        "size_before": found.size_before,
        "size_after": found.size_after,
        "unknown_sizes": found.unknown_sizes,
    }
