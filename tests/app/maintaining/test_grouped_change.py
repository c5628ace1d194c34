"""Large changes, grouped by Spark first: the same sketches and the same state as row by row.

Every commit counts as large here. Two stores are kept side by side, one row by row; after every
commit their sketches are the same, cover the recaptured ones with slack 0, and what they go on
with is the same too.
"""

from __future__ import annotations

import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.data.schema import DOUBLE, FLOAT, LONG, STRING, SqlType, decimal
from impctl.data.vector import from_arrow
from impctl.expr.evaluate import Condition
from impctl.expr.nodes import ColumnRef
from impctl.safety.facts import FactKind, broken_by
from impctl.spark.expressions import DIALECT, render_expr
from impctl.spark.snapshots import guarded
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli

pytestmark = [pytest.mark.spark]

QUERIES = {
    "keyed": "SELECT g, SUM(x) v FROM t GROUP BY g HAVING SUM(x) > 5",
    "spread": "SELECT g, COUNT(x) n FROM t GROUP BY g HAVING COUNT(x) > 4",
    "doubles": "SELECT g, SUM(f) v FROM t GROUP BY g HAVING SUM(f) > 2.5",
    "money": "SELECT g, AVG(m) v FROM t WHERE x > 0 GROUP BY g HAVING AVG(m) > 1",
    "rows": "SELECT x FROM t WHERE x > 1 AND f < 2",
    "nested": "SELECT n, COUNT(*) c FROM (SELECT g, COUNT(*) n FROM t GROUP BY g) GROUP BY n "
    "HAVING COUNT(*) > 1",
    "global": "SELECT SUM(x) v FROM t WHERE f > 0",
    "extreme": "SELECT g, MAX(x) v FROM t GROUP BY g HAVING MAX(x) > 3",
}
GROUPED = set(QUERIES) - {"extreme"}
"""No partial aggregate fills an extreme, so its change comes row by row however large."""
KEYED = ("doubles", "money", "nested")


def some(rng: random.Random, count: int) -> pa.Table:
    def chosen(values: list[object]) -> list[object]:
        return [rng.choice(values) for _ in range(count)]

    inf = float("inf")
    return pa.table(
        {
            "g": pa.array(chosen([None, 0, 1, 2, 3, 4]), pa.int32()),
            "x": pa.array(chosen([None, 0, 1, 2, 3, 5]), pa.int64()),
            "f": pa.array(chosen([None, 0.0, -0.0, 0.1, 1e16, -1e16, 2.5, inf, float("nan")])),
            "m": pa.array(chosen([None, 0, 1, 25, 333]), pa.decimal128(9, 0)).cast(
                pa.decimal128(9, 0)
            ),
        }
    )


