"""Giving back the disk space of blanked device code in files that were copied since: holes instead of stored zeros.

An engine copies every byte of a layer into its store. The bytes read from a file stay exactly what they were.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from envbuilder.audit.fatbin import BLANKED, fatbin_at
from envbuilder.audit.hollow import SMALLEST
from envbuilder.audit.scan import Scanner
from envbuilder.audit.slim import RECORD_NAME, code_sections, read_record
from envbuilder.audit.sources import CHUNK, FileSource
from envbuilder.errors import InputError

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_PAGE = 4096


def punch_folder(root: Path) -> int:
    """Punch holes into every file that a slim record below ``root`` names; the bytes given back on disk.

    A filesystem without holes, a file of somebody else's or a damaged record gives nothing back and is no fault.
    """
    saved = 0
    for path in root.rglob(RECORD_NAME):
        try:
            record = read_record(path.parent)
        except InputError:
            continue
        for file in record.files if record else ():
            target = path.parent / file.path
            if target.is_file() and not target.is_symlink():
                saved += punch(target)
    return saved


def punch(path: Path) -> int:
    """Punch holes where ``path`` holds the zeros of blanked images; the bytes given back. Time stamps stay."""
    before = path.stat()
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        for start, end in _zeros(path):
            if not _punch(handle, start, end - start):
                break
    finally:
        os.close(handle)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return (before.st_blocks - path.stat().st_blocks) * 512


def _zeros(path: Path) -> list[tuple[int, int]]:
    """(start, end) of whole pages inside blanked payloads, each looked at: nothing but zeros is given back."""
    found = []
    with FileSource(path) as source:
        scanner = Scanner(source)
        for start, end in code_sections(path):
            scanner.region(start, end)
        for offsets in scanner.found.units.values():
            for offset in offsets:
                walk = fatbin_at(source, offset)
                for entry in walk.entries if walk and walk.whole else ():
                    first = -(-(entry.payload + SMALLEST) // _PAGE) * _PAGE
                    last = (entry.payload + entry.stored) // _PAGE * _PAGE
                    if entry.raw[4] & BLANKED and first < last and _is_zero(source, first, last):
                        found.append((first, last))
    return found


def _is_zero(source: FileSource, start: int, end: int) -> bool:
    while start < end:
        data = source.read(start, min(CHUNK, end - start))
        if not data or data.count(0) != len(data):
            return False
        start += len(data)
    return True


def _punch(handle: int, start: int, length: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = libc.fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return int(fallocate(handle, _PUNCH_HOLE | _KEEP_SIZE, start, length)) == 0
