"""How rows of a data set become rows of verl: a TOML file, ours for GSM8K or the user's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Literal

from pydantic import Field, field_validator

from envbuilder.errors import InputError
from envbuilder.stack.fields import Strict, load_model


class BadRowError(Exception):
    """A row that cannot be mapped; the text says why."""


class GroundTruth(Strict):
    """Where the right answer stands: a field, the group of ``pattern`` in it, less the characters of ``remove``."""

    field: str
    pattern: str | None = Field(None, description="A regular expression with one group; the whole field without it.")
    remove: str = Field("", description="Characters dropped from the answer, such as thousands separators.")

    @field_validator("pattern")
    @classmethod
    def _one_group(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from None
            if groups != 1:
                raise ValueError(f"the pattern needs exactly one group, it has {groups}")
        return pattern


class DataMapping(Strict):
    """A mapping file. ``prompt`` and ``system`` are templates with ``${field}`` for the row's fields."""

    schema_: Literal[1] = Field(alias="schema")
    data_source: str = Field(description="What verl chooses the reward function by.")
    ability: str = "unknown"
    style: Literal["rule", "model"] = Field("rule", description="How verl scores: by rule or by a reward model.")
    prompt: str
    system: str = ""
    extra: tuple[str, ...] = Field((), description="Fields carried along in extra_info.")
    source: str = ""
    ground_truth: GroundTruth

    @field_validator("prompt", "system")
    @classmethod
    def _template(cls, template: str) -> str:
        # Template.is_valid() is Python 3.11.
        for match in Template.pattern.finditer(template):
            if match.group("invalid") is not None:
                rest = template[match.start() : match.start() + 12]
                raise ValueError(f"{rest!r} is no ${{field}}; a dollar sign is written $$")
        return template

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        return re.compile(self.ground_truth.pattern) if self.ground_truth.pattern else None

    def row(self, row: Mapping[str, Any], split: str, index: int) -> dict[str, Any]:
        """The verl row of ``row``. Raises BadRowError when a field is missing or holds no answer."""
        texts = {name: value for name, value in row.items() if isinstance(value, (str, int, float))}
        messages = [
            {"role": role, "content": _fill(template, texts)}
            for role, template in (("system", self.system), ("user", self.prompt))
            if template
        ]
        return {
            "data_source": self.data_source,
            "prompt": messages,
            "ability": self.ability,
            "reward_model": {"style": self.style, "ground_truth": self._truth(texts)},
            "extra_info": {"split": split, "index": index, **{name: _text(texts, name) for name in self.extra}},
        }

    def _truth(self, texts: Mapping[str, Any]) -> str:
        text = _text(texts, self.ground_truth.field)
        if self._pattern:
            match = self._pattern.search(text)
            if not match:
                raise BadRowError(f"field {self.ground_truth.field!r} holds no match of {self.ground_truth.pattern!r}")
            text = match.group(1)
        for character in self.ground_truth.remove:
            text = text.replace(character, "")
        if not text.strip():
            raise BadRowError(f"field {self.ground_truth.field!r} gives an empty answer")
        return text.strip()


def _text(texts: Mapping[str, Any], name: str) -> str:
    if name not in texts:
        raise BadRowError(f"field {name!r} is missing or no text")
    text = str(texts[name])
    if not text.strip():
        raise BadRowError(f"field {name!r} is empty")
    return text


def _fill(template: str, texts: Mapping[str, Any]) -> str:
    for name in _names(template):
        _text(texts, name)
    return Template(template).substitute(texts)


@lru_cache(maxsize=16)
def _names(template: str) -> list[str]:
    # Template.get_identifiers() is Python 3.11.
    matches = Template.pattern.finditer(template)
    return [name for match in matches if (name := match.group("named") or match.group("braced"))]


def load_mapping(name_or_path: str) -> DataMapping:
    """A built-in mapping by name, or the user's own file. Raises InputError for a wrong one."""
    if name_or_path.endswith(".toml"):
        return load_model(DataMapping, Path(name_or_path))
    known = {
        p.name.removesuffix(".toml") for p in files("envbuilder.train.datasets").iterdir() if p.name.endswith(".toml")
    }
    if name_or_path not in known:
        raise InputError(
            f"there is no mapping for a data set named {name_or_path!r}",
            cure=f"Known: {', '.join(sorted(known))}. For another, give a mapping file of your own (docs/train.md).",
        )
    return load_model(DataMapping, Path(str(files("envbuilder.train.datasets") / f"{name_or_path}.toml")))
