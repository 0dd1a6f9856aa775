"""The conda half of a stack's lock: solve, hold against the stack, seal."""

from __future__ import annotations

from pathlib import Path

from envbuilder.lock.checksum import seal
from envbuilder.lock.conda import CondaOptions, solve_conda
from envbuilder.lock.conda_cuda import check_release
from envbuilder.lock.conda_file import parse_conda_lock
from envbuilder.lock.conda_inputs import CondaInputs
from envbuilder.report.progress import Progress
from envbuilder.stack.model import Stack


def lock_conda(
    stack: Stack, inputs: CondaInputs, existing: Path | None, options: CondaOptions, progress: Progress
) -> str:
    """The text of ``locks/NAME.conda-lock.yml``: conda-lock's file with our checksum among its comments.

    Raises InputError when the requirements contradict one another or a package of another CUDA release slipped in.
    """
    text = solve_conda(inputs, existing, options, progress)
    check_release(parse_conda_lock(text, inputs.lock_name), stack.cuda.toolkit, inputs.place)
    return seal_conda(text, stack.name)


def seal_conda(text: str, name: str) -> str:
    """conda-lock's ``text`` with our comments and a checksum in the place of its comments."""
    lines = text.split("\n")
    while lines[0].startswith("#"):
        del lines[0]
    header = [
        f"The conda half of the lock of {name}, in conda-lock's format.",
        f"Written by `envbuilder lock {name}` through conda-lock; an edit by hand is noticed. A stock conda-lock",
        f"installs it: conda-lock install --conda envbuilder-solver --prefix PREFIX {name}.conda-lock.yml",
    ]
    return seal(header, "\n".join(lines))
