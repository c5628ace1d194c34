"""The JSON Schema (draft 2020-12) of the workload file.

Law: it accepts what the loader accepts, as far as a schema can say. What it cannot: that names
refer to declared tables, that names differ, that boundaries increase, whether a variable is set,
and the difference between a date or a whole number such as `1.0` with and without quotes.
"""

from __future__ import annotations

from impctl.workload.load import REQUIRED
from impctl.workload.models import (
    DURATION_PATTERN,
    EVERYTHING,
    JoinStrategy,
    LineageMode,
    MaintainMode,
    ParameterMoves,
    Policy,
    ShipMode,
    StateKept,
)
from impctl.workload.sections import (
    ABSORPTION,
    CREDENTIALS,
    IDENTIFIER_PATTERN,
    MAX_BOUNDARIES,
    MAX_BUFFER,
    MAX_NODES,
    MAX_RANGES,
    NAME_PATTERN,
    NO_SKETCH,
    TABLE_PATTERN,
    JsonSchema,
    budget_schema,
    changes_schema,
    columns_of,
    limits_schema,
    object_of,
    or_variable,
    settings_of,
    text_of,
    trigger_schema,
)

SCHEMA_ID = "urn:impctl:workload:1"

_CELL_TYPES = ["string", "number", "boolean", "null"]


