"""YAML, JSON and TOML documents with the line of every key and item."""

from __future__ import annotations

import re
from typing import Any

Path = tuple[Any, ...]


class UnreadableError(ValueError):
    """The document cannot be parsed; ``line`` is 1-based where the parser says it."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def yaml_document(text: str) -> tuple[Any, dict[Path, int]]:
    """The first document of YAML (or JSON) text as plain data, and the line of each key path. Scalars stay text.

    Raises UnreadableError.
    """
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node = next(iter(yaml.compose_all(text, Loader=loader)), None)
        lines: dict[Path, int] = {}
        return (_plain(node, (), lines, 0) if node is not None else None), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UnreadableError(
            str(error.problem or error.context or "not YAML"), mark.line + 1 if mark else None
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableError(str(error).splitlines()[0] if str(error) else "not YAML", None) from None


def _plain(node: Any, path: Path, lines: dict[Path, int], depth: int) -> Any:
    if depth > 60:
        raise UnreadableError("nested too deeply", node.start_mark.line + 1)
    lines.setdefault(path, node.start_mark.line + 1)
    if node.id == "mapping":
        found: dict[Any, Any] = {}
        for key, value in node.value:
            name = key.value if key.id == "scalar" else f"<{key.id}>"
            inner: Path = (*path, name)
            lines[inner] = key.start_mark.line + 1
            found[name] = _plain(value, inner, lines, depth + 1)
        return found
    if node.id == "sequence":
        items = []
        for index, item in enumerate(node.value):
            inner = (*path, index)
            lines[inner] = item.start_mark.line + 1
            items.append(_plain(item, inner, lines, depth + 1))
        return items
    return None if node.tag.endswith(":null") else node.value


def toml_document(text: str) -> dict[str, Any]:
    """The TOML document. Raises UnreadableError."""
    import tomli

    try:
        return tomli.loads(text)
    except (tomli.TOMLDecodeError, RecursionError) as error:
        line = re.search(r"line (\d+)", str(error))
        raise UnreadableError(str(error), int(line.group(1)) if line else None) from None


def toml_line(text: str, *path: str) -> int | None:
    """The line of a key path in TOML text: the line that sets it, else the header of its table."""
    header: list[str] = []
    best: int | None = None
    wanted = list(path)
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        match = re.match(r"^\[\[?\s*([^\]]+?)\s*\]\]?", stripped)
        if match:
            header = _keys(match.group(1))
            if header == wanted[: len(header)]:
                best = number
            if header == wanted:
                return number
            continue
        match = re.match(r"""^((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""", stripped)
        if match:
            full = header + _keys(match.group(1))
            if full == wanted or (len(full) < len(wanted) and full == wanted[: len(full)] and len(full) > len(header)):
                return number
    return best


def _keys(text: str) -> list[str]:
    return [part.strip().strip("\"'") for part in re.findall(r"""[\w-]+|"[^"]*"|'[^']*'""", text)]
