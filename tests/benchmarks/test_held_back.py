"""Rows held back from tables: each in one part, and deletions that take back what came last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.state.held_back import commit, hold_back
from impctl.service.context import SilentReporter, Workbench, open_workbench
from impctl.service.settings import Settings
from impctl.tables.rows import read_rows
from impctl.tables.write.maintenance import create_table


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Workbench]:
    for table, rows in (("t", 1000), ("u", 30)):
        # Some rows are twice there, and are rows of their own.
        ids = [number // 2 for number in range(rows)]
        create_table(str(tmp_path / table), pa.table({"id": pa.array(ids, pa.int64())}))
    (tmp_path / "w.yaml").write_text(
        "version: 1\ntables: {t: {path: t}, u: {path: u}}\nqueries: {q: {sql: SELECT id FROM t}}\n"
    )
    with open_workbench(Settings(tmp_path / "w.yaml"), SilentReporter()) as desk:
        yield desk


def held(desk: Workbench, table: str) -> Counter[int]:
    desk.tables.advance(table)
    return Counter(read_rows(desk.tables.snapshot(table), ["id"]).column(0).to_pylist())


@pytest.mark.slow
def test_what_is_held_back_comes_back_row_by_row(desk: Workbench) -> None:
    whole = {table: held(desk, table) for table in ("t", "u")}
    changes = hold_back(desk, dict.fromkeys(("t", "u"), (0.2, 0.02, 0.001)), 0.0, seed=1)
    assert [len(change["t"].comes) for change in changes] == [200, 20, 1]
    # At least a row comes of every table.
    assert [len(change["u"].comes) for change in changes] == [6, 1, 1]
    assert held(desk, "t").total() == 779
    rows = [commit(desk, change) for change in changes]
    assert rows == [206, 21, 2]
    assert {table: held(desk, table) for table in ("t", "u")} == whole


def test_deletions_take_back_rows_that_were_there(desk: Workbench) -> None:
    whole = held(desk, "t")
    (change,) = hold_back(desk, {"t": (0.1,)}, 0.25, seed=1)
    before = held(desk, "t")
    assert before.total() == 925
    assert (len(change["t"].comes), change["t"].goes) == (75, 25)
    assert commit(desk, change) == 100
    after = held(desk, "t")
    # What went were rows of the table, and is not among what came.
    assert after.total() == 975
    assert not after - whole
    assert (whole - after).total() == 25
    assert Counter(change["t"].comes.column(0).to_pylist()) + (whole - after) == whole - (
        before - (whole - after)
    )
