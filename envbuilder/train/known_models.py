"""Models at pinned revisions: which files, how long, with which digests (``models/*.toml``)."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from envbuilder.errors import InputError
from envbuilder.stack.fields import Strict, load_model


class ModelFile(Strict):
    """One file: its path in the repository, bytes, SHA-256."""

    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    size: int
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class KnownModel(Strict):
    """A repository of a model hub at one revision."""

    schema_: Literal[1] = Field(alias="schema")
    repository: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    licence: str
    source: str
    file: tuple[ModelFile, ...]


def known_model_names() -> list[str]:
    """The models there are pins of."""
    folder = files("envbuilder.train.models")
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def load_known_model(name: str) -> KnownModel:
    """The pins of a model. Raises InputError, listing what there is, for an unknown one."""
    if name not in known_model_names():
        raise InputError(
            f"there is no pinned model named {name!r}",
            cure=f"Known: {', '.join(known_model_names())}. Any other folder works with `envbuilder model check DIR`.",
        )
    return load_model(KnownModel, Path(str(files("envbuilder.train.models") / f"{name}.toml")))
