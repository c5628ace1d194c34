"""The JSON Schema (draft 2020-12) of the workload file, for editors and `impctl check --schema`.

Law: it accepts what the loader accepts, as far as a schema can say. What it cannot: that names
refer to declared tables, that names differ, that boundaries increase, whether a variable is set,
and the difference between a date or a whole number such as `1.0` with and without quotes.
Out of scope: reading a file (`workload.load`).
"""

from __future__ import annotations

from impctl.workload.budgets import budget_schema, limits_schema
from impctl.workload.coming import changes_schema
from impctl.workload.durations import DURATION_PATTERN
from impctl.workload.load import REQUIRED
from impctl.workload.models import (
    EVERYTHING,
    JoinStrategy,
    Lineage,
    MaintainMode,
    Moves,
    Policy,
    Ship,
    StateKept,
)
from impctl.workload.names import IDENTIFIER_PATTERN, NAME_PATTERN, TABLE_PATTERN
from impctl.workload.partitions import MAX_BOUNDARIES, MAX_FRAGMENTS
from impctl.workload.queries import ABSORPTION, MAX_BUFFER, MAX_NODES, NO_SKETCH
from impctl.workload.schema_parts import (
    JsonSchema,
    columns_of,
    object_of,
    or_variable,
    settings_of,
    text_of,
)
from impctl.workload.tables import CREDENTIALS
from impctl.workload.triggers import trigger_schema

SCHEMA_ID = "urn:impctl:workload:1"

_CELL_TYPES = ["string", "number", "boolean", "null"]


def workload_json_schema() -> JsonSchema:
    """A fresh schema document; its `$id` names the version of the file it describes."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "impctl workload",
        **object_of(
            "Tables, queries and update batches that impctl works on. Any value may hold "
            "`${VAR}` or `${VAR:-default}`; `$$` stands for `$`.",
            {
                "version": or_variable({"const": 1}, "Version of this file format: 1."),
                **workload_sections(),
            },
            required=["version", *REQUIRED],
        ),
    }


def workload_sections() -> dict[str, JsonSchema]:
    """The sections of a workload, as its file and a suite's `workload` hold them."""
    return {
        "name": text_of("Name of the workload; without it, the name of the file."),
        "catalog": text_of("Catalog of names that give none; default: `spark_catalog`."),
        "credentials": _credentials(),
        "schema": text_of("Schema of names that give none; default: `default`."),
        "tables": _tables(),
        "views": {
            "description": "SELECT texts under names that queries and other views may read.",
            "type": "object",
            "propertyNames": {"pattern": f"^{TABLE_PATTERN}$"},
            "additionalProperties": text_of("A SELECT in Spark SQL."),
        },
        "partitions": _partitions(),
        "defaults": object_of("How queries are kept that do not say so.", _query_settings(), []),
        "queries": _queries(),
        "updates": {
            "description": "Batches that `impctl apply` commits as new table versions.",
            "type": "array",
            "items": _update(),
        },
        "store": text_of("Folder for sketches and state; default: `.impctl` beside this."),
        "budget": budget_schema(),
        "limits": limits_schema(),
        "spark": _spark(),
    }


def _credentials() -> JsonSchema:
    return {
        "description": "Whence credentials of object stores come: `options` (default) are those "
        "in `storage_options` alone, `ambient` those of the surroundings as well.",
        "enum": list(CREDENTIALS),
    }


