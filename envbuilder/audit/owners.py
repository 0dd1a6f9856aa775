"""Which package a file belongs to: RECORD files of wheels and conda's own, and paths that two packages own."""

from __future__ import annotations

import csv
import json
import posixpath
import re
from collections.abc import Iterable

from envbuilder.audit.collect import Clash

_CUDA = re.compile(r"^cuda(?:: [^=]*)? = '(\d+\.\d+)'", re.MULTILINE)


class Owners:
    """Paths (relative to the target's root, with slashes) and the packages that own them."""

    def __init__(self) -> None:
        self._owner: dict[str, tuple[tuple[str, str], str]] = {}
        self.clashes: list[Clash] = []

    def add_record(self, site: str, folder: str, text: str) -> None:
        """A wheel's RECORD. ``site`` is the folder above ``folder``, which is named NAME-VERSION.dist-info."""
        name, _, version = folder.removesuffix(".dist-info").rpartition("-")
        package = (name.replace("_", "-").lower(), version)
        for path, digest in record_lines(text):
            full = posixpath.normpath(posixpath.join(site, path))
            known = self._owner.setdefault(full, (package, digest))
            if known[0] != package and digest and known[1] and known[1] != digest:
                self.clashes.append(Clash(full, " ".join(known[0]), " ".join(package)))

    def add_conda(self, prefix: str, text: str) -> None:
        """A record of conda-meta. One that cannot be read owns nothing."""
        try:
            record = json.loads(text)
            package = (str(record["name"]), str(record["version"]))
            files = [str(f) for f in record["files"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        for path in files:
            self._owner.setdefault(posixpath.normpath(posixpath.join(prefix, path)), (package, ""))

    def of(self, path: str) -> tuple[str, str]:
        """(name, version) of the package that owns ``path``, or two empty strings."""
        known = self._owner.get(path)
        return known[0] if known else ("", "")


def record_lines(text: str) -> Iterable[tuple[str, str]]:
    """(path, ``algorithm=digest``) of a RECORD's lines."""
    if '"' in text:
        try:
            yield from ((row[0], row[1] if len(row) > 1 else "") for row in csv.reader(text.splitlines()) if row)
        except csv.Error:
            return
        return
    for line in text.splitlines():
        path, _, rest = line.partition(",")
        if path:
            yield path, rest.partition(",")[0]


def torch_cuda(version_file: str) -> str:
    """The CUDA release that torch/version.py names, or an empty string."""
    match = _CUDA.search(version_file)
    return match.group(1) if match else ""
