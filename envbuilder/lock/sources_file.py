"""``locks/NAME.sources.toml``: what a stack is made of besides Python and conda packages.

Debian packages, source commits and base images, one a line.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder import toml
from envbuilder.lock.checksum import seal
from envbuilder.lock.model import BaseImage, DebArtifact, DebianBase, GitArtifact, Reference
from envbuilder.stack.fields import Strict, parse_model

if TYPE_CHECKING:
    from tomlkit.items import Array


class Sources(Strict):
    """The content of the file."""

    stack: str
    debian: DebianBase | None = None
    git: tuple[GitArtifact, ...] = ()
    images: tuple[BaseImage, ...] = ()
    references: tuple[Reference, ...] = ()


def sources_text(sources: Sources) -> str:
    """The text of the file: entries in a fixed order, so the same set gives the same bytes."""
    import tomlkit

    document = tomlkit.document()
    document.add("stack", tomlkit.item(sources.stack))
    if sources.git:
        document.add("git", _lines(sorted(sources.git, key=attrgetter("name"))))
    if sources.images:
        document.add("images", _lines(sorted(sources.images, key=attrgetter("target"))))
    if sources.references:
        document.add("references", _lines(sorted(sources.references, key=attrgetter("name"))))
    if sources.debian:
        table = tomlkit.table()
        for key in ("suite", "release", "security"):
            table.add(key, getattr(sources.debian, key))
        packages = sorted(sources.debian.packages, key=_runtime_first)
        table.add("packages", _lines(packages))
        document.add("debian", table)
    header = [
        f"The sources of the lock of {sources.stack}. Written by `envbuilder lock {sources.stack}`; an edit by hand is",
        "noticed. Where a file comes from is for the client's own mirror settings to say.",
    ]
    return seal(header, document.as_string())


def _runtime_first(package: DebArtifact) -> tuple[bool, str]:
    return package.target != "runtime", package.name


def _lines(entries: Iterable[Strict]) -> Array:
    import tomlkit

    array = tomlkit.array()
    for entry in entries:
        table = tomlkit.inline_table()
        table.update(entry.model_dump(mode="json", exclude_none=True))
        array.append(table)
    return array.multiline(True)


def parse_sources(text: str, file: str) -> Sources:
    """The content of the file. Raises InputError naming the key that is wrong."""
    return parse_model(Sources, toml.loads(text, file), Path(file))
