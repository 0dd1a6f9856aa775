"""Which format a file is of, by its name and, where the name does not tell, by its content."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePath

from envbuilder.diagnose.lint import dockerfile, documents, requirement_files, settings
from envbuilder.diagnose.lint.model import Recipe

READERS: dict[str, Callable[[Recipe], object]] = {
    "dockerfile": dockerfile.read,
    "requirements": requirement_files.read_requirements,
    "environment": requirement_files.read_environment,
    "pyproject": requirement_files.read_pyproject,
    "conda-lock": documents.read_conda_lock,
    "python-lock": documents.read_python_lock,
    "compose": documents.read_yaml,
    "verl-settings": settings.read_settings,
    "script": settings.read_shell,
    "stack": documents.read_toml,
    "build-file": documents.read_build_file,
    "listing": documents.read_listing,
    "data-schema": documents.read_yaml,
}
TITLES = {
    "dockerfile": "Dockerfile", "requirements": "pip requirements", "environment": "conda environment",
    "pyproject": "pyproject.toml", "conda-lock": "conda-lock file", "python-lock": "Python lock file",
    "compose": "compose file", "verl-settings": "verl settings", "script": "shell script", "stack": "stack or target",
    "build-file": "build file (CMake, Make, setup.py)", "listing": "listing of a build context",
    "data-schema": "schema of a data set",
}  # fmt: skip

_BY_NAME: tuple[tuple[str, str], ...] = (
    (r"setup\.py$", "build-file"),
    (r".*\.(dockerignore|py|md|rst|log|j2|jinja2?|tmpl|tpl|html|bak|orig)$", ""),
    (r"(.*[._-])?(dockerfile|containerfile)([._-][^.]*|\.[\w-]+)?$", "dockerfile"),
    (r".*conda-lock.*\.ya?ml$", "conda-lock"),
    (r"(.*[._-])?environment.*\.ya?ml$", "environment"),
    (r"(.*[._-])?(docker-)?compose.*\.ya?ml$", "compose"),
    (r".*\.verl\.ya?ml$", "verl-settings"),
    (r"(.*[._-])?pyproject\.toml$", "pyproject"),
    (r"(.*[._-])?(uv|poetry)\.lock$|pylock.*\.toml$", "python-lock"),
    (r".*\.(stack|target)\.toml$", "stack"),
    (r"(.*[._-])?(requirements|constraints).*\.(txt|in)$", "requirements"),
    (r".*\.lock\.txt$", "requirements"),
    (r".*\.(sh|bash|sbatch|slurm)$", "script"),
    (r"(.*[._-])?cmakelists\.txt$|.*\.cmake$|(.*[._-])?(gnu)?makefile$|.*\.mk$", "build-file"),
    (r".*\.schema\.json$", "data-schema"),
    (r".*(tree|du|context)\.txt$", "listing"),
)


def format_of(name: str, text: str) -> str:
    """The format's name, or an empty string when lint does not know it."""
    lower = PurePath(name).name.lower()
    for pattern, kind in _BY_NAME:
        if re.match(pattern, lower):
            return kind
    return _by_content(lower, text)


def _by_content(name: str, text: str) -> str:
    head = text[:4000]
    if re.match(r"#!.*\b(ba|z|da)?sh\b", head):
        return "script"
    if name.endswith((".yml", ".yaml")):
        keys = set(re.findall(r"^([A-Za-z_][\w-]*):", text[:200_000], re.MULTILINE))
        if "dependencies" in keys and keys & {"channels", "name"}:
            return "environment"
        if "package" in keys and re.search(r"^\s*manager: (conda|pip)", text[:100_000], re.MULTILINE):
            return "conda-lock"
        if "services" in keys:
            return "compose"
        if keys & {"actor_rollout_ref", "critic"} or {"algorithm", "trainer", "data"} <= keys:
            return "verl-settings"
        return ""
    if name.endswith(".toml"):
        is_ours = re.search(r"^schema\s*=\s*1", text, re.MULTILINE) and re.search(r"^gpu\s*=", text, re.MULTILINE)
        return "stack" if is_ours or re.search(r"^\[target\]", text, re.MULTILINE) else ""
    if name.endswith(".json"):
        return "data-schema" if re.search(r'"columns"\s*:', head) else ""
    if "." not in name and re.search(r"^FROM \S+", head, re.MULTILINE | re.IGNORECASE):
        return "dockerfile" if re.search(r"^(RUN|COPY|CMD|ENTRYPOINT) ", head, re.MULTILINE) else ""
    return ""
