"""What a host reported of itself, as far as compat asks: its cards, its driver, the torch wanted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envbuilder.errors import InputError, NotEnoughError, Place
from envbuilder.stack.compat.answers import Question
from envbuilder.stack.compat.cards import Card, cards_in, find_card


def read_probe(path: Path) -> Question:
    """The question a probe file asks. Raises InputError when it is none, NotEnoughError when it names no card."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("there is no such file", place=Place(str(path))) from None
    except (OSError, ValueError) as error:
        raise InputError(f"this is no probe (JSON): {error}", place=Place(str(path))) from error
    if not isinstance(data, dict):
        raise InputError("this is no probe: an object is wanted", place=Place(str(path)))
    cards = tuple(card for gpu in _list(data.get("gpus") or data.get("nvidia_smi")) if (card := _card(gpu)))
    if not cards:
        raise NotEnoughError(
            "the probe names no card that is known", place=Place(str(path), field="gpus"), cure="Give --gpu instead."
        )
    request = data.get("request") if isinstance(data.get("request"), dict) else {}
    torch = str(request.get("torch") or "") if isinstance(request, dict) else ""
    return Question(cards, "" if torch == "auto" else torch, (), str(data.get("driver") or ""))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _card(gpu: Any) -> Card | None:
    """A card by its name, with the capability the host reports where it does."""
    if not isinstance(gpu, dict):
        return None
    name = str(gpu.get("name") or "")
    found = cards_in(name)
    capability = str(gpu.get("cc") or gpu.get("capability") or "")
    if not capability:
        return found[0] if found else None
    try:
        card = find_card(capability)
    except InputError:
        return found[0] if found else None
    return Card(name or card.title, card.capability, card.architecture, card.fp16_rate)
