"""Telling uv of files it cannot see: a wheel of the real name that holds nothing but the real metadata.

uv resolves with it; the lock takes name, version and digest from the index's own record, never from the stand-in.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

from envbuilder.lock.indexes import IndexFile

_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_stand_ins(files: Iterable[IndexFile], folder: Path) -> Path:
    """Write a stand-in for each file into ``folder``, for uv's ``--find-links``; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        _write(file, folder / file.filename)
    return folder


def _write(file: IndexFile, path: Path) -> None:
    name, version = path.name.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {file.name}", f"Version: {file.version}"]
    if file.requires_python:
        metadata.append(f"Requires-Python: {file.requires_python}")
    metadata += [f"Requires-Dist: {requirement}" for requirement in file.requires]
    tags = "-".join(path.name.removesuffix(".whl").split("-")[-3:])
    members = {
        "METADATA": "\n".join(metadata) + "\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: envbuilder\nRoot-Is-Purelib: false\nTag: {tags}\n",
        "RECORD": "".join(f"{info}/{member},,\n" for member in ("METADATA", "WHEEL", "RECORD")),
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(zipfile.ZipInfo(f"{info}/{member}", _EPOCH), text)
