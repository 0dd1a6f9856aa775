"""What audit, lint, explain and verify say. Standard library only: this module also runs inside images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from envbuilder.errors import FAILED, NOT_ENOUGH, OK, Place

SCHEMA = 1


class Verdict(str, Enum):
    """The answer to a question asked of a file, an image or a host."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "not enough to tell"

    @property
    def exit_code(self) -> int:
        """0 for yes, 1 for no, 3 for not enough to tell."""
        return {Verdict.YES: OK, Verdict.NO: FAILED, Verdict.UNKNOWN: NOT_ENOUGH}[self]


class Severity(str, Enum):
    """How much a finding matters: an error stops the work, advice never does."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"


class Confidence(str, Enum):
    """How well a finding is supported."""

    MEASURED = "measured"
    SOURCED = "sourced"
    INFERRED = "inferred"
    UNRESOLVED = "unresolved"


class Status(str, Enum):
    """The outcome of one check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_PROVEN = "not proven here"
    UNKNOWN = "not enough to tell"


@dataclass(frozen=True)
class Finding:
    """A fault (or a piece of advice) with its place, evidence, cause and cure.

    ``rule`` is a stable id such as ``torch-arch-missing``. ``evidence`` are the lines or facts it rests on,
    ``not_help`` what people try in vain, ``sources`` where the knowledge comes from.
    """

    rule: str
    severity: Severity
    title: str
    place: Place = field(default_factory=Place)
    cause: str = ""
    cure: str = ""
    not_help: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    confidence: Confidence = Confidence.SOURCED


@dataclass(frozen=True)
class Check:
    """One check of the smoke suite: what it proves, how it came out, with which evidence.

    ``evidence`` maps a short label to a value of a JSON type; units stand in the label.
    """

    id: str
    title: str
    proves: str
    status: Status
    seconds: float = 0.0
    evidence: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""
    cure: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of text under headings, for people; the same facts stand in ``Report.facts`` for programs."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Report:
    """What a command found, for the presenters in this package.

    ``command`` is the command's name, ``subject`` what was looked at, ``facts`` further JSON-typed data for
    ``--json`` (tables of an audit, the passport of a host), ``summary`` one sentence.
    """

    command: str
    subject: str
    verdict: Verdict
    summary: str
    findings: tuple[Finding, ...] = ()
    checks: tuple[Check, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-typed data (schema 1). Tables are left out: what they show stands in ``facts``."""
        data = asdict(self)
        del data["tables"]
        return {"schema": SCHEMA, **_plain(data)}


def check_from_dict(data: Mapping[str, Any]) -> Check:
    """A Check out of what ``to_dict`` made of it."""
    return Check(**{**data, "status": Status(data["status"])})


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
