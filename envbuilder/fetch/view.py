"""Folders of cached files under their own names, for build contexts."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from envbuilder.fetch.fetching import Cached


def folder_of(files: Iterable[Cached], destination: Path) -> Path:
    """Make ``destination`` the folder holding exactly ``files``, and return it.

    The files are hard links to the cache, or copies where that is on another disk; they are read-only. A folder
    that is there is replaced as a whole, so nobody sees half of it.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=destination.parent, prefix=f".{destination.name}."))
    try:
        made.chmod(0o755)
        for file in files:
            _link(file.path, made / file.filename)
        shutil.rmtree(destination, ignore_errors=True)
        made.rename(destination)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return destination


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copy2(source, target)
