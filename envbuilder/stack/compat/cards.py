"""Which card has which compute capability (``cards.toml``), for cards that have no profile of their own too."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from envbuilder.errors import InputError
from envbuilder.stack.fields import Strict, load_model
from envbuilder.stack.gpu import gpu_names, load_gpu


class CardRow(Strict):
    """Cards of one capability and how they are named: by people (``match``), in logs (``logged``), all in a few words
    (``family``, empty where audit does not judge them)."""

    capability: str
    architecture: str
    family: str = ""
    match: tuple[str, ...] = ()
    logged: tuple[str, ...] = ()
    fp16_rate: str = ""
    source: str = Field(min_length=8)


class CardTable(Strict):
    """The table."""

    schema_: Literal[1] = Field(alias="schema")
    card: tuple[CardRow, ...]


@dataclass(frozen=True)
class Card:
    """A card as the tables know it. ``fp16_rate``: FP16 results per FP32 result, empty where nothing is known."""

    title: str
    capability: str
    architecture: str
    fp16_rate: str = ""

    @property
    def major_minor(self) -> tuple[int, int]:
        """The capability as numbers: (6, 1)."""
        major, _, minor = self.capability.partition(".")
        return int(major), int(minor)

    @property
    def sm(self) -> str:
        """The capability as the compilers write it: ``sm_61``."""
        return "sm_" + self.capability.replace(".", "")


@lru_cache(maxsize=1)
def card_rows() -> tuple[CardRow, ...]:
    """All rows, in the order of the file."""
    return load_model(CardTable, Path(__file__).with_name("cards.toml")).card


@lru_cache(maxsize=1)
def _pattern() -> tuple[re.Pattern[str], dict[str, tuple[str, CardRow]]]:
    rows = {_key(name): (name, row) for row in card_rows() for name in row.match}
    # Short names (P40, T4, A10) must not be found inside other words.
    words = sorted((_loose(name) for row in card_rows() for name in row.match), key=len, reverse=True)
    pattern = rf"(?<![A-Za-z0-9-])({'|'.join(words)})((?:[ -]?(?:Ti|SUPER))?)(?![A-Za-z0-9])"
    return re.compile(pattern, re.IGNORECASE), rows


def _loose(name: str) -> str:
    return r"[ -]?".join(re.escape(part) for part in name.split())


def _key(name: str) -> str:
    return re.sub(r"[ -]", "", name).lower()


def cards_in(text: str) -> tuple[Card, ...]:
    """The cards that ``text`` names, each once, in order."""
    pattern, rows = _pattern()
    found: dict[str, Card] = {}
    for match in pattern.finditer(text):
        name, row = rows[_key(match.group(1))]
        card = Card(_title(name) + match.group(2), row.capability, row.architecture, row.fp16_rate)
        found.setdefault(card.title, card)
    return tuple(found.values())


def find_card(name: str) -> Card:
    """The card of a profile (``p40``), a name (``GTX 1080 Ti``) or a capability (``6.1``, ``sm_61``).

    Raises InputError, listing what there is, when nothing fits.
    """
    if name in gpu_names():
        gpu = load_gpu(name)
        row = _row_of(gpu.capability.value)
        return Card(gpu.title, gpu.capability.value, gpu.architecture, row.fp16_rate if row else "")
    found = cards_in(name)
    if found:
        return found[0]
    match = re.fullmatch(r"(?:sm_?)?(\d{1,2})[._]?(\d)a?", name.strip())
    if match:
        capability = f"{match.group(1)}.{match.group(2)}"
        row = _row_of(capability)
        return Card(
            f"a card of capability {capability}",
            capability,
            row.architecture if row else "not known",
            row.fp16_rate if row else "",
        )
    raise InputError(
        f"no card is known as {name!r}",
        cure=f"Give a profile ({', '.join(gpu_names())}), a card's name such as 'GTX 1080 Ti', or a capability (6.1).",
    )


def _row_of(capability: str) -> CardRow | None:
    return next((row for row in card_rows() if row.capability == capability), None)


def _title(name: str) -> str:
    return {"P40": "Tesla P40", "P100": "Tesla P100", "V100": "Tesla V100", "T4": "Tesla T4", "K80": "Tesla K80"}.get(
        name, name
    )
