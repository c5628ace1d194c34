"""NaN that no statistics tell of, in files of several row groups: every way to an answer agrees.

Law: the answer is that of SQL, by which NaN is greater than all numbers and the zeros are one, as
Spark gives it where it hands no condition down to the files.

By hand: `IMPCTL_FUZZ=5` and `-m "slow or not slow"` for forty random tables.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import WriterProperties, write_deltalake

import impctl
from impctl.spark.run import run_sql
from impctl.spark.snapshots import snapshot_frame
from impctl.tables.source import open_source
from tests.support.random_cases import random_seeds
from tests.support.run_cli import Cli

pytestmark = pytest.mark.spark

WORKLOAD = """\
version: 1
tables: {{t: {{path: t}}}}
partitions: {{t: {{{column}: {{boundaries: {boundaries}}}}}}}
queries:
  q:
    sql: >-
      {sql}
    sketch: {{t: {column}}}
spark: {{master: "local[2]"}}
"""
PROPERTIES = WriterProperties(max_row_group_size=2)


def rows_of(rows: list[tuple[int, float | None]], kind: pa.DataType) -> pa.Table:
    return pa.table(
        {
            "g": pa.array([g for g, _ in rows], pa.int64()),
            "d": pa.array([d for _, d in rows], kind),
        }
    )


def opened(folder: Path, capsys: Any, sql: str, column: str, boundaries: str) -> Cli:
    return Cli.over(capsys, folder, WORKLOAD.format(sql=sql, column=column, boundaries=boundaries))


def unpushed(spark: Any, folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """The answer of Spark that hands nothing down."""
    frame = snapshot_frame(spark, open_source("t", str(folder / "t")).snapshot(), is_guarded=False)
    spark.conf.set("spark.sql.parquet.filterPushdown", "false")
    try:
        return shown(run_sql(spark, sql, {"t": frame}).to_pylist())
    finally:
        spark.conf.unset("spark.sql.parquet.filterPushdown")


def pushed(spark: Any, folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """The answer of Spark as it comes, over the bare files."""
    frame = snapshot_frame(spark, open_source("t", str(folder / "t")).snapshot(), is_guarded=False)
    return shown(run_sql(spark, sql, {"t": frame}).to_pylist())


def shown(rows: list[Any]) -> list[tuple[Any, ...]]:
    plain = [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in rows]
    # -0.0 is 0.0, and NaN is itself.
    return sorted([tuple(repr(v + 0 if isinstance(v, float) else v) for v in r) for r in plain])


HIDDEN = [(1, 6.0), (1, 7.0), (1, 0.5), (1, math.nan), (2, 8.0), (2, 1.0), (3, 1.0), (3, math.nan)]
STORY = "SELECT g, COUNT(*) AS c FROM t WHERE d >= 5 GROUP BY g HAVING COUNT(*) = 1"


@pytest.mark.parametrize("column", ["g", "d"])
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=["double", "float"])
def test_a_row_that_statistics_hide_is_counted(spark, tmp_path, capsys, kind, column):
    """Of group 1 three rows pass, one of them NaN; of 3 only the NaN."""
    sql = STORY if column == "g" else "SELECT g FROM t WHERE d >= 5"
    write_deltalake(tmp_path / "t", rows_of(HIDDEN, kind), writer_properties=PROPERTIES)
    cli = opened(tmp_path, capsys, sql, column, "[2, 3]")
    cli.good("capture")
    expected = unpushed(spark, tmp_path, sql)
    assert expected != pushed(spark, tmp_path, sql)
    (verified,) = cli.good("verify", "--results").results
    assert (verified["covers"], verified["results_equal"]) == (True, True)
    (answer,) = cli.good("query", "--query", "q").results
    assert answered(answer) == expected
    # Others run this text on Spark as it comes.
    (text,) = cli.good("rewrite", "--query", "q").results
    assert pushed(spark, tmp_path, text["sql"]) == expected
    setting = spark.conf.get("spark.sql.parquet.filterPushdown")
    with impctl.open(cli.workload) as workload:
        frame = workload.dataframe("q")
        assert shown([row.asDict() for row in frame.collect()]) == expected
    assert spark.conf.get("spark.sql.parquet.filterPushdown") == setting == "true"


def answered(result: dict[str, Any]) -> list[tuple[Any, ...]]:
    return shown([[unwrapped(cell) for cell in row] for row in result["rows"]])


def unwrapped(cell: Any) -> Any:
    return math.nan if cell == "NaN" else cell


POOL = [None, 0.0, -0.0, 0.5, 1.0, 1.0, 2.0, 6.0, math.nan, math.nan]
CONSTANTS = ["0", "0.5", "-0.0D", "1", "2", "5", "7", "double('NaN')"]


def random_condition(rng: random.Random) -> str:
    one, other = rng.choice(CONSTANTS), rng.choice(CONSTANTS)
    atom = rng.choice(
        [
            *(f"d {op} {one}" for op in ("<", "<=", "=", "<>", ">=", ">", "<=>")),
            f"d IN ({one}, {other})",
            f"d BETWEEN {one} AND {other}",
        ]
    )
    atom = f"NOT ({atom})" if rng.random() < 0.4 else atom
    return f"({atom} OR g < 1)" if rng.random() < 0.2 else atom


def random_sql(rng: random.Random) -> str:
    where = " AND ".join(random_condition(rng) for _ in range(rng.choice([1, 1, 2])))
    having = f"COUNT(*) {rng.choice(['=', '>=', '<='])} {rng.randint(1, 3)}"
    return rng.choice(
        [
            f"SELECT g, d FROM t WHERE {where}",
            f"SELECT g, COUNT(*) AS c FROM t WHERE {where} GROUP BY g HAVING {having}",
            f"SELECT d, COUNT(*) AS c FROM t WHERE {where} GROUP BY d HAVING {having}",
            f"SELECT t.g FROM t JOIN (SELECT g AS h, d AS e FROM t WHERE {where}) u ON d = e",
        ]
    )


@random_seeds(1, 2, 8)
def test_every_way_gives_the_answer_of_sql(spark, tmp_path, capsys, seed):
    rng = random.Random(seed)
    kind = rng.choice([pa.float64(), pa.float32()])
    for batch in range(2):
        rows = [(rng.randint(0, 4), rng.choice(POOL)) for _ in range(rng.randint(2, 14))]
        rows.sort(key=lambda row: repr(row[1]) if rng.random() < 0.3 else "")
        write_deltalake(
            tmp_path / "t",
            rows_of(rows, kind),
            mode="append" if batch else "error",
            writer_properties=PROPERTIES,
        )
        if not batch:
            sql = random_sql(rng)
            column = rng.choice(["g", "d"])
            cli = opened(tmp_path, capsys, sql, column, rng.choice(["[1, 3]", "[0, 2]", "[5]"]))
            if cli("capture").code == 3:
                cli = opened(tmp_path, capsys, sql, "d" if column == "g" else "g", "[1, 3]")
                if cli("capture").code == 3:
                    return
        else:
            cli.good("maintain")
        label = (seed, sql, rows)
        expected = unpushed(spark, tmp_path, sql)
        (verified, *_) = cli.good("verify", "--results").results
        assert (verified["covers"], verified["results_equal"]) == (True, True), label
        (answer,) = cli.good("query", "--query", "q").results
        assert answered(answer) == expected, label
        (text,) = cli.good("rewrite", "--query", "q").results
        assert pushed(spark, tmp_path, text["sql"]) == expected, label
