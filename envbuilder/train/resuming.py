"""Starting again: whether there is something to go on from, and whether it is the same run."""

from __future__ import annotations

from typing import Any

from envbuilder.errors import InputError, Place
from envbuilder.train.checkpoints import last_whole
from envbuilder.train.outfolder import OutFolder
from envbuilder.train.settings import Wanted

# What decides the result. How many steps, how often to save and on which card may change from start to start.
_DECIDES = (
    *("stack", "device", "prompt", "response", "batch", "micro_batch", "checkpointing", "offload", "reward_name"),
    "given",
)


def asked(wanted: Wanted) -> dict[str, Any]:
    """What decides the result of the run, JSON-typed."""
    paths = {
        name: str(path.resolve()) if path else ""
        for name, path in (("model", wanted.model), ("data", wanted.data), ("reward", wanted.reward))
    }
    values = {name: getattr(wanted, name) for name in _DECIDES}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in (paths | values).items()}


def finished(wanted: Wanted, out: OutFolder, resume: bool) -> int | None:
    """The steps that were asked for, when they are all done; None when there is something to do.

    Raises InputError when the folder holds a run with other settings (unless ``resume``), or none to resume.
    """
    record = out.record()
    if record is None:
        if resume:
            raise InputError("there is no run to resume", place=Place(str(out.path)), cure="Leave out --resume.")
        return None
    now = asked(wanted)
    changed = [name for name, value in record["asked"].items() if now.get(name) != value]
    if changed and not resume:
        told = ", ".join(f"{name}: {record['asked'][name]} there, {now.get(name)} now" for name in changed)
        raise InputError(
            f"the folder holds a run with other settings ({told})",
            place=Place(str(out.path)),
            cure="Give another --out, or --resume to go on from its checkpoint with the new ones.",
        )
    steps = wanted.steps or int(record.get("steps", 0))
    return steps if steps and last_whole(out.checkpoints) >= steps else None
