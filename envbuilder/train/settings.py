"""What a training run is asked to do, and the overrides of verl that make it so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuilder.errors import InputError
from envbuilder.smoke.verl_overrides import Override, RunSizes, card_overrides, run_overrides, table

LIBRARY = "envbuilder.train.external_lib"
_GIVEN = re.compile(r"(\+{0,2})([A-Za-z_]\w*(?:\.[\w-]+)+)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Wanted:
    """What the user asks for. Lengths in tokens, batches in sequences; None is "choose".

    ``gpu`` is nvidia-smi's index, None for the CPU. ``steps`` None is one pass over the data. ``offload`` names what
    waits in host memory between uses (``optimiser``, ``reference``). ``given`` are further overrides of verl,
    ``key=value`` in hydra's grammar.
    """

    stack: str
    model: Path
    data: Path
    out: Path
    gpu: int | None = 0
    prompt: int = 256
    response: int = 256
    batch: int = 1
    micro_batch: int | None = None
    checkpointing: bool | None = None
    offload: tuple[str, ...] = ()
    steps: int | None = None
    save_every: int = 100
    reward: Path | None = None
    reward_name: str = "compute_score"
    given: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        """``cuda`` or ``cpu``."""
        return "cpu" if self.gpu is None else "cuda"


@dataclass(frozen=True)
class Paths:
    """Where the trainer finds things and leaves what it makes. The defaults are those inside the container."""

    model: str = "/model"
    train: str = "/data/train.parquet"
    validation: str = "/data/train.parquet"
    reward: str = "/reward.py"
    checkpoints: str = "/out/checkpoints"
    samples: str = "/out/samples"


@dataclass(frozen=True)
class Sizes:
    """What was chosen where the user left it open."""

    micro_batch: int
    checkpointing: bool
    steps: int
    epochs: int


def overrides(wanted: Wanted, sizes: Sizes, paths: Paths, dtype: str) -> list[Override]:
    """Every override of the run, the user's last. Raises InputError for one of the user's that cannot be taken."""
    run = RunSizes(
        wanted.device, paths.model, paths.train, paths.validation, paths.checkpoints, sizes.steps, wanted.prompt,
        wanted.response, wanted.batch, sizes.micro_batch, sizes.checkpointing, "optimiser" in wanted.offload,
        "reference" in wanted.offload, sizes.epochs, wanted.save_every, "filter", paths.reward if wanted.reward else "",
        wanted.reward_name,
    )  # fmt: skip
    return _with_given([*card_overrides(dtype, LIBRARY), *run_overrides(run)], wanted.given)


def _with_given(rows: list[Override], given: Sequence[str]) -> list[Override]:
    """The rows with the user's: in the place of ours where we have a value of our own choosing, else at the end."""
    cards = {row["key"].lstrip("+") for row in table()["overrides"]}
    filled = {row["key"] for row in table()["run"] if row["value"].startswith("{")}
    rows = list(rows)
    for text in given:
        match = _GIVEN.fullmatch(text)
        if match is None:
            raise InputError(
                f"--set {text!r} is no override", cure="Write key=value, such as actor_rollout_ref.actor.optim.lr=5e-7."
            )
        prefix, key, value = match.groups()
        if key in cards:
            raise InputError(f"--set {key}: the card needs the value it has", cure="Leave it out.")
        if key in filled:
            raise InputError(f"--set {key}: an option gives it", cure="See `envbuilder train --help` for the option.")
        mine = Override(prefix + key, value, "Given with --set.", None)
        places = [number for number, row in enumerate(rows) if row.key.lstrip("+") == key]
        if places:
            rows[places[0]] = mine
        else:
            rows.append(mine)
    return rows