def workload_json_schema() -> JsonSchema:
    """A new schema document; its `$id` names the version of the file it describes."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "impctl workload",
        **object_of(
            "Tables, queries and update batches that impctl works on. Any value may contain "
            "`${VAR}` or `${VAR:-default}`; `$$` is a literal `$`.",
            {
                "version": or_variable({"const": 1}, "Version of this file format: 1."),
                **_sections(),
            },
            required=["version", *REQUIRED],
        ),
    }


def _sections() -> dict[str, JsonSchema]:
    return {
        "name": text_of("Name of the workload; default: the name of the file."),
        "catalog": text_of("Catalog of table names without one; default: `spark_catalog`."),
        "credentials": _credentials(),
        "schema": text_of("Schema of table names without one; default: `default`."),
        "tables": _tables(),
        "views": {
            "description": "Views: named SELECT statements that queries and other views can read.",
            "type": "object",
            "propertyNames": {"pattern": f"^{TABLE_PATTERN}$"},
            "additionalProperties": text_of("A SELECT in Spark SQL."),
        },
        "partitions": _partitions(),
        "defaults": object_of(
            "Settings of all queries that do not set their own.", _query_settings(), []
        ),
        "queries": _queries(),
        "updates": {
            "description": "Batches that `impctl apply` commits as new table versions.",
            "type": "array",
            "items": _update(),
        },
        "store": text_of("Folder for sketches and state; default: `.impctl` next to this file."),
        "budget": budget_schema(),
        "limits": limits_schema(),
        "spark": _spark(),
    }


def _credentials() -> JsonSchema:
    return {
        "description": "Source of credentials for object stores. `options` (default): only "
        "`storage_options`. `ambient`: also the environment.",
        "enum": list(CREDENTIALS),
    }


def _tables() -> JsonSchema:
    table = object_of(
        "A Delta table.",
        {
            "path": text_of(
                "Folder of the table, relative to this file, or a URI. `catalog://shop.sales` is "
                "the location in Spark's catalog."
            ),
            "storage_options": settings_of("Options passed to the object store unchanged."),
            "credentials": _credentials(),
            "names": {
                "description": (
                    "Other names of the table, such as `shop.sales` or `main.shop.sales`."
                ),
                "type": "array",
                "items": text_of("A name with one to three parts."),
            },
            "changes": changes_schema(),
            "expiry": _expiry(),
            "clone_of": {
                "description": "Folders of the tables that this table is a shallow clone of. "
                "Without this key, a log may not list files outside the table's folder.",
                "type": "array",
                "items": text_of("A folder, relative to this file, or a URI."),
            },
        },
        required=["path"],
    )
    return {
        "description": "Delta tables under the names that the SQL uses.",
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": f"^{TABLE_PATTERN}$"},
        "additionalProperties": table,
    }


def _expiry() -> JsonSchema:
    after: JsonSchema = {"type": "string", "pattern": f"^{DURATION_PATTERN}$"}
    return object_of(
        "A row expires this long after the time in its column. Rows with NULL there are never "
        "used.",
        {
            "column": text_of("A column of type TIMESTAMP or DATE."),
            "after": or_variable(after, "A duration such as `1 hour` or `7d`."),
        },
        required=["column", "after"],
    )


def _partitions() -> JsonSchema:
    boundaries: JsonSchema = {
        "description": (
            "Values that split the column, strictly increasing; n values make n + 1 ranges."
        ),
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_BOUNDARIES,
        "items": {"type": ["number", "string"]},
    }
    ranges = or_variable(
        {"type": "integer", "minimum": 1, "maximum": MAX_RANGES},
        "Number of ranges, with about the same number of rows in each.",
    )
    partition = {
        **object_of(
            "A range partition of the column.",
            {
                "boundaries": boundaries,
                "ranges": ranges,
                "fragments": {**ranges, "deprecated": True},
            },
        ),
        "oneOf": [{"required": [key]} for key in ("boundaries", "ranges", "fragments")],
    }
    return {
        "description": "Candidate partitions by table and column; impctl proposes the others.",
        "type": "object",
        "additionalProperties": columns_of("Columns of the table.", partition),
    }


_MOVES = [str(moves) for moves in ParameterMoves]


def _queries() -> JsonSchema:
    query = object_of(
        "A query that impctl maintains sketches for.",
        {
            "sql": text_of("The query in Spark SQL."),
            "params": {
                "description": "Values of the named parameters (`:name`) in the SQL. A sketch is "
                "captured for these values; `--param NAME=VALUE` sets others of the same type. A "
                "time-dependent parameter is the current day or hour, and sketches are maintained "
                "as it changes.",
                "type": "object",
                "propertyNames": {"pattern": f"^{IDENTIFIER_PATTERN}$"},
                "additionalProperties": {
                    "anyOf": [
                        {"type": ["string", "number", "boolean"]},
                        object_of(
                            "A time-dependent value.",
                            {"moves": or_variable({"enum": _MOVES}, "How often it changes.")},
                            ["moves"],
                        ),
                    ]
                },
            },
            "sketch": {
                "description": "The column to sketch, per table; it must be safe for the query. "
                "Or `none` for a query without a sketch.",
                "anyOf": [
                    {"const": NO_SKETCH},
                    {"type": "object", "additionalProperties": text_of("A column of the table.")},
                ],
            },
            "provenance": _provenance(),
            **_query_settings(),
        },
        required=["sql"],
    )
    return {
        "description": "Queries, each with a name of your choice.",
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": f"^{NAME_PATTERN}$"},
        "additionalProperties": query,
    }


def _provenance() -> JsonSchema:
    of_kind = {
        "kind": or_variable({"const": ABSORPTION}, "Kind of provenance."),
        "ship": or_variable(
            {"enum": [str(ship) for ship in ShipMode]},
            "Which derivations of a row are passed on: the first (lazy) or all (eager).",
        ),
        "nodes": or_variable(
            {"type": "integer", "minimum": 1, "maximum": MAX_NODES},
            "Maximum number of decision diagram nodes. Default: 5000000.",
        ),
    }
    described = object_of("Settings of the provenance.", of_kind, required=["kind"])
    return {
        "description": "Maintains WITH RECURSIVE by absorption: the state stores, for each row, a "
        "Boolean function of the table rows it depends on. `why` reads it. Needs the extra `bdd`.",
        "anyOf": [
            or_variable(
                {"const": ABSORPTION},
                "Absorption with `ship: lazy` and the default number of nodes.",
            ),
            described,
        ],
    }


def _query_settings() -> dict[str, JsonSchema]:
    return {
        "policy": or_variable(
            {"enum": [str(policy) for policy in Policy]},
            "What `maintain` may do when the sketch cannot be maintained exactly.",
        ),
        "maintain": or_variable(
            {"enum": [str(mode) for mode in MaintainMode]},
            "When to maintain: with every batch (eager), or when the sketch is needed (lazy).",
        ),
        "join": or_variable(
            {"enum": [str(strategy) for strategy in JoinStrategy]},
            "Where joins find the rows that match changed rows: in a stored index, in the tables' "
            "files, or through Spark. With `tree`, joined rows are never stored.",
        ),
        "state": or_variable(
            {"enum": [str(kept) for kept in StateKept]},
            "State to keep whatever the budget: all (keep), or only what cannot be replaced "
            "(least). Not with `join`.",
        ),
        "buffer": or_variable(
            {
                "anyOf": [
                    {"type": "integer", "minimum": 1, "maximum": MAX_BUFFER},
                    {"const": EVERYTHING},
                ]
            },
            "Values or rows that MIN, MAX and top-k store per group. When deletions exhaust them, "
            "impctl reads more from the table. Default: 1000 if all rows are one group, otherwise "
            "all.",
        ),
        "lineage": or_variable(
            {"enum": [str(lineage) for lineage in LineageMode]},
            "Rows that the sketch covers. `all`: all rows the result is derived from. `witness`: "
            "for MIN, MAX, DISTINCT and EXISTS, only the deciding rows. `answer`: for a "
            "recursion, only rows the result is derived from. Sketches with `witness` or `answer` "
            "cannot be reused for other constants or columns.",
        ),
        "answer": or_variable(
            {"type": "boolean"},
            "Whether to store and maintain the query's result as well: `query` then answers from "
            "state.",
        ),
        "trigger": trigger_schema(),
    }


def _update() -> JsonSchema:
    rows: JsonSchema = {
        "description": "Rows to insert, each a mapping of columns to values.",
        "type": "array",
        "minItems": 1,
        "items": columns_of("A row.", {"type": _CELL_TYPES}),
    }
    insert = {
        **object_of(
            "Insert rows.",
            {
                "table": text_of("A declared table."),
                "rows": rows,
                "file": text_of("File with the rows, relative to this file."),
            },
            required=["table"],
        ),
        "oneOf": [{"required": ["rows"]}, {"required": ["file"]}],
    }
    condition = text_of("SQL condition for the rows to change.")
    delete = object_of(
        "Delete rows.",
        {"table": text_of("A declared table."), "where": condition},
        required=["table", "where"],
    )
    expression: JsonSchema = {"type": ["string", "number", "boolean"], "pattern": r"\S"}
    update = object_of(
        "Update rows; without `where`, all rows.",
        {
            "table": text_of("A declared table."),
            "set": columns_of(
                "Columns to set, each to an SQL expression. Text and times therefore need their "
                "own quotes, as in \"'Berlin'\" or \"TIMESTAMP '2026-01-31 12:00:00'\".",
                expression,
            ),
            "where": condition,
        },
        required=["table", "set"],
    )
    name = or_variable({"type": "string", "pattern": f"^{NAME_PATTERN}$"}, "Name of the batch.")
    actions = {"insert": insert, "delete": delete, "update": update}
    return {
        **object_of("One batch.", {"name": name, **actions}, required=["name"]),
        "oneOf": [{"required": [action]} for action in actions],
    }


def _spark() -> JsonSchema:
    return object_of(
        "Settings of the Spark session.",
        {
            "master": text_of("Master of the cluster, for example `local[*]`."),
            "conf": settings_of("Spark settings by full name."),
        },
    )
