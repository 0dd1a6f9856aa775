"""The Python packages of a lock, sorted into the layers of an image."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from envbuilder import toml
from envbuilder.lock.model import DebArtifact, Lock, PythonArtifact


@dataclass(frozen=True)
class Group:
    """The packages of one layer. ``title`` is shown while it is built."""

    name: str
    title: str
    artifacts: tuple[PythonArtifact, ...]

    @property
    def requirements(self) -> str:
        """What the installer is given: one hashed requirement a line."""
        return "".join(f"{a.name}=={a.version} --hash=sha256:{a.sha256}\n" for a in self.artifacts)

    @property
    def digest(self) -> str:
        """SHA-256 of the requirements: it stands in the step, so that another lock never meets an old layer."""
        return hashlib.sha256(self.requirements.encode()).hexdigest()


@cache
def _layers() -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    table = toml.load(Path(__file__).with_name("groups.toml"))
    return tuple((row["name"], row["title"], tuple(row["packages"])) for row in table["group"])


def python_groups(lock: Lock) -> tuple[Group, ...]:
    """The layers of ``lock``, first to last. Optional groups of the lock are left out."""
    wanted = [artifact for artifact in lock.python if artifact.group is None]
    # An exact name wins over a pattern: verl has a layer of its own after the one that takes all the rest.
    exact = {pattern: name for name, _, patterns in _layers() for pattern in patterns if "*" not in pattern}
    members: dict[str, list[PythonArtifact]] = {name: [] for name, _, _ in _layers()}
    for artifact in sorted(wanted, key=lambda a: a.name):
        name = exact.get(artifact.name) or next(
            name for name, _, patterns in _layers() if any(fnmatchcase(artifact.name, p) for p in patterns)
        )
        members[name].append(artifact)
    return tuple(Group(name, title, tuple(members[name])) for name, title, _ in _layers() if members[name])


def debs_digest(debs: tuple[DebArtifact, ...]) -> str:
    """SHA-256 over the hashes of Debian packages, whatever their order."""
    return hashlib.sha256("".join(f"{sha}\n" for sha in sorted(d.sha256 for d in debs)).encode()).hexdigest()
