"""Relocking p40: envbuilder beside a stock conda-lock, and its Python half beside uv alone. One run, one machine.

    make bench

Conda channels are the real records of tests/data laid out on disk; the Python index is the one this host is set to.
A stock conda-lock cannot say "torch from the PyTorch index" without reaching it, so it locks the default index's torch
2.6.0 in its place, and it knows no cut-off date: the task is as near to the same as it can be given it. Both use the
same conda solver. Cold: every cache empty. Warm: the same again.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from envbuilder.data import builtin_root
from envbuilder.lock.client import python_client
from envbuilder.lock.conda_inputs import stack_inputs
from envbuilder.lock.conda_solvers import own_solver
from envbuilder.lock.mirrors import Mirrors
from envbuilder.lock.python import index_files, target_of
from envbuilder.lock.standins import write_stand_ins
from envbuilder.stack.loading import load_stack
from tests.channels import lay_out, real_records

WARM_RUNS = 3
BIN = Path(sys.executable).parent


def main() -> None:
    """Measure, and print times and ratios."""
    stack, _ = load_stack("p40")
    with tempfile.TemporaryDirectory(prefix="envbuilder-bench-") as name:
        folder = Path(name)
        mirrors = lay_out(real_records(), folder / "channels")
        tasks = {
            "envbuilder lock p40": ours(folder, mirrors),
            "conda-lock lock": stock(folder, mirrors),
            "envbuilder, Python half": python_half(folder),
            "uv pip compile alone": uv_alone(folder),
        }
        cold = {task: timed(run) for task, run in tasks.items()}
        warm = {task: statistics.median(timed(run) for _ in range(WARM_RUNS)) for task, run in tasks.items()}
    print(f"relock of {stack.name}, cold and warm (median of {WARM_RUNS}), seconds")
    for task in tasks:
        print(f"  {task:<26}{cold[task]:>8.2f}{warm[task]:>8.2f}")
    print("ratios, asked for and measured")
    ratio("stock conda-lock / envbuilder, cold", cold["conda-lock lock"] / cold["envbuilder lock p40"], at_least=3)
    ratio("stock conda-lock / envbuilder, warm", warm["conda-lock lock"] / warm["envbuilder lock p40"], at_least=20)
    for state, times in (("cold", cold), ("warm", warm)):
        share = times["envbuilder, Python half"] / times["uv pip compile alone"]
        ratio(f"envbuilder's Python half / uv alone, {state}", share, at_most=1.3)


def ratio(what: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> None:
    """Print one ratio beside what was asked for."""
    held = value >= at_least if at_least is not None else value <= (at_most or 0)
    asked = f">= {at_least}" if at_least is not None else f"<= {at_most}"
    print(f"  {what:<46}{asked:>8}{value:>8.2f}  {'held' if held else 'NOT HELD'}")


def timed(run: Callable[[], None]) -> float:
    """Seconds ``run`` takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def ours(folder: Path, mirrors: Mapping[str, list[str]]) -> Callable[[], None]:
    """The whole relock by the command line, in a project of its own with caches of its own."""
    project = folder / "project"
    project.mkdir()
    shutil.copytree(builtin_root() / "stacks", project / "stacks")
    lines = [f'"{canonical}" = {json.dumps(addresses)}' for canonical, addresses in mirrors.items()]
    (project / "envbuilder.toml").write_text("[mirrors.replace]\n" + "\n".join(lines) + "\n")
    env = environment(ENVBUILDER_CACHE=folder / "cache", UV_CACHE_DIR=folder / "uv")
    return lambda: run([str(BIN / "envbuilder"), "lock", "p40"], project, env)


def stock(folder: Path, mirrors: Mapping[str, list[str]]) -> Callable[[], None]:
    """A stock conda-lock over the same pins, with the same solver."""
    stack, _ = load_stack("p40")
    inputs = stack_inputs(stack, "p40.toml")
    assert inputs is not None
    place = folder / "stock"
    place.mkdir()
    _, virtual = inputs.write(place)
    pins = [f"{n} =={p.version.split('+')[0]}" for n, p in stack.python.packages.items() if n in ("torch", "verl")]
    document = {
        "channels": list(inputs.channels),
        "dependencies": [*inputs.requirements, {"pip": pins}],
        "platforms": ["linux-64"],
        "pip-repositories": [default_index()],
        "allow-pypi-requests": False,
    }
    # JSON is YAML.
    (place / "environment.yml").write_text(json.dumps(document))
    (place / "names.json").write_text("{}")
    command = [str(BIN / "conda-lock"), "lock", "--conda", str(own_solver()), "--file", "environment.yml"]
    command += ["--virtual-package-spec", str(virtual), "--lockfile", "conda-lock.yml", "--log-level", "WARNING"]
    command += ["--pypi_to_conda_lookup_file", (place / "names.json").as_uri()]
    bundle = python_client().ca_bundle
    env = environment(
        XDG_CACHE_HOME=folder / "stock-cache",
        ENVBUILDER_SOLVER_CACHE=folder / "stock-repodata",
        ENVBUILDER_CONDA_MIRRORS=json.dumps(dict(mirrors)),
        **({"REQUESTS_CA_BUNDLE": bundle} if bundle else {}),
    )
    return lambda: run(command, place, env)


def python_half(folder: Path) -> Callable[[], None]:
    """Our Python half in a process of its own, its start included."""
    code = (
        "from envbuilder.lock.client import python_client; from envbuilder.lock.python import lock_python; "
        "from envbuilder.stack.loading import load_stack; lock_python(load_stack('p40')[0], python_client())"
    )
    env = environment(UV_CACHE_DIR=folder / "uv-half")
    return lambda: run([sys.executable, "-c", code], folder, env)


def uv_alone(folder: Path) -> Callable[[], None]:
    """uv with the same requirements, target and cut-off, and the same metadata of torch."""
    stack, _ = load_stack("p40")
    found = index_files(stack, offline=True, mirrors=Mirrors())
    links = write_stand_ins(found.files.values(), folder / "links")
    wanted = folder / "requirements.in"
    pins = [f"{n}=={p.version}" for n, p in stack.python.packages.items() if p.group not in found.lacking]
    wanted.write_text("\n".join(pins) + "\n")
    target = target_of(stack)
    command = [
        str(BIN / "uv"),
        "pip",
        "compile",
        "--quiet",
        "--format",
        "pylock.toml",
        "--python-version",
        target.python,
    ]
    command += ["--python-platform", f"x86_64-manylinux_{target.glibc.replace('.', '_')}", "--find-links", str(links)]
    command += ["--exclude-newer", f"{stack.python.cutoff}T00:00:00Z", "--output-file", str(folder / "pylock.toml")]
    env = {**python_client().environment(), "UV_CACHE_DIR": str(folder / "uv-alone")}

    def compiled() -> None:
        (folder / "pylock.toml").unlink(missing_ok=True)
        run([*command, str(wanted)], folder, env)

    return compiled


def default_index() -> str:
    """The index this host is set to, else pip's own default."""
    from pip._internal.models.index import PyPI

    return python_client().index or PyPI.simple_url


def environment(**more: object) -> dict[str, str]:
    """This process's environment without what would make a difference between the two."""
    left_out = ("PYTHONDONTWRITEBYTECODE", "XDG_CACHE_HOME")
    return {k: v for k, v in os.environ.items() if k not in left_out} | {k: str(v) for k, v in more.items()}


def run(command: list[str], folder: Path, env: Mapping[str, str]) -> None:
    """Run a command; its output is shown when it fails."""
    done = subprocess.run(command, cwd=folder, env=dict(env), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    main()
