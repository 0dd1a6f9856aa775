"""A database of known vulnerabilities: OSV records as JSON, alone or in a zip as osv.dev publishes one an ecosystem.

The files come from anywhere: nothing is unpacked to disk, and what is too long or no record is counted and passed over.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuilder.errors import InputError, Place
from envbuilder.report.progress import Progress

_LONGEST = 16 << 20
# In all, unpacked: a whole export of osv.dev is a few gigabytes.
_MOST = 16 << 30
# Package names of the Python index are the same whatever the case and the kind of dash.
_FOLD = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ_.", b"abcdefghijklmnopqrstuvwxyz--")
_MODIFIED = re.compile(rb'"modified"\s*:\s*"([^"]{4,40})"')
_ECOSYSTEM = re.compile(rb'"ecosystem"\s*:\s*"([A-Za-z]+)')
_EVERY = 500


@dataclass
class Database:
    """What was read: ``records`` that may concern the packages asked for, and counts of everything."""

    records: list[Mapping[str, Any]] = field(default_factory=list)
    read: int = 0
    unreadable: int = 0
    newest: str = ""
    ecosystems: set[str] = field(default_factory=set)


def read_databases(paths: Collection[Path], names: Collection[str], progress: Progress) -> Database:
    """Read every record of ``paths`` that names one of the packages ``names``.

    Raises InputError for a file that is neither JSON nor a zip, or that unpacks to more than any database holds.
    """
    from ahocorasick_rs import BytesAhoCorasick

    finder = BytesAhoCorasick([_quoted(name) for name in sorted(set(names))] or [b"\0"])
    database = Database()
    for path in paths:
        progress.stage(f"read {path.name}")
        for body in _bodies(path, database, progress):
            _take(body, database, finder)
    return database


def _quoted(name: str) -> bytes:
    """How a record has a name; a repository's address may go on."""
    return b'"%s%s' % (name.encode().translate(_FOLD), b"" if "/" in name else b'"')


def _take(body: bytes, database: Database, finder: Any) -> None:
    if changed := _MODIFIED.search(body):
        database.newest = max(database.newest, changed.group(1).decode("ascii", "replace"))
    database.ecosystems.update(found.decode() for found in _ECOSYSTEM.findall(body))
    # Most records are about other packages: whether a name stands in one is told without reading it.
    if not finder.find_matches_as_indexes(body.translate(_FOLD)):
        database.read += 1
        return
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        database.unreadable += 1
        return
    for record in parsed if isinstance(parsed, list) else [parsed]:
        database.read += 1
        if isinstance(record, dict) and isinstance(record.get("id"), str):
            database.records.append(record)
        else:
            database.unreadable += 1


def listed(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The objects of the list ``key``; nothing where there is none."""
    found = data.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _bodies(path: Path, database: Database, progress: Progress) -> Iterator[bytes]:
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as stream:
                body = stream.read(_LONGEST * 16)
            if body.lstrip()[:1] not in (b"{", b"["):
                raise _no_database(path, "neither JSON nor a zip")
            yield body
            return
        with zipfile.ZipFile(path) as archive:
            yield from _members(archive, path, database, progress)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise _no_database(path, str(error)) from None
    except OSError as error:
        raise _no_database(path, str(error.strerror or error)) from None


def _members(archive: zipfile.ZipFile, path: Path, database: Database, progress: Progress) -> Iterator[bytes]:
    members = [member for member in archive.infolist() if member.filename.endswith(".json")]
    if not members:
        raise _no_database(path, "it holds no JSON file")
    unpacked = 0
    for number, member in enumerate(members):
        if number % _EVERY == 0:
            progress.item(f"record {number} of {len(members)}")
        try:
            with archive.open(member) as stream:
                body = stream.read(_LONGEST + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
            database.unreadable += 1
            continue
        unpacked += len(body)
        if unpacked > _MOST:
            raise _no_database(path, "it unpacks to more than any database holds")
        if len(body) > _LONGEST:
            database.unreadable += 1
            continue
        yield body


def _no_database(path: Path, why: str) -> InputError:
    return InputError(
        f"this is no database of vulnerabilities: {why}",
        place=Place(str(path)),
        cure="Give OSV records: the zip of an ecosystem (PyPI, Debian) that osv.dev publishes, or a JSON file of them.",
    )
