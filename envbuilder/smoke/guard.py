"""The guard: a context under which a run fails, or is recorded, as soon as it uses what the card lacks.

A run on a CPU or on a newer GPU proves nothing about an old card by itself: reduced precision, Triton and flash
attention all work there. Under the guard the run says something about the card, and ``Guard.facts`` says how much.

    with Guard(profile) as guard:
        train()
    assert not guard.findings

``profile`` is a GPU profile (``gpus/NAME.toml``) as JSON-typed data. Watched: every operation that torch dispatches
in this thread and in the autograd threads it starts (``GuardMode``), Triton launches and compiled code
(``guard_hooks``), CUDA memory (``guard_memory``). Where verl's models lie is told and is no fault (``placement``). What
is out of sight stands in ``guard_scope.json``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from envbuilder.errors import EnvbuilderError
from envbuilder.report.model import Confidence, Finding, Severity
from envbuilder.smoke.guard_hooks import Hooks
from envbuilder.smoke.guard_memory import MemoryWatch
from envbuilder.smoke.guard_mode import GuardMode
from envbuilder.smoke.guard_place import Spot, find_spot
from envbuilder.smoke.guard_rules import Limits
from envbuilder.smoke.placement import PlacementWatch

_SCOPE = Path(__file__).with_name("guard_scope.json")
# Findings are merged by rule, operation and line; a run that is wrong everywhere needs no more lines than this.
_KEPT = 200


class GuardFaultError(EnvbuilderError):
    """The run used something that the card lacks, and the guard was told to stop it."""


class _Seen:
    """One fault, and how often it was met."""

    def __init__(self, rule: str, title: str, cause: str, spot: Spot, evidence: tuple[str, ...]) -> None:
        self.rule, self.title, self.cause, self.spot, self.evidence = rule, title, cause, spot, evidence
        self.count = 1

    def finding(self, cures: Mapping[str, str]) -> Finding:
        lines = list(self.evidence)
        if self.spot.module:
            lines.append(f"module: {self.spot.module}")
        if self.spot.backward:
            lines.append(f"in the backward pass: {self.spot.backward}")
        lines.append(f"met {self.count} time{'s' if self.count > 1 else ''}")
        return Finding(
            rule=self.rule,
            severity=Severity.ERROR,
            title=self.title,
            place=self.spot.place,
            cause=self.cause,
            cure=cures[self.rule],
            evidence=tuple(lines),
            confidence=Confidence.MEASURED,
        )


class Guard:
    """Watches a block of code for what the card of ``profile`` lacks.

    ``profile``: JSON-typed data of ``gpus/NAME.toml``. ``stop``: raise GuardFaultError at the first fault instead of
    recording it. ``cap_memory``: hold torch's CUDA allocator to the card's usable memory while the block runs
    (no effect without CUDA). Guards do not nest: the inner one would hide operations from the outer one.

    Raises InputError when the profile lacks a fact the guard needs.
    """

    def __init__(self, profile: Mapping[str, Any], *, stop: bool = False, cap_memory: bool = True) -> None:
        self.limits = Limits.of(profile)
        self._stop = stop
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str, str], _Seen] = {}
        self._dropped = 0
        self._scope: dict[str, Any] = json.loads(_SCOPE.read_text(encoding="utf-8"))
        self._mode = GuardMode(self.limits, self.record, threading.get_ident())
        self._hooks = Hooks(self.limits, self.record)
        self._memory = MemoryWatch(self.limits, self.record, cap=cap_memory)
        self._placement = PlacementWatch()

    def __enter__(self) -> Guard:
        self._memory.start()
        self._placement.start()
        self._hooks.start()
        self._mode.owner = threading.get_ident()
        self._mode.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mode.__exit__(kind, error, trace)
        self._hooks.stop()
        self._placement.stop()
        if error is not None:
            self._stop = False  # one error is on its way to the caller already
        self._memory.stop(error)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The faults met so far, one for each operation and line, in the order they were first met."""
        with self._lock:
            return tuple(seen.finding(self._scope["cures"]) for seen in self._seen.values())

    @property
    def facts(self) -> dict[str, Any]:
        """What was watched, as JSON-typed data: counts, the memory cap and peak in bytes, and the guard's scope."""
        return {
            "card": self.limits.title,
            "torch": torch.__version__,
            "operations watched": self._mode.operations,
            "checkpoint casts excepted": self._mode.excepted,
            "faults": sum(seen.count for seen in self._seen.values()) + self._dropped,
            "faults not listed": self._dropped,
            **self._memory.facts,
            **self._hooks.facts,
            "placement": self._placement.facts,
            "scope": {key: self._scope[key] for key in ("proves", "watched", "excepted", "not seen")},
        }

    def record(
        self, rule: str, subject: str, title: str, cause: str, evidence: tuple[str, ...] = (), spot: Spot | None = None
    ) -> None:
        """Note one fault of ``subject`` (an operation, a kernel) under ``rule``, or raise when told to stop."""
        found = spot or find_spot(self._mode.owner)
        key = (rule, subject, str(found.place))
        with self._lock:
            if key in self._seen:
                self._seen[key].count += 1
            elif len(self._seen) >= _KEPT:
                self._dropped += 1
            else:
                self._seen[key] = _Seen(rule, title, cause, found, evidence)
        if self._stop:
            finding = _Seen(rule, title, cause, found, evidence).finding(self._scope["cures"])
            raise GuardFaultError(title, place=found.place, cure=finding.cure, detail="\n".join(finding.evidence))
