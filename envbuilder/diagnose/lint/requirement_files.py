"""Files that list packages: requirements.txt and constraints, environment.yml, pyproject.toml."""

from __future__ import annotations

import re
import shlex
from typing import Any

from envbuilder.diagnose.lint.commands import _PIP_VALUES, _pip_option
from envbuilder.diagnose.lint.model import Fix, Hit, Recipe, Requirement, Step
from envbuilder.diagnose.lint.requirement import conda_requirement, pip_requirement
from envbuilder.diagnose.lint.structured import UnreadableError, toml_document, toml_line, yaml_document

# What may stand behind a requirement on its line.
_PER_REQUIREMENT = ("--hash", "--global-option", "--config-setting", "--build-option", "--install-option")
_SECOND = re.compile(r"\s+(?=[A-Za-z][\w.-]*\s*(?:\[[^\]]*\]\s*)?(?:[=<>!~]=|[<>@]|\s|$)|--)")


def read_requirements(recipe: Recipe, text: str | None = None, first_line: int = 1) -> Step:
    """Add the step a requirements file stands for."""
    step = Step("pip", first_line, f"pip install -r {recipe.file}", verb="install")
    recipe.steps.append(step)
    for number, raw in _logical_lines(text if text is not None else recipe.text, first_line):
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if not line:
            continue
        if line.startswith("-"):
            _option(step, line, number)
        else:
            _one(recipe, step, line, number)
    return step


def _logical_lines(text: str, first: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    pending, start = "", 0
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), start=first):
        start = start or number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            pending += line[:-1] + " "
            continue
        found.append((start, pending + line))
        pending, start = "", 0
    if pending:
        found.append((start, pending))
    return found


def _option(step: Step, line: str, number: int) -> None:
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    position = 0
    while position < len(words):
        word = words[position]
        name, eq, value = word.partition("=")
        attached = re.match(r"^(-[rcefi])(.+)$", word)
        if name in _PIP_VALUES:
            if not eq:
                position += 1
                value = words[position] if position < len(words) else ""
            _pip_option(step, _PIP_VALUES[name], value, number)
        elif attached and not word.startswith("--"):
            _pip_option(step, _PIP_VALUES[attached.group(1)], attached.group(2), number)
        else:
            step.flags.add(word.lstrip("-"))
        position += 1


def _one(recipe: Recipe, step: Step, line: str, number: int) -> None:
    body = line.partition(";")[0] if " ;" in line or re.search(r";\s*(python|sys|platform|os|extra)", line) else line
    parts = [p for p in _SECOND.split(body) if p]
    extra = [p for p in parts[1:] if not p.startswith(_PER_REQUIREMENT) and "@" not in parts[0].split("[")[0][-1:]]
    if extra and not re.search(r"\s@\s", body):
        _several(recipe, step, line, parts, number)
        return
    requirement = pip_requirement(line, number)
    if requirement is None and re.match(r"^[A-Za-z][\w.-]*=\d[^=\s]*(=\S+)?$", line):
        requirement = Requirement(line.partition("=")[0].lower(), "", line, number)
    if requirement is None:
        recipe.hits.append(Hit("requirement-unreadable", number, (line,), {"text": line}))
        return
    step.requirements.append(requirement)


def _several(recipe: Recipe, step: Step, line: str, parts: list[str], number: int) -> None:
    wanted: list[str] = []
    for part in parts:
        if wanted and wanted[-1].startswith("-") and " " not in wanted[-1] and "=" not in wanted[-1]:
            wanted[-1] += f" {part}"
        else:
            wanted.append(part.strip())
    options = [w for w in wanted if w.startswith("-")]
    named = [w for w in wanted if not w.startswith("-")]
    column = line.find(parts[1]) + 1
    recipe.hits.append(
        Hit(
            "requirements-several-on-a-line",
            number,
            (line,),
            {"column": str(column), "second": parts[1]},
            fix=Fix(number, number, (*options, *named)) if recipe.lines[number - 1].strip() == line else None,
        )
    )
    for option in options:
        _option(step, option, number)
    for name in named:
        requirement = pip_requirement(name, number)
        if requirement is not None:
            step.requirements.append(requirement)


