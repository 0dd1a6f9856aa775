"""Applies to the installed verl what ``envbuilder patch verl --hook`` does, where there is no libcst: in an image.

``python -m envbuilder.smoke.patched`` reads ``verl_edits.json``, which the codemod made of the pinned release: for each
file its SHA-256 before and after, and what to put in place of which bytes. Every file is held against its digest
before and after; a file that is as it should be already is left alone. Standard library only.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from envbuilder.errors import EnvbuilderError, InputError, IntegrityError, Place
from envbuilder.smoke.manifest import IMAGE_MANIFEST, load_manifest

EDITS = Path(__file__).with_name("verl_edits.json")


def apply(site_packages: Path, compute: Mapping[str, Any]) -> list[str]:
    """Patch the verl in ``site_packages`` for a stack that computes as ``compute``; the files that were written.

    Raises InputError when the edits are for another dtype or attention, IntegrityError when a file is neither the
    release's nor the patched one. Nothing is written unless every file can be.
    """
    data = json.loads(EDITS.read_text(encoding="utf-8"))
    for name in ("dtype", "attention", "compile"):
        if compute[name] != data[name]:
            raise InputError(
                f"the edits are for {name} {data[name]}, the stack has {compute[name]}",
                place=Place(str(EDITS), field=name),
                cure="Patch verl's wheel with `envbuilder patch verl` instead.",
            )
    after: dict[str, bytes] = {}
    for row in data["files"]:
        path = site_packages / row["path"]
        before = path.read_bytes() if path.is_file() else b""
        if _sha256(before) == row["after"]:
            continue
        patched = _edited(before, row["edits"]) if _sha256(before) == row["before"] else b""
        if _sha256(patched) != row["after"]:
            raise IntegrityError(
                f"this is not the file of verl {data['verl']}",
                place=Place(str(path)),
                cure=f"Install verl {data['verl']} from its wheel, unchanged.",
                detail=f"found    {_sha256(before)}\nexpected {row['before']}",
            )
        after[row["path"]] = patched
    for name, patched in after.items():
        _write(site_packages / name, patched)
    for record in site_packages.glob(f"verl-{data['verl']}.dist-info/RECORD"):
        _write(record, _record(record.read_bytes(), after))
    return sorted(after)


def _edited(before: bytes, edits: Sequence[tuple[int, int, str]]) -> bytes:
    """``before`` with each stretch of bytes [start, end) replaced, last first so that offsets stay true."""
    for start, end, text in sorted(edits, reverse=True):
        before = before[:start] + text.encode() + before[end:]
    return before


def _write(path: Path, content: bytes) -> None:
    """Through a temporary file; an existing file keeps its mode and time."""
    kept = path.stat() if path.exists() else None
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content)
    temporary.chmod(kept.st_mode & 0o777 if kept else 0o644)
    time = kept.st_mtime if kept else float(os.environ.get("SOURCE_DATE_EPOCH", path.parent.stat().st_mtime))
    os.utime(temporary, (time, time))
    temporary.replace(path)


def _record(text: bytes, after: Mapping[str, bytes]) -> bytes:
    rows = {row[0]: row for row in csv.reader(io.StringIO(text.decode())) if row}
    for name, content in after.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows[name] = [name, f"sha256={digest}", str(len(content))]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows.values())
    return out.getvalue().encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main() -> int:
    """Patch the verl that this interpreter would import. Exit code 0, or the error's own."""
    try:
        spec = find_spec("verl")
        if spec is None or not spec.submodule_search_locations:
            raise InputError("verl is not installed here", cure="Install the wheel that the lock names first.")
        stack = load_manifest(Path(os.environ.get("ENVBUILDER_STACK", IMAGE_MANIFEST))).stack
        written = apply(Path(spec.submodule_search_locations[0]).parent, stack["compute"])
    except EnvbuilderError as error:
        where = f"{error.place}: " if error.place else ""
        sys.stderr.write(f"error: {where}{error.message}\n{error.detail or ''}\ndo: {error.cure}\n")
        return error.exit_code
    sys.stdout.write(f"verl: {len(written)} files patched, every one as the manifest has it\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
