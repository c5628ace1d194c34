"""`SELECT *` over a table whose columns change: the change of the schema is what is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.run_cli import CliOf
from tests.tables import handmade

WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2]}}}
queries:
  rows: {sql: "SELECT * FROM t WHERE g > 1", answer: true}
  groups: {sql: "SELECT g, COUNT(*) AS n FROM (SELECT DISTINCT * FROM t) GROUP BY g"}
"""
BEFORE = {"g": "col-1", "v": "col-2", "w": "col-3"}


def columns(physical: dict[str, str], **kinds: str) -> dict[str, Any]:
    fields = [
        handmade.field(
            name,
            kinds.get(name, "integer"),
            **{
                "delta.columnMapping.id": int(stored[-1]),
                "delta.columnMapping.physicalName": stored,
            },
        )
        for name, stored in physical.items()
    ]
    return handmade.metadata(fields, configuration={"delta.columnMapping.mode": "name"})


@pytest.mark.parametrize(
    ("now", "kinds", "told"),
    [
        ({"g": "col-1", "w": "col-3"}, {}, "`v` was dropped"),
        ({**BEFORE, "x": "col-4"}, {}, "`x`"),
        ({"g": "col-1", "u": "col-2", "w": "col-3"}, {}, "`u`"),
        (BEFORE, {"w": "long"}, "`w`"),
        ({"g": "col-1", "w": "col-3", "v": "col-2"}, {}, "order of columns"),
    ],
    ids=["dropped", "added", "renamed", "retyped", "reordered"],
)
def test_a_change_of_columns_is_told_as_such(
    tmp_path: Path, cli_of: CliOf, now: dict[str, str], kinds: dict[str, str], told: str
) -> None:
    table = tmp_path / "t"
    handmade.commit(table, 0, handmade.protocol("columnMapping"), columns(BEFORE))
    rows = pa.table(
        {
            name: pa.array(values, pa.int32())
            for name, values in (("col-1", [1, 3]), ("col-2", [0, 9]), ("col-3", [9, 0]))
        }
    )
    name = handmade.write_file(table, "a.parquet", rows)
    handmade.commit(table, 1, handmade.add(name, 2, (table / name).stat().st_size))
    cli = cli_of(WORKLOAD).captured()
    handmade.commit(table, 2, columns(now, **kinds))
    ran = cli("maintain", "--policy", "incremental")
    assert ran.code == 7
    for failure in ran.error["failures"]:
        assert failure["code"] == "schema_changed", failure
        assert told in failure["message"], failure
    assert {result["reason_code"] for result in cli.good("maintain").results} == {"schema_changed"}
