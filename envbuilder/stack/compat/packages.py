"""Libraries on top of PyTorch: the capability each needs, the torch each release was built for (``packages.toml``)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

from packaging.specifiers import SpecifierSet
from pydantic import Field

from envbuilder.stack.fields import Strict, load_model
from envbuilder.stack.gpu import State


class Floor(Strict):
    """The least capability a package (in versions ``versions``) needs, and what to take below it."""

    name: str
    title: str
    versions: str = ""
    minimum: str
    instead_en: str
    instead_zh: str
    status: State
    source: str = Field(min_length=8)

    @property
    def major_minor(self) -> tuple[int, int]:
        """The least capability as numbers."""
        major, minor = (int(part) for part in self.minimum.split("."))
        return major, minor


class BuiltFor(Strict):
    """Releases of a package that were built for one torch release."""

    name: str
    versions: tuple[str, ...]
    torch: str
    status: State
    source: str = Field(min_length=8)


class Needs(Strict):
    """Releases of a package that need a range of another (``requires``, requirement syntax)."""

    name: str
    versions: str
    requires: tuple[str, ...]
    status: State
    source: str = Field(min_length=8)


class CudnnUser(Strict):
    """Releases of a package that load one major of cuDNN."""

    name: str
    versions: str
    cudnn: str
    source: str = Field(min_length=8)


class PackageTable(Strict):
    """The table."""

    schema_: Literal[1] = Field(alias="schema")
    floor: tuple[Floor, ...]
    built_for: tuple[BuiltFor, ...]
    needs: tuple[Needs, ...]
    cudnn: tuple[CudnnUser, ...]


@lru_cache(maxsize=1)
def packages() -> PackageTable:
    """The whole table."""
    return load_model(PackageTable, Path(__file__).with_name("packages.toml"))


def floor(name: str, version: str = "") -> Floor | None:
    """The row for a package; with no version given, the row that holds for all or for the newest releases."""
    rows = [row for row in packages().floor if row.name == name]
    for row in rows:
        if not row.versions or (version and SpecifierSet(row.versions).contains(version, prereleases=True)):
            return row
    return rows[0] if rows and not version else None


def built_for(name: str, version: str) -> BuiltFor | None:
    """The torch release a version of a package was built for; None where that is not known."""
    return next((row for row in packages().built_for if row.name == name and version in row.versions), None)


def builds_for_torch(name: str, torch: str) -> list[str]:
    """The versions of a package that were built for a torch release."""
    return [v for row in packages().built_for if row.name == name and row.torch == torch for v in row.versions]


def needs(name: str, version: str) -> Needs | None:
    """What a version of a package needs of others; None where nothing is known."""
    for row in packages().needs:
        if row.name == name and version and SpecifierSet(row.versions).contains(version, prereleases=True):
            return row
    return None


def cudnn_of(name: str, version: str) -> CudnnUser | None:
    """The cuDNN major that a version of a package loads; None where that is not known."""
    for row in packages().cudnn:
        if row.name == name and version and SpecifierSet(row.versions).contains(version, prereleases=True):
            return row
    return None
