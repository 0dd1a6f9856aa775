"""Locking a stack: one function a half, all at once, then all files are written."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from envbuilder import data
from envbuilder.errors import InputError, IntegrityError, Place
from envbuilder.files import write_text
from envbuilder.lock.client import python_client
from envbuilder.lock.conda import CondaOptions
from envbuilder.lock.conda_half import lock_conda
from envbuilder.lock.conda_inputs import stack_inputs
from envbuilder.lock.conda_solvers import find_solver
from envbuilder.lock.debian import lock_debian
from envbuilder.lock.images import lock_images
from envbuilder.lock.memory import channels_state, remembered
from envbuilder.lock.mirrors import Mirrors, mirrors_of
from envbuilder.lock.model import GitArtifact, Lock
from envbuilder.lock.python import index_files, lock_python, missing_groups
from envbuilder.lock.reading import REQUIREMENTS, SOURCES, load_lock, lock_folder
from envbuilder.lock.references import references_of
from envbuilder.lock.requirements_file import requirements_text
from envbuilder.lock.sources_file import Sources, sources_text
from envbuilder.lock.suites import base_glibc
from envbuilder.report.progress import Progress
from envbuilder.stack.model import Stack
from envbuilder.stack.settings import Settings, load_settings


@dataclass(frozen=True)
class Wish:
    """How to lock.

    ``security``: with Debian's security archive or without; as before when None. ``offline``: from what earlier runs
    kept. ``cutoff`` replaces the stack's upload cut-off. ``update`` names packages to move while all others stay.
    ``solver`` is the program for the conda half; ours when None.
    """

    security: bool | None = None
    offline: bool = False
    cutoff: date | None = None
    update: tuple[str, ...] = ()
    solver: str | None = None


@dataclass(frozen=True)
class Locked:
    """The outcome: the lock before (None when there was none), the lock now, and the files whose bytes changed.

    ``notes`` are sentences about what is left out.
    """

    before: Lock | None
    now: Lock
    changed: tuple[Path, ...]
    notes: tuple[str, ...]


def lock_stack(stack: Stack, wish: Wish, progress: Progress) -> Locked:
    """Lock every half of ``stack`` and write its files into the project's ``locks``.

    Nothing is written unless every half succeeded.
    """
    if wish.cutoff:
        stack = stack.model_copy(update={"python": stack.python.model_copy(update={"cutoff": wish.cutoff})})
    before = _lock_so_far(stack)
    halves = _Halves(stack, wish, before, load_settings(), progress)
    progress.stage(f"resolving {stack.name}")
    with ThreadPoolExecutor(max_workers=3) as pool:
        futures = [pool.submit(half) for half in halves.to_lock()]
        texts = {name: text for future in futures for name, text in future.result().items()}
    if wish.update:
        texts = {**_carried(stack.name), **texts}
    changed = []
    for name, text in texts.items():
        path = data.project_root() / "locks" / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
            changed.append(path)
    now = load_lock(stack)
    return Locked(before, now, tuple(changed), tuple(missing_groups(stack, now.python)))


def _lock_so_far(stack: Stack) -> Lock | None:
    """The lock there is; None without one, or when it cannot be relied on: locking anew is the cure for that."""
    try:
        return load_lock(stack) if lock_folder(stack.name) else None
    except (InputError, IntegrityError):
        return None


def _carried(name: str) -> dict[str, str]:
    """The files of a lock that is not the project's own: an update takes along what it does not touch, because all
    files of a lock come from one folder."""
    folder = lock_folder(name)
    if folder is None or folder == data.project_root() / "locks":
        return {}
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob(f"{name}.*"))}


@dataclass(frozen=True)
class _Halves:
    """The halves of one stack's lock; each gives texts by file name."""

    stack: Stack
    wish: Wish
    before: Lock | None
    settings: Settings
    progress: Progress

    def to_lock(self) -> list[Callable[[], dict[str, str]]]:
        """The halves to lock: all of them, or those that hold a package to be updated."""
        if not self.wish.update:
            return [self._python, self._sources, self._conda]
        self._check_update()
        return [half for half, names in ((self._python, self._moving()), (self._conda, self._moving_conda())) if names]

    def _python(self) -> dict[str, str]:
        stack, client, moving = self.stack, python_client(), self._moving()
        found = index_files(stack, offline=self.wish.offline, mirrors=self._mirrors())

        def resolve() -> str:
            known = {a.sha256: a.size for a in self.before.python if a.size is not None} if self.before else {}
            keep = [a for a in self.before.python if a.name not in moving] if self.before and moving else ()
            artifacts = lock_python(stack, client, offline=self.wish.offline, sizes=known, keep=keep, found=found)
            return requirements_text(stack, artifacts)

        question = {
            "python": stack.python.model_dump(mode="json", include={"version", "cutoff"}),
            "pins": {name: [pin.version, pin.index, pin.group] for name, pin in stack.python.packages.items()},
            "glibc": base_glibc(stack),
            "files": {name: file.model_dump(mode="json") for name, file in found.files.items()},
            "lacking": sorted(found.lacking),
            "index": client.index,
            "uv": version("uv"),
        }
        text = resolve() if moving else remembered(question, stack.name, resolve)
        return {f"{stack.name}{REQUIREMENTS}": text}

    def _sources(self) -> dict[str, str]:
        stack, wish = self.stack, self.wish
        debian = None
        if stack.debian:
            was = self.before is not None and self.before.debian is not None and self.before.debian.security
            security = was if wish.security is None else wish.security
            debian = lock_debian(stack, self.settings, security=security, offline=wish.offline)
        sources = Sources(
            stack=stack.name,
            debian=debian,
            git=tuple(
                GitArtifact(name=name, repository=part.repository, tag=part.tag, commit=part.commit)
                for name, part in stack.sources.items()
            ),
            images=lock_images(stack, self._mirrors(), offline=wish.offline),
            references=references_of(stack.name),
        )
        return {f"{stack.name}{SOURCES}": sources_text(sources)}

    def _conda(self) -> dict[str, str]:
        inputs = stack_inputs(self.stack, f"stacks/{self.stack.name}.toml")
        if inputs is None:
            return {}
        folder = lock_folder(self.stack.name)
        options = CondaOptions(
            solver=find_solver(self.wish.solver),
            mirrors=self._mirrors().of_channels(inputs.channels),
            cache=data.cache_root() / "repodata",
            offline=self.wish.offline,
            update=self._moving_conda(),
        )
        existing = folder / inputs.lock_name if folder and options.update else None
        first = [addresses[0] for addresses in options.mirrors.values()]
        state = None if options.update or options.offline else channels_state(first)
        question = {
            "environment": inputs.environment_text(),
            "virtual": inputs.virtual_text(),
            "channels": state,
            "solver": str(options.solver),
            "versions": [version("conda-lock"), version("py-rattler")],
        }

        def solve() -> str:
            return lock_conda(self.stack, inputs, existing, options, self.progress)

        return {
            inputs.lock_name: solve() if state is None else remembered(question, self.stack.name, solve),
            inputs.environment_name: inputs.environment_text(),
            inputs.virtual_name: inputs.virtual_text(),
        }

    def _mirrors(self) -> Mirrors:
        return mirrors_of(self.settings)

    def _moving(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.wish.update) & {a.name for a in self.before.python})) if self.before else ()

    def _moving_conda(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.wish.update) & {a.name for a in self.before.conda})) if self.before else ()

    def _check_update(self) -> None:
        unknown = set(self.wish.update) - {*self._moving(), *self._moving_conda()}
        if unknown:
            raise InputError(
                f"the lock of {self.stack.name} holds no package named {', '.join(sorted(unknown))}",
                place=Place(field="--update"),
                cure="Name packages as the lock does, or lock the whole stack without --update.",
            )
