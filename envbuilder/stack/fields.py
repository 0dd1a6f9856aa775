"""Turning pydantic's validation errors into ours: file, key and cure."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from envbuilder import toml
from envbuilder.errors import InputError, Place


class Strict(BaseModel):
    """A model that knows all its keys: an unknown one is an error, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=BaseModel)


def load_model(model: type[Model], path: Path) -> Model:
    """Load and validate a TOML file. Raises InputError naming file, line, key and cure."""
    return parse_model(model, toml.load(path), path)


def parse_model(model: type[Model], data: dict[str, Any], path: Path) -> Model:
    """Validate ``data``, read from ``path``."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # An unknown key is most often a typo of the key that is then missing: say that one first.
        errors = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
        first = errors[0]
        raise InputError(
            _sentence(first),
            place=Place(str(path), _line_of(path, first["loc"]), ".".join(map(str, first["loc"]))),
            cure=_cure(model, first),
            detail=_others(errors[1:]),
        ) from None


def _sentence(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown key"
    if error["type"] == "missing":
        return "this key is missing"
    message: str = error["msg"].removeprefix("Value error, ")
    return message[0].lower() + message[1:] if message[:1].isupper() and message[1:2].islower() else message


def _cure(model: type[BaseModel], error: Any) -> str | None:
    if error["type"] == "extra_forbidden":
        known = _keys_at(model, error["loc"][:-1])
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
        return f"Did you mean {near[0]!r}?" if near else f"Known keys here: {', '.join(sorted(known))}."
    field = _field_at(model, error["loc"])
    if error["type"] == "missing":
        return f"Add it: {field['description']}" if field.get("description") else "Add it."
    if "enum" in field:
        return f"One of: {', '.join(map(str, field['enum']))}."
    wanted = f"a {field['type']}" if "type" in field else "what the schema says"
    return f"Give {wanted}; see docs/schema for what every key holds."


def _others(errors: list[Any]) -> str | None:
    return "\n".join(f"also {'.'.join(map(str, e['loc']))}: {_sentence(e)}" for e in errors) or None


def _keys_at(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    return list(_field_at(model, loc).get("properties", {}))


def _field_at(model: type[BaseModel], loc: tuple[Any, ...]) -> dict[str, Any]:
    node: Any = model.model_json_schema()
    definitions = node.get("$defs", {})
    for part in loc:
        node = _resolve(node, definitions)
        if isinstance(part, int):
            node = node.get("items", {})
        else:
            node = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
    field: dict[str, Any] = _resolve(node, definitions)
    return field


def _resolve(node: Any, definitions: dict[str, Any]) -> Any:
    if "anyOf" in node:
        node = next((n for n in node["anyOf"] if "$ref" in n), node)
    ref = node.get("$ref")
    return definitions[ref.rsplit("/", 1)[1]] if ref else node


def _line_of(path: Path, loc: tuple[Any, ...]) -> int | None:
    """The line of the last key of ``loc``: found by walking table headers and keys of the file's text."""
    keys = [str(part) for part in loc if not isinstance(part, int)]
    if not keys or not path.is_file():
        return None
    wanted_item = next((part for part in loc if isinstance(part, int)), 0)
    table: list[str] = []
    seen = -1
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if text.startswith("["):
            table = text.strip("[] ").replace('"', "").split(".")
            seen += text.startswith("[[") and table == keys[: len(table)]
            if table == keys:
                return number
        elif "=" in text:
            key = [*table, *text.split("=", 1)[0].strip().replace('"', "").split(".")]
            array = any(isinstance(part, int) for part in loc)
            if key == keys and (not array or seen in (-1, wanted_item)):
                return number
    return None
