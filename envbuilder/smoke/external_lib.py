"""The module that verl imports in every worker: ``actor_rollout_ref.model.external_lib=envbuilder.smoke.external_lib``.

Importing it adapts the process to the stack (``envbuilder.smoke.adapt``), and guards it when ``ENVBUILDER_GUARD``
names a folder (``envbuilder.smoke.guard_worker``). A program that uses verl's classes without its workers imports it
first, before verl. The stack is read from ``ENVBUILDER_STACK``, by default the one of the image.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from envbuilder.errors import InputError, Place
from envbuilder.smoke import adapt

STACK_ENVIRONMENT = "ENVBUILDER_STACK"
IMAGE_STACK = Path("/opt/envbuilder/stack.json")


def read_stack() -> dict[str, Any]:
    """The stack and its GPU profile as JSON-typed data: ``{"stack": ..., "gpu": ...}``. Raises InputError."""
    path = Path(os.environ.get(STACK_ENVIRONMENT, IMAGE_STACK))
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        data["stack"]["compute"], data["gpu"]["dtypes"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"this is no stack of envbuilder: {error}",
            place=Place(str(path)),
            cure=f"Run in the image, or let {STACK_ENVIRONMENT} name a file made by `envbuilder patch stack`.",
        ) from error
    return data


def _start() -> None:
    data = read_stack()
    compute = data["stack"]["compute"]
    adapt.install(compute["dtype"], compute["attention"])
    folder = os.environ.get("ENVBUILDER_GUARD")
    if folder:
        from envbuilder.smoke import guard_worker

        guard_worker.start(Path(folder), data["gpu"], Path(sys.argv[0]).name or "python")


_start()
