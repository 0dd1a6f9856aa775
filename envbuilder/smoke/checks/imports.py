"""The stack's packages import; how long that takes is the first part of a cold start."""

from __future__ import annotations

import importlib
import time
from importlib.metadata import PackageNotFoundError, version

from envbuilder.smoke.check import Outcome, Spec, failed, passed
from envbuilder.smoke.context import Context

# The adaptation comes before verl, whose modules ask for flash_attn as soon as there is a GPU.
_MODULES = (
    "torch",
    "envbuilder.smoke.external_lib",
    "transformers",
    "ray",
    "verl",
    "verl.trainer.ppo.ray_trainer",
    "verl.workers.rollout.hf_rollout",
)


def run(context: Context) -> Outcome:
    """Import everything that a training run imports, and compare versions with the stack's pins."""
    times: dict[str, float] = {}
    for name in _MODULES:
        begin = time.perf_counter()
        try:
            importlib.import_module(name)
        except Exception as error:
            return failed(
                f"{name} does not import: {type(error).__name__}: {error}",
                "The image differs from its lock, or a patch is missing: build it anew.",
            )
        times[name] = round(time.perf_counter() - begin, 2)
    context.measured["cold start"] = {"imports": round(sum(times.values()), 2)}
    wrong = []
    for name, pin in context.manifest.stack["python"]["packages"].items():
        if pin.get("group"):
            continue
        try:
            found = version(name)
        except PackageNotFoundError:
            found = "missing"
        # The default index serves builds whose version carries a local part (2.6.0 reports 2.6.0+cu124).
        if found != pin["version"] and found.split("+")[0] != pin["version"]:
            wrong.append(f"{name} {found}, the stack pins {pin['version']}")
    if wrong:
        return failed("; ".join(wrong), "Run in the image of this stack, or give the --profile that belongs to it.")
    return passed(f"imports take {sum(times.values()):.1f} s", **{f"{name} s": took for name, took in times.items()})


IMPORTS = Spec(
    "imports", "packages import", "torch, Ray and verl are there in the stack's versions and import", run, limit_s=180
)
