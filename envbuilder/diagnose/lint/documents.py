"""Further formats: conda-lock, uv and poetry locks, compose files, stacks, listings, data schemas, build files."""

from __future__ import annotations

import re
from typing import Any

from envbuilder.diagnose.lint.model import Hit, Recipe, Requirement, Step
from envbuilder.diagnose.lint.structured import UnreadableError, toml_document, toml_line, yaml_document


def read_yaml(recipe: Recipe) -> None:
    """Parse a YAML (or JSON) document into ``recipe.data``."""
    try:
        data, lines = yaml_document(recipe.text)
    except UnreadableError as error:
        kind = "JSON" if recipe.file.endswith(".json") else "YAML"
        recipe.hits.append(Hit("file-unreadable", error.line, values={"format": kind, "message": error.message}))
        return
    recipe.data = data
    recipe.line_of = lambda *path: lines.get(path)


def read_toml(recipe: Recipe) -> None:
    """Parse a TOML document into ``recipe.data``."""
    try:
        recipe.data = toml_document(recipe.text)
    except UnreadableError as error:
        recipe.hits.append(Hit("file-unreadable", error.line, values={"format": "TOML", "message": error.message}))
        return
    recipe.line_of = lambda *path: toml_line(recipe.text, *[str(part) for part in path])


def read_conda_lock(recipe: Recipe) -> None:
    """The packages of a conda-lock file (unified format) as two steps: conda's and pip's."""
    read_yaml(recipe)
    packages = recipe.data.get("package") if isinstance(recipe.data, dict) else None
    conda = Step("conda", 1, "conda-lock install", verb="lock")
    pip = Step("pip", 1, "conda-lock install", verb="lock")
    for index, item in enumerate(packages if isinstance(packages, list) else []):
        if not isinstance(item, dict):
            continue
        line = recipe.line_of("package", index) or 1
        manager = str(item.get("manager", "conda"))
        step = pip if manager == "pip" else conda
        url = str(item.get("url") or "")
        version = str(item.get("version") or "")
        step.requirements.append(
            Requirement(
                str(item.get("name") or ""),
                f"{'==' if manager == 'pip' else '='}{version}",
                f"{item.get('name')} {version}",
                line,
                url=url,
                conda=manager != "pip",
                build=_build(url),
                hashed=any(_mapping(item.get("hash")).values()),
                marker=str(item.get("platform") or ""),
            )
        )
    recipe.steps += [conda, pip]


def _build(url: str) -> str:
    name = re.sub(r"\.(conda|tar\.bz2)$", "", url.rsplit("/", 1)[-1])
    return name.rsplit("-", 1)[-1] if name.count("-") > 1 else ""


def read_python_lock(recipe: Recipe) -> None:
    """uv.lock, poetry.lock and pylock.toml: their packages as one pip step."""
    read_toml(recipe)
    data = recipe.data if isinstance(recipe.data, dict) else {}
    step = Step("pip", 1, recipe.file, verb="lock")
    packages = data.get("package") or data.get("packages") or []
    numbers = [n for n, line in enumerate(recipe.lines, 1) if line.strip() in ("[[package]]", "[[packages]]")]
    for item, line in zip(packages if isinstance(packages, list) else [], numbers, strict=False):
        if isinstance(item, dict) and item.get("name"):
            step.requirements.append(
                Requirement(
                    str(item["name"]).lower().replace("_", "-"),
                    f"=={item.get('version', '')}",
                    f"{item['name']} {item.get('version', '')}",
                    line,
                    hashed=True,
                )
            )
    recipe.steps.append(step)


def read_listing(recipe: Recipe) -> None:
    """A listing of a build context (``du``, ``ls -lR``, ``tree``): (bytes, path) pairs in ``recipe.data``."""
    rows: list[tuple[int, str, int]] = []
    for number, line in enumerate(recipe.lines, start=1):
        match = re.match(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s+(\S.*)$", line)
        if match and not line.lstrip().startswith("#"):
            scale = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[match.group(2)]
            rows.append((int(float(match.group(1)) * scale), match.group(3).strip(), number))
    recipe.data = rows


def read_build_file(recipe: Recipe) -> None:
    """CMake, Make and setup.py are only searched for architecture flags; the text is all that is needed."""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
