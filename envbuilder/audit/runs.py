"""Which image of a unit a card gets: the driver's choice, by NVIDIA's documented rules. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from envbuilder.audit.arch import Arch, ptx_compiles, sass_runs
from envbuilder.audit.fatbin import Image, Kind


class Means(str, Enum):
    """How a unit gets to run on a card."""

    SASS = "sass"
    PTX = "ptx"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


def means_of(
    images: Iterable[Image], card: Arch, newest_isa: tuple[int, int] | None = None
) -> tuple[Means, Image | None]:
    """How the unit with these images runs on ``card``, and the image that does.

    SASS is preferred, the nearest architecture first; then PTX, which the driver compiles. ``newest_isa`` is the last
    PTX ISA version that a driver for the card knows, None where no end is known. LTO-IR is input for a linker, and an
    unknown kind may be anything: where nothing else serves, the answer is that it is not known.
    """
    images = [i for i in images if not i.blanked]
    sass = [i for i in images if i.kind is Kind.SASS and sass_runs(i.arch, card)]
    if sass:
        return Means.SASS, max(sass, key=lambda i: (i.arch.number, i.arch.suffix))
    ptx = [
        i
        for i in images
        if i.kind is Kind.PTX and ptx_compiles(i.arch, card) and (newest_isa is None or i.isa <= newest_isa)
    ]
    if ptx:
        return Means.PTX, max(ptx, key=lambda i: (i.arch.number, i.arch.suffix))
    others = [i for i in images if i.kind in (Kind.LTO_IR, Kind.UNKNOWN)]
    return (Means.UNKNOWN, others[0]) if others else (Means.NOTHING, None)
