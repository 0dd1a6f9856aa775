"""The published schemas are those of the models."""

import json

import pytest

from envbuilder import toml
from envbuilder.data import builtin_root
from envbuilder.stack.schema import MODELS, schema_text, stale

FOLDER = builtin_root() / "docs" / "schema"


def test_published_schemas_are_fresh() -> None:
    assert stale(FOLDER) == [], "run `make schema`"


@pytest.mark.parametrize("name", MODELS)
def test_a_schema_knows_every_key_of_the_committed_files(name: str) -> None:
    kind = {"stack.schema.json": "stacks", "gpu.schema.json": "gpus"}[name]
    properties = json.loads(schema_text(name))["properties"]
    files = sorted((builtin_root() / kind).glob("*.toml"))
    assert files
    for path in files:
        assert set(toml.load(path)) <= set(properties)
