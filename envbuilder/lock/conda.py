"""The conda half of a lock: conda-lock does it, and this module is the only one that knows conda-lock's command line.

What conda-lock is given stands beside the lock, so that a stock conda-lock can be asked about it too::

    conda-lock lock --conda envbuilder-solver -f locks/p40.environment.yml \\
        --virtual-package-spec locks/p40.virtual-packages.yml --lockfile locks/p40.conda-lock.yml --check-input-hash
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuilder.errors import EnvbuilderError, InputError, Place, SourceError
from envbuilder.lock.conda_inputs import CondaInputs
from envbuilder.lock.conda_solvers import own_solver
from envbuilder.report.progress import Progress

CACHE = "ENVBUILDER_SOLVER_CACHE"
OFFLINE = "ENVBUILDER_SOLVER_OFFLINE"
MIRRORS = "ENVBUILDER_CONDA_MIRRORS"
REPORT = "ENVBUILDER_SOLVER_REPORT"
_TAIL = 12


@dataclass(frozen=True)
class CondaOptions:
    """How to solve: with which program, from where, how freely.

    ``solver`` is an executable that speaks conda's command line. ``mirrors`` maps a channel's canonical address to
    addresses tried in order, ``cache`` is the folder channel indexes are kept in, ``update`` names packages to move
    while everything else stays.
    """

    solver: Path = field(default_factory=own_solver)
    mirrors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cache: Path | None = None
    offline: bool = False
    update: tuple[str, ...] = ()


def solve_conda(inputs: CondaInputs, existing: Path | None, options: CondaOptions, progress: Progress) -> str:
    """The text of conda-lock's file for ``inputs``, as conda-lock writes it.

    ``existing`` is the lock so far; only ``options.update`` reads it. Raises InputError for requirements that
    contradict one another (the message names them), SourceError for a channel that cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="envbuilder-conda-") as name:
        folder = Path(name)
        environment, virtual = inputs.write(folder)
        lockfile = folder / inputs.lock_name
        if options.update and existing is not None:
            shutil.copyfile(existing, lockfile)
        # Names are never mapped to the Python index: the table for it would come from the network.
        names = folder / "names.json"
        names.write_text("{}")
        command = [
            *_conda_lock(),
            "lock",
            *("--conda", str(options.solver)),
            *("--file", str(environment)),
            *("--virtual-package-spec", str(virtual)),
            *("--lockfile", str(lockfile)),
            *("--pypi_to_conda_lookup_file", names.as_uri()),
            *("--log-level", "INFO"),
        ]
        for package in options.update:
            command += ["--update", package]
        report = folder / "report.json"
        run(command, folder, _environment(options, report), progress, report, inputs.place)
        return lockfile.read_text(encoding="utf-8")


def render_explicit(lockfile: Path, folder: Path, progress: Progress) -> Path:
    """The explicit list of a lock for linux-64 (one address and digest a line), rendered into ``folder``."""
    template = str(folder / "explicit-{platform}.lock")
    command = [*_conda_lock(), "render", "--kind", "explicit", "--platform", "linux-64"]
    command += ["--filename-template", template, str(lockfile)]
    run(command, folder, dict(os.environ), progress, None, Place(str(lockfile)))
    return folder / "explicit-linux-64.lock"


def run(
    command: Sequence[str], folder: Path, env: Mapping[str, str], progress: Progress, report: Path | None, place: Place
) -> None:
    """Run conda-lock, its output to the log. Raises what the solver reported, else EnvbuilderError with the tail."""
    process = subprocess.Popen(
        list(command), cwd=folder, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            progress.log(lines[-1])
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code == 0:
        return
    if report is not None and report.is_file():
        raise _reported(json.loads(report.read_text(encoding="utf-8")), place, progress)
    raise EnvbuilderError(
        f"conda-lock ended with exit code {code}",
        place=place,
        cure="The whole output is in the log; its last lines are above.",
        detail="\n".join(lines[-_TAIL:]),
    )


def _reported(said: Mapping[str, Any], place: Place, progress: Progress) -> EnvbuilderError:
    message = str(said["message"])
    progress.log(str(said.get("dump", "")))
    if said["kind"] == "unsatisfiable":
        conflict = ", ".join(said["conflict"])
        return InputError(message, place=place, cure=f"Loosen or change one of: {conflict}.")
    if said["kind"] == "channel":
        first, *rest = message.splitlines()
        return SourceError(
            first,
            detail="\n".join(rest),
            cure="See whether the address answers; a mirror is set in envbuilder.toml (docs/mirrors.md).",
        )
    return EnvbuilderError(f"the conda solver failed: {message}", place=place, cure="The whole output is in the log.")


def _conda_lock() -> list[str]:
    return [sys.executable, "-m", "conda_lock"]


def _environment(options: CondaOptions, report: Path) -> dict[str, str]:
    # A variable of the user's must not change what is solved: conda's own overrides and flags are left out.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CONDA_OVERRIDE_", "CONDA_FLAGS"))}
    env[MIRRORS] = json.dumps({channel: list(mirrors) for channel, mirrors in options.mirrors.items()})
    env[REPORT] = str(report)
    if options.cache is not None:
        options.cache.mkdir(parents=True, exist_ok=True)
        env[CACHE] = str(options.cache)
    if options.offline:
        env[OFFLINE] = "1"
    return env
