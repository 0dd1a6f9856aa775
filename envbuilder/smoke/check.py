"""What a check is. Standard library only: the list of checks is read without importing torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from envbuilder.report.model import Status

if TYPE_CHECKING:
    from envbuilder.smoke.context import Context


class Need(str, Enum):
    """What a check cannot run without."""

    GPU = "a GPU"
    TRAINER = "--trainer"
    SOAK = "--soak"


@dataclass(frozen=True)
class Outcome:
    """How a check came out. ``evidence`` maps a short label, unit included, to a value of a JSON type."""

    status: Status
    message: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    cure: str = ""


def passed(message: str = "", **evidence: Any) -> Outcome:
    """The check holds. Underscores of the evidence's names become spaces."""
    return Outcome(Status.PASSED, message, _labels(evidence))


def failed(message: str, cure: str = "", **evidence: Any) -> Outcome:
    """The check does not hold: what is wrong, and what to do."""
    return Outcome(Status.FAILED, message, _labels(evidence), cure)


def not_proven(message: str, cure: str = "", **evidence: Any) -> Outcome:
    """The check cannot be made here."""
    return Outcome(Status.NOT_PROVEN, message, _labels(evidence), cure)


def unknown(message: str, cure: str = "", **evidence: Any) -> Outcome:
    """The check was made and what it saw does not decide."""
    return Outcome(Status.UNKNOWN, message, _labels(evidence), cure)


def _labels(evidence: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("_", " "): value for key, value in evidence.items()}


@dataclass(frozen=True)
class Spec:
    """One check: its stable id, what it proves when it passes, what it needs, its time limit in seconds."""

    id: str
    title: str
    proves: str
    run: Callable[[Context], Outcome]
    limit_s: float = 60.0
    needs: frozenset[Need] = frozenset()
