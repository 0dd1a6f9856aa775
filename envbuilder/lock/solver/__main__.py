"""The executable: the few commands of ``conda`` that conda-lock calls."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from envbuilder.lock.solver.installing import ExplicitFileError, install, installed
from envbuilder.lock.solver.solving import ChannelError, UnsatisfiableError, problem_for

REPORT = "ENVBUILDER_SOLVER_REPORT"
"""Environment variable: a file that a failure is described in as JSON, beside the answer on standard output."""


def main() -> NoReturn:
    """Run one command and end the process at once: py-rattler may crash while an interpreter shuts down."""
    code = 1
    try:
        code = run(sys.argv[1:])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        fail("fault", f"{type(error).__name__}: {error}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Parse and carry out one command; the exit code."""
    name = arguments[0] if arguments else "--help"
    if name == "--version":
        print(f"envbuilder-solver {version('gpu-envbuilder')} (py-rattler {version('py-rattler')})")
        return 0
    if name not in _COMMANDS:
        known = ", ".join(_COMMANDS)
        print(f"usage: envbuilder-solver COMMAND ...\n\n{__doc__}\nCommands: {known}. Try COMMAND --help.")
        return 0 if name in ("--help", "-h") else 2
    handler, takes_specs = _COMMANDS[name]
    parser = argparse.ArgumentParser(prog=f"envbuilder-solver {name}")
    parser.add_argument("--prefix", "-p", type=Path, help="the environment's folder")
    for flag in ("--json", "--no-pip", "--dry-run", "--override-channels", "--quiet", "--yes", "--copy"):
        parser.add_argument(flag, action="store_true")
    if takes_specs:
        parser.add_argument("--channel", "-c", action="append", default=[], help="first given, first in priority")
        parser.add_argument("--file", type=Path, help="an explicit lock to install")
        parser.add_argument("specs", nargs="*")
        options = parser.parse_intermixed_args(arguments[1:])
    else:
        parser.add_argument("arguments", nargs=argparse.REMAINDER)
        options = parser.parse_args(arguments[1:])
    if name != "info" and options.prefix is None:
        parser.error("give --prefix")
    return handler(options)


def answer(data: Any) -> None:
    """Print the answer conda-lock reads."""
    print(json.dumps(data))


def fail(kind: str, message: str, **more: Any) -> int:
    """Answer with a failure, and describe it in the report file where one was asked for. The exit code, 1."""
    described = {"kind": kind, "message": message, **more}
    path = os.environ.get(REPORT)
    if path:
        Path(path).write_text(json.dumps(described), encoding="utf-8")
    answer({"success": False, **described})
    return 1


def _platform() -> str:
    return os.environ.get("CONDA_SUBDIR") or "linux-64"


def _create(options: argparse.Namespace) -> int:
    if options.dry_run:
        return _plan(options, {})
    if not options.file:
        return fail("use", "only an explicit lock can be installed: give --file")
    try:
        count = asyncio.run(install(options.file, options.prefix))
    except ExplicitFileError as error:
        print(error, file=sys.stderr)
        return fail("explicit-file", str(error))
    except Exception as error:  # py-rattler raises several unrelated classes; all are told the same way
        print(error, file=sys.stderr)
        return fail("install", str(error))
    answer({"success": True, "prefix": str(options.prefix), "packages": count})
    return 0


def _update(options: argparse.Namespace) -> int:
    if not options.dry_run:
        return fail("use", "only --dry-run is supported: the lock decides what is installed")
    entries = [json.loads(path.read_text()) for path in sorted((options.prefix / "conda-meta").glob("*.json"))]
    return _plan(options, {entry["name"]: entry["url"] for entry in entries})


def _plan(options: argparse.Namespace, kept: dict[str, str]) -> int:
    """Solve; packages that are ``kept`` (name to address) stay in the set, and move only when they must."""

    async def solve() -> list[dict[str, Any]]:
        problem = await problem_for(options.channel, _platform())
        return await problem.solve(options.specs, kept)

    try:
        records = asyncio.run(solve())
    except UnsatisfiableError as error:
        print(error.dump, file=sys.stderr)
        return fail("unsatisfiable", error.sentence, conflict=error.conflict, dump=error.dump)
    except ChannelError as error:
        return fail("channel", str(error))
    fetch = [record for record in records if record["url"] not in kept.values()]
    answer({"success": True, "prefix": str(options.prefix), "actions": {"FETCH": fetch, "LINK": _links(fetch)}})
    return 0


def _links(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "name": record["name"],
            "version": record["version"],
            "build_string": record["build"],
            "dist_name": f"{record['name']}-{record['version']}-{record['build']}",
            "channel": record["channel"],
            "base_url": record["channel"],
            "platform": record["subdir"],
        }
        for record in records
    ]


def _list(options: argparse.Namespace) -> int:
    answer(installed(options.prefix))
    return 0


def _info(options: argparse.Namespace) -> int:
    folders = [folder for folder in os.environ.get("CONDA_PKGS_DIRS", "").split(os.pathsep) if folder]
    answer({"platform": _platform(), "pkgs_dirs": folders})
    return 0


def _run(options: argparse.Namespace) -> int:
    """Run a program of the prefix: ``run --prefix P pip install ...``."""
    bin_folder = options.prefix / "bin"
    arguments = [a for a in options.arguments if a != "--"]
    if not arguments:
        return fail("use", "give the program to run")
    program = bin_folder / arguments[0]
    path = f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path, "CONDA_PREFIX": str(options.prefix)}
    return subprocess.run([str(program), *arguments[1:]], env=environment, check=False).returncode


_COMMANDS = {
    "create": (_create, True),
    "install": (_update, True),
    "list": (_list, False),
    "info": (_info, False),
    "run": (_run, False),
}

if __name__ == "__main__":
    main()
