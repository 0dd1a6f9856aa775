"""How two images differ: settings, layers, history and files, each difference with its cause out of causes.toml."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from envbuilder import toml
from envbuilder.publish.filetable import Entry, FileTable

# The engine's own names for what a container starts with, beside which nothing of the configuration is run.
_SETTINGS = "config"
_ASPECTS = {
    "kind": "kind",
    "mode": "mode",
    "owner": "owner",
    "size": "size",
    "sha256": "content",
    "target": "link",
    "xattrs": "attributes",
    "mtime": "time",
}


@dataclass(frozen=True)
class Cause:
    """Why something differs. ``harmless``: the images hold the same all the same."""

    id: str
    title: str
    why: str
    cure: str
    paths: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    aspects: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    lines: bool = False
    harmless: bool = False
    source: str = ""


@dataclass(frozen=True)
class Difference:
    """One difference: a path with a leading slash or a field, what differs, and both values ("" where absent)."""

    place: str
    aspect: str
    first: str
    second: str
    cause: Cause


@cache
def causes() -> tuple[Cause, ...]:
    """The known causes, in the order they are tried."""
    return tuple(_cause(row) for row in toml.load(Path(__file__).with_name("causes.toml"))["cause"])


def _cause(row: Mapping[str, Any]) -> Cause:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Cause(**values)


def file_differences(table: FileTable, first: str, second: str) -> Iterator[Difference]:
    """Every difference between the files of two images of ``table``."""
    for path, one, other in table.differing(first, second):
        place = f"/{path}"
        if one is None or other is None:
            yield Difference(place, "presence", _summary(one), _summary(other), _file_cause(path, "presence", False))
            continue
        same_lines = bool(one.lines) and one.lines == other.lines
        differ = {
            aspect: column for column, aspect in _ASPECTS.items() if getattr(one, column) != getattr(other, column)
        }
        if "content" in differ:
            differ.pop("size", None)
        for aspect, column in differ.items():
            values = str(getattr(one, column)), str(getattr(other, column))
            names = _attribute_names(*values) if aspect == "attributes" else set()
            yield Difference(place, aspect, values[0], values[1], _file_cause(path, aspect, same_lines, names))


def setting_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    """Every difference between two configurations: what runs, labels, platform; then layers, history and time."""
    flat = [_flat(configuration) for configuration in (first, second)]
    for field in sorted({*flat[0], *flat[1]}):
        one, other = (side.get(field, "") for side in flat)
        if one != other:
            yield Difference(field, "setting", one, other, _field_cause(field))


def _flat(configuration: Mapping[str, Any]) -> dict[str, str]:
    """A configuration as text by field."""
    fields = {key: _plain(configuration[key]) for key in ("architecture", "os", "created") if configuration.get(key)}
    for key, value in (configuration.get(_SETTINGS) or {}).items():
        if key == "Labels":
            fields |= {f"labels.{name}": str(text) for name, text in (value or {}).items()}
        elif key == "Env":
            fields |= {f"env.{name}": text for name, _, text in (entry.partition("=") for entry in value or ())}
        elif value:
            fields[key.lower()] = _plain(value)
    layers: Sequence[str] = configuration["rootfs"]["diff_ids"]
    fields["layers"] = "\n".join(layers)
    for number, step in enumerate(configuration.get("history") or ()):
        fields[f"history.{number + 1}"] = _plain(step)
    return fields


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _summary(entry: Entry | None) -> str:
    if entry is None:
        return ""
    what = entry.target or entry.sha256
    return f"{entry.kind} {entry.mode} {entry.owner}{' ' + what if what else ''}"


def _attribute_names(first: str, second: str) -> set[str]:
    """The names of the extended attributes that only one of two files has, or that differ."""
    return {entry.partition("=")[0] for entry in {*first.split()} ^ {*second.split()}}


def _file_cause(path: str, aspect: str, same_lines: bool, attributes: Set[str] = frozenset()) -> Cause:
    for cause in causes():
        if cause.aspects and aspect not in cause.aspects:
            continue
        if cause.lines and not (same_lines and aspect == "content"):
            continue
        if cause.attributes and not all(any(fnmatchcase(a, p) for p in cause.attributes) for a in attributes):
            continue
        if any(fnmatchcase(path, pattern) for pattern in cause.paths):
            return cause
    raise AssertionError("the last cause takes every path")


def _field_cause(field: str) -> Cause:
    return next(cause for cause in causes() if any(fnmatchcase(field, pattern) for pattern in cause.fields))
