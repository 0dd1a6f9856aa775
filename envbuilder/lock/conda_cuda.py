"""No package of another CUDA release may slip into a lock: conda's CUDA metapackages depend on ``>=``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from envbuilder import toml
from envbuilder.errors import InputError, Place
from envbuilder.lock.model import CondaArtifact

_DATA = Path(__file__).with_name("cuda_components.toml")


@cache
def components(release: str) -> dict[str, str] | None:
    """The version of every component of a CUDA release (``11.8``), or None when the release is not in the data."""
    rows = toml.load(_DATA)["release"]
    return next((dict(row["components"]) for row in rows if row["cuda"] == release), None)


def check_release(packages: Iterable[CondaArtifact], release: str, place: Place) -> None:
    """Raise InputError naming every package that belongs to another CUDA release than ``release``."""
    known = components(release)
    strays = [f"{p.name} {p.version} ({p.url.rsplit('/', 2)[0]})" for p in packages if _stray(p, release, known or {})]
    if strays:
        raise InputError(
            f"{len(strays)} package{'s' if len(strays) > 1 else ''} of another CUDA release than {release} "
            f"would be locked: {', '.join(strays)}",
            place=place,
            cure=f"Put nvidia/label/cuda-{release}.0 first among the channels and pin cuda-version {release}: "
            "the metapackages of CUDA 11.8 depend on >=, and conda-forge has 12.x of the same names.",
        )


def _stray(package: CondaArtifact, release: str, known: dict[str, str]) -> bool:
    if package.name in known:
        return package.version != known[package.name]
    if package.name in ("cuda-version", "cudatoolkit") or package.name.startswith("cuda-"):
        return package.version != release and not package.version.startswith(f"{release}.")
    return False
