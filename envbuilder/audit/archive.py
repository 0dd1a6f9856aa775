"""Static libraries (``.a``): the members of an ar archive, GNU and BSD names. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from envbuilder.audit.sources import Source

MAGIC = b"!<arch>\n"
_HEADER = 60
_MAX_MEMBERS = 1 << 17


def members(source: Source) -> Iterator[tuple[str, int, int]]:
    """(name, offset, length in bytes) of every file in the archive; stops where the archive breaks off."""
    size = source.size or 0
    offset = len(MAGIC)
    names = b""
    for _ in range(_MAX_MEMBERS):
        header = source.read(offset, _HEADER)
        if len(header) < _HEADER or header[58:60] != b"`\n":
            return
        digits = header[48:58].strip()
        length = int(digits) if digits.isdigit() else 0
        start = offset + _HEADER
        if start + length > size:
            return
        name = header[:16].rstrip()
        if name == b"//":
            names = source.read(start, min(length, 1 << 20))
        elif name.startswith(b"#1/") and name[3:].isdigit():
            extra = min(int(name[3:]), length)
            yield _text(source.read(start, min(extra, 4096)).rstrip(b"\0")), start + extra, length - extra
        elif name not in (b"/", b"/SYM64/", b"__.SYMDEF"):
            if name[:1] == b"/" and name[1:].isdigit():
                name = names[int(name[1:]) :].split(b"\n", 1)[0]
            yield _text(name.rstrip(b"/")), start, length
        offset = start + length + length % 2


def _text(name: bytes) -> str:
    return name[:4096].decode("utf-8", "replace")
