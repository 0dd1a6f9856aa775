"""Conditions over facts: ``capability < 7.0``, ``torch_tag == cu128``, ``nvcc != torch_cuda``, ``verl known``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence

from packaging.version import InvalidVersion, Version

_ORDER: dict[str, Callable[[Version, Version], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FORM = re.compile(r"^([a-z][a-z0-9_]*) (known|unknown|(?:<=?|>=?|==|!=) (\S+))$")
Facts = Mapping[str, Sequence[str]]


def parse(condition: str) -> tuple[str, str, str]:
    """(fact, operator, value) of a condition. Raises ValueError for another form."""
    match = _FORM.match(condition)
    if match is None:
        raise ValueError(f"not a condition: {condition!r}")
    return match.group(1), match.group(2).split(" ")[0], match.group(3) or ""


def holds(condition: str, facts: Facts) -> bool:
    """Whether the condition holds. One over a fact that is not known does not, except ``unknown``.

    Where a fact has several values, ``!=`` asks that none is equal and the others that any of them fits. A value that
    is itself the name of a known fact stands for that fact.
    """
    name, op, wanted = parse(condition)
    values = facts.get(name) or ()
    if op in ("known", "unknown"):
        return bool(values) == (op == "known")
    if wanted.isidentifier() and facts.get(wanted):
        wanted = facts[wanted][0]
    elif wanted.isidentifier() and op in _ORDER:
        return False
    if op == "==":
        return any(_equal(value, wanted) for value in values)
    if op == "!=":
        return bool(values) and not any(_equal(value, wanted) for value in values)
    return any(_ordered(op, value, wanted) for value in values)


def _equal(left: str, right: str) -> bool:
    return left.lower() == right.lower()


def _ordered(op: str, left: str, right: str) -> bool:
    try:
        return _ORDER[op](Version(left), Version(right))
    except InvalidVersion:
        return False
