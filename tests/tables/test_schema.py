"""Delta schemas: types by Spark's names, and columns nobody may read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from impctl.data.schema import INTEGER, STRING, Kind, decimal
from impctl.tables.schema import TableSchema, read_schema
from tests.tables.handmade import field


def read(*fields: dict[str, Any], is_mapped: bool = False) -> TableSchema:
    return read_schema(json.dumps({"type": "struct", "fields": fields}), is_mapped=is_mapped)


def test_simple_types() -> None:
    result = read(
        field("a", "integer", nullable=False),
        field("b", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(5)"),
        field("c", "decimal(10, 2)"),
    )
    assert [column.type for column in result.schema] == [INTEGER, STRING, decimal(10, 2)]
    assert result.not_null == {"a"}
    assert result.opaque == {}


def test_nested_types_keep_sparks_name() -> None:
    inner = {"type": "array", "elementType": "long", "containsNull": True}
    struct = {"type": "struct", "fields": [field("x y", inner), field("z`", "short")]}
    whole = {"type": "map", "keyType": "string", "valueType": struct, "valueContainsNull": True}
    column = read(field("a", whole)).schema.columns[0]
    assert column.type.kind is Kind.OTHER
    assert column.type.spark_name == "map<string, struct<`x y`: array<bigint>, `z```: smallint>>"


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (field("a", "string", __COLLATIONS={"a": "spark.UTF8_LCASE"}), "UTF8_LCASE"),
        (field("a", "variant"), "variant"),
        (field("a", "string", __CHAR_VARCHAR_TYPE_STRING="char(5)"), "char(n)"),
        (
            field(
                "a",
                {"type": "array", "elementType": "string"},
                __CHAR_VARCHAR_TYPE_STRING="array<char(5)>",
            ),
            "char(n)",
        ),
        (field("a", {"type": "array", "elementType": "variant"}), "variant"),
        (
            field(
                "a",
                "timestamp_ntz",
                **{"delta.typeChanges": [{"fromType": "date", "toType": "timestamp_ntz"}]},
            ),
            "from date to timestamp_ntz",
        ),
    ],
)
def test_unreadable_columns_say_why(column: dict[str, Any], reason: str) -> None:
    result = read(column)
    assert reason in result.opaque["a"]
    assert result.schema.columns[0].type.kind is Kind.OTHER


def test_readable_type_change_and_plain_collation_pass() -> None:
    result = read(
        field("a", "long", **{"delta.typeChanges": [{"fromType": "integer", "toType": "long"}]}),
        field("b", "string", __COLLATIONS={"b": "spark.UTF8_BINARY"}),
        field("c", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(5)"),
    )
    assert result.opaque == {}


def test_mapped_names() -> None:
    mapped = field("a", "long", **{"delta.columnMapping.physicalName": "col-1"})
    nested = field("s", {"type": "struct", "fields": [field("x", "long")]})
    assert read(mapped).physical == {"a": "a"}
    result = read(mapped, nested, is_mapped=True)
    assert result.physical == {"a": "col-1", "s": "s"}
    assert "uses column mapping" in result.opaque["s"]


def test_invariants() -> None:
    text = json.dumps({"expression": {"expression": "a > 0"}})
    assert read(field("a", "long", **{"delta.invariants": text})).invariants == ("a > 0",)
