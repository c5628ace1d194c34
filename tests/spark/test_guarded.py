"""NaN and zeros that Parquet's statistics do not tell, under every comparison, by every writer.

The oracle is the same condition below an aggregate, which Spark hands down to no file. Each kind
of file is also read without the guard, so that it is seen what the guard is there for.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import WriterProperties, convert_to_deltalake, write_deltalake

from impctl.data.schema import DOUBLE, FLOAT
from impctl.spark.snapshots import snapshot_frame
from impctl.tables import footers
from impctl.tables.footers import hiding_columns
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import open_source

pytestmark = pytest.mark.spark

NAN = "double('NaN')"
CONDITIONS = {
    "nan": (
        "d >= 5",
        "d > 5.0F",
        "d > '5'",
        "NOT (d <= 5)",
        "d <> 1",
        "NOT (d <=> 1)",
        "d NOT IN (0, 1)",
        "d NOT BETWEEN 0 AND 1",
        f"d = {NAN}",
        f"d <=> {NAN}",
        f"d IN ({NAN}, 77)",
        f"d BETWEEN 5 AND {NAN}",
        "d >= 5 OR i < 0",
        "CAST(d AS FLOAT) >= 5",
        "CAST(d AS DOUBLE) >= 5",
        "isnan(d)",
    ),
    "zeros": (
        "d = 0",
        "d = -0.0D",
        "d <=> -0.0D",
        "NOT (d < 0)",
        "NOT (d > -0.0D)",
        "d IN (0, 7)",
        "d IN (-0.0D, 7)",
        "d BETWEEN 0 AND 0",
        f"d IN ({', '.join(map(str, range(12)))})",
    ),
}
"""NaN is greater than all numbers, and both zeros are one."""

VALUES = {
    "nan": [0.5, 1.0, math.nan, 1.0, None, math.nan, 1.0, 1.0, math.nan, math.nan, None, None],
    "zeros": [-0.0, -0.0, 0.0, 0.0, -0.0, None, -1.0, -0.0, 0.0, 2.0],
}


Writer = Callable[[Any, Path, pa.Table], None]


def by_arrow(_: Any, path: Path, rows: pa.Table, *, has_dictionary: bool = True) -> None:
    path.mkdir()
    pq.write_table(
        rows,
        path / "part-0.parquet",
        row_group_size=2,
        use_dictionary=has_dictionary,
        write_page_index=True,
    )
    convert_to_deltalake(path)


def by_arrow_plainly(spark: Any, path: Path, rows: pa.Table) -> None:
    by_arrow(spark, path, rows, has_dictionary=False)


def by_deltalake(_: Any, path: Path, rows: pa.Table) -> None:
    properties = WriterProperties(max_row_group_size=2)
    write_deltalake(path, rows, writer_properties=properties)


def by_spark(spark: Any, path: Path, rows: pa.Table, **options: str) -> None:
    for start in range(0, len(rows), 2):
        frame = spark.createDataFrame(rows.slice(start, 2)).coalesce(1)
        frame.write.mode("append").options(**options).parquet(str(path))
    for file in path.iterdir():
        if not file.name.endswith(".parquet"):
            file.unlink()
    convert_to_deltalake(path)


def by_spark_with_bloom(spark: Any, path: Path, rows: pa.Table) -> None:
    by_spark(
        spark,
        path,
        rows,
        **{"parquet.enable.dictionary": "false", "parquet.bloom.filter.enabled#d": "true"},
    )


WRITERS: dict[str, Writer] = {
    "arrow": by_arrow,
    "arrow-plain": by_arrow_plainly,
    "deltalake": by_deltalake,
    "spark": by_spark,
    "spark-bloom": by_spark_with_bloom,
}
HIDING = {
    *product(("arrow", "arrow-plain", "deltalake"), ["nan"]),
    *product(("arrow", "deltalake", "spark", "spark-bloom"), ["zeros"]),
}
"""Where those conditions lose rows without a guard."""


def table_of(values: Sequence[float | None], kind: pa.DataType) -> pa.Table:
    return pa.table({"d": pa.array(values, kind), "i": pa.array(range(len(values)), pa.int64())})


def written(spark: Any, folder: Path, writer: str, rows: pa.Table) -> Snapshot:
    WRITERS[writer](spark, folder / writer, rows)
    return open_source("t", str(folder / writer)).snapshot()


def counted(frame: Any, condition: str) -> tuple[int, int]:
    """How many rows the condition has as a filter, and below an aggregate."""
    (plain,) = frame.selectExpr(f"COUNT_IF({condition})").collect()[0]
    return frame.where(condition).count(), plain


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(pa.float64(), id="double"),
        pytest.param(pa.float32(), id="float", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("values", VALUES)
def test_no_filter_loses_a_row(spark, tmp_path, values, kind):
    """Files of all writers at once, each guarded for itself."""
    rows = table_of(VALUES[values], kind)
    snapshots = [written(spark, tmp_path, writer, rows) for writer in WRITERS]
    assert {snapshot.column("d").type for snapshot in snapshots} <= {DOUBLE, FLOAT}
    frames = [snapshot_frame(spark, snapshot) for snapshot in snapshots]
    all_files = reduce(lambda left, right: left.unionAll(right), frames)
    conditions = CONDITIONS[values]
    (counts,) = all_files.selectExpr(*(f"COUNT_IF({one})" for one in conditions)).collect()
    for condition, plain in zip(conditions, counts, strict=True):
        assert all_files.where(condition).count() == plain > 0, condition


@pytest.mark.parametrize(("writer", "values"), list(product(WRITERS, VALUES)))
def test_columns_that_hide_a_value_are_known_and_others_left_alone(spark, tmp_path, writer, values):
    # Not the group of NaN alone, of which Spark's own files do not tell that it has no zero.
    snapshot = written(spark, tmp_path, writer, table_of(VALUES[values][:4], pa.float64()))
    hides = (writer, values) != ("spark", "nan")
    assert hiding_columns(snapshot) == ({"d"} if hides else frozenset())
    assert hiding_columns(snapshot, ["i"]) == frozenset()
    bare = snapshot_frame(spark, snapshot, is_guarded=False)
    filtered, plain = counted(bare, "d >= 5" if values == "nan" else "d = 0")
    assert (filtered < plain) == ((writer, values) in HIDING)


def test_the_guard_reaches_no_other_column(spark, tmp_path):
    by_deltalake(spark, tmp_path / "t", table_of(VALUES["nan"], pa.float64()))
    frame = snapshot_frame(spark, open_source("t", str(tmp_path / "t")).snapshot())
    with redirect_stdout(io.StringIO()) as printed:
        frame.where("d >= 5 AND i >= 3").explain()
    plan = printed.getvalue()
    pushed = plan.partition("PushedFilters: ")[2].partition("]")[0]
    assert "GreaterThanOrEqual(i,3)" in pushed
    assert "d" not in pushed.replace("GreaterThanOrEqual", "").replace("IsNotNull(i)", "")


def test_a_partition_of_nan(spark, tmp_path):
    rows = table_of([math.nan, 1.0, -0.0, None, 0.0, 7.0], pa.float64())
    write_deltalake(tmp_path / "t", rows, partition_by=["d"])
    snapshot = open_source("t", str(tmp_path / "t")).snapshot()
    frame = snapshot_frame(spark, snapshot)
    assert counted(frame, "d >= 5") == (2, 2)
    assert counted(frame, "d = 0") == (2, 2)
    assert not hiding_columns(snapshot)


def test_more_files_than_are_looked_into_are_suspect(spark, tmp_path, monkeypatch):
    by_spark(spark, tmp_path / "t", table_of(VALUES["nan"], pa.float64()))
    snapshot = open_source("t", str(tmp_path / "t")).snapshot()
    monkeypatch.setattr(footers, "MAX_FOOTERS", len(snapshot.files) - 1)
    assert hiding_columns(snapshot) == {"d"}


def test_a_file_that_cannot_be_read_is_suspect(spark, tmp_path):
    by_spark(spark, tmp_path / "t", table_of(VALUES["nan"], pa.float64()))
    snapshot = open_source("t", str(tmp_path / "t")).snapshot()
    Path(snapshot.files[0].uri).write_bytes(b"no Parquet")
    assert hiding_columns(snapshot) == {"d"}
