"""Two reports side by side: hosts, outcomes, step times by phase, memory by module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envbuilder.errors import InputError, Place
from envbuilder.report.model import Verdict, check_from_dict


@dataclass(frozen=True)
class Row:
    """One value in both reports. ``ratio`` is second over first, where both are numbers above 0."""

    name: str
    first: Any
    second: Any
    ratio: float | None = None

    @property
    def same(self) -> bool:
        """Whether both reports say the same."""
        return bool(self.first == self.second)


@dataclass(frozen=True)
class Comparison:
    """The rows by subject."""

    passport: tuple[Row, ...]
    checks: tuple[Row, ...]
    seconds: tuple[Row, ...]
    memory: tuple[Row, ...]

    @property
    def same_outcome(self) -> bool:
        """Whether every check came out alike."""
        return all(row.same for row in self.checks)


def read_report(path: Path) -> dict[str, Any]:
    """The JSON of a verify report: the file that --json gave, or the suite's output, whose last line is the report."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot read the report: {error.strerror}", place=Place(str(path)), cure="Give a file that you may read."
        ) from None
    except UnicodeDecodeError:
        text = ""
    lines = [line for line in text.splitlines() if line.strip()]
    for candidate in (text, lines[-1] if lines else ""):
        try:
            data = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if _is_report(data):
            return dict(data)
    raise InputError(
        "this is no report of verify", place=Place(str(path)), cure="Make one: envbuilder verify --gpu 0 --json > FILE."
    )


def _is_report(data: Any) -> bool:
    """Whether ``data`` holds all that is read of a report; it may come from a host that nobody here knows."""
    try:
        for check in data["checks"]:
            check_from_dict(check)
        Verdict(data["verdict"])
        facts = data["facts"]
        measured = facts.get("measured", {})
        parts = [measured.get(part, {}) for part in ("ppo", "soak", "trainer")]
        tables = [facts.get("passport", {}), measured.get("cold start", {})]
        tables += [part.get(name, {}) for part in parts for name in ("phases s", "memory by module MiB")]
        return (
            data["command"] == "verify"
            and isinstance(data["summary"], str)
            and all(isinstance(table, dict) for table in tables)
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return False


def compare_reports(first: Mapping[str, Any], second: Mapping[str, Any]) -> Comparison:
    """Lay two reports side by side."""
    a, b = first["facts"], second["facts"]
    return Comparison(
        passport=_rows(a.get("passport", {}), b.get("passport", {})),
        checks=_rows(_outcomes(first), _outcomes(second)),
        seconds=_rows(_seconds(a), _seconds(b)),
        memory=_rows(_memory(a), _memory(b)),
    )


# Of a passport, what a host ought to share with the others; a card's UUID and address are its own, and the digest of an
# image is another where it was loaded from an archive: its id is the same.
_SHARED = ("card", "driver", "image", "image id", "stack", "lock", "torch", "python", "kernel", "machine")


def differences(passports: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """What is not the same everywhere: by fact, its values with the names that have them."""
    found: dict[str, dict[str, list[str]]] = {}
    for fact in _SHARED:
        values: dict[str, list[str]] = {}
        for name, passport in passports.items():
            values.setdefault(str(passport.get(fact, "")), []).append(name)
        if len(values) > 1:
            found[fact] = values
    return found


def print_comparison(comparison: Comparison, first: str, second: str, as_json: bool) -> None:
    """Print the tables, or JSON."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    if as_json:
        print(json.dumps({**asdict(comparison), "same_outcome": comparison.same_outcome}, indent=2))
        return
    console = Console(highlight=False)
    parts = (
        ("host", comparison.passport, False),
        ("check", comparison.checks, False),
        ("seconds", comparison.seconds, True),
        ("MiB", comparison.memory, True),
    )
    for title, rows, numbers in parts:
        if not rows:
            continue
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in (title, first, second, *(("ratio",) if numbers else ())):
            table.add_column(escape(column), overflow="fold")
        for row in rows:
            style = "" if row.same or numbers else "yellow"
            ratio = [f"{row.ratio:.2f}" if row.ratio else ""] if numbers else []
            table.add_row(escape(row.name), escape(_text(row.first)), escape(_text(row.second)), *ratio, style=style)
        console.print(table)
        console.print()
    differ = [row.name for row in comparison.checks if not row.same]
    console.print("every check came out alike" if not differ else f"[yellow]differ:[/] {escape(', '.join(differ))}")


def _rows(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[Row, ...]:
    names = [*first, *(name for name in second if name not in first)]
    return tuple(Row(name, a := first.get(name), b := second.get(name), _ratio(a, b)) for name in names)


def _ratio(first: Any, second: Any) -> float | None:
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) and v > 0 for v in (first, second))
    return second / first if numbers else None


def _outcomes(report: Mapping[str, Any]) -> dict[str, str]:
    return {check["id"]: check["status"] for check in report["checks"]}


def _seconds(facts: Mapping[str, Any]) -> dict[str, float]:
    measured = facts.get("measured", {})
    out = {f"cold start, {name}": seconds for name, seconds in measured.get("cold start", {}).items()}
    for part in ("ppo", "soak", "trainer"):
        out |= {f"{part}, {phase}": seconds for phase, seconds in measured.get(part, {}).get("phases s", {}).items()}
    return out


def _memory(facts: Mapping[str, Any]) -> dict[str, float]:
    measured = facts.get("measured", {})
    return {
        f"{part}, {name}": size
        for part in ("ppo", "soak", "trainer")
        for name, size in measured.get(part, {}).get("memory by module MiB", {}).items()
    }


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
