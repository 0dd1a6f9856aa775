"""Which PyTorch builds hold code for which cards (``torch.toml``)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from envbuilder.stack.fields import Strict, load_model
from envbuilder.stack.gpu import State


class TorchBuild(Strict):
    """One row: these torch versions, built for this CUDA tag, hold code for these capabilities."""

    torch: tuple[str, ...]
    cuda: str
    default_index: bool = False
    arches: tuple[str, ...]
    status: State
    source: str = Field(min_length=8)

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a card of ``capability`` has code here: SASS of its major up to its minor, or PTX up to it."""
        for arch in self.arches:
            number, _, ptx = arch.partition("+")
            major, minor = (int(part) for part in number.split("."))
            if major == capability[0] and minor <= capability[1]:
                return True
            if ptx and (major, minor) <= capability:
                return True
        return False


class TorchBuilds(Strict):
    """The table."""

    schema_: Literal[1] = Field(alias="schema")
    build: tuple[TorchBuild, ...]


@lru_cache(maxsize=1)
def torch_builds() -> tuple[TorchBuild, ...]:
    """All rows, in the order of the file."""
    return load_model(TorchBuilds, Path(__file__).with_name("torch.toml")).build


def find_build(version: str) -> TorchBuild | None:
    """The row of ``2.6.0+cu118``, or of ``2.6.0`` as the default index serves it; None where nothing is known."""
    number, _, tag = version.partition("+")
    for row in torch_builds():
        if number in row.torch and (row.cuda == tag if tag else row.default_index):
            return row
    return None


def builds_for(capability: tuple[int, int]) -> list[tuple[str, str]]:
    """(version, CUDA tag) of every known build that runs on a card of ``capability``."""
    return [(version, row.cuda) for row in torch_builds() if row.runs_on(capability) for version in row.torch]
