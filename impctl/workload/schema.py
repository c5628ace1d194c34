"""The JSON Schema (draft 2020-12) of the workload file, from the keys that its models declare.

Law: it accepts what the loader accepts, as far as a schema can say. What it cannot: that names
refer to declared tables, that names differ, that boundaries increase, whether a variable is set,
and the difference between a date or a whole number such as `1.0` with and without quotes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from impctl.workload.models import JsonSchema, ValueKind, WorkloadFile, keys_of, kind_of

SCHEMA_ID = "urn:impctl:workload:1"

_VARIABLE: JsonSchema = {"type": "string", "pattern": r"\$\{"}
_NOT_BLANK = r"\S"


def workload_json_schema() -> JsonSchema:
    """A new schema document; its `$id` names the version of the file it describes."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "impctl workload",
        **_struct(WorkloadFile),
    }


def _struct(model: type[Struct]) -> JsonSchema:
    """A mapping with the keys of the model and no other."""
    properties: dict[str, JsonSchema] = {}
    for key in keys_of(model):
        properties[key.name] = _value(key.kind)
        for old_name in key.names[1:]:
            properties[old_name] = {**_value(key.kind), "deprecated": True}
    schema: JsonSchema = {
        "description": " ".join((model.__doc__ or "").split()),
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    required = [key.name for key in keys_of(model) if key.is_required]
    if required:
        schema["required"] = required
    for rule, names in (("oneOf", "one_of"), ("anyOf", "any_of")):
        if hasattr(model, names):
            schema[rule] = [{"required": [name]} for name in getattr(model, names)]
    return schema


def _value(kind: ValueKind) -> JsonSchema:
    """A value of one of the types, or a variable."""
    limits, options = kind.limits, kind.options
    if "written" in kind.extra:
        inner = kind_of(kind.extra["written"])
        limits, options = {**inner.limits, **limits}, inner.options
    description = {name: limits[name] for name in ("description",) if name in limits}
    limits = {name: limit for name, limit in limits.items() if name != "description"}
    schemas = [_option(option, limits) for option in options]
    if any(map(_needs_variable, schemas)):
        schemas.append(_VARIABLE)
    if len(schemas) == 1:
        return {**description, **schemas[0], **description}
    return {**description, "anyOf": schemas}


def _needs_variable(schema: JsonSchema) -> bool:
    """Whether it is for a scalar, and not for any text."""
    if "description" in schema or schema.get("type") in ("object", "array"):
        return False
    types = schema.get("type")
    return (
        not isinstance(types, str | list)
        or "string" not in types
        or schema.get("pattern") not in (None, _NOT_BLANK)
    )


def _option(option: Any, limits: Mapping[str, Any]) -> JsonSchema:
    arguments = get_args(option)
    if get_origin(option) is Annotated:
        return _value(kind_of(option))
    if get_origin(option) is Literal:
        return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
    if get_origin(option) is tuple:
        return _sized("Items", limits, {"type": "array", "items": _value(kind_of(arguments[0]))})
    if get_origin(option) is not None:
        names, values = map(kind_of, arguments)
        pattern = names.limits.get("extra_json_schema", {}).get("pattern")
        return _sized(
            "Properties",
            limits,
            {
                "type": "object",
                **({} if pattern is None else {"propertyNames": {"pattern": pattern}}),
                "additionalProperties": _value(values),
            },
        )
    if isinstance(option, type) and issubclass(option, Struct):
        return _struct(option)
    if isinstance(option, type) and issubclass(option, StrEnum):
        return {"enum": [str(word) for word in option]}
    if option is str:
        return {"type": "string", "pattern": _NOT_BLANK}
    return msgspec.json.schema(Annotated[option, Meta(**limits)])


def _sized(of: str, limits: Mapping[str, Any], schema: JsonSchema) -> JsonSchema:
    names = {"min_length": f"min{of}", "max_length": f"max{of}"}
    return {**schema, **{names[name]: limits[name] for name in names.keys() & limits.keys()}}
