"""What images hold, as tables in a file: every path with kind, mode, owner, size, hash, link, attributes and time.

A layer is read once, as a stream, whichever images it is part of. Memory does not grow with the image: rows go to
SQLite on disk.
"""

from __future__ import annotations

import hashlib
import sqlite3
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from envbuilder.errors import HostError, InputError, IntegrityError, Place

_CHUNK = 1 << 20
_MOST = 4_000_000
_LONGEST_TEXT = 16 << 20
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_XATTR = "SCHILY.xattr."
_DELETED, _EMPTIED = "deleted", "emptied"
_KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.CONTTYPE: "file",
    tarfile.GNUTYPE_SPARSE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
    tarfile.CHRTYPE: "character device",
    tarfile.BLKTYPE: "block device",
    tarfile.FIFOTYPE: "pipe",
}
_COLUMNS = "kind, mode, owner, size, sha256, lines, target, xattrs, mtime"


@dataclass(frozen=True)
class Entry:
    """One path of an image. ``size`` in bytes, ``mtime`` in seconds since 1970, ``owner`` as ``uid:gid``.

    ``lines`` is the SHA-256 of a wheel's RECORD with its lines sorted, empty for every other file.
    """

    kind: str
    mode: str
    owner: str
    size: int
    sha256: str
    lines: str
    target: str
    xattrs: str
    mtime: int


