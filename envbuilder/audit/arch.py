"""Compute capabilities, and which code runs on which.

The rules are NVIDIA's documented ones (CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility";
"Feature set compiler targets" for the suffixes). Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SPELLINGS = re.compile(r"(?:sm_?|compute_?)?(?:(\d{1,2})\.(\d)|(\d{2,3}))([af]?)", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Arch:
    """A compute capability such as 6.1, as code is compiled for it.

    ``suffix`` is empty, ``a`` (this one architecture alone, as sm_90a) or ``f`` (this family, as sm_100f).
    """

    major: int
    minor: int
    suffix: str = ""

    @classmethod
    def from_number(cls, number: int, suffix: str = "") -> Arch:
        """Out of the compilers' number: 61 is 6.1, 120 is 12.0."""
        return cls(number // 10, number % 10, suffix)

    @classmethod
    def parse(cls, text: str) -> Arch | None:
        """Out of ``sm_61``, ``compute_61``, ``6.1``, ``61`` or ``sm_90a``; None for anything else."""
        match = _SPELLINGS.fullmatch(text.strip())
        if match is None:
            return None
        major, minor, number, suffix = match.groups()
        if number is not None:
            return cls.from_number(int(number), suffix.lower())
        return cls(int(major), int(minor), suffix.lower())

    @property
    def number(self) -> int:
        """61 for 6.1."""
        return self.major * 10 + self.minor

    @property
    def sm(self) -> str:
        """As SASS is named: ``sm_90a``."""
        return f"sm_{self.number}{self.suffix}"

    @property
    def compute(self) -> str:
        """As PTX is named: ``compute_90a``."""
        return f"compute_{self.number}{self.suffix}"

    @property
    def capability(self) -> str:
        """As a person writes it: ``6.1``."""
        return f"{self.major}.{self.minor}"


def sass_runs(code: Arch, card: Arch) -> bool:
    """Whether SASS compiled for ``code`` runs on ``card``: same major, minor not above; ``a`` on that one alone."""
    if code.suffix == "a":
        return (code.major, code.minor) == (card.major, card.minor)
    return code.major == card.major and code.minor <= card.minor


def ptx_compiles(code: Arch, card: Arch) -> bool:
    """Whether PTX for ``code`` can be compiled for ``card`` by a driver that knows its ISA version.

    Plain PTX for any capability from its own on, ``a`` for that one alone, ``f`` within the family (same major).
    """
    if code.suffix:
        return sass_runs(code, card)
    return (code.major, code.minor) <= (card.major, card.minor)
