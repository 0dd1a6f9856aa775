"""PyTorch builds and releases.

``torch.toml``: which builds hold code for which cards. ``releases.toml``: what belongs to a release, which exist.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from envbuilder.stack.fields import Strict, load_model
from envbuilder.stack.gpu import State


class TorchBuild(Strict):
    """One row: these torch versions, built for this CUDA tag, hold code for these capabilities.

    ``floor`` stands where only the lowest capability with code is known. ``cudnn`` is the version the build loads,
    ``last`` says that the tag ends here, ``proven_by`` that the row was read from the real wheel.
    """

    torch: tuple[str, ...]
    cuda: str
    default_index: bool = False
    arches: tuple[str, ...] = ()
    floor: str = ""
    cudnn: str = ""
    cxx11_abi: bool | None = None
    last: bool = False
    proven_by: Literal["", "audit"] = ""
    status: State
    source: str = Field(min_length=8)

    @model_validator(mode="after")
    def _says_something(self) -> TorchBuild:
        if bool(self.arches) == bool(self.floor):
            raise ValueError("a row has either arches or a floor")
        return self

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a card of ``capability`` has code here for certain: SASS of its major up to its minor, or PTX."""
        for arch in self.arches:
            number, _, ptx = arch.partition("+")
            major, minor = _numbers(number)
            if major == capability[0] and minor <= capability[1]:
                return True
            if ptx and (major, minor) <= capability:
                return True
        return False

    def refuses(self, capability: tuple[int, int]) -> bool:
        """Whether a card of ``capability`` is known to have no code here."""
        return capability < _numbers(self.floor) if self.floor else not self.runs_on(capability)

    @property
    def shown_arches(self) -> str:
        """The architectures as compilers write them: ``sm_50 sm_60``, or what is known of them."""
        if self.floor:
            return f"sm_{self.floor.replace('.', '')} and up"
        return " ".join("sm_" + arch.replace(".", "") for arch in self.arches)


class Ended(Strict):
    """From this release on no build serves cards below a capability."""

    torch: str
    below: str
    status: State
    source: str = Field(min_length=8)


class TorchBuilds(Strict):
    """The table of builds."""

    schema_: Literal[1] = Field(alias="schema")
    build: tuple[TorchBuild, ...]
    ended: tuple[Ended, ...] = ()


class Release(Strict):
    """A PyTorch release: what belongs to it, and the CUDA tags it was published for (empty: not fully known)."""

    torch: str
    torchvision: str = ""
    torchaudio: str = ""
    triton: str = ""
    cudnn: str = ""
    default_tag: str = ""
    tags: tuple[str, ...] = ()
    status: State
    source: str = Field(min_length=8)


class Releases(Strict):
    """The table of releases."""

    schema_: Literal[1] = Field(alias="schema")
    release: tuple[Release, ...]


def _numbers(text: str) -> tuple[int, int]:
    major, minor = (int(part) for part in text.split("."))
    return major, minor


@lru_cache(maxsize=1)
def _table() -> TorchBuilds:
    return load_model(TorchBuilds, Path(__file__).with_name("torch.toml"))


def torch_builds() -> tuple[TorchBuild, ...]:
    """All rows, in the order of the file."""
    return _table().build


def ended() -> tuple[Ended, ...]:
    """Where support for old cards ends for good."""
    return _table().ended


@lru_cache(maxsize=1)
def releases() -> tuple[Release, ...]:
    """All releases, oldest first."""
    return load_model(Releases, Path(__file__).with_name("releases.toml")).release


def release(version: str) -> Release | None:
    """The release of a version without its local part; None where nothing is known."""
    return next((row for row in releases() if row.torch == version), None)


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


def exists(version: str, tag: str) -> bool | None:
    """Whether torch ``version`` was published for CUDA tag ``tag``; None where that is not known."""
    row = release(version)
    if row and row.tags:
        return tag in row.tags
    if any(version in build.torch and build.cuda == tag for build in torch_builds()):
        return True
    return None


def tags_for(version: str, capability: tuple[int, int]) -> list[str]:
    """The tags of torch ``version`` whose builds are known to hold code for ``capability``."""
    return [row.cuda for row in torch_builds() if version in row.torch and row.runs_on(capability)]
