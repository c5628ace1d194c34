"""A table whose log does not count its rows is not taken for an empty one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from impctl.compile.flows import Readable
from impctl.measure.scratch import changed_table
from impctl.plan.nodes import Join, JoinKind, Plan, Scan
from impctl.service import partners
from impctl.service.context import Workbench, open_workbench
from impctl.service.partners import Partners
from impctl.service.settings import Settings
from tests.tables import handmade

WORKLOAD = """
version: 1
tables: {small: {path: small}, large: {path: large}}
partitions: {small: {id: {boundaries: [2]}}}
queries: {q: {sql: "SELECT id, COUNT(*) n FROM small GROUP BY id HAVING COUNT(*) > 1"}}
"""
LARGE = 32_000_000


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Workbench]:
    """A small table with statistics, a large one without."""
    schema = handmade.metadata([handmade.field("id", handmade.LONG)])
    for name, added in {
        "small": handmade.add("a.parquet", 1000, 900),
        "large": handmade.add("a.parquet", 0, LARGE, stats=None),
    }.items():
        handmade.commit(tmp_path / name, 0, handmade.protocol(), schema, added)
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    with open_workbench(Settings(tmp_path / "w.yaml")) as opened:
        yield opened


def test_it_counts_for_costs_and_is_found_to_be_the_larger_one(desk: Workbench) -> None:
    assert desk.tables.rows_of(["small"]) == 1000
    assert desk.tables.rows_of(["small", "large"]) > 100_000
    assert changed_table(desk.tables, ["small", "large"]) == "large"


@pytest.mark.parametrize(("tables", "slices"), [(["small"], 1), (["small", "large"], 10)])
def test_a_join_with_it_is_read_in_slices(
    desk: Workbench, monkeypatch: pytest.MonkeyPatch, tables: list[str], slices: int
) -> None:
    monkeypatch.setattr(partners, "_SLICE_ROWS", 100_000)
    monkeypatch.setattr(Partners, "_read", lambda *_: "a slice")
    scans: list[Plan] = [Scan(table, table, ()) for table in tables]
    plan = reduce(lambda left, right: Join(JoinKind.INNER, left, right, None), scans)
    joined = Readable("join0", plan, plan, (), (), ())
    reader: Any = Partners(desk, None, {}, {})  # type: ignore[arg-type]  # not looked at
    assert list(reader.pairs(joined)) == ["a slice"] * slices
