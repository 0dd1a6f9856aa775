"""Which cards there are, and which driver code asks for (``stack/compat``, ``gpus/*.toml``, ``ptx.toml``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from envbuilder import data, toml
from envbuilder.audit.arch import Arch
from envbuilder.errors import InputError


@dataclass(frozen=True)
class Card:
    """A card, or an architecture standing for all its cards. ``last_branch`` is the last driver branch with it."""

    arch: Arch
    title: str
    last_branch: int | None = None

    def __str__(self) -> str:
        return f"{self.title} ({self.arch.sm})"

    @property
    def newest_isa(self) -> tuple[int, int] | None:
        """The last PTX ISA version that a driver for this card knows; None where no end is in sight."""
        if self.last_branch is None:
            return None
        return max(isa for isa, driver in _isa_drivers().items() if _numbers(driver)[0] <= self.last_branch)


@lru_cache(maxsize=2)
def _compat(name: str) -> dict[str, Any]:
    # As it stands: importing the models that check these files takes longer than most audits.
    return toml.load(Path(__file__).parents[1] / "stack" / "compat" / name)


@lru_cache(maxsize=1)
def known_cards() -> tuple[Card, ...]:
    """One card for each architecture, oldest first."""
    last = {name: row["branch"] for row in _compat("cuda.toml")["driver"] for name in row["architectures"]}
    return tuple(
        Card(_arch(row["capability"]), f"{row['architecture']}: {row['family']}", last.get(row["architecture"]))
        for row in _compat("cards.toml")["card"]
        if "family" in row
    )


def find_card(text: str) -> Card:
    """The card named ``p40`` (a profile of gpus/), ``sm_61``, ``6.1`` or ``61``. Raises InputError for others."""
    arch = Arch.parse(text)
    if arch is not None:
        if arch.suffix:
            raise InputError(
                f"{text} names code, not a card", cure=f"Ask for the card itself: --gpu {text.rstrip('afAF')}"
            )
        known = {c.arch: c for c in known_cards()}
        return known.get(arch, Card(arch, f"capability {arch.capability}"))
    profiles = data.names("gpus", ".toml")
    if text not in profiles:
        raise InputError(
            f"no card is known by the name {text!r}",
            cure=f"Give a profile ({', '.join(profiles)}) or a compute capability such as sm_61 or 6.1.",
        )
    from envbuilder.stack.gpu import load_gpu

    profile = load_gpu(text)
    return Card(Arch(*profile.major_minor), profile.title, profile.driver.last_branch)


def driver_for_isa(isa: tuple[int, int]) -> str | None:
    """The least Linux driver that compiles PTX of this ISA version; None for one that is not known here."""
    return _isa_drivers().get(isa)


def driver_for_cuda(major: int) -> str | None:
    """The least Linux driver for SASS of a CUDA release of this major version."""
    rows = _compat("cuda.toml")["toolkit"]
    return next((row["minimum_driver"] for row in rows if f"{major}.0" in row["release"]), None)


def newest(drivers: Iterable[str]) -> str | None:
    """The highest of some driver versions."""
    return max(drivers, key=_numbers, default=None)


@lru_cache(maxsize=1)
def _isa_drivers() -> dict[tuple[int, int], str]:
    table = toml.load(Path(__file__).with_name("ptx.toml"))
    return {_pair(row["version"]): row["driver"] for row in table["isa"]}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _pair(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _arch(text: str) -> Arch:
    return Arch(*_pair(text))
