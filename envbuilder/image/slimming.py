"""What a slim build carries into its steps: the part of envbuilder that blanks code for other cards."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_PARTS = ("__init__.py", "errors.py", "files.py", "toml.py", "data.py", "report", "audit")
_KINDS = (".py", ".toml")
SLIM_LABEL = "io.envbuilder.slim"


def slim_source(folder: Path) -> None:
    """Copy it below ``folder``, for ``PYTHONPATH``. It needs the standard library of Python 3.11 and nothing else."""
    for path in _files():
        target = folder / "envbuilder" / path.relative_to(_PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def slim_digest() -> str:
    """12 hex digits of SHA-256 over it: they stand in the step, so that another one never meets an old layer."""
    total = hashlib.sha256()
    for path in _files():
        total.update(f"{path.relative_to(_PACKAGE)}\0".encode() + path.read_bytes())
    return total.hexdigest()[:12]


def _files() -> list[Path]:
    found = []
    for name in _PARTS:
        source = _PACKAGE / name
        found += [source] if source.is_file() else sorted(p for p in source.rglob("*") if p.suffix in _KINDS)
    return found
