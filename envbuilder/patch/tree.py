"""Reading verl out of a folder or a wheel, and writing it back, its RECORD kept true."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from envbuilder.errors import InputError, Place
from envbuilder.files import write_bytes

_READ = (".py", ".yaml")
_VERSION = "verl/version/version"
_WHEEL_LIMIT = 64 * 2**20  # verl's wheels unpack to 4 MB; more than this is not verl


def read(path: Path) -> dict[str, bytes]:
    """verl's Python and YAML files and its version, ``verl/...`` -> bytes.

    ``path`` is a folder that holds ``verl/`` (a checkout, a site-packages), or a wheel. Raises InputError.
    """
    if path.is_dir():
        return _read_folder(path)
    if path.suffix != ".whl" or not path.is_file():
        raise InputError(
            "this is neither a folder nor a wheel",
            place=Place(str(path)),
            cure="Give the folder that holds verl/, or verl's wheel (verl-0.5.0-py2.py3-none-any.whl).",
        )
    with _open(path) as wheel:
        return {i.filename: wheel.read(i) for i in wheel.infolist() if _wanted(i.filename)}


def write_folder(path: Path, changes: Mapping[str, tuple[bytes | None, bytes]]) -> None:
    """Write the changed files below ``path``, and their new digests into an installed verl's RECORD.

    New files go first: at no time does a file import one that is not there yet.
    """
    for name, (_, after) in sorted(changes.items(), key=lambda item: item[1][0] is not None):
        write_bytes(path / name, after)
    for record in path.glob("verl-*.dist-info/RECORD"):
        write_bytes(record, _record(record.read_bytes(), {n: after for n, (_, after) in changes.items()}))


def write_wheel(source: Path, destination: Path, changes: Mapping[str, tuple[bytes | None, bytes]]) -> None:
    """Write the wheel ``source`` with the changes to ``destination``: the same bytes for the same input."""
    after = {name: data for name, (_, data) in changes.items()}
    out = io.BytesIO()
    with _open(source) as wheel, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as patched:
        entries = wheel.infolist()
        record = next((i for i in entries if i.filename.endswith(".dist-info/RECORD")), None)
        if record is None:
            raise InputError("this wheel has no RECORD", place=Place(str(source)), cure="Download it again.")
        for name in sorted(after.keys() - {i.filename for i in entries}):
            patched.writestr(_entry(name, record), after[name])
        for entry in entries:
            data = wheel.read(entry)
            if entry is record:
                data = _record(data, after)
            patched.writestr(_entry(entry.filename, entry), after.get(entry.filename, data))
    write_bytes(destination, out.getvalue())


def _read_folder(path: Path) -> dict[str, bytes]:
    if not (path / "verl").is_dir():
        raise InputError(
            "there is no folder verl/ in it",
            place=Place(str(path)),
            cure="Give the folder that holds verl/: a checkout or a site-packages.",
        )
    found: dict[str, bytes] = {}
    for file in sorted((path / "verl").rglob("*")):
        name = file.relative_to(path).as_posix()
        if _wanted(name) and file.is_file() and not file.is_symlink():
            found[name] = file.read_bytes()
    return found


def _wanted(name: str) -> bool:
    return name.startswith("verl/") and (name.endswith(_READ) or name == _VERSION)


def _open(path: Path) -> zipfile.ZipFile:
    try:
        wheel = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"this is no wheel: {error}", place=Place(str(path)), cure="Download it again.") from None
    if sum(entry.file_size for entry in wheel.infolist()) > _WHEEL_LIMIT:
        wheel.close()
        raise InputError("this wheel unpacks to more than any verl", place=Place(str(path)))
    return wheel


def _entry(name: str, like: zipfile.ZipInfo) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, like.date_time)
    entry.external_attr = like.external_attr
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _record(text: bytes, after: Mapping[str, bytes]) -> bytes:
    rows = {row[0]: row for row in csv.reader(io.StringIO(text.decode())) if row}
    for name, data in after.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows[name] = [name, f"sha256={digest}", str(len(data))]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows.values())
    return out.getvalue().encode()
