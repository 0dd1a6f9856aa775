"""conda packages of an image: the records of every ``conda-meta`` folder."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator

from envbuilder.publish.sbom.licences import spdx_licence
from envbuilder.publish.sbom.model import Component, Kind, Package
from envbuilder.publish.sbom.purl import purl
from envbuilder.publish.sbom.reading import Reading


def conda_records(reading: Reading) -> Iterator[Package]:
    """The packages of all environments. A record that cannot be read is told to ``reading``."""
    for path in _record_paths(reading):
        try:
            record = json.loads(reading.texts[path])
            name, version, build = (str(record[key]) for key in ("name", "version", "build"))
            files = [str(one) for one in record["files"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            reading.unseen(f"{path}: no record of a conda package")
            continue
        channel = str(record.get("channel") or "").rstrip("/")
        subdir = str(record.get("subdir") or "")
        channel = channel.removesuffix(f"/{subdir}").rpartition("conda.anaconda.org/")[2]
        licence = str(record.get("license") or "")
        component = Component(
            Kind.CONDA,
            name,
            version,
            purl("conda", name, version, build=build, channel=channel, subdir=subdir),
            licences=(spdx_licence(licence),) if licence else (),
            supplier=channel,
            properties={"build": build},
        )
        prefix = path.rpartition("conda-meta/")[0]
        yield Package(component, tuple(posixpath.normpath(posixpath.join(prefix, one)) for one in files))


def record_names(reading: Reading) -> Iterator[tuple[str, list[str]]]:
    """(name, paths) by the file names of the records, NAME-VERSION-BUILD.json, and the files they list."""
    for path in _record_paths(reading):
        prefix, _, file = path.rpartition("conda-meta/")
        try:
            files = json.loads(reading.texts[path]).get("files", [])
        except (ValueError, AttributeError, RecursionError):
            files = []
        yield file.removesuffix(".json").rsplit("-", 2)[0], [f"{prefix}{one}" for one in files]


def _record_paths(reading: Reading) -> list[str]:
    return sorted(p for p in reading.texts if p.endswith(".json") and "conda-meta/" in p)
