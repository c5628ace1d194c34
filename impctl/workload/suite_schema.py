"""The JSON Schema (draft 2020-12) of the suite file, for editors and `impctl check --suite-schema`.

Law: as for the workload file (`workload.json_schema`), whose sections it holds. It cannot say that
cases name queries that are there and have labels of their own, nor what a measure's options are.
Out of scope: reading a file (`workload.suites`).
"""

from __future__ import annotations

from impctl.workload.json_schema import workload_sections
from impctl.workload.load import REQUIRED
from impctl.workload.names import NAME_PATTERN
from impctl.workload.schema_parts import JsonSchema, object_of, or_variable, text_of
from impctl.workload.suite_data import MAX_ROWS
from impctl.workload.suite_figures import AXES
from impctl.workload.suites import MAX_REPEAT, MAX_SCALE, Vocabulary

SUITE_SCHEMA_ID = "urn:impctl:suite:1"


def suite_json_schema(words: Vocabulary) -> JsonSchema:
    """A fresh schema document; its `$id` names the version of the file it describes."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SUITE_SCHEMA_ID,
        "title": "impctl suite",
        **object_of(
            "Data to generate, a workload over it, and figures to measure with `impctl bench`. "
            "Any value may contain `${VAR}` or `${VAR:-default}`; `$$` is a literal `$`.",
            {
                "version": or_variable({"const": 1}, "Version of this file format: 1."),
                "name": text_of("Name of the suite; default: the name of the file."),
                "title": text_of("Title of the suite's report."),
                "seed": _count("Random seed for data and changes; default: 1.", 2**31 - 1),
                "scale": or_variable(
                    {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_SCALE},
                    "Default share of the full size to measure.",
                ),
                "repeat": _count("Runs of every measurement; default: 5.", MAX_REPEAT),
                "data": _named("Tables to generate, by folder.", _data(words), 0),
                "workload": object_of(
                    "Tables, partitions and queries, as in a workload file; a path is relative to "
                    "the folder of the data.",
                    workload_sections(),
                    required=list(REQUIRED),
                ),
                "figures": _named("What to measure, by name.", _figure(words), 1),
            },
            required=["version", "workload", "figures"],
        ),
    }


def _data(words: Vocabulary) -> JsonSchema:
    return {
        "description": "A table (or a set of them) to generate; other keys are options.",
        "type": "object",
        "properties": {
            "example": or_variable({"enum": list(words.examples)}, "How the data is generated."),
            "rows": _count("Rows at scale 1.", MAX_ROWS),
            "least": _count("Minimum number of rows at small scales.", MAX_ROWS),
            "source": text_of("File or folder it is generated from, relative to this file."),
        },
        "additionalProperties": _option(),
        "required": ["example"],
    }


def _figure(words: Vocabulary) -> JsonSchema:
    case: JsonSchema = {
        "description": "A query with the labels of its cells.",
        "type": "object",
        "properties": {"query": text_of("A query of the suite's workload.")},
        "additionalProperties": {"type": ["string", "number"]},
        "required": ["query"],
    }
    options: JsonSchema = {
        "description": "Options of the measure.",
        "type": "object",
        "additionalProperties": _option(),
    }
    cases: JsonSchema = {"type": "array", "minItems": 1, "items": case}
    return object_of(
        "A figure.",
        {
            "title": text_of("Title of the figure."),
            "about": text_of("What the figure varies, and why."),
            "claim": text_of("What the papers report, in other words."),
            "source": text_of("Where the papers report it."),
            "measure": or_variable({"enum": list(words.measures)}, "What is measured."),
            "with": options,
            "cases": {
                "description": "Queries to measure; default: every query of the workload.",
                **cases,
            },
            "full": object_of(
                "Values that apply from scale 1 on.",
                {
                    "with": {**options, "description": "Options that override the figure's."},
                    "cases": {
                        "description": "Queries to measure in addition to the figure's.",
                        **cases,
                    },
                },
            ),
            "chart": _chart(),
        },
        required=["title", "measure", "chart"],
    )


def _chart() -> JsonSchema:
    return object_of(
        "How cells are drawn as lines or bars.",
        {
            "x": text_of("The label on the horizontal axis."),
            "y": _words("Metrics, one line each."),
            "series": _words("Labels whose combinations become separate lines."),
            "log": _words("Axes with a logarithmic scale.", {"enum": list(AXES)}),
        },
        required=["x", "y"],
    )


def _words(description: str, item: JsonSchema | None = None) -> JsonSchema:
    text: JsonSchema = {"type": "string", "pattern": r"\S"}
    items = text if item is None else or_variable(item, "One of them.")
    return {"description": description, "type": "array", "minItems": 1, "items": items}


def _option() -> JsonSchema:
    single: JsonSchema = {"type": ["string", "number", "boolean"]}
    several: JsonSchema = {"type": "array", "minItems": 1, "items": single}
    return {"description": "An option: a single value or a list.", "anyOf": [single, several]}


def _named(description: str, value: JsonSchema, least: int) -> JsonSchema:
    return {
        "description": description,
        "type": "object",
        "minProperties": least,
        "propertyNames": {"pattern": f"^{NAME_PATTERN}$"},
        "additionalProperties": value,
    }


def _count(description: str, most: int) -> JsonSchema:
    return or_variable({"type": "integer", "minimum": 1, "maximum": most}, description)
