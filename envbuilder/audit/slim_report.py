"""How a slim environment is shown."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from envbuilder.audit.cards import Card
from envbuilder.audit.slim import RECORD_NAME, SlimRecord
from envbuilder.report.model import Report, Table, Verdict

_MIB = 1 << 20


def slim_report(root: Path, record: SlimRecord, card: Card) -> Report:
    """A table of the files with their size, what is blank, and what they take on disk."""
    rows = []
    facts = []
    for file in record.files:
        on_disk = (root / file.path).stat().st_blocks * 512
        kept = ", ".join(file.kept)
        rows.append((file.path, _mib(file.size), _mib(file.bytes_blanked), _mib(on_disk), kept))
        facts.append({**asdict(file), "on_disk": on_disk})
    size = sum(f.size for f in record.files)
    if record.files:
        taken = sum(int(f["on_disk"]) for f in facts)
        summary = (
            f"{_mib(record.bytes_blanked)} of {_mib(size)} in {len(record.files)} files are code for other cards and "
            f"now blank; on disk they take {_mib(taken)}. It serves {card} only, see {root / RECORD_NAME}"
        )
    else:
        summary = "nothing was found that may be changed and holds code for other cards"
    return Report(
        command="slim",
        subject=str(root),
        verdict=Verdict.YES,
        summary=summary,
        tables=(Table("", ("file", "size", "blank", "on disk", "kept"), tuple(rows)),) if rows else (),
        facts={"card": {"name": card.title, "sm": card.arch.sm}, "bytes_blanked": record.bytes_blanked, "files": facts},
    )


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"
