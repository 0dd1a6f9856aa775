"""Which program solves the conda half: our own on py-rattler, or the user's micromamba, mamba or conda."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from envbuilder.errors import HostError

OWN = "envbuilder-solver"
# conda/conda-lock#906: with mamba and micromamba from 2.6 on it does not find the records of packages in their cache.
_BROKEN_SINCE = (2, 6)


def own_solver() -> Path:
    """The executable of ours, installed beside the interpreter that runs this."""
    places = [Path(sys.executable).parent / OWN, Path(sysconfig.get_path("scripts")) / OWN]
    for path in places:
        if path.is_file():
            return path
    found = shutil.which(OWN)
    if found is None:
        raise HostError(
            f"{OWN} is not installed beside this Python",
            cure="Install envbuilder as a package (pip install . in its folder); it brings the program.",
            detail="\n".join(str(path) for path in places),
        )
    return Path(found)


def find_solver(name: str | None) -> Path:
    """The executable for ``--solver``: ours when None, else a path or the name of a program on PATH.

    Raises HostError when it is not there, or is a release that conda-lock cannot work with.
    """
    if name is None:
        return own_solver()
    found = shutil.which(name)
    if found is None:
        raise HostError(
            f"there is no executable solver {name}",
            cure="Leave --solver out to use the one that came with envbuilder, or install micromamba 2.5.x.",
        )
    path = Path(found).absolute()
    if "mamba" in path.name:
        _refuse_broken(path)
    return path


def _refuse_broken(path: Path) -> None:
    try:
        said = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(
            f"{path} does not run: {error}", cure="Leave --solver out, or install micromamba 2.5.x."
        ) from None
    release = re.search(r"(\d+)\.(\d+)", said)
    if release and (int(release[1]), int(release[2])) >= _BROKEN_SINCE:
        raise HostError(
            f"{path.name} {said.strip()} does not work with conda-lock (conda-lock issue 906)",
            cure="Use micromamba 2.5.x, or leave --solver out to use the one that came with envbuilder.",
        )
