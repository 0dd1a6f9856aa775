"""uv as a program: resolving requirements into exact files. Its output names addresses, so it stays temporary."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import tomli
from packaging.pylock import Pylock

from envbuilder.errors import HostError, InputError, SourceError
from envbuilder.lock.client import PythonClient, redact


@dataclass(frozen=True)
class Target:
    """What files must fit: CPython ``python`` (3.11 or 3.11.2) on Linux x86_64 with at least ``glibc`` (2.36)."""

    python: str
    glibc: str


def resolve(
    requirements: Sequence[str],
    target: Target,
    client: PythonClient,
    *,
    cutoff: date | None = None,
    dependencies: bool = True,
    offline: bool = False,
    refresh: bool = False,
    find_links: Path | None = None,
    constraints: Sequence[str] = (),
) -> Pylock:
    """The files ``requirements`` resolve to, with their addresses at the client's index.

    ``cutoff``: files uploaded on or after that day (UTC) do not exist. ``offline``: from uv's cache alone. ``refresh``:
    ask the index anew, once and briefly, whatever uv's cache holds. ``find_links``: a folder of wheels that count
    beside the index. ``constraints`` hold for whatever is needed.
    Raises InputError when the requirements contradict one another, SourceError when the index does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="envbuilder-uv-") as folder:
        wanted, answer = Path(folder, "requirements.in"), Path(folder, "pylock.toml")
        wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        command = [_uv(), "pip", "compile", "--quiet", "--format", "pylock.toml", "--no-header", "--no-annotate"]
        command += ["--python", sys.executable, "--python-version", target.python]
        command += ["--python-platform", f"x86_64-manylinux_{target.glibc.replace('.', '_')}"]
        command += ["--output-file", str(answer)]
        if cutoff:
            command += ["--exclude-newer", f"{cutoff.isoformat()}T00:00:00Z"]
        if not dependencies:
            command.append("--no-deps")
        if offline:
            command.append("--offline")
        if constraints:
            held = Path(folder, "constraints.txt")
            held.write_text("\n".join(constraints) + "\n", encoding="utf-8")
            command += ["--constraints", str(held)]
        if find_links:
            command += ["--find-links", str(find_links)]
        env = client.environment()
        if refresh:
            command.append("--refresh")
            env.update(UV_HTTP_TIMEOUT="6", UV_HTTP_RETRIES="0")
        run = subprocess.run([*command, str(wanted)], env=env, capture_output=True, text=True, check=False)
        if run.returncode:
            raise _error(redact(run.stderr), offline)
        return Pylock.from_dict(tomli.loads(answer.read_text(encoding="utf-8")))


def _uv() -> str:
    import uv

    try:
        return uv.find_uv_bin()
    except FileNotFoundError as error:
        raise HostError(
            "the program uv, which resolves Python packages, is not there",
            cure="Install envbuilder's own requirements again: pip install uv",
        ) from error


# How uv ends when requirements have no common solution: a sentence after one of these marks.
_REASON = re.compile(r"(?:cause:|╰─▶)\s*(?P<reason>.*?)(?:\n\s*\n|\Z)", re.DOTALL)
_REFUSED = re.compile(r"40[13] (Unauthorized|Forbidden)")
_NO_FILE = re.compile(r"(?:no version of|Because) (?P<package>\S+?)(?: was not found| and you require)")


def _error(stderr: str, offline: bool) -> InputError | SourceError:
    """What went wrong, as uv says it."""
    reason = _REASON.search(stderr)
    detail = " ".join(reason["reason"].split()) if reason else stderr
    if _REFUSED.search(stderr):
        return SourceError(
            "the Python index refuses this host",
            cure="Check the user name and password in the index address (or netrc, keyring) that pip or uv is set to.",
            detail=stderr,
        )
    if "No solution found" not in stderr and "Failed to build" not in stderr:
        return SourceError(
            "uv's cache lacks something, and --offline asks no index"
            if offline
            else "the Python index does not answer",
            cure="Check the index that pip or uv is set to, proxy and certificates: envbuilder sources",
            detail=stderr,
        )
    if "filtered by `exclude-newer`" in stderr and "published at" not in stderr:
        return InputError(
            "the index has no file from before the cut-off, or does not say when its files were uploaded",
            cure="Lock through an index that gives upload times (PEP 700); fetching needs none.",
            detail=detail,
        )
    if missing := _NO_FILE.search(detail):
        return InputError(
            f"the index has no {missing['package']} that may be used",
            cure="Correct the pin; or, if it exists, see what answers in the index's place: envbuilder sources",
            detail=stderr,
        )
    return InputError(
        "the Python requirements cannot be met together",
        cure="Change one of the pins named here, in the stack.",
        detail=detail,
    )
