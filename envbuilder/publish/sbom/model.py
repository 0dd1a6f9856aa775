"""The contents of an image: the packages that own its files, and the files that belong to none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

NOT_KNOWN = "NOASSERTION"


class Kind(str, Enum):
    """Where a component comes from; the value is the type of its package URL where it has one of its own."""

    DEBIAN = "deb"
    PYTHON = "pypi"
    CONDA = "conda"
    SOURCE = "source"
    IMAGE = "oci"
    OWN = "generic"


@dataclass(frozen=True)
class Component:
    """A package of the image.

    ``licences`` are SPDX expressions or, where they are none, names as the package has them; empty when not known.
    ``sha256`` is that of the artifact the lock names, empty when the lock names none. ``source`` is Debian's source
    package (name, version). ``files`` counts the files of the image it owns, ``patched`` names those changed since.
    ``properties`` are further facts by name.
    """

    kind: Kind
    name: str
    version: str
    purl: str
    licences: tuple[str, ...] = ()
    supplier: str = ""
    sha256: str = ""
    source: tuple[str, str] = ("", "")
    files: int = 0
    patched: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Package:
    """A component and the paths its database lists; ``metadata`` is where a Python distribution describes itself."""

    component: Component
    paths: tuple[str, ...]
    metadata: str = ""


@dataclass(frozen=True)
class System:
    """The distribution an image is made of, as its os-release names it; empty where it has none."""

    id: str = ""
    version: str = ""
    title: str = ""


@dataclass(frozen=True)
class Contents:
    """What is in an image.

    ``digest`` (``sha256:...``) is that of the image's configuration, which names its layers by what they hold: it is
    the same however the layers are packed. ``time`` is the stack's date in seconds since 1970. ``lock`` is the digest
    the image bears; ``lock_read`` tells whether that lock was at hand. ``owners`` are the packages whose databases
    own files, as (kind, name), read from the names of the databases alone. ``strangers`` are the files that belong to
    no package, ``unseen`` says what could not be read.
    """

    name: str
    digest: str
    components: tuple[Component, ...]
    system: System = System()
    stack: str = ""
    gpu: str = ""
    lock: str = ""
    lock_read: bool = False
    time: int = 0
    files: int = 0
    owners: frozenset[tuple[Kind, str]] = frozenset()
    unlocked: tuple[Component, ...] = ()
    strangers: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
