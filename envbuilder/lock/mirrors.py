"""Mirrors: other addresses the same bytes come from. A lock names canonical addresses only, and holds the digests.

Not here: the Python index and Debian's archive. Their mirrors are set in pip, uv and apt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envbuilder.errors import InputError, Place
from envbuilder.stack.fields import Strict, load_model
from envbuilder.stack.settings import Settings

_DATA = Path(__file__).with_name("mirrors.toml")


class MirrorSet(Strict):
    """A ready-made set: whose mirror it is, what it replaces, where the addresses were read."""

    title: str
    replace: dict[str, tuple[str, ...]]
    source: str


class _Data(Strict):
    sets: dict[str, MirrorSet]


@cache
def mirror_sets() -> Mapping[str, MirrorSet]:
    """The ready-made sets by name."""
    return load_model(_Data, _DATA).sets


@dataclass(frozen=True)
class Mirrors:
    """Replacements by the beginning of a canonical address, in the order they are tried."""

    replacements: tuple[tuple[str, str], ...] = ()

    def addresses(self, canonical: str) -> list[str]:
        """Where to look for what stands at ``canonical``: the mirrors in order, then the address itself."""
        found = [
            mirror.rstrip("/") + canonical[len(prefix) :]
            for prefix, mirror in self.replacements
            if canonical == prefix or canonical.startswith(f"{prefix}/")
        ]
        return list(dict.fromkeys([*found, canonical]))

    def of_channels(self, channels: Sequence[str]) -> dict[str, list[str]]:
        """For each channel, given by name or address, its canonical address and where to look for it."""
        named = [channel if "://" in channel else f"https://conda.anaconda.org/{channel}" for channel in channels]
        return {address: self.addresses(address) for address in named}


def mirrors_of(settings: Settings) -> Mirrors:
    """The mirrors of the user's settings: what they replace themselves, then their sets.

    Raises InputError for a set that does not exist.
    """
    found = [(prefix, mirror) for prefix, mirrors in settings.mirrors.replace.items() for mirror in mirrors]
    for name in settings.mirrors.sets:
        if name not in mirror_sets():
            raise InputError(
                f"there is no set of mirrors named {name!r}",
                place=Place("envbuilder.toml", field="mirrors.sets"),
                cure=f"Known: {', '.join(mirror_sets())}.",
            )
        found += [(p, mirror) for p, mirrors in mirror_sets()[name].replace.items() for mirror in mirrors]
    return Mirrors(tuple((prefix.rstrip("/"), mirror) for prefix, mirror in found))
