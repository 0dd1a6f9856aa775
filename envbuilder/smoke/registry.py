"""All checks, in the order they run: what is cheap and tells most comes first. Importing this imports no torch."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from envbuilder.errors import InputError
from envbuilder.smoke.check import Spec
from envbuilder.smoke.checks import (
    apex,
    generate,
    guard,
    host,
    imports,
    memory,
    nccl,
    numerics,
    ppo,
    slim,
    soak,
    trainer,
)

CHECKS: tuple[Spec, ...] = (
    imports.IMPORTS,
    slim.SLIM,
    *host.HOST,
    guard.GUARD,
    numerics.MATMUL,
    numerics.CONVOLUTION,
    memory.BANDWIDTH,
    apex.APEX,
    nccl.COLLECTIVES,
    generate.GENERATE,
    ppo.ONE_TOKEN,
    ppo.STEP,
    soak.SOAK,
    trainer.TRAINER,
)


def select(only: Sequence[str] = (), skip: Sequence[str] = (), checks: tuple[Spec, ...] = CHECKS) -> tuple[Spec, ...]:
    """The checks named by ``only`` (all without it) less those named by ``skip``.

    Raises InputError for an id that no check has, and when nothing is left.
    """
    known = [spec.id for spec in checks]
    for name in (*only, *skip):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise InputError(
                f"there is no check named {name!r}",
                cure=f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}.",
            )
    chosen = tuple(spec for spec in checks if (not only or spec.id in only) and spec.id not in skip)
    if not chosen:
        raise InputError("no check is left to run", cure="Give fewer names to --skip.")
    return chosen
