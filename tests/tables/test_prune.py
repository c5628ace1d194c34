"""Pruning leaves out only files in which no row can match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from impctl.data.schema import DOUBLE, LONG, STRING, SqlType
from impctl.data.vector import from_arrow
from impctl.sketch.partition import BoundaryValue, RangePartition
from impctl.sketch.sketch import FragmentSet, RangeFilter, range_filter
from impctl.tables.prune import prune, prune_to_values
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import open_source
from impctl.tables.statistics import file_bounds
from impctl.tables.write.maintenance import create_laid_out_table
from tests.tables.bags import fixture_table, written
from tests.tables.handmade import entry

NAN = float("nan")


def wanted(
    kind: SqlType, boundaries: tuple[BoundaryValue, ...], ids: list[int], column: str = "v"
) -> RangeFilter:
    partition = RangePartition("t", column, kind, boundaries)
    return range_filter(FragmentSet.of(ids, partition.size), partition)


def rows_of(snapshot: Snapshot, *filters: RangeFilter) -> list[Any]:
    pylist = read_rows(snapshot, ["v"], prune(snapshot, filters)).column("v").to_pylist()
    return sorted(pylist, key=lambda value: (value is not None, str(value)))


def test_files_outside_are_left_out(tmp_path: Path) -> None:
    snapshot = written(tmp_path, *(pa.table({"v": [low, low + 9]}) for low in (0, 10, 20, 30)))
    filters = wanted(LONG, (10, 20, 30), [0, 2])
    assert rows_of(snapshot, filters) == [0, 20, 29, 9]
    assert len(prune(snapshot, [wanted(LONG, (10, 20, 30), [4])])) == 0
    assert len(prune(snapshot, [wanted(LONG, (10, 20, 30), [0, 1, 2, 3, 4])])) == 4
    assert len(prune(snapshot, [])) == 4
    both = [wanted(LONG, (10,), [0]), wanted(LONG, (5,), [1])]
    assert len(prune(snapshot, both)) == 1


@pytest.mark.parametrize(
    ("kind", "values", "boundary"),
    [(LONG, [1, 10], 10), (DOUBLE, [1.0, 10.0], 10.0), (STRING, ["a", "b"], "b")],
)
def test_a_greatest_value_at_a_boundary_lies_above_it(
    tmp_path: Path, kind: SqlType, values: list[Any], boundary: BoundaryValue
) -> None:
    snapshot = written(tmp_path, pa.table({"v": values}))
    assert len(prune(snapshot, [wanted(kind, (boundary,), [1])])) == 1
    assert len(prune(snapshot, [wanted(kind, (values[0],), [0])])) == 0 or kind == DOUBLE


def test_files_with_one_of_the_values(tmp_path: Path) -> None:
    """The least and the greatest value of a file are in it, NULL and NaN where they may be."""
    snapshot = written(
        tmp_path,
        pa.table({"v": [1.0, 5.0, 9.0]}),
        pa.table({"v": [20.0, None]}),
        pa.table({"v": [30.0, NAN]}),
    )

    def places(*values: float | None) -> list[int]:
        asked = from_arrow(pa.array(values, pa.float64()), DOUBLE)
        kept = {file.uri for file in prune_to_values(snapshot, {"v": asked})}
        held = [read_rows(snapshot, ["v"], [f]).column("v") for f in snapshot.files]
        return [
            round(min(v for v in column.to_pylist() if v is not None and v == v))
            for column, file in zip(held, snapshot.files, strict=True)
            if file.uri in kept
        ]

    assert places(1.0) == [1]
    assert places(9.0, 0.0) == [1]
    assert places(4.0) == [1], "between the bounds: it may be there"
    assert places(10.0) == []
    assert sorted(places(20.0, 30.0)) == [20, 30]
    assert places(None) == [20]
    # Statistics leave NaN out: a file without NULL may hold one unless they say otherwise.
    assert 30 in places(NAN)


def test_partitions_of_one_value_each(tmp_path: Path) -> None:
    data = pa.table({"v": [1.0, NAN, None], "x": [1, 2, 3]})
    snapshot = written(tmp_path, data, partition_by=["v"])
    for value, row in ((1.0, 1), (NAN, 2), (None, 3)):
        asked = from_arrow(pa.array([value], pa.float64()), DOUBLE)
        kept = prune_to_values(snapshot, {"v": asked})
        assert row in read_rows(snapshot, ["x"], kept).column("x").to_pylist()
        assert len(kept) < len(snapshot.files)


def test_nulls_are_found_only_where_they_are(tmp_path: Path) -> None:
    snapshot = written(
        tmp_path,
        pa.table({"v": [1, 2]}),
        pa.table({"v": pa.array([None, None], pa.int64())}),
        pa.table({"v": [None, 30]}),
    )
    assert rows_of(snapshot, wanted(LONG, (10,), [2])) == [None, None, None, 30]
    assert rows_of(snapshot, wanted(LONG, (10,), [0])) == [1, 2]


def test_nan_lies_in_the_last_range_whatever_the_statistics_say(tmp_path: Path) -> None:
    snapshot = written(tmp_path, pa.table({"v": [1.0, NAN]}), pa.table({"v": [NAN]}))
    assert len(prune(snapshot, [wanted(DOUBLE, (10.0,), [1])])) == 2
    assert len(prune(snapshot, [wanted(DOUBLE, (10.0, 20.0), [1])])) == 1


def test_cut_off_string_maximum_prunes_nothing(tmp_path: Path) -> None:
    snapshot = written(tmp_path, pa.table({"v": ["a", "b" * 100]}), pa.table({"v": ["a", "b"]}))
    assert len(prune(snapshot, [wanted(STRING, ("b" * 99,), [1])])) == 1
    assert len(prune(snapshot, [wanted(STRING, ("c",), [1])])) == 1
    assert len(prune(snapshot, [wanted(STRING, ("A",), [0])])) == 0


def test_partition_columns_prune() -> None:
    snapshot = open_source("t", str(fixture_table("delta-0.8.0-null-partition"))).snapshot()
    (kept,) = prune(snapshot, [wanted(STRING, ("B",), [0], "k")])
    assert kept.partition_values == {"k": "A"}
    (kept,) = prune(snapshot, [wanted(STRING, ("B",), [2], "k")])
    assert kept.partition_values == {"k": None}


def test_mapped_columns_prune() -> None:
    snapshot = open_source("t", str(fixture_table("table_with_partitioning_mapping"))).snapshot()
    assert len(prune(snapshot, [wanted(STRING, ("A",), [0], "description")])) == 0


def test_other_type_than_the_partition_prunes_nothing(tmp_path: Path) -> None:
    snapshot = written(tmp_path, pa.table({"v": [1]}))
    assert len(prune(snapshot, [wanted(DOUBLE, (100.0,), [1])])) == 1


_KINDS: list[tuple[SqlType, pa.DataType, st.SearchStrategy[Any]]] = [
    (LONG, pa.int64(), st.integers(-5, 5)),
    (DOUBLE, pa.float64(), st.sampled_from([-1.0, -0.0, 0.0, 0.1, 0.3, 2.5, NAN, float("inf")])),
    (STRING, pa.string(), st.text("abé", max_size=3) | st.just("b" * 40)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "arrow", "values"), _KINDS)
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_matching_row_is_kept(
    tmp_path_factory: pytest.TempPathFactory,
    kind: SqlType,
    arrow: pa.DataType,
    values: st.SearchStrategy[Any],
    data: st.DataObject,
) -> None:
    column = st.lists(st.none() | values, min_size=1, max_size=3)
    files = data.draw(st.lists(column, min_size=1, max_size=4))
    drawn = data.draw(st.lists(values.filter(lambda v: v == v), max_size=3))
    boundaries = tuple(sorted(set(drawn)))
    ids = data.draw(st.sets(st.integers(0, len(boundaries) + 1)))
    chosen = wanted(kind, boundaries, sorted(ids))
    tables = [pa.table({"v": pa.array(file, arrow)}) for file in files]
    snapshot = written(tmp_path_factory.mktemp("t") / "t", *tables)

    def matching(table: pa.Table) -> int:
        fragments = chosen.partition.fragments_of(from_arrow(table.column("v"), kind))
        return sum(int(fragment) in ids for fragment in fragments)

    kept = read_rows(snapshot, ["v"], prune(snapshot, [chosen]))
    assert matching(kept) == matching(read_rows(snapshot, ["v"]))


@pytest.mark.parametrize("char", ["\U00020000", "\U0010ffff", "\U0001f600"])
def test_characters_written_as_escapes_leave_no_file_out(tmp_path: Path, char: str) -> None:
    # deltalake reads the pair of surrogates of U+20000 as U+10000, which is below it.
    rows = pa.table({"s": [f"a{char}"]})
    create_laid_out_table(str(tmp_path / "t"), [rows])
    text = entry(tmp_path / "t", 0).read_text()
    assert "\\ud8" in text or "\\udb" in text
    snapshot = open_source("t", str(tmp_path / "t")).snapshot()
    (bounds,) = file_bounds(snapshot, "s")
    assert bounds.minimum is not None
    assert bounds.minimum <= f"a{char}"
    assert bounds.maximum is None
