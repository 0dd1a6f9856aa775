"""Hold rows of envbuilder/stack/compat/torch.toml against real PyTorch builds, read by ``envbuilder audit``.

    python scripts/refresh_torch_builds.py PATH... [--write]

PATH is a torch wheel, or the folder ``torch`` of an installed one. Prints what the binary holds beside what the table
says, and with --write makes the row say so: its architectures, ``proven_by = "audit"``, ``status = "measured"``.
Exit code 1 when a row differs.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import tomlkit

from envbuilder.audit import audit
from envbuilder.stack.compat.torch_builds import find_build

TABLE = Path(__file__).parent.parent / "envbuilder" / "stack" / "compat" / "torch.toml"
LIBRARY = "lib/libtorch_cuda.so"


def version_of(path: Path) -> tuple[str, str]:
    """(version, tag) of a wheel or an installed torch, out of its torch/version.py."""
    if path.is_dir():
        text = (path / "version.py").read_text()
    else:
        with zipfile.ZipFile(path) as archive:
            text = archive.read("torch/version.py").decode()
    version = re.search(r"__version__ = '([^'+]+)", text)
    cuda = re.search(r"^cuda[^=]*= '([\d.]+)'", text, re.MULTILINE)
    if not version or not cuda:
        sys.exit(f"{path}: this is no CUDA build of torch")
    return version.group(1), "cu" + cuda.group(1).replace(".", "")


def arches_of(path: Path) -> list[str]:
    """The capabilities that libtorch_cuda.so holds in (nearly) every unit; ``+PTX`` where it holds that PTX too."""
    report = audit.audit([str(path / LIBRARY if path.is_dir() else path)], None)
    counts: dict[str, int] = {}
    for target in report.facts["targets"]:
        for name, images in target["images"].items():
            if name.endswith("libtorch_cuda.so"):
                counts = images
    most = max(counts.values(), default=0)
    # Single units are built for the `a` variants or for fewer cards; the list of the build is what nearly all hold.
    held = [name for name, count in counts.items() if count >= 0.9 * most]
    found = []
    for name in held:
        match = re.fullmatch(r"SASS sm_(\d+)(\d)", name)
        if match:
            number = f"{match.group(1)}.{match.group(2)}"
            found.append(number + ("+PTX" if f"PTX compute_{number.replace('.', '')}" in held else ""))
    return sorted(found, key=lambda arch: tuple(int(part) for part in arch.removesuffix("+PTX").split(".")))


def write(version: str, tag: str, arches: list[str]) -> None:
    """Make the row of one build say what was read; a row of several versions gives this one away to a new row."""
    document = tomlkit.parse(TABLE.read_text(encoding="utf-8"))
    rows: Any = document["build"]
    row = next(row for row in rows if version in row["torch"] and row["cuda"] == tag)
    if len(row["torch"]) > 1:
        row["torch"] = [one for one in row["torch"] if one != version]
        fresh = tomlkit.table()
        fresh.update({key: value for key, value in row.items() if key not in ("torch", "floor", "last")})
        rows.append(fresh)
        row = fresh
        row["torch"] = [version]
    row.pop("floor", None)
    row["arches"], row["proven_by"], row["status"] = arches, "audit", "measured"
    row["source"] = f"libtorch_cuda.so of torch {version}+{tag} read by envbuilder audit; before: {row['source']}"
    TABLE.write_text(tomlkit.dumps(document), encoding="utf-8")


def main() -> int:
    """Compare, and write where asked to."""
    paths = [Path(word) for word in sys.argv[1:] if not word.startswith("-")]
    differ = False
    for path in paths:
        version, tag = version_of(path)
        arches = arches_of(path)
        row = find_build(f"{version}+{tag}")
        said = sorted(row.arches, key=lambda a: tuple(map(int, a.removesuffix("+PTX").split(".")))) if row else []
        same = said == arches
        differ |= not same
        print(f"torch {version}+{tag}: binary {' '.join(arches)}; table {' '.join(said) or 'none'}; {same=}")
        if "--write" in sys.argv and row is not None and (not same or row.proven_by != "audit"):
            write(version, tag, arches)
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
