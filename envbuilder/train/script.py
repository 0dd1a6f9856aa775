"""The launch script of a run: readable shell, every value quoted as data, for the inside of the stack's image."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from envbuilder.smoke.verl_overrides import Override, table
from envbuilder.train.settings import Paths

_ENTRY = "envbuilder.smoke.launch"


def render(rows: Sequence[Override], stack: str, card: str, device: str, paths: Paths) -> str:
    """The script that trains with ``rows``. It needs nothing but the image and the mounts its header names."""
    lines = [
        "#!/bin/sh",
        f"# PPO with verl {table()['verl']}, rendered by `envbuilder train {stack}`: change that, not this file.",
        f"# target: {card}",
        "# Runs inside the stack's image, as any user, without network:",
        f"#   {paths.model}  the model's folder, read",
        f"#   {paths.train}  the data, read",
        f"#   {paths.checkpoints}  checkpoints, written; a run goes on from the last whole one",
        "set -eu",
        "# A user that the image does not know has no home there; Python and getpass ask for one.",
        'if [ ! -w "${HOME:-/}" ]; then export HOME=/tmp PYTHONPYCACHEPREFIX=/tmp/pycache; fi',
        'export USER="${USER:-trainer}"',
        f"export ENVBUILDER_DEVICE={device} ENVBUILDER_SAMPLES={shlex.quote(paths.samples)}",
        "export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 RAY_DEDUP_LOGS=0",
    ]
    if device == "cpu":
        lines.append("# Without a GPU, Ray would still hand out index 0.")
        lines.append("export CUDA_VISIBLE_DEVICES= RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES=1")
    lines.append(f"mkdir -p {shlex.quote(paths.checkpoints)} {shlex.quote(paths.samples)}")
    lines.append(f"exec python3 -m {_ENTRY} \\")
    lines += [f"  {shlex.quote(str(row))} \\" for row in rows]
    lines[-1] = lines[-1].removesuffix(" \\")
    return "\n".join(lines) + "\n"