def cli_with(folder: Path, store: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    queries = "".join(
        f'  {name}: {{sql: "{sql}", sketch: {{t: {"g" if name in KEYED else "x"}}}}}\n'
        for name, sql in QUERIES.items()
    )
    file = folder / f"{store}.yaml"
    file.write_text(
        "version: 1\ntables: {t: {path: t}}\n"
        "partitions: {t: {g: {boundaries: [1, 3]}, x: {boundaries: [1, 2]}}}\n"
        f"queries:\n{queries}store: .{store}\n"
    )
    return Cli(capsys, file)


def sketches(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {r["query"]: [s["fragments"] for s in r["sketches"]] for r in results}


@pytest.mark.slow
@pytest.mark.long
def test_grouped_by_spark_and_row_by_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: Any
) -> None:
    rng = random.Random(4)
    table = str(tmp_path / "t")
    create_table(table, some(rng, 40))
    large, small = (cli_with(tmp_path, name, capsys) for name in ("large", "small"))
    for cli in (large, small):
        cli.good("capture")
    commits = [
        lambda: write_deltalake(table, some(rng, 12), mode="append"),
        lambda: DeltaTable(table).delete("x = 1"),
        lambda: DeltaTable(table).update(updates={"x": "x + 1"}, predicate="g = 2"),
        lambda: (
            write_deltalake(table, some(rng, 9), mode="append"),
            DeltaTable(table).delete("g = 3"),
        ),
        lambda: DeltaTable(table).delete(),
        lambda: write_deltalake(table, some(rng, 15), mode="append"),
    ]
    for turn, commit in enumerate(commits):
        commit()
        limit = "1000" if turn == 2 else "0"
        done = large.good("maintain", "--large-change", limit, "--policy", "incremental").results
        codes = {r["query"]: r["reason_code"] for r in done}
        if turn != 2:
            assert {q for q, code in codes.items() if code == "grouped_by_spark"} == GROUPED
        for result in small.good("maintain").results:
            assert result["reason_code"] != "grouped_by_spark"
        assert sketches(large.good("status").results) == sketches(small.good("status").results)
        if turn in (3, 5):
            for result in large.good("verify", "--results").results:
                assert result["covers"], result
                assert result["results_equal"] is True, result


def test_a_broken_assumption_is_found_in_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: Any
) -> None:
    rng = random.Random(5)
    create_table(str(tmp_path / "t"), some(rng, 40))
    cli = cli_with(tmp_path, "large", capsys)
    cli.good("capture", "--query", "keyed")
    write_deltalake(str(tmp_path / "t"), some(rng, 3), mode="append")
    cli.good("maintain", "--query", "keyed", "--large-change", "0", "--policy", "incremental")
    negative = some(rng, 1).set_column(1, "x", pa.array([-7], pa.int64()))
    write_deltalake(str(tmp_path / "t"), negative, mode="append")
    ran = cli("maintain", "--query", "keyed", "--large-change", "0", "--policy", "incremental")
    assert ran.document["error"]["code"] == "assumption_broken"


CASES: list[tuple[pa.DataType, SqlType, FactKind, list[Any], list[Any]]] = [
    (pa.int64(), LONG, FactKind.NONNEGATIVE, [0, 5], [-1, -(2**63)]),
    (pa.int64(), LONG, FactKind.NONPOSITIVE, [0, -5], [1, 2**63 - 1]),
    (pa.float64(), DOUBLE, FactKind.NONNEGATIVE, [0.0, -0.0, math.inf, math.nan], [-5e-324]),
    (pa.float64(), DOUBLE, FactKind.NONPOSITIVE, [0.0, -0.0, -math.inf], [5e-324, math.nan]),
    (pa.float64(), DOUBLE, FactKind.NAN_FREE, [0.0, math.inf, -math.inf], [math.nan]),
    (pa.float32(), FLOAT, FactKind.NAN_FREE, [0.0, math.inf], [math.nan]),
    (pa.float32(), FLOAT, FactKind.NONPOSITIVE, [-0.0], [1e-45, math.nan]),
    (pa.string(), STRING, FactKind.NOT_NULL, ["", "x"], []),
    (
        pa.decimal128(38, 38),
        decimal(38, 38),
        FactKind.NONNEGATIVE,
        [Decimal(0), Decimal(1).scaleb(-38)],
        [Decimal(-1).scaleb(-38)],
    ),
]


def plain(values: list[Any]) -> list[Any]:
    """Values that are equal where they are the same, NaN too."""
    return [repr(value) if isinstance(value, float) else value for value in values]


def test_spark_and_the_engine_find_the_same_values(tmp_path: Path, spark: Any) -> None:
    for at, (arrow, kind, fact, good, bad) in enumerate(CASES):
        values = pa.array([*good, None, *bad], arrow)
        wanted = [None] if fact is FactKind.NOT_NULL else bad
        condition = broken_by(fact, ColumnRef("v", kind))
        outcome = Condition(condition).truth({"v": from_arrow(values, kind)}, len(values))
        engine = values.filter(pa.array(outcome.may_true)).to_pylist()
        name = str(tmp_path / f"{at}.parquet")
        pq.write_table(pa.table({"v": values}), name)
        frame = guarded(spark.read.parquet(name), ["v"])
        text = render_expr(condition, {"v": "v"}).sql(DIALECT)
        result = [row.v for row in frame.where(text).collect()]
        assert plain(engine) == plain(pa.array(wanted, arrow).to_pylist())
        assert plain(result) == plain(engine)
