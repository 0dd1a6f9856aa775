"""Slim: an environment that carries device code for one card only.

In binaries whose licence allows modification (``licences.toml``), the payload of every image that the card can never
run becomes zeros, which compress to nothing and take no space where the filesystem knows holes. Headers stay, so every
file stays valid; RECORD follows; ``envbuilder-slim.json`` says what was done. Runs inside image builds too: standard
library only (Python 3.11), as ``python -m envbuilder.audit.slim ROOT sm_61``.
"""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from envbuilder import __version__, toml
from envbuilder.audit import elf
from envbuilder.audit.arch import Arch
from envbuilder.audit.blank import Plan, plan, rewrite
from envbuilder.audit.owners import record_lines
from envbuilder.audit.sources import FileSource
from envbuilder.audit.tree import walk
from envbuilder.errors import EnvbuilderError, HostError, InputError, Place
from envbuilder.files import write_text
from envbuilder.report.progress import Progress, Silent

RECORD_NAME = "envbuilder-slim.json"
_SCHEMA = 1
_SECTIONS = (".nv_fatbin", "__nv_relfatbin")


@dataclass(frozen=True)
class SlimFile:
    """What was done to one file. ``path`` is relative to the root, sizes in bytes, digests are SHA-256 in hex."""

    path: str
    package: str
    version: str
    licence: str
    size: int
    images_blanked: int
    bytes_blanked: int
    kept: tuple[str, ...]
    blanked: tuple[str, ...]
    sha256_before: str
    sha256_after: str


@dataclass(frozen=True)
class SlimRecord:
    """What was done to an environment, for which card (``sm_61``)."""

    sm: str
    files: tuple[SlimFile, ...]

    @property
    def bytes_blanked(self) -> int:
        """Bytes that became zero."""
        return sum(f.bytes_blanked for f in self.files)

    def to_json(self) -> str:
        """The text of ``envbuilder-slim.json``."""
        arch = Arch.parse(self.sm)
        assert arch is not None
        data = {
            "schema": _SCHEMA,
            "envbuilder": __version__,
            "card": {"sm": self.sm, "capability": arch.capability},
            "files": [asdict(f) for f in self.files],
        }
        return json.dumps(data, indent=2) + "\n"


def read_record(root: Path) -> SlimRecord | None:
    """What was done to the environment at ``root`` so far, or None. Raises InputError when the record is damaged."""
    path = root / RECORD_NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        files = tuple(
            SlimFile(**{**f, "kept": tuple(f["kept"]), "blanked": tuple(f["blanked"])}) for f in data["files"]
        )
        return SlimRecord(str(data["card"]["sm"]), files)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"this record of a slim environment is damaged: {error}",
            place=Place(str(path)),
            cure="Make the environment anew: what was blanked in it is no longer known.",
        ) from error


def slim_tree(root: Path, card: Arch, progress: Progress | None = None) -> SlimRecord:
    """Blank what ``card`` can never run in the environment at ``root``; what was done, earlier runs included.

    A second run finds nothing left to do. Raises InputError when there is no environment or it was slimmed for another
    card, HostError when a file cannot be written.
    """
    progress = progress or Silent()
    if not root.is_dir():
        raise InputError("there is no such folder", place=Place(str(root)), cure="Give an environment's root folder.")
    earlier = read_record(root)
    if earlier and earlier.sm != card.sm:
        raise InputError(
            f"this environment was slimmed for {earlier.sm} and holds no code for {card.sm} any more",
            place=Place(str(root / RECORD_NAME)),
            cure="Make the environment anew and slim that.",
        )
    done = {f.path: f for f in earlier.files} if earlier else {}
    records = [path for path, _ in walk(root, lambda _: None) if path.endswith(".dist-info/RECORD")]
    if not records:
        raise InputError(
            "no installed package was found below this folder",
            place=Place(str(root)),
            cure="Give the root of a virtual environment or of a site-packages folder.",
        )
    for record in records:
        _slim_package(root, record, card, done, progress)
    result = SlimRecord(card.sm, tuple(done[path] for path in sorted(done)))
    if result.files and result != earlier:
        write_text(root / RECORD_NAME, result.to_json())
    return result