def _tables() -> JsonSchema:
    table = object_of(
        "A Delta table.",
        {
            "path": text_of(
                "Folder of the table, relative to this file, or a URI; `catalog://shop.sales` is "
                "where Spark's catalog has it."
            ),
            "storage_options": settings_of("Options handed to the object store as they are."),
            "credentials": _credentials(),
            "names": {
                "description": "Other names of the table, as `shop.sales` or `main.shop.sales`.",
                "type": "array",
                "items": text_of("A name of one to three parts."),
            },
            "changes": changes_schema(),
            "expiry": _expiry(),
            "clone_of": {
                "description": "Folders of the tables that this one is a shallow clone of. Without "
                "it, a log that names a file outside of the table's folder is refused.",
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
        "Rows are seen until so long after the time in their column, no longer; NULL never is.",
        {
            "column": text_of("A column of type TIMESTAMP or DATE."),
            "after": or_variable(after, "A duration such as `1 hour` or `7d`."),
        },
        required=["column", "after"],
    )


def _partitions() -> JsonSchema:
    boundaries: JsonSchema = {
        "description": "Values that split the column, strictly increasing; n make n + 1 ranges.",
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_BOUNDARIES,
        "items": {"type": ["number", "string"]},
    }
    ranges = or_variable(
        {"type": "integer", "minimum": 1, "maximum": MAX_FRAGMENTS},
        "Number of ranges with about equally many rows each.",
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


_MOVES = [str(moves) for moves in Moves]


def _queries() -> JsonSchema:
    query = object_of(
        "A query that impctl keeps sketches for.",
        {
            "sql": text_of("The query in Spark SQL."),
            "params": {
                "description": "Values of the named parameters (`:name`) in the SQL; a sketch is "
                "captured for them, and `--param NAME=VALUE` asks for others of the same type. One "
                "that moves is the day or the hour, and sketches follow it.",
                "type": "object",
                "propertyNames": {"pattern": f"^{IDENTIFIER_PATTERN}$"},
                "additionalProperties": {
                    "anyOf": [
                        {"type": ["string", "number", "boolean"]},
                        object_of(
                            "A value that moves with the clock.",
                            {"moves": or_variable({"enum": _MOVES}, "How often it moves.")},
                            ["moves"],
                        ),
                    ]
                },
            },
            "sketch": {
                "description": "The column to sketch, per table; must be safe for the query. "
                "Or `none`: the query is to have no sketch.",
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
        "description": "Queries under names of your choice.",
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": f"^{NAME_PATTERN}$"},
        "additionalProperties": query,
    }


def _provenance() -> JsonSchema:
    of_kind = {
        "kind": or_variable({"const": ABSORPTION}, "What of rows is kept."),
        "ship": or_variable(
            {"enum": [str(ship) for ship in Ship]},
            "What is handed on of a row's function: its first derivation (lazy) or all (eager).",
        ),
        "nodes": or_variable(
            {"type": "integer", "minimum": 1, "maximum": MAX_NODES},
            "How many nodes of decision diagrams there may be. Default: 5000000.",
        ),
    }
    described = object_of("How functions are kept.", of_kind, required=["kind"])
    return {
        "description": "WITH RECURSIVE is kept by absorption: each row with the function of table "
        "rows that it depends on, which `why` tells from. Needs the extra `bdd`.",
        "anyOf": [
            or_variable({"const": ABSORPTION}, "Lazily, with as many nodes as is usual."),
            described,
        ],
    }


def _query_settings() -> dict[str, JsonSchema]:
    """How a query's sketch is kept."""
    return {
        "policy": or_variable(
            {"enum": [str(policy) for policy in Policy]},
            "What `maintain` may do when the sketch cannot be maintained exactly.",
        ),
        "maintain": or_variable(
            {"enum": [str(mode) for mode in MaintainMode]},
            "With every batch (eager), or when the sketch is needed (lazy).",
        ),
        "join": or_variable(
            {"enum": [str(strategy) for strategy in JoinStrategy]},
            "Where joins find the partners of changed rows: in an index of their own, in the "
            "tables' files or by asking Spark; or `tree`: joins are maintained without joining.",
        ),
        "state": or_variable(
            {"enum": [str(kept) for kept in StateKept]},
            "What is kept of its state whatever the budget: all of it (keep), or only what nothing "
            "can replace (least). Not with `join`.",
        ),
        "buffer": or_variable(
            {
                "anyOf": [
                    {"type": "integer", "minimum": 1, "maximum": MAX_BUFFER},
                    {"const": EVERYTHING},
                ]
            },
            "Values or rows that MIN, MAX and top-k keep per group; more are read again from "
            "the table when deletions use these up. Default: 1000 where all rows are one group, "
            "else all.",
        ),
        "lineage": or_variable(
            {"enum": [str(lineage) for lineage in Lineage]},
            "Whether the sketch holds all rows that the answer stems from (all), or of MIN, "
            "MAX, DISTINCT and EXISTS only those that decide (witness), or of the rows of a "
            "recursion only those that the answer stems from (answer). Sketches of the last two "
            "serve no other constants or columns.",
        ),
        "answer": or_variable(
            {"type": "boolean"},
            "Whether the rows of the answer are kept too, and maintained: `query` then answers "
            "from state.",
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
    condition = text_of("SQL condition for the rows concerned.")
    delete = object_of(
        "Delete rows.",
        {"table": text_of("A declared table."), "where": condition},
        required=["table", "where"],
    )
    expression: JsonSchema = {"type": ["string", "number", "boolean"], "pattern": r"\S"}
    update = object_of(
        "Change rows; without `where`, all of them.",
        {
            "table": text_of("A declared table."),
            "set": columns_of(
                "Columns to set, each to an SQL expression; so a text or a time has quotes of its"
                " own, as in \"'Berlin'\" or \"TIMESTAMP '2026-01-31 12:00:00'\".",
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
            "conf": settings_of("Spark settings by their full names."),
        },
    )
