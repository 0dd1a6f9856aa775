"""The JSON Schema of what ``--json`` prints, made from the report model."""

from __future__ import annotations

import json
from typing import Any

from envbuilder.report.model import SCHEMA, Report

FILENAME = "report.schema.json"


def report_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) of ``Report.to_dict()``, which always writes every key."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(Report).json_schema(mode="serialization")
    definitions = schema["$defs"]
    del schema["properties"]["tables"], definitions["Table"]
    schema["properties"] = {"schema": {"const": SCHEMA}, **schema["properties"]}
    for node in (schema, *definitions.values()):
        if node.get("type") == "object":
            node["required"] = list(node["properties"])
            node["additionalProperties"] = False
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def report_schema_text() -> str:
    """The schema as published in docs/schema."""
    return json.dumps(report_schema(), indent=2, sort_keys=True) + "\n"
