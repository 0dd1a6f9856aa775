"""Facts that go into a stack's sources file and that no build step fetches."""

from __future__ import annotations

from pathlib import Path

from envbuilder.lock.model import Reference
from envbuilder.stack.fields import Strict, load_model

_DATA = Path(__file__).with_name("references.toml")


class _Row(Reference):
    stacks: tuple[str, ...]


class _Data(Strict):
    reference: tuple[_Row, ...]


def references_of(stack: str) -> tuple[Reference, ...]:
    """The references that are recorded for the stack named."""
    rows = load_model(_Data, _DATA).reference
    return tuple(Reference.model_validate(row.model_dump(exclude={"stacks"})) for row in rows if stack in row.stacks)
