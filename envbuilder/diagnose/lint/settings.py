"""verl settings: hydra overrides in launch scripts, YAML files; and what a file says of versions and cards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from envbuilder.diagnose.lint.commands import read_script
from envbuilder.diagnose.lint.model import Hit, Override, Recipe
from envbuilder.diagnose.lint.structured import UnreadableError, yaml_document

ROOTS = (
    "actor_rollout_ref", "critic", "data", "trainer", "algorithm", "reward_model", "custom_reward_function", "ray_init",
    "ray_kwargs", "global_profiler", "transfer_queue", "model", "optim", "reward",
)  # fmt: skip
_OVERRIDE = re.compile(rf"^(\+{{0,2}}|~)((?:{'|'.join(ROOTS)})(?:\.[\w-]+)+)(?:=(.*))?$", re.DOTALL)
_ENTRY = re.compile(r"verl[./]trainer[./](main_ppo|main_eval|main_generation|fsdp_sft_trainer|sft_trainer)\b")
_VERSION = re.compile(r"verl[\s:@=-]*(?:==|@|version|release)?\s*v?(\d+\.\d+(?:\.\d+)?)", re.IGNORECASE)


def verl_version(text: str) -> str:
    """The verl version a file names (``verl v0.5.0``, ``verl==0.5.0``); empty when it names none."""
    match = _VERSION.search(text)
    version = match.group(1) if match else ""
    return version if version.count(".") != 1 else f"{version}.0"


def read_shell(recipe: Recipe) -> None:
    """Steps and variables of a shell script, and the overrides of verl's trainers in it."""
    read_script(recipe, recipe.text, 1, {})
    entry = ""
    for step in recipe.steps:
        found = _ENTRY.search(" ".join(step.argv))
        entry = found.group(1) if found else entry
    if entry or "verl" in recipe.text:
        recipe.overrides = list(_overrides(recipe, entry or "main_ppo"))


def _overrides(recipe: Recipe, entry: str) -> Iterator[Override]:
    """Every word of the script that is an override: on the command itself or in an array it is given."""
    for number, line in enumerate(recipe.lines, start=1):
        code = line.strip()
        if code.startswith("#"):
            continue
        for word in re.findall(r"""(?:[^\s"'\\]|\\.|"[^"]*"|'[^']*')+""", code):
            match = _OVERRIDE.match(word.strip().strip("\"'").rstrip("\\").strip("\"'"))
            if match and match.group(2).split(".")[0] not in ("model", "optim"):
                value = (match.group(3) or "").strip("\"'")
                yield Override(match.group(2), value, number, match.group(1), entry)


def read_settings(recipe: Recipe) -> None:
    """The overrides that a YAML file of verl settings stands for: its leaves as dotted keys."""
    try:
        data, lines = yaml_document(recipe.text)
    except UnreadableError as error:
        recipe.hits.append(Hit("file-unreadable", error.line, values={"format": "YAML", "message": error.message}))
        return
    recipe.data = data
    recipe.line_of = lambda *path: lines.get(path)
    if isinstance(data, dict):
        recipe.overrides = list(_leaves(data, (), lines))


def _leaves(node: Any, path: tuple[str, ...], lines: dict[Any, int]) -> Iterator[Override]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            if key not in ("defaults", "hydra"):
                yield from _leaves(value, (*path, str(key)), lines)
    elif path:
        yield Override(".".join(path), "" if node is None else str(node), lines.get(path, 1))
