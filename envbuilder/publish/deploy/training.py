"""The trainer's command line in a job file: the one list of overrides, with the hosts and cards of the job."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envbuilder.errors import InputError, Place
from envbuilder.smoke.verl_overrides import RunSizes, card_overrides, run_overrides
from envbuilder.stack.model import Stack

# Imported in the image, by verl's workers.
_LIBRARY = "envbuilder.train.external_lib"
_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w./@-]*")


def overrides(stack: Stack, nodes: int, gpus: int, given: Sequence[str] = ()) -> tuple[str, ...]:
    """What the trainer is started with on ``nodes`` hosts of ``gpus`` cards, one pass over the data; ``given`` wins.

    Raises InputError for one of ``given`` that is not KEY=VALUE.
    """
    data = "/data/train.parquet"
    # One sequence a card and step: verl divides every batch by the number of cards.
    sizes = RunSizes(
        "cuda", "/model", data, data, "/results/checkpoints", steps=0, prompt=256, response=256, batch=nodes * gpus,
        micro_batch=1, checkpointing=True, epochs=1, save_freq=100, prompts="filter",
    )  # fmt: skip
    ours = [*card_overrides(stack.compute.dtype, _LIBRARY), *run_overrides(sizes)]
    # The number of steps follows from the data, which is not here.
    rows = {row.key: row.value for row in ours if row.key != "trainer.total_training_steps"}
    rows |= {"trainer.nnodes": str(nodes), "trainer.n_gpus_per_node": str(gpus)}
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
