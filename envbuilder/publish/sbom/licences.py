"""Licences as packages name them, turned into SPDX expressions where they say which licence they mean.

What names no licence of the SPDX list stays as it is; nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.stack.fields import Strict, load_model

if TYPE_CHECKING:
    from license_expression import Licensing

_DATA = Path(__file__).with_name("licences.toml")
# A field may hold the whole text of a licence; a name is one short line.
_LONGEST_NAME = 100
_FREE = ("GPL", "LGPL", "GFDL", "AGPL")


class _Names(Strict):
    python: Mapping[str, str]
    classifiers: Mapping[str, str]
    debian: Mapping[str, str]


@cache
def _names() -> _Names:
    return load_model(_Names, _DATA)


@cache
def licensing() -> Licensing:
    """The SPDX licence list."""
    from license_expression import get_spdx_licensing

    return get_spdx_licensing()


@lru_cache(maxsize=4096)
def spdx_expression(text: str) -> str:
    """``text`` as an SPDX expression with the list's own spelling, or an empty string when it is none."""
    from license_expression import ExpressionError, ExpressionParseError

    try:
        parsed: Any = licensing().parse(text, validate=True, strict=True)
    except (ExpressionError, ExpressionParseError, AttributeError):
        return ""
    return str(parsed) if parsed is not None else ""


def spdx_licence(text: str) -> str:
    """``text`` as an SPDX expression, or as it stands."""
    return spdx_expression(text) or text


def python_licences(expression: str, licence: str, classifiers: Sequence[str]) -> tuple[str, ...]:
    """The licences of a distribution by its METADATA: License-Expression, else License, else the classifiers."""
    if expression:
        return (spdx_licence(expression),)
    licence = " ".join(licence.split()) if len(licence) <= _LONGEST_NAME else ""
    known = _names().python.get(licence.lower()) or spdx_expression(licence)
    if known:
        return (known,)
    named = [c.removeprefix("License :: ").removeprefix("OSI Approved :: ") for c in classifiers if _tells(c)]
    found = sorted({_names().classifiers.get(one, one) for one in named})
    # The free text says more than a classifier that leaves the version open.
    if found and (not licence or all(spdx_expression(one) for one in found)):
        return tuple(found)
    return (licence,) if licence else tuple(found)


def _tells(classifier: str) -> bool:
    return classifier.startswith("License :: ") and classifier != "License :: OSI Approved"


def debian_licence(synopsis: str) -> str:
    """A licence of a machine-readable copyright file: ``GPL-2+ or Artistic`` is GPL-2.0-or-later OR Artistic-1.0-Perl.

    As it stands when one of its parts is no licence of the SPDX list.
    """
    text = " ".join(synopsis.split())
    # "A or B, and C": the comma binds loosest.
    clauses = [part for part in re.split(r",\s*and\s+", text) if part]
    said = []
    for clause in clauses:
        words = re.split(r"\s+(and|or|and/or)\s+", clause)
        parts = [word.upper().replace("AND/OR", "OR") if at % 2 else _short(word) for at, word in enumerate(words)]
        if not all(parts):
            return text
        said.append(" ".join(parts) if len(clauses) == 1 else f"({' '.join(parts)})")
    return spdx_expression(" AND ".join(said)) or text


def _short(name: str) -> str:
    """The SPDX identifier of a short name, or an empty string."""
    bare = name.rstrip("+")
    stem = bare.lower()
    known = _names().debian.get(stem) or _names().debian.get(stem.removesuffix(".0"))
    if not known:
        return spdx_expression(bare) if bare == name else ""
    if known.startswith(_FREE) and not known.endswith("invariants"):
        return f"{known}-or-later" if name.endswith("+") else f"{known}-only"
    if known.startswith("GFDL"):
        return f"{known}-or-later" if name.endswith("+") else f"{known}-only"
    return known if bare == name else ""
