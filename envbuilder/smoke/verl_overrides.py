"""The overrides of verl's configuration, in one place: what the card needs, and the sizes and paths of a run.

The list is ``verl_overrides.json``; the suite's trainer and ``envbuilder train`` both fill it in.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("verl_overrides.json")
LIBRARY = "envbuilder.smoke.external_lib"
# Words that hydra takes for text: paths, and names that mean nothing to it.
_BARE = re.compile(r"/[\w./:@%+-]*|(?!(?:null|true|false|inf|nan)$)[a-z_]\w*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Override:
    """One override: a key of verl's, perhaps with hydra's ``+``, its value in hydra's grammar, and why it is given.

    ``default``: it restates a default of verl's; None where the run's values decide that.
    """

    key: str
    value: str
    why: str = ""
    default: bool | None = False

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


@dataclass(frozen=True)
class RunSizes:
    """The sizes and paths of one run, as verl sees them. Lengths in tokens, batches in sequences.

    ``prompts`` says what becomes of prompts that are too long: ``cut`` or ``filter`` (left out). ``reward`` is the path
    of a file with the function ``reward_name``, empty for the function that verl has for the data source.
    ``save_freq`` is -1 for no checkpoints.
    """

    device: str
    model: str
    train_files: str
    val_files: str
    checkpoints: str
    steps: int
    prompt: int
    response: int
    batch: int
    micro_batch: int
    checkpointing: bool = False
    offload_optimiser: bool = False
    offload_reference: bool = False
    epochs: int = 100000
    save_freq: int = -1
    prompts: str = "cut"
    reward: str = ""
    reward_name: str = "compute_score"

    def applies(self, row: dict[str, Any]) -> bool:
        """Whether a row of the list is for this run."""
        conditions = {
            "cut": self.prompts == "cut", "filter": self.prompts == "filter", "optimiser": self.offload_optimiser,
            "reference": self.offload_reference,
            "reward": bool(self.reward), "save": self.save_freq > 0, "": True,
        }  # fmt: skip
        return row.get("device", self.device) == self.device and conditions[row.get("when", "")]


def table() -> dict[str, Any]:
    """The data file: the verl release it was composed and run on, and each override with its reason."""
    data: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return data


def verl_overrides(dtype: str = "float32", library: str = LIBRARY) -> list[str]:
    """What the card needs, as arguments for ``python -m verl.trainer.main_ppo``, for a stack computing in ``dtype``."""
    return [str(row) for row in card_overrides(dtype, library)]


def card_overrides(dtype: str, library: str) -> list[Override]:
    """What the card needs. ``library`` is the module that adapts verl's workers (external_lib)."""
    names = {"{dtype}": table()["dtype_names"][dtype], "{torch_dtype}": dtype, "{external_lib}": library}
    return [_filled(row, names) for row in table()["overrides"]]


def run_overrides(sizes: RunSizes) -> list[Override]:
    """The sizes and paths of a run."""
    names = {
        f"{{{name}}}": quoted(value) if isinstance(value, str) else str(value) for name, value in vars(sizes).items()
    }
    return [_filled(row, names) for row in table()["run"] if sizes.applies(row)]


def quoted(text: str) -> str:
    """A text as a value in hydra's grammar: as it is where that is plain, else in quotes, interpolations escaped."""
    if _BARE.fullmatch(text):
        return text
    text = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", text)
    text = re.sub(r"(\\+)(?='|$)", lambda match: match[1] * 2, text)
    return "'" + text.replace("'", "\\'") + "'"


def _filled(row: dict[str, Any], names: dict[str, str]) -> Override:
    default = None if row.get("may_be_default") else bool(row.get("default"))
    return Override(row["key"], names.get(row["value"], row["value"]), row["why"], default)
