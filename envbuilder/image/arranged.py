"""A layer's archive in the one order that every storage's archive of it can be brought into.

What a step wrote is the same in every storage of buildah (1.28), its archive is not. The kernel's overlay is packed
folder by folder, and so are its layers here. Where a storage compares two trees (fuse-overlayfs, vfs), entries are
sorted by their whole path, so that ``idna-3.10.dist-info`` comes before what is in ``idna``; and the kernel's overlay
without root leaves notes of its own on folders, as extended attributes that no container sees.
"""

from __future__ import annotations

import base64
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

_BLOCK = tarfile.BLOCKSIZE
# tar-split's kinds of entries.
_FILE, _BYTES = 1, 2
_MARKS = ("SCHILY.xattr.user.overlay.", "SCHILY.xattr.user.fuseoverlayfs.", "SCHILY.xattr.trusted.overlay.")
_WHITEOUT, _OPAQUE = b".wh.", b".wh..wh..opq"
# In the history of a step, the image that it was made of: a digest of this storage, or a name in it.
_MADE_OF = re.compile(r"FROM \S+")


@dataclass(frozen=True)
class Entry:
    """One file of a layer: its path as the archive has it, its headers, and the bytes of its content in the store."""

    name: bytes
    head: bytes
    size: int

    @property
    def padding(self) -> int:
        """Zero bytes behind the content."""
        return -self.size % _BLOCK


@dataclass(frozen=True)
class Archive:
    """A layer's archive without the content of its files, and the bytes at its end."""

    entries: tuple[Entry, ...]
    end: bytes


def read_split(lines: Iterable[bytes]) -> Archive:
    """The archive that tar-split took apart. Raises ValueError, LookupError or TypeError for what is none."""
    entries: list[Entry] = []
    between = b""
    for line in lines:
        row = json.loads(line)
        if row["type"] == _BYTES:
            between += base64.b64decode(row["payload"])
        elif row["type"] == _FILE:
            padding = entries[-1].padding if entries else 0
            entries.append(Entry(_name(row), between[padding:], int(row.get("size") or 0)))
            between = b""
    return Archive(tuple(entries), between[entries[-1].padding if entries else 0 :])


def arranged(archive: Archive) -> Archive:
    """The same files folder by folder, without a store's marks. A link stays behind the file that it links to."""
    marked = [_without_marks(entry) for entry in archive.entries]
    places = {entry.name.strip(b"/"): _place(entry.name) for entry in marked}

    def key(entry: Entry) -> tuple[bytes, ...]:
        own = _place(entry.name)
        target = _link_of(entry)
        return max(own, places.get(target, own)) if target else own

    return Archive(tuple(sorted(marked, key=key)), archive.end)


def published_config(body: bytes, diff_ids: list[str]) -> bytes:
    """An image's configuration for layers of these digests, without what only its store knows."""
    config: dict[str, Any] = json.loads(body)
    noted = [step for step in config.get("history") or () if _MADE_OF.fullmatch(step.get("comment") or "")]
    if not noted and config["rootfs"]["diff_ids"] == diff_ids:
        return body
    for step in noted:
        del step["comment"]
    config["rootfs"]["diff_ids"] = diff_ids
    return json.dumps(config, separators=(",", ":"), ensure_ascii=False).encode()


def _name(row: dict[str, Any]) -> bytes:
    """A file's name in the layer; one that is no UTF-8 stands in base64."""
    raw = row.get("name_raw")
    return base64.b64decode(raw) if raw else str(row["name"]).encode()


def _place(name: bytes) -> tuple[bytes, ...]:
    """Where a path comes: its folders' names, one by one. What is deleted stands in the place of the deleted."""
    *folders, last = name.strip(b"/").split(b"/")
    if last == _OPAQUE:
        last = b""
    elif last.startswith(_WHITEOUT):
        last = last.removeprefix(_WHITEOUT)
    return (*folders, last)


def _link_of(entry: Entry) -> bytes:
    """The path of the file that a hard link shares, else nothing."""
    if not entry.head or entry.head[-_BLOCK:][156:157] != tarfile.LNKTYPE:
        return b""
    info = tarfile.TarInfo.frombuf(entry.head[-_BLOCK:], "utf-8", "surrogateescape")
    named = dict(_records(entry.head[_BLOCK:-_BLOCK])) if entry.head[156:157] == tarfile.XHDTYPE else {}
    return named.get("linkpath", info.linkname.encode("utf-8", "surrogateescape")).strip(b"/")


def _without_marks(entry: Entry) -> Entry:
    """The entry without the records of extended attributes that a store made, and without a header for no records."""
    if entry.head[156:157] != tarfile.XHDTYPE:
        return entry
    header = entry.head[:_BLOCK]
    size = int(header[124:136].rstrip(b"\0 "), 8)
    records = list(_records(entry.head[_BLOCK : _BLOCK + size]))
    kept = [(key, value) for key, value in records if not key.startswith(_MARKS)]
    if len(kept) == len(records):
        return entry
    rest = entry.head[_BLOCK + size + -size % _BLOCK :]
    if not kept:
        return replace(entry, head=rest)
    body = b"".join(_record(key, value) for key, value in kept)
    return replace(entry, head=_of_size(header, len(body)) + body + bytes(-len(body) % _BLOCK) + rest)


def _records(body: bytes) -> Iterator[tuple[str, bytes]]:
    """The records of a pax header: ``LENGTH KEY=VALUE`` and a newline, the length being that of all of it."""
    at = 0
    while at < len(body) and body[at : at + 1] != b"\0":
        length = int(body[at : body.index(b" ", at)])
        key, _, value = body[at : at + length - 1].partition(b" ")[2].partition(b"=")
        if length < 1:
            raise ValueError("a pax record without a length")
        yield key.decode("utf-8", "surrogateescape"), value
        at += length


def _record(key: str, value: bytes) -> bytes:
    rest = b" " + key.encode("utf-8", "surrogateescape") + b"=" + value + b"\n"
    length = len(rest)
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return str(length).encode() + rest


def _of_size(header: bytes, size: int) -> bytes:
    """The header with another size, and the checksum that follows from it."""
    head = header[:124] + b"%011o\0" % size + header[136:148] + b" " * 8 + header[156:]
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]
