"""Finding the files to lint, and reading them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from envbuilder.diagnose.lint.formats import format_of

SKIPPED = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".jj",
        ".venv",
        "venv",
        "env",
        ".tox",
        ".nox",
        "node_modules",
        "__pycache__",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        "site-packages",
        "build",
        "dist",
        ".eggs",
        ".idea",
        ".vscode",
        ".smoke-venv",
    }
)
# Larger files are data, not descriptions of an environment; a big conda-lock file has about 2 MiB.
MOST_BYTES = 8 << 20
HEAD_BYTES = 4096


def walk(folder: Path) -> Iterator[Path]:
    """The files below ``folder`` in order, without version control, virtual environments and caches."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in SKIPPED and not (Path(root) / f / "pyvenv.cfg").exists())
        for name in sorted(names):
            yield Path(root) / name


def read_text(path: Path) -> str | None:
    """The text of a file; None when it is binary or too large to be a description of an environment.

    UTF-8, UTF-16 with a byte order mark, else Latin-1, so that every text can be read. Raises OSError.
    """
    if path.stat().st_size > MOST_BYTES:
        return None
    data = path.read_bytes()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data[:HEAD_BYTES]:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def known_by_name(path: Path) -> bool:
    """Whether a file in a folder is worth opening: known by its name, or of a kind whose content may tell."""
    return bool(format_of(path.name, "")) or path.suffix in (".yml", ".yaml", ".toml", ".json")
