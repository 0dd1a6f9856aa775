"""The programs a build needs on this host, and installing them where we may."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from envbuilder.errors import HostError
from envbuilder.image.process import Process
from envbuilder.report.progress import Progress

# program -> Debian package. This is the one place that names them.
PACKAGES = {"buildah": "buildah", "runc": "runc", "mmdebstrap": "mmdebstrap"}


def missing_packages(programs: Iterable[str] = tuple(PACKAGES)) -> list[str]:
    """The Debian packages of those ``programs`` that are not on this host."""
    return [PACKAGES[program] for program in programs if not shutil.which(program)]


def install_command(packages: Iterable[str]) -> list[str]:
    """The one command that installs ``packages``."""
    return ["apt-get", "install", "--yes", "--no-install-recommends", *packages]


def ensure_programs(progress: Progress, programs: Iterable[str] = tuple(PACKAGES)) -> list[str]:
    """Install what is missing, as root on Debian; the packages installed.

    Raises HostError with the one command where we may not, or where it fails.
    """
    packages = missing_packages(programs)
    if not packages:
        return []
    command = install_command(packages)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise HostError(
            f"missing on this host: {', '.join(packages)}", cure=f"As root, on Debian or Ubuntu: {' '.join(command)}"
        )
    progress.stage(f"install {', '.join(packages)}")
    for step in (["apt-get", "update"], command):
        _apt(step, progress)
    return packages


def _apt(command: list[str], progress: Progress) -> None:
    process = Process(command, env={"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}, merge_errors=True)
    tail: list[str] = []
    try:
        for line in process:
            progress.log(line)
            progress.item(line)
            tail = [*tail[-15:], line]
        code = process.wait()
    finally:
        process.stop()
    if code != 0:
        raise HostError(
            f"`{' '.join(command)}` failed",
            detail="\n".join(tail),
            cure="See what apt says above; then run this again.",
        )
