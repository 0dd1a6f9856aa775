"""What a target holds, whatever it is: packages, their binaries, and what could not be seen."""

from __future__ import annotations

from dataclasses import dataclass, field

from envbuilder.audit.binary import Binary

_SUFFIXES = (".so", ".a", ".o", ".cubin", ".fatbin", ".ptx", ".dll", ".pyd")


def is_candidate(name: str) -> bool:
    """Whether a file of this name may hold device code or a library."""
    return name.endswith(_SUFFIXES) or ".so." in name


@dataclass
class Package:
    """A package and its binaries. The files that belong to none are in one whose name is empty."""

    name: str
    version: str = ""
    binaries: list[Binary] = field(default_factory=list)


@dataclass(frozen=True)
class Clash:
    """A path that two packages own with different bytes."""

    path: str
    first: str
    second: str


@dataclass
class Collection:
    """All that was collected of one target.

    ``kind`` is ``file``, ``wheel``, ``directory``, ``environment``, ``image`` or ``list``. ``unseen`` says what was not
    looked at and why, ``note`` how much was. ``complete`` tells that all libraries a program finds are in here, but for
    the host driver's: then a missing one is a fault. ``glibc`` is the base's glibc release where it is known, ``cuda``
    torch's CUDA release. ``nothing`` says why there is nothing to judge, where that is so.
    """

    subject: str
    kind: str
    packages: list[Package] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    clashes: list[Clash] = field(default_factory=list)
    complete: bool = False
    glibc: str = ""
    cuda: str = ""
    note: str = ""
    nothing: str = ""

    @property
    def binaries(self) -> list[Binary]:
        """All binaries of all packages."""
        return [b for p in self.packages for b in p.binaries]