def _slim_package(root: Path, record: str, card: Arch, done: dict[str, SlimFile], progress: Progress) -> None:
    site, _, folder = record.removesuffix("/RECORD").rpartition("/")
    name, _, version = folder.removesuffix(".dist-info").rpartition("-")
    name = name.replace("_", "-").lower()
    allowed = next((row for row in _licences()["allowed"] if row["package"] == name), None)
    if allowed is None:
        return
    path = root / record
    text = path.read_text(encoding="utf-8")
    changed: dict[str, str] = {}
    for member, _ in record_lines(text):
        full = f"{site}/{member}" if site else member
        if not _may_change(member, allowed["files"]) or not (root / full).is_file() or (root / full).is_symlink():
            continue
        progress.item(member)
        slimmed = _slim_file(root, full, card, done.get(full), (name, version, allowed["licence"]))
        if slimmed:
            done[full] = slimmed
            changed[member] = slimmed.sha256_after
    if changed:
        write_text(path, _new_record(text, changed))


def _may_change(member: str, globs: list[str]) -> bool:
    name = member.rsplit("/", 1)[-1]
    if ".." in member.split("/") or any(fnmatchcase(name, glob) for glob in _licences()["never"]):
        return False
    return any(fnmatchcase(member, glob) for glob in globs)


def _slim_file(
    root: Path, full: str, card: Arch, earlier: SlimFile | None, package: tuple[str, str, str]
) -> SlimFile | None:
    path = root / full
    try:
        work = plan(path, code_sections(path), card)
        if not work.spans:
            return None
        before, after = rewrite(path, work)
    except OSError as error:
        raise HostError(
            f"the file cannot be rewritten: {error.strerror or error}",
            place=Place(str(path)),
            cure="Free some space or run as the environment's owner, then run the command again: it goes on from here.",
        ) from error
    return SlimFile(
        full,
        *package,
        size=path.stat().st_size,
        images_blanked=work.images + (earlier.images_blanked if earlier else 0),
        bytes_blanked=work.bytes + (earlier.bytes_blanked if earlier else 0),
        kept=work.kept,
        blanked=_merged(work, earlier),
        sha256_before=earlier.sha256_before if earlier else before,
        sha256_after=after,
    )


def _merged(work: Plan, earlier: SlimFile | None) -> tuple[str, ...]:
    return tuple(sorted({*work.blanked, *(earlier.blanked if earlier else ())}))


def code_sections(path: Path) -> tuple[tuple[int, int], ...]:
    """(start, end) of the sections of a library that hold device code where compilers put it."""
    with FileSource(path) as source:
        header = elf.parse_header(source.read(0, 64))
        if header is None:
            return ()
        table = elf.sections(source, header)
        return tuple((s.offset, s.offset + s.size) for s in table if s.name in _SECTIONS and s.type != elf.SHT_NOBITS)


def _new_record(text: str, changed: dict[str, str]) -> str:
    """RECORD with new digests. Sizes stay: blanking changes none."""
    lines = []
    for line in text.splitlines(keepends=True):
        path, _, rest = line.partition(",")
        if path in changed:
            digest = base64.urlsafe_b64encode(bytes.fromhex(changed[path])).rstrip(b"=").decode()
            line = f"{path},sha256={digest},{rest.partition(',')[2]}"
        lines.append(line)
    return "".join(lines)


@lru_cache(maxsize=1)
def _licences() -> dict[str, Any]:
    return toml.load(Path(__file__).with_name("licences.toml"))


def refuse_other_card(record: SlimRecord, capability: tuple[int, int], name: str = "this GPU") -> None:
    """Raise HostError when an environment slimmed for one card is to run on a GPU of another ``capability``."""
    card = Arch.parse(record.sm)
    if card is None or (card.major, card.minor) != capability:
        found = Arch(*capability)
        raise HostError(
            f"this environment was slimmed for {record.sm} and cannot serve {name}, which is {found.sm}: the code for "
            'it was blanked, and CUDA would end in "device kernel image is invalid"',
            cure=f"Use the image that was not slimmed, or build one with --slim for {found.sm}.",
        )


def main(arguments: list[str]) -> int:
    """``python -m envbuilder.audit.slim ROOT sm_61``, for image builds."""
    try:
        root, sm = arguments
        card = Arch.parse(sm)
    except ValueError:
        card = None
    if card is None or card.suffix:
        print("usage: python -m envbuilder.audit.slim ROOT sm_61", file=sys.stderr)
        return 2
    try:
        result = slim_tree(Path(root), card)
    except EnvbuilderError as error:
        print(f"error: {error.place or ''} {error.message}\ndo: {error.cure}", file=sys.stderr)
        return error.exit_code
    print(f"slim: {result.bytes_blanked} bytes of device code blanked in {len(result.files)} files, kept for {sm}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
