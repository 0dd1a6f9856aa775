"""The checkpoints of a run: which is the last whole one, and what a killed save left behind.

verl writes ``global_step_N/{actor,critic}`` and ``data.pt``, and then N into ``latest_checkpointed_iteration.txt``, by
which it resumes; that file is written in place, so a kill can leave it empty. Source: verl 0.5.0, ray_trainer.py.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from pathlib import Path

from envbuilder.files import write_text

TRACKER = "latest_checkpointed_iteration.txt"
KEPT = 2
_FOLDER = re.compile(r"global_step_(\d+)")
# Weights and Adam's two moments in float32, of a model with one parameter.
_BYTES_A_PARAMETER = 12


def checkpoint_bytes(actor: int, critic: int) -> int:
    """About the bytes of one checkpoint of models with so many parameters."""
    return _BYTES_A_PARAMETER * (actor + critic)


def last_whole(folder: Path) -> int:
    """The step of the last whole checkpoint, 0 when there is none. Nothing is changed."""
    return max((step for step, path in _steps(folder).items() if _is_whole(path)), default=0)


def put_in_order(folder: Path) -> int:
    """Make verl resume from the last whole checkpoint; its step, 0 when there is none.

    What a killed save left is removed, older checkpoints but the last ``KEPT`` - 1 as well, and the file that names the
    last one is written anew.
    """
    step = last_whole(folder)
    steps = _steps(folder)
    keep = {number for number in sorted(steps) if number <= step and _is_whole(steps[number])}
    keep = set(sorted(keep)[-(KEPT - 1) :])
    for number, path in steps.items():
        if number not in keep:
            shutil.rmtree(path)
    tracker = folder / TRACKER
    if step == 0:
        tracker.unlink(missing_ok=True)
    elif tracked(folder) != step:
        write_text(tracker, str(step))
        if os.geteuid() == 0:
            # verl writes into the file that is there, as the folder's owner.
            os.chown(tracker, folder.stat().st_uid, folder.stat().st_gid)
    return step


def tracked(folder: Path) -> int:
    """The step that verl says it saved last; 0 when it says none."""
    try:
        return int((folder / TRACKER).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _steps(folder: Path) -> dict[int, Path]:
    if not folder.is_dir():
        return {}
    found = ((_FOLDER.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return {int(match[1]): path for match, path in found if match}


def _is_whole(path: Path) -> bool:
    """Whether every part is there to its end: torch.save writes zip files, whose directory comes last."""
    models = [path / part for part in ("actor", "critic")]
    parts = [file for model in models for file in model.glob("*.pt")]
    named = all(
        any(model.glob(f"{kind}_world_size_*")) for model in models for kind in ("model", "optim", "extra_state")
    )
    return named and all(map(zipfile.is_zipfile, [*parts, path / "data.pt"]))
