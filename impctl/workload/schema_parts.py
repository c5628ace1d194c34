"""Pieces that the JSON Schema of workload files is put together from.

Law: every piece carries a description, which an editor shows.
Out of scope: which keys a file has (`workload.json_schema`).
"""

from __future__ import annotations

JsonSchema = dict[str, object]

_VARIABLE: JsonSchema = {"type": "string", "pattern": r"\$\{"}


def object_of(
    description: str, properties: dict[str, JsonSchema], required: list[str] | None = None
) -> JsonSchema:
    """A mapping with these keys and no other."""
    schema: JsonSchema = {
        "description": description,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return schema if required is None else {**schema, "required": required}


def columns_of(description: str, value: JsonSchema) -> JsonSchema:
    """A mapping by column, not empty."""
    return {
        "description": description,
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": r"\S"},
        "additionalProperties": value,
    }


def settings_of(description: str) -> JsonSchema:
    """Settings of any name."""
    return {
        "description": description,
        "type": "object",
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    }


def text_of(description: str) -> JsonSchema:
    """Text that is not blank."""
    return {"description": description, "type": "string", "pattern": r"\S"}


def or_variable(schema: JsonSchema, description: str) -> JsonSchema:
    """A value, or text that holds a variable."""
    return {"description": description, "anyOf": [schema, _VARIABLE]}
