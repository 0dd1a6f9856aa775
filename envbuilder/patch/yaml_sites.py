"""The same for verl's configuration: ``dtype: bfloat16`` becomes the stack's dtype, and nothing else moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from envbuilder.errors import InputError, Place
from envbuilder.patch.codemod import Change
from envbuilder.patch.target import Target


def rewrite(source: bytes, target: Target, file: str, wanted: Callable[[Change], bool]) -> tuple[list[Change], bytes]:
    """As ``codemod.rewrite``, for a YAML file. Comments and layout stay as they are."""
    text = source.decode()
    try:
        root = YAML(typ="rt", pure=True).compose(StringIO(text))
    except YAMLError as error:
        raise InputError(f"this is not YAML: {error}", place=Place(file)) from None
    changes: list[Change] = []
    for node in reversed(list(_scalars(root))):
        if node.value not in target.narrow:
            continue
        new = target.named_like(node.value)
        change = Change(node.start_mark.line + 1, "dtype-default", "yaml", True, node.value, new)
        changes.insert(0, change)
        if wanted(change):
            start, end = node.start_mark.index, node.end_mark.index
            text = text[:start] + text[start:end].replace(node.value, new) + text[end:]
    return changes, text.encode()


def _scalars(node: Any) -> Iterator[Any]:
    """The plain values of a document, in the order of the file."""
    if isinstance(node, ScalarNode):
        yield node
    elif isinstance(node, SequenceNode):
        for item in node.value:
            yield from _scalars(item)
    elif isinstance(node, MappingNode):
        for _, value in node.value:
            yield from _scalars(value)
