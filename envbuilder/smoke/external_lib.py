"""The module that verl imports in every worker: ``actor_rollout_ref.model.external_lib=envbuilder.smoke.external_lib``.

Importing it adapts the process to the stack (``envbuilder.smoke.adapt``), and guards it when ``ENVBUILDER_GUARD``
names a folder (``envbuilder.smoke.guard_worker``). A program that uses verl's classes without its workers imports it
first, before verl. The stack is read from ``ENVBUILDER_STACK``, by default the one of the image.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from envbuilder.smoke import adapt
from envbuilder.smoke.manifest import IMAGE_MANIFEST, load_manifest

STACK_ENVIRONMENT = "ENVBUILDER_STACK"


def _start() -> None:
    manifest = load_manifest(Path(os.environ.get(STACK_ENVIRONMENT, IMAGE_MANIFEST)))
    compute = manifest.stack["compute"]
    adapt.install(compute["dtype"], compute["attention"])
    folder = os.environ.get("ENVBUILDER_GUARD")
    if folder:
        from envbuilder.smoke import guard_worker

        guard_worker.start(Path(folder), manifest.gpu, Path(sys.argv[0]).name or "python")


_start()
