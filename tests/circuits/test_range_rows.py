"""Rows per range: every row of the table, whatever the query makes of it."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.compile import compile_plan
from impctl.compile.fill import RangeRows
from impctl.compile.session import MaintainedQuery, TableChange, TouchedQuery
from impctl.data.schema import DOUBLE, LONG
from impctl.data.vector import from_arrow
from impctl.errors import CountBelowZeroError
from impctl.plan.nodes import scans_of
from impctl.rules.optimize import apply_rules
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet
from impctl.sql.statement import parse_query
from tests.support.random_queries import SCHEMA, Row, random_change, table_of

DOUBLES = RangePartition("t", "d", DOUBLE, (0.0, 2.0))
LONGS = RangePartition("t", "x", LONG, (0, 1))
QUERIES = [
    "SELECT g FROM t WHERE x > 3 AND d < 0.5",
    "SELECT g, COUNT(*) n FROM t WHERE x > 1 GROUP BY g HAVING COUNT(*) > 1",
    "SELECT a.g FROM t a JOIN t b ON a.id = b.id WHERE a.x > 0",
]


def counted(partition: RangePartition, rows: list[Row]) -> list[int]:
    column = from_arrow(table_of(rows).column(partition.attribute), partition.type)
    return np.bincount(partition.fragments_of(column), minlength=partition.size).tolist()


@pytest.mark.parametrize("sql", QUERIES)
@pytest.mark.parametrize("partition", [DOUBLES, LONGS], ids=["doubles", "longs"])
def test_counts_are_those_of_the_table(sql: str, partition: RangePartition) -> None:
    """Also for rows the query drops, and once for a table it reads twice."""
    root = apply_rules(parse_query(sql, {"t": SCHEMA}).root)
    sketched = {scan.access: partition for scan in scans_of(root)}
    session = MaintainedQuery(compile_plan(root, sketched, {}))
    session.load([])
    rng, rows = random.Random(5), list[Row]()
    for _ in range(20):
        change, weights = random_change(rng, rows)
        batch = TableChange(table_of(change), np.array(weights, dtype=np.int64))
        session.step({"t": batch})
        assert session.range_rows.partitions == (partition,)
        assert session.range_rows.counts(partition).tolist() == counted(partition, rows)


def test_touch_counts_too_and_only_grows() -> None:
    query = TouchedQuery(LONGS, FragmentSet.of([], LONGS.size))
    rng, rows, before = random.Random(7), list[Row](), query.fragments
    for _ in range(20):
        change, weights = random_change(rng, rows)
        now = query.step(TableChange(table_of(change), np.array(weights, dtype=np.int64)))
        assert not before.minus(now)
        assert query.range_rows.counts(LONGS).tolist() == counted(LONGS, rows)
        before = now


def test_touch_adds_what_deleted_rows_were_in() -> None:
    """Without them the average of their group may pass."""
    query = TouchedQuery(LONGS, FragmentSet.of([], LONGS.size))
    table = pa.table({"x": pa.array([-1, 5], pa.int64())})
    query.step(TableChange(table, np.ones(2, dtype=np.int64)))
    query.fragments = FragmentSet.of([], LONGS.size)
    now = query.step(TableChange(table.slice(1), np.array([-1], dtype=np.int64)))
    assert set(now.ids) == {int(LONGS.fragments_of(from_arrow(table["x"], LONG))[1])}


def test_what_a_checkpoint_wrote_is_taken_up_again() -> None:
    query = TouchedQuery(LONGS, FragmentSet.of([], LONGS.size))
    table = pa.table({"x": pa.array([None, -1, 0, 0, 5], pa.int64())})
    query.step(TableChange(table, np.ones(5, dtype=np.int64)))
    runs = {name: [(sequence, run)] for name, sequence, run in query.checkpoint().put}
    again = RangeRows([LONGS])
    again.load(runs)
    assert again.counts(LONGS).tolist() == [1, 2, 1, 1]


def test_a_row_that_was_never_there_is_not_taken_back() -> None:
    rows = RangeRows([LONGS])
    with pytest.raises(CountBelowZeroError, match="rows of table `t`"):
        rows.count(0, np.array([1]), np.array([-1]))