def read_environment(recipe: Recipe) -> None:
    """Add the conda step and the pip step of an environment.yml."""
    try:
        data, lines = yaml_document(recipe.text)
    except UnreadableError as error:
        recipe.hits.append(Hit("file-unreadable", error.line, values={"format": "YAML", "message": error.message}))
        return
    recipe.data = data if isinstance(data, dict) else {}
    recipe.line_of = lambda *path: lines.get(path)
    channels = [str(c) for c in _list(recipe.data.get("channels"))]
    conda = Step(
        "conda",
        lines.get(("dependencies",), 1),
        f"conda env create -f {recipe.file}",
        verb="env-create",
        channels=channels,
    )
    recipe.steps.append(conda)
    for index, item in enumerate(_list(recipe.data.get("dependencies"))):
        if isinstance(item, dict):
            for position, text in enumerate(_list(item.get("pip"))):
                _pip_line(recipe, str(text), lines.get(("dependencies", index, "pip", position), conda.line))
        elif item:
            requirement = conda_requirement(str(item), lines.get(("dependencies", index), conda.line))
            if requirement is not None:
                conda.requirements.append(requirement)


def _pip_line(recipe: Recipe, text: str, number: int) -> None:
    step = recipe.steps[-1]
    if step.tool != "pip":
        step = Step("pip", number, "the pip: section", verb="install")
        recipe.steps.append(step)
    if text.startswith("-"):
        _option(step, text, number)
        return
    _one(recipe, step, text, number)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def read_pyproject(recipe: Recipe) -> None:
    """Add a step for the dependencies of a pyproject.toml, with the indexes uv is told of."""
    try:
        recipe.data = toml_document(recipe.text)
    except UnreadableError as error:
        recipe.hits.append(Hit("file-unreadable", error.line, values={"format": "TOML", "message": error.message}))
        recipe.data = {}
        return
    recipe.line_of = lambda *path: toml_line(recipe.text, *path)
    project = _table(recipe.data.get("project"))
    lists: list[tuple[tuple[str, ...], Any]] = [(("project", "dependencies"), project.get("dependencies"))]
    for name, items in _table(project.get("optional-dependencies")).items():
        lists.append((("project", "optional-dependencies", name), items))
    for name, items in _table(recipe.data.get("dependency-groups")).items():
        lists.append((("dependency-groups", name), items))
    for path, items in lists:
        step = Step("pip", toml_line(recipe.text, *path) or 1, ".".join(path), verb="install")
        for item in _list(items):
            if isinstance(item, str):
                requirement = pip_requirement(item, _line_with(recipe, item, step.line))
                if requirement is not None:
                    step.requirements.append(requirement)
                else:
                    line = _line_with(recipe, item, step.line)
                    recipe.hits.append(Hit("requirement-unreadable", line, (item,), {"text": item}))
        if step.requirements:
            recipe.steps.append(step)
    _poetry(recipe)
    _indexes(recipe)


def _indexes(recipe: Recipe) -> None:
    uv = _table(_table(recipe.data.get("tool")).get("uv"))
    for index in _list(uv.get("index")):
        for step in recipe.steps:
            address = str(_table(index).get("url", ""))
            if _table(index).get("default"):
                step.index_url = address
            else:
                step.extra_index.append(address)
    if isinstance(uv.get("no-build-isolation-package"), list):
        for step in recipe.steps:
            step.options["no-build-isolation-package"] = [str(x) for x in uv["no-build-isolation-package"]]


def _poetry(recipe: Recipe) -> None:
    poetry = _table(_table(recipe.data.get("tool")).get("poetry"))
    wanted = _table(poetry.get("dependencies"))
    if not wanted:
        return
    step = Step(
        "pip", toml_line(recipe.text, "tool", "poetry", "dependencies") or 1, "tool.poetry.dependencies", verb="install"
    )
    for name, value in wanted.items():
        version = value if isinstance(value, str) else str(_table(value).get("version", ""))
        line = toml_line(recipe.text, "tool", "poetry", "dependencies", name) or step.line
        specifier = (
            f"=={version}" if re.match(r"^\d", version) else "" if version.startswith(("^", "~", "*")) else version
        )
        url = str(_table(value).get("git") or _table(value).get("url") or "")
        step.requirements.append(
            Requirement(name.lower().replace("_", "-"), specifier, f"{name} {version}", line, url=url)
        )
    for source in _list(poetry.get("source")):
        step.extra_index.append(str(_table(source).get("url", "")))
    recipe.steps.append(step)


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _line_with(recipe: Recipe, text: str, default: int) -> int:
    for number, line in enumerate(recipe.lines[default - 1 :], start=default):
        if text in line:
            return number
    return default
