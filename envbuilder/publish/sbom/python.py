"""Python distributions of an image: METADATA and RECORD of every ``*.dist-info``."""

from __future__ import annotations

import base64
import json
import posixpath
from collections.abc import Iterator

from envbuilder.audit.owners import record_lines
from envbuilder.publish.sbom.licences import python_licences
from envbuilder.publish.sbom.model import Component, Kind, Package
from envbuilder.publish.sbom.purl import purl
from envbuilder.publish.sbom.reading import Reading

_METADATA = ".dist-info/METADATA"
_RECORD = ".dist-info/RECORD"
_EDITS = "envbuilder/smoke/verl_edits.json"


def distributions(reading: Reading) -> Iterator[Package]:
    """The distributions that METADATA files describe, by path."""
    from packaging.metadata import parse_email
    from packaging.utils import canonicalize_name

    for path in sorted(p for p in reading.texts if p.endswith(_METADATA)):
        fields, _ = parse_email(reading.texts[path].encode())
        folder = path.removesuffix("/METADATA")
        site, _, stem = folder.removesuffix(".dist-info").rpartition("/")
        name = canonicalize_name(fields.get("name") or stem.partition("-")[0])
        version = fields.get("version") or stem.partition("-")[2]
        record = dict(record_lines(reading.texts.get(f"{folder}/RECORD", "")))
        paths = tuple(posixpath.normpath(posixpath.join("/", site, one)).lstrip("/") for one in record)
        component = Component(
            Kind.PYTHON,
            name,
            version,
            purl("pypi", name, version),
            licences=python_licences(
                fields.get("license_expression", ""), fields.get("license", ""), fields.get("classifiers", [])
            ),
            supplier=fields.get("author") or fields.get("maintainer") or "",
            patched=_patched(reading, site, record) if name == "verl" else (),
        )
        yield Package(component, paths, path)


def recorded_names(reading: Reading) -> Iterator[tuple[str, list[str]]]:
    """(name, paths) by the names and lines of the RECORD files alone, whatever METADATA says."""
    from packaging.utils import canonicalize_name

    for path, text in reading.texts.items():
        if path.endswith(_RECORD):
            site, _, stem = path.removesuffix(_RECORD).rpartition("/")
            yield (
                canonicalize_name(stem.rpartition("-")[0]),
                [posixpath.join(site, one) for one, _ in record_lines(text)],
            )


def _patched(reading: Reading, site: str, record: dict[str, str]) -> tuple[str, ...]:
    """The files of verl that are not the release's but what the image's own list of edits makes of them."""
    try:
        rows = json.loads(reading.texts.get(posixpath.join(site, _EDITS), "{}")).get("files", [])
        digests = {str(row["path"]): bytes.fromhex(row["after"]) for row in rows}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ()
    encoded = {p: f"sha256={base64.urlsafe_b64encode(d).rstrip(b'=').decode()}" for p, d in digests.items()}
    return tuple(sorted(path for path, digest in encoded.items() if record.get(path) == digest))
