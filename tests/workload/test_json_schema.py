"""The JSON Schema and the loader agree, as far as a schema can say; both directions, generated."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from impctl.errors import WorkloadError
from impctl.workload.load import load_workload
from impctl.workload.schema import workload_json_schema
from tests.support.random_cases import FEW

from .test_load import DESIGN

DOCUMENT = yaml.safe_load(DESIGN)
TYPES = {
    "string": str,
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}

BEYOND_A_SCHEMA = (
    "is not declared under",
    "have the same name",
    "are the same column",
    "appears twice",
    "must increase",
    "must be of one type",
    "` needs `",
    "is not a duration",
    "is not a share",
    "is not a date or a time",
    "does not exist in the calendar",
    "must be later than",
    "with different `changes`",
)
"""What only the loader can find, in a file without variables."""


def accepts(schema: Any, value: Any) -> bool:
    """A reference reading of the few keywords the schema uses; an unknown keyword fails."""
    unknown = schema.keys() - {*KEYWORDS, "$schema", "$id", "title", "description", "deprecated"}
    assert not unknown, f"teach this reader {unknown}"
    return all(KEYWORDS[key](schema, value) for key in schema.keys() & KEYWORDS.keys())


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def has_type(schema: Any, value: Any) -> bool:
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    for name in names:
        if name == "integer" and is_number(value) and value == int(value):
            return True
        if name == "number" and is_number(value):
            return True
        if name in TYPES and isinstance(value, TYPES[name]):
            return True
    return False


def extra_properties(schema: Any, value: Any) -> bool:
    rule = schema["additionalProperties"]
    extra = [v for k, v in named(value) if k not in schema.get("properties", {})]
    return not extra if rule is False else all(accepts(rule, item) for item in extra)


def named(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


KEYWORDS: dict[str, Any] = {
    "type": has_type,
    "const": lambda s, v: v == s["const"] and not isinstance(v, bool),
    "enum": lambda s, v: v in s["enum"],
    "pattern": lambda s, v: not isinstance(v, str) or re.search(s["pattern"], v) is not None,
    "minimum": lambda s, v: not is_number(v) or v >= s["minimum"],
    "exclusiveMinimum": lambda s, v: not is_number(v) or v > s["exclusiveMinimum"],
    "maximum": lambda s, v: not is_number(v) or v <= s["maximum"],
    "minItems": lambda s, v: not isinstance(v, list) or len(v) >= s["minItems"],
    "maxItems": lambda s, v: not isinstance(v, list) or len(v) <= s["maxItems"],
    "items": lambda s, v: all(accepts(s["items"], item) for item in listed(v)),
    "minProperties": lambda s, v: not isinstance(v, dict) or len(v) >= s["minProperties"],
    "propertyNames": lambda s, v: all(accepts(s["propertyNames"], k) for k, _ in named(v)),
    "properties": lambda s, v: all(
        accepts(s["properties"][k], item) for k, item in named(v) if k in s["properties"]
    ),
    "additionalProperties": extra_properties,
    "required": lambda s, v: not isinstance(v, dict) or all(k in v for k in s["required"]),
    "anyOf": lambda s, v: any(accepts(part, v) for part in s["anyOf"]),
    "oneOf": lambda s, v: sum(accepts(part, v) for part in s["oneOf"]) == 1,
}


WORDS = st.sampled_from(
    ["", " ", "a b", "t", "u", "sales", "16", "auto", "lazy", "007", "no"]
    + ["${V}", "${W}", "${", "$$"]
)
SCALARS = (
    WORDS
    | st.none()
    | st.booleans()
    | st.integers(-2, 100_001)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: value % 1 != 0)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=3,
)
KNOWN_KEYS = [
    *("version", "name", "tables", "partitions", "queries", "updates", "store", "spark", "path"),
    *("storage_options", "boundaries", "fragments", "sql", "sketch", "policy", "maintain"),
    *("insert", "delete", "update", "table", "rows", "file", "where", "set", "master", "conf"),
    *("t", "q", "extra"),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(listed(value))
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """The documented file with up to three places replaced, removed, doubled or added."""
    document = deepcopy(DOCUMENT)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.sampled_from(places(document)))
        if not place:
            continue
        holder = document
        for key in place[:-1]:
            holder = holder[key]
        action = draw(st.sampled_from(["replace", "remove", "add"]))
        if action == "replace":
            holder[place[-1]] = draw(ANYTHING)
        elif action == "remove":
            del holder[place[-1]]
        elif isinstance(holder, dict):
            holder[draw(st.sampled_from(KNOWN_KEYS))] = draw(ANYTHING)
        else:
            holder.append(draw(ANYTHING))
    return document


def problems_of(path: Path, document: Any) -> list[str]:
    # JSON is YAML; written so, text keeps its quotes and nothing else has any.
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    try:
        load_workload(path, {"V": "16", "W": "x y"})
    except WorkloadError as error:
        return [problem.message for problem in error.problems]
    return []


@pytest.mark.slow
@FEW
@given(documents())
def test_what_the_loader_accepts_the_schema_accepts_and_the_other_way_round(
    tmp_path_factory: pytest.TempPathFactory, document: Any
) -> None:
    problems = problems_of(tmp_path_factory.getbasetemp() / "schema.yaml", document)
    if not accepts(workload_json_schema(), document):
        assert problems, "the schema refuses what the loader accepts"
    elif "${" not in json.dumps(document):
        unexpected = [m for m in problems if not any(part in m for part in BEYOND_A_SCHEMA)]
        assert not unexpected, "the schema accepts what the loader refuses"


def change(document: Any, path: str, value: Any) -> Any:
    *way, last = path.split("/")
    holder = document
    for key in way:
        holder = holder[int(key) if isinstance(holder, list) else key]
    holder[int(last) if isinstance(holder, list) else last] = value
    return document


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value", "is_fine"),
    [
        ("name", "x", True),
        ("name", " ", False),
        ("name", 1, False),
        ("version", 1, True),
        ("version", 2, False),
        ("version", True, False),
        ("tables", {}, False),
        ("tables/a-b", {"path": "x"}, False),
        ("tables/t2", {"path": "x", "storage_options": {"a": 1, "b": True, "c": ""}}, True),
        ("tables/t2", {"path": "x", "storage_options": {"a": None}}, False),
        ("tables/sales/changes", "never", True),
        ("tables/sales/changes", "always", False),
        ("tables/sales/changes", {"every": "1h", "rows": 20, "deletes": "5%"}, True),
        ("tables/sales/changes", [{"until": "2026-12-01"}], True),
        ("tables/sales/changes", {"every": 5}, False),
        ("tables/sales/changes", {"every": "1h", "rows": 0}, False),
        ("tables/sales/changes", {"every": "1h", "rows": 9, "deletes": 5}, False),
        ("tables/sales/changes", {"until": "soon"}, False),
        ("tables/sales/changes", {}, False),
        ("tables/sales/changes", [], False),
        ("tables/sales/changes", ["never"], False),
        ("partitions/sales/price", {"boundaries": [1.5, 2]}, True),
        ("partitions/sales/price", {"boundaries": []}, False),
        ("partitions/sales/price", {"boundaries": [True]}, False),
        ("partitions/sales/price", {"ranges": 0}, False),
        ("partitions/sales/price", {"fragments": "${V}"}, True),
        ("partitions/sales/price", {"fragments": 2, "boundaries": [1]}, False),
        ("partitions/sales/price", {}, False),
        ("partitions/sales", {}, False),
        ("queries/q_top/policy", "never", False),
        ("queries/q_top/sketch", {}, True),
        ("queries/q top", {"sql": "SELECT 1"}, False),
        ("queries/q2", {"sql": "\n"}, False),
        ("queries/q_top/trigger", "commit", True),
        ("queries/q_top/trigger", "use", True),
        ("queries/q_top/trigger", "daily", False),
        ("queries/q_top/trigger", {"fresh_within": "10m", "rows": 5, "cheap": True}, True),
        ("queries/q_top/trigger", {"cron": "@daily", "timezone": "Asia/Tokyo"}, True),
        ("queries/q_top/trigger", {"point": "nightly", "ready_within": " 1.5 h "}, True),
        ("queries/q_top/trigger", {"every": "15 parsecs"}, False),
        ("queries/q_top/trigger", {"every": 15}, False),
        ("queries/q_top/trigger", {"rows": 0}, False),
        ("queries/q_top/trigger", {"cheap": True}, False),
        ("queries/q_top/trigger", {}, False),
        ("queries/q_top/trigger", {"commit": True, "rows": 5}, False),
        ("queries/q_top/trigger", {"point": "a b"}, False),
        ("queries/q_top/trigger", None, False),
        ("updates/0/insert/rows/0/x", None, True),
        ("updates/0/insert/rows/0/x", [1], False),
        ("updates/0/insert/rows/0", {}, False),
        ("updates/0/insert/file", "x", False),
        ("updates/1/insert", {"table": "sales", "file": "x"}, False),
        ("updates/2/update/set", {"a": 1, "b": True, "c": "d"}, True),
        ("updates/2/update/set", {"a": None}, False),
        ("updates/2/update/set", {"a": ""}, False),
        ("updates/2/name", "a b", False),
        ("spark/conf", None, False),
        ("spark", {}, True),
        ("extra", 1, False),
    ],
)
def test_single_changes(tmp_path: Path, path: str, value: Any, is_fine: bool) -> None:
    document = change(deepcopy(DOCUMENT), path, value)
    assert accepts(workload_json_schema(), document) is is_fine
    # Only a plain scalar turns into a number, and JSON has none.
    if '"${V}"' not in json.dumps(document):
        assert (problems_of(tmp_path / "w.yaml", document) == []) is is_fine


def test_every_place_of_the_schema_is_described() -> None:
    def undescribed(schema: Any, path: str) -> list[str]:
        result = [] if "description" in schema else [path]
        for name, inner in schema.get("properties", {}).items():
            result += undescribed(inner, f"{path}.{name}")
        items = schema.get("items")
        if isinstance(items, dict) and items.get("type") == "object":
            result += undescribed(items, f"{path}[]")
        inner = schema.get("additionalProperties")
        if isinstance(inner, dict) and inner.get("type") == "object":
            result += undescribed(inner, f"{path}.*")
        return result

    assert undescribed(workload_json_schema(), "") == []


def test_each_call_gives_a_document_of_its_own() -> None:
    workload_json_schema()["type"] = "array"
    assert workload_json_schema()["type"] == "object"
    assert json.loads(json.dumps(workload_json_schema())) == workload_json_schema()
