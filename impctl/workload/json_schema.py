"""The JSON Schema (draft 2020-12) of the workload file, for editors and `impctl check --schema`.

Law: it accepts what the loader accepts, as far as a schema can say. What it cannot: that names
refer to declared tables, that names differ, that boundaries increase, whether a variable is set,
and the difference between a date or a whole number such as `1.0` with and without quotes.
Out of scope: reading a file (`workload.load`).
"""

from __future__ import annotations

from impctl.workload.models import JoinStrategy, MaintainMode, Policy
from impctl.workload.names import IDENTIFIER_PATTERN, NAME_PATTERN
from impctl.workload.partitions import MAX_BOUNDARIES, MAX_FRAGMENTS
from impctl.workload.queries import MAX_BUFFER

SCHEMA_ID = "urn:impctl:workload:1"

JsonSchema = dict[str, object]

_VARIABLE: JsonSchema = {"type": "string", "pattern": r"\$\{"}
_CELL_TYPES = ["string", "number", "boolean", "null"]


def workload_json_schema() -> JsonSchema:
    """A fresh schema document; its `$id` names the version of the file it describes."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "impctl workload",
        **_object(
            "Tables, queries and update batches that impctl works on. Any value may hold "
            "`${VAR}` or `${VAR:-default}`; `$$` stands for `$`.",
            {
                "version": _or_variable({"const": 1}, "Version of this file format: 1."),
                "name": _text("Name of the workload; without it, the name of the file."),
                "tables": _tables(),
                "partitions": _partitions(),
                "queries": _queries(),
                "updates": {
                    "description": "Batches that `impctl apply` commits as new table versions.",
                    "type": "array",
                    "items": _update(),
                },
                "store": _text("Folder for sketches and state; default: `.impctl` beside this."),
                "spark": _spark(),
            },
            required=["version", "tables", "queries"],
        ),
    }


def _tables() -> JsonSchema:
    table = _object(
        "A Delta table.",
        {
            "path": _text("Folder of the table, relative to this file, or a URI."),
            "storage_options": _settings("Options handed to the object store as they are."),
        },
        required=["path"],
    )
    return {
        "description": "Delta tables under the names that the SQL uses.",
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": f"^{IDENTIFIER_PATTERN}$"},
        "additionalProperties": table,
    }


def _partitions() -> JsonSchema:
    boundaries: JsonSchema = {
        "description": "Values that split the column, strictly increasing; n make n + 1 ranges.",
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_BOUNDARIES,
        "items": {"type": ["number", "string"]},
    }
    fragments = _or_variable(
        {"type": "integer", "minimum": 1, "maximum": MAX_FRAGMENTS},
        "Number of ranges with about equally many rows each.",
    )
    partition = {
        **_object(
            "A range partition of the column.",
            {"boundaries": boundaries, "fragments": fragments},
        ),
        "oneOf": [{"required": ["boundaries"]}, {"required": ["fragments"]}],
    }
    return {
        "description": "Candidate partitions by table and column; impctl proposes the others.",
        "type": "object",
        "additionalProperties": _columns("Columns of the table.", partition),
    }


def _queries() -> JsonSchema:
    query = _object(
        "A query that impctl keeps sketches for.",
        {
            "sql": _text("The query in Spark SQL."),
            "params": {
                "description": "Values of the named parameters (`:name`) in the SQL; a sketch is "
                "captured for them, and `--param NAME=VALUE` asks for others of the same type.",
                "type": "object",
                "propertyNames": {"pattern": f"^{IDENTIFIER_PATTERN}$"},
                "additionalProperties": {"type": ["string", "number", "boolean"]},
            },
            "sketch": {
                "description": "The column to sketch, per table; must be safe for the query.",
                "type": "object",
                "additionalProperties": _text("A column of the table."),
            },
            "policy": _or_variable(
                {"enum": [str(policy) for policy in Policy]},
                "What `maintain` may do when the sketch cannot be maintained exactly.",
            ),
            "maintain": _or_variable(
                {"enum": [str(mode) for mode in MaintainMode]},
                "With every batch (eager), or when the sketch is needed (lazy).",
            ),
            "join": _or_variable(
                {"enum": [str(strategy) for strategy in JoinStrategy]},
                "Where joins find the partners of changed rows: in an index of their own, or by "
                "asking Spark.",
            ),
            "buffer": _or_variable(
                {"type": "integer", "minimum": 1, "maximum": MAX_BUFFER},
                "Values or rows that MIN, MAX and top-k keep per group; more are read again from "
                "the table when deletions use these up. Default: all.",
            ),
        },
        required=["sql"],
    )
    return {
        "description": "Queries under names of your choice.",
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": f"^{NAME_PATTERN}$"},
        "additionalProperties": query,
    }


def _update() -> JsonSchema:
    rows: JsonSchema = {
        "description": "Rows to insert, each a mapping of columns to values.",
        "type": "array",
        "minItems": 1,
        "items": _columns("A row.", {"type": _CELL_TYPES}),
    }
    insert = {
        **_object(
            "Insert rows.",
            {
                "table": _text("A declared table."),
                "rows": rows,
                "file": _text("File with the rows, relative to this file."),
            },
            required=["table"],
        ),
        "oneOf": [{"required": ["rows"]}, {"required": ["file"]}],
    }
    condition = _text("SQL condition for the rows concerned.")
    delete = _object(
        "Delete rows.",
        {"table": _text("A declared table."), "where": condition},
        required=["table", "where"],
    )
    expression: JsonSchema = {"type": ["string", "number", "boolean"], "pattern": r"\S"}
    update = _object(
        "Change rows; without `where`, all of them.",
        {
            "table": _text("A declared table."),
            "set": _columns("Columns to set, each to an SQL expression.", expression),
            "where": condition,
        },
        required=["table", "set"],
    )
    name = _or_variable({"type": "string", "pattern": f"^{NAME_PATTERN}$"}, "Name of the batch.")
    actions = {"insert": insert, "delete": delete, "update": update}
    return {
        **_object("One batch.", {"name": name, **actions}, required=["name"]),
        "oneOf": [{"required": [action]} for action in actions],
    }


def _spark() -> JsonSchema:
    return _object(
        "Settings of the Spark session.",
        {
            "master": _text("Master of the cluster, for example `local[*]`."),
            "conf": _settings("Spark settings by their full names."),
        },
    )


def _object(
    description: str, properties: dict[str, JsonSchema], required: list[str] | None = None
) -> JsonSchema:
    schema: JsonSchema = {
        "description": description,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return schema if required is None else {**schema, "required": required}


def _columns(description: str, value: JsonSchema) -> JsonSchema:
    return {
        "description": description,
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": r"\S"},
        "additionalProperties": value,
    }


def _settings(description: str) -> JsonSchema:
    return {
        "description": description,
        "type": "object",
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    }


def _text(description: str) -> JsonSchema:
    return {"description": description, "type": "string", "pattern": r"\S"}


def _or_variable(schema: JsonSchema, description: str) -> JsonSchema:
    return {"description": description, "anyOf": [schema, _VARIABLE]}
