"""The trainer's command line in a job file: one list of hydra's overrides, from data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from envbuilder import toml
from envbuilder.errors import InputError, Place
from envbuilder.smoke.verl_overrides import verl_overrides
from envbuilder.stack.model import Stack

_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w./@-]*")


def overrides(stack: Stack, nodes: int, gpus: int, given: Sequence[str] = ()) -> tuple[str, ...]:
    """What ``verl.trainer.main_ppo`` is started with on ``nodes`` hosts of ``gpus`` cards; ``given`` wins.

    Raises InputError for one of ``given`` that is not KEY=VALUE.
    """
    table = toml.load(Path(__file__).with_name("training.toml"))
    numbers = {"{hosts}": nodes, "{cards}": nodes * gpus, "{cards_per_host}": gpus}
    rows = dict(text.split("=", 1) for text in verl_overrides(stack.compute.dtype))
    rows |= {key: str(numbers.get(value, value)) for key, value in table["overrides"].items()}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise InputError(
                f"{text!r} is no override",
                place=Place(field="--override"),
                cure="Give KEY=VALUE, such as trainer.total_epochs=2; a key that verl has not yet takes a + before it.",
            )
        for known in [name for name in rows if name.lstrip("+") == key.lstrip("+")]:
            del rows[known]
        rows[key] = value
    return tuple(f"{key}={value}" for key, value in rows.items())