# SQLite takes no table name as a parameter. Those put into statements below (S608) are the program's own words; what
# comes out of an image goes in as parameters.
class FileTable:
    """The layers and images that were read, in the SQLite file ``path``."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute(f"CREATE TABLE entry (layer, path, {_COLUMNS}, PRIMARY KEY (layer, path)) WITHOUT ROWID")
        self._db.execute("CREATE TABLE mark (layer, path, kind)")
        self._count = 0
        self._layers: set[str] = set()

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def holds(self, diff_id: str) -> bool:
        """Whether a layer was read already."""
        return diff_id in self._layers

    def add_layer(self, diff_id: str | None, chunks: Iterator[bytes], subject: str) -> str:
        """Read a layer (the bytes of an unpacked tar archive); its digest, which is ``diff_id`` where that is known.

        Raises InputError when it is damaged or holds too much, IntegrityError when its bytes are not the digest's.
        """
        stream = _Stream(chunks)
        key = diff_id or "reading"
        self._execute("BEGIN")
        try:
            # _Stream has the one method that tarfile calls in this mode; its stub asks for a whole file.
            with tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK) as archive:  # type: ignore[call-overload]
                for member in archive:
                    archive.members = []
                    self._take(key, archive, member)
            stream.drain()
        except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
            raise InputError(
                f"a layer of this image is damaged: {error}", place=Place(subject), cure="Save or pull the image again."
            ) from error
        digest = f"sha256:{stream.digest.hexdigest()}"
        if diff_id is None:
            for table in ("entry", "mark"):
                self._execute(f"UPDATE OR REPLACE {table} SET layer = ? WHERE layer = ?", (digest, key))  # noqa: S608  # the names in it are our own
        elif digest != diff_id:
            raise IntegrityError(
                f"a layer of this image has other bytes than its digest {diff_id}",
                place=Place(subject),
                cure="It was damaged or changed: get the image again from where you trust it.",
                detail=f"the bytes are {digest}",
            )
        self._execute("COMMIT")
        self._layers.add(digest)
        return digest

    def _take(self, layer: str, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ValueError(f"{member.name} leads out of the image")
        self._count += 1
        if self._count > _MOST:
            raise ValueError(f"more than {_MOST} files")
        path, name = _text("/".join(parts)), parts[-1] if parts else ""
        if name == _OPAQUE:
            self._execute("INSERT INTO mark VALUES (?, ?, ?)", (layer, _text("/".join(parts[:-1])), _EMPTIED))
        elif name.startswith(_WHITEOUT):
            gone = _text("/".join([*parts[:-1], name.removeprefix(_WHITEOUT)]))
            self._execute("INSERT INTO mark VALUES (?, ?, ?)", (layer, gone, _DELETED))
        elif member.islnk():
            # A second name of a file: as good as the file itself.
            target = _text("/".join(part for part in member.linkname.split("/") if part not in ("", ".")))
            self._execute(
                f"INSERT OR REPLACE INTO entry SELECT layer, ?, {_COLUMNS} FROM entry WHERE layer = ? AND path = ?",  # noqa: S608  # the names in it are our own
                (path, layer, target),
            )
        else:
            entry = _entry(archive, member, path)
            values = [getattr(entry, column) for column in _COLUMNS.split(", ")]
            self._execute(f"INSERT OR REPLACE INTO entry VALUES ({', '.join('?' * 11)})", (layer, path, *values))  # noqa: S608  # the names in it are our own

    def stack(self, image: str, diff_ids: Sequence[str]) -> None:
        """Make the table ``image`` of what is seen when the layers lie on one another, the first at the bottom."""
        self._execute(f"CREATE TABLE {image} (path PRIMARY KEY, {_COLUMNS}) WITHOUT ROWID")
        self._execute("BEGIN")
        for layer in diff_ids:
            for path, kind in self._rows("SELECT path, kind FROM mark WHERE layer = ?", (layer,)):
                self._remove_below(image, path)
                if kind == _DELETED:
                    self._execute(f"DELETE FROM {image} WHERE path = ?", (path,))  # noqa: S608  # the names in it are our own
            covered = f"SELECT i.path FROM {image} i JOIN entry e ON e.layer = ? AND e.path = i.path "  # noqa: S608  # the names in it are our own
            for (path,) in self._rows(covered + "WHERE i.kind = 'folder' AND e.kind != 'folder'", (layer,)):
                self._remove_below(image, path)
            self._execute(
                f"INSERT OR REPLACE INTO {image} SELECT path, {_COLUMNS} FROM entry WHERE layer = ?",  # noqa: S608  # the names in it are our own
                (layer,),
            )
        self._execute("COMMIT")

    def _remove_below(self, image: str, path: str) -> None:
        if path:
            self._execute(f"DELETE FROM {image} WHERE path > ? AND path < ?", (f"{path}/", f"{path}0"))  # noqa: S608  # the names in it are our own
        else:
            self._execute(f"DELETE FROM {image}")  # noqa: S608  # the names in it are our own

    def count(self, image: str) -> int:
        """How many paths an image shows."""
        return int(self._rows(f"SELECT count(*) FROM {image}")[0][0])  # noqa: S608  # the names in it are our own

    def differing(self, first: str, second: str) -> Iterator[tuple[str, Entry | None, Entry | None]]:
        """Every path that is not the same in both, with what each image has there, in the order of the paths."""
        columns = _COLUMNS.split(", ")
        sides = [", ".join(f"{side}.{column}" for column in columns) for side in ("a", "b")]
        unlike = " OR ".join(f"a.{column} IS NOT b.{column}" for column in columns)
        one, two = (
            f"SELECT x.path, {', '.join(sides)} FROM {image} x LEFT JOIN {first} a ON a.path = x.path "  # noqa: S608  # the names in it are our own
            f"LEFT JOIN {second} b ON b.path = x.path WHERE "
            for image in (first, second)
        )
        query = f"{one} {unlike} UNION {two} a.path IS NULL ORDER BY 1"
        for row in self._db.execute(query):
            values = row[1:]
            half = len(columns)
            first_entry = Entry(*values[:half]) if values[0] is not None else None
            second_entry = Entry(*values[half:]) if values[half] is not None else None
            yield row[0], first_entry, second_entry

    def _rows(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        return self._db.execute(statement, values).fetchall()

    def _execute(self, statement: str, values: Sequence[object] = ()) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.OperationalError as error:
            raise HostError(
                f"the files of the image cannot be noted down: {error}",
                cure="Free some space, or set ENVBUILDER_CACHE to a folder on a larger disk.",
            ) from error


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> Entry:
    kind = _KINDS.get(member.type)
    if kind is None:
        raise ValueError(f"{member.name} is of the unknown kind {member.type!r}")
    digest = lines = target = ""
    if kind == "file":
        stream = archive.extractfile(member)
        assert stream is not None, "a plain file was asked for"
        digest, lines = _hashes(stream, path.endswith(".dist-info/RECORD") and member.size <= _LONGEST_TEXT)
    elif kind == "link":
        target = _text(member.linkname)
    elif "device" in kind:
        target = f"{member.devmajor}:{member.devminor}"
    found = {key.removeprefix(_XATTR): value for key, value in member.pax_headers.items() if key.startswith(_XATTR)}
    return Entry(
        kind,
        f"{member.mode & 0o7777:04o}",
        f"{member.uid}:{member.gid}",
        member.size if kind == "file" else 0,
        digest,
        lines,
        target,
        " ".join(f"{key}={_text(value)!r}" for key, value in sorted(found.items())),
        int(member.mtime),
    )


def _hashes(stream: IO[bytes], is_record: bool) -> tuple[str, str]:
    digest = hashlib.sha256()
    if is_record:
        data = stream.read()
        digest.update(data)
        return digest.hexdigest(), hashlib.sha256(b"\n".join(sorted(data.split(b"\n")))).hexdigest()
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest(), ""


def _text(name: str) -> str:
    """A name that SQLite and JSON take: bytes that are no UTF-8 stand as \\xNN."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class _Stream:
    """Chunks as a file that is read once, and the SHA-256 of all that has passed."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; none at the end."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self.digest.update(chunk)
            self._rest = chunk
        part, self._rest = self._rest[:size], self._rest[size:]
        return part

    def drain(self) -> None:
        """Read what follows the archive's end: it counts for the digest."""
        while self.read(_CHUNK):
            pass
