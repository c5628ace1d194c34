"""Bounds as columns come to what one file after the other comes to."""

from __future__ import annotations

import datetime
import itertools
import json
import math
import random
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.data.schema import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Column,
    Kind,
    SqlType,
    decimal,
)
from impctl.data.vector import from_arrow
from impctl.expr.nodes import CompareOp
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet, exact_filter
from impctl.tables import prune, statistics
from impctl.tables.prune import file_spans, key_spans
from impctl.tables.snapshot import FileBounds, as_array, places_in
from impctl.tables.source import open_source
from impctl.tables.statistics import Line, column_statistics, extreme, file_bounds, line_of
from tests.support import reference_bounds as one_by_one
from tests.support.random_cases import FEW
from tests.support.reference_bounds import column_bounds
from tests.tables import handmade

INT64 = [-(2**63), -(2**62) - 1, -1, 0, 1, 2**44, 2**53 + 1, 2**62 + 1, 2**63 - 1]
DOUBLES = [-math.inf, -1e300, -1.5, -5e-324, -0.0, 0.0, 5e-324, 0.1, 3.5e38, math.inf, math.nan]
TEXTS = ["", "a", "ab", "b" * 31, "b" * 32, "é" * 31, "é" * 32, "\U0001f600" * 15, "a\ufffd"]
TEXTS += ["\U0001f600" * 16, "\U00020000", "z\U0010ffff", "common/one", "common/two", "common"]
EPOCH = datetime.datetime(1970, 1, 1)
TIMES = [EPOCH + datetime.timedelta(days=days) for days in (-700_000, -1, 0, 1095, 1096, 20_000)]

STATED: list[tuple[SqlType, pa.Array]] = [
    (LONG, pa.array([*INT64, None])),
    (DATE, pa.array([-719162, 0, 2932896, None], pa.int32()).cast(pa.date32())),
    (TIMESTAMP, pa.array([*TIMES, None], pa.timestamp("us", "UTC"))),
    (TIMESTAMP, pa.array(INT64).cast(pa.timestamp("us", "UTC"))),
    (TIMESTAMP_NTZ, pa.array([*INT64, None]).cast(pa.timestamp("us"))),
    (DOUBLE, pa.array([*DOUBLES, None])),
    (FLOAT, pa.array([*DOUBLES, None])),
    (BOOLEAN, pa.array([True, False, None])),
    (STRING, pa.array([*TEXTS, None])),
    (decimal(6, 1), pa.array([Decimal("-1.5"), Decimal(0), None], pa.decimal128(6, 1))),
    (decimal(38, 0), pa.array([*INT64, None])),
    (decimal(38, 0), pa.array([10**37, -(10**37), 2**63, 1, None], pa.decimal128(38, 0))),
    (decimal(38, 1), pa.array([Decimal(v).scaleb(-1) for v in INT64], pa.decimal128(38, 1))),
    (decimal(38, 18), pa.array([Decimal("1e19"), Decimal("-1e-18"), None], pa.decimal128(38, 18))),
]


@pytest.mark.parametrize(("kind", "stated"), STATED, ids=str)
def test_bounds_from_what_is_stated(kind: SqlType, stated: pa.Array) -> None:
    column = Column("v", kind)
    values, is_valid = statistics._canonical(stated, column)
    pairs = zip(values.tolist(), is_valid.tolist(), strict=True)
    told = [value if ok else None for value, ok in pairs]
    for direction, of in ((-1, one_by_one.low_of), (1, one_by_one.high_of)):
        moved, is_known = statistics._side(stated, column, kind, direction, len(told))
        result = [v if ok else None for v, ok in zip(moved.tolist(), is_known, strict=True)]
        assert list(map(repr, result)) == [repr(of(value, kind)) for value in told]


def test_all_that_a_log_says_of_files(tmp_path: Path) -> None:
    """Statistics missing in whole or in part, NULL alone, no rows."""
    stated: list[dict[str, Any] | None] = [
        None,
        {"numRecords": 3},
        {"numRecords": 3, "nullCount": {"v": 3}},
        {"numRecords": 0, "nullCount": {"v": 0}},
        {"numRecords": 3, "nullCount": {"v": 1}, "minValues": {"v": 0.0}, "maxValues": {"v": 2.0}},
        {"numRecords": 3, "minValues": {"v": -1.0}},
        {"numRecords": 3, "nullCount": {"v": 0}, "maxValues": {"v": -1.0}},
    ]
    files = [
        handmade.add(f"{at}.parquet", 3, stats=None if result is None else json.dumps(result))
        for at, result in enumerate(stated)
    ]
    path = handmade.create(tmp_path, {"v": "double", "other": "long"}, *files)
    snapshot = open_source("t", path).snapshot()
    bounds = file_bounds(snapshot, "V")
    for file, result in zip(snapshot.files, bounds, strict=True):
        text = stated[int(file.uri.rpartition("/")[2].removesuffix(".parquet"))] or {}
        rows, nulls = text.get("numRecords"), text.get("nullCount", {}).get("v")
        low, high = (text.get(side, {}).get("v") for side in ("minValues", "maxValues"))
        may_be_nan = nulls is None or rows is None or nulls < rows
        limits = one_by_one.low_of(low, DOUBLE), one_by_one.high_of(high, DOUBLE)
        assert result == FileBounds(*limits, nulls, rows, may_be_nan)
    assert file_bounds(snapshot, "v") is bounds, "read once a snapshot"
    later = replace(snapshot, version=1)
    assert not later.bounds, "another snapshot has nothing of this one's"


def test_a_partition_is_one_value(tmp_path: Path) -> None:
    """NULL and NaN too, with a count of rows and without."""
    cases = [(value, stats) for value in ("1.5", "NaN", None, "") for stats in (3, None)]
    files = [
        handmade.add(
            f"{at}.parquet",
            3,
            stats=None if rows is None else json.dumps({"numRecords": rows}),
            partitionValues={"v": value},
        )
        for at, (value, rows) in enumerate(cases)
    ]
    columns = {"v": "double", "other": "long"}
    path = handmade.create(tmp_path, columns, *files, partition_columns=["v"])
    snapshot = open_source("t", path).snapshot()
    for file, result in zip(snapshot.files, file_bounds(snapshot, "v"), strict=True):
        value, rows = cases[int(file.uri.rpartition("/")[2].removesuffix(".parquet"))]
        if not value:
            assert result.is_all_null, "also where nobody tells how many rows there are"
            assert result.null_count == (rows or 1)
        else:
            known = None if value == "NaN" else 1.5
            assert result == FileBounds(known, known, 0, rows, value == "NaN")


VALUES: dict[str, tuple[SqlType, pa.DataType, list[Any]]] = {
    "long": (LONG, pa.int64(), [-1, 0, 1, 2]),
    "long at the ends": (LONG, pa.int64(), [-(2**63), 2**53, 2**53 + 1, 2**63 - 1]),
    "wide": (decimal(38, 0), pa.decimal128(38, 0), [-(2**70), 0, 1, 2**63]),
    "double": (DOUBLE, pa.float64(), [-math.inf, -0.0, 5e-324, 1.5]),
    "text": (STRING, pa.string(), ["", "a", "b" * 32, "\U00020000"]),
}
"""Ascending values of some types; files start and end at all of them."""
NUMBERS = [Fraction(1, 2), 2**63, -(2**70)]
"""Constants that a column of whole numbers may be compared with."""


def every_file(values: list[Any]) -> list[FileBounds]:
    """All that a log may tell of a file whose least and greatest value are among these."""
    spans = [(low, high) for low in [None, *values] for high in [None, *values]]
    return [
        FileBounds(low, high, nulls, rows, may_be_nan)
        for low, high in spans
        for nulls, rows in [(None, None), (None, 3), (1, None), (0, 3), (1, 3), (3, 3), (0, 0)]
        for may_be_nan in (False, True)
        if None in (low, high) or low <= high
        # Of NULLs alone there is no least or greatest value.
        if rows is None or nulls is None or nulls < rows or low is high is None
    ]


def some_files(values: list[Any]) -> list[list[FileBounds]]:
    """A few of these files, many times."""
    rng, files = random.Random(7), every_file(values)
    known = [one for one in files if None not in (one.minimum, one.maximum)]
    return [rng.sample(rng.choice([files, known]), rng.randint(0, 4)) for _ in range(60)]


@pytest.fixture(params=VALUES)
def case(request: pytest.FixtureRequest) -> tuple[SqlType, pa.DataType, list[Any]]:
    return VALUES[request.param]


Case = tuple[SqlType, pa.DataType, list[Any]]


def test_files_that_may_match_ranges(case: Case) -> None:
    kind, _, values = case
    files = every_file(values)
    bounds = column_bounds(files, kind)
    assert list(bounds) == files
    assert bounds.may_hold_null.tolist() == [one.may_hold_null for one in files]
    assert bounds.is_all_null.tolist() == [one.is_all_null for one in files]
    for boundaries in ((), (values[1],), tuple(values[1:3])):
        partition = RangePartition("t", "v", kind, boundaries)
        for ids in itertools.product((False, True), repeat=partition.size):
            chosen = FragmentSet.of(np.flatnonzero(ids).tolist(), partition.size)
            wanted = exact_filter(chosen, partition)
            tolist = prune._may_match(wanted, bounds).tolist()
            assert tolist == [one_by_one.may_match(wanted, one) for one in bounds]
        spans = file_spans(partition, bounds)
        pairs = list(zip(spans.first.tolist(), spans.last.tolist(), strict=True))
        assert pairs == [one_by_one.span_of(partition, one) for one in bounds]


def test_files_that_may_hold_values(case: Case) -> None:
    kind, arrow, values = case
    bounds = column_bounds(every_file(values), kind)
    more = [math.nan] if kind is DOUBLE else []
    for asked in ([], *([one] for one in [None, *values, *more]), [None, values[0], values[-1]]):
        # Arrow makes no wide decimals of Python's integers.
        made = [one and Decimal(one) for one in asked] if kind.kind is Kind.DECIMAL else asked
        vector = from_arrow(pa.array(made, arrow, from_pandas=False), kind)
        tolist = prune._may_hold(vector, bounds).tolist()
        assert tolist == [one_by_one.may_hold_some(asked, one) for one in bounds]
    for constant in values if kind in (STRING, DOUBLE) else [*values, *NUMBERS]:
        for op in (op for op in CompareOp if op is not CompareOp.NULL_SAFE_EQUAL):
            flags = prune._condition_may_hold(op, bounds, constant)
            assert flags.tolist() == [one_by_one.may_compare(op, one, constant) for one in bounds]


def test_files_that_may_meet_others(case: Case) -> None:
    kind, _, values = case
    bounds = column_bounds(every_file(values), kind)
    for others in some_files(values):
        spans = key_spans(column_bounds(others, kind))
        filled = [one for one in others if not one.is_all_null]
        ends = [(one.minimum, one.maximum) for one in filled]
        assert (spans is None) == any(None in pair for pair in ends)
        if spans is not None:
            may_be_nan = any(one.may_be_nan for one in filled)
            expected = [one_by_one.meets(ends, may_be_nan, one) for one in bounds]
            assert spans.meets(bounds).tolist() == expected


def test_places_of_spans(case: Case) -> None:
    kind, _, values = case
    for files in some_files(values):
        bounds = column_bounds(files, kind)
        line = line_of(bounds)
        filled = [one for one in bounds if not one.is_all_null]
        ends: list[Any] = [value for one in filled for value in (one.minimum, one.maximum)]
        expected = None if None in ends else Line.of(ends)
        assert line == expected
        if line is not None:
            lows, beyond = line.spans(bounds.filled)
            assert lows.tolist() == [line.place(one.minimum) for one in filled]
            assert bool((beyond > lows).all())
            wanted = [line.place(one.maximum) + line.unit for one in filled]
            assert beyond.tolist() == np.maximum(wanted, np.nextafter(lows, np.inf)).tolist()


@FEW
@given(st.lists(st.integers(-3, 3) | st.sampled_from([2**63 + 1, 2**64 - 1, -(2**63) - 1])))
def test_no_integer_is_rounded(values: list[int]) -> None:
    ordered = sorted(set(values))
    assert as_array(ordered).tolist() == ordered
    asked = as_array([2**53 + 1, 2**63 - 1])
    places = [sum(one < value for one in ordered) for value in (2**53 + 1, 2**63 - 1)]
    assert places_in(ordered, asked, "left").tolist() == places


@pytest.mark.parametrize("order", [1, -1])
def test_statistics_of_a_table_are_those_of_its_files(tmp_path: Path, order: int) -> None:
    limits = [(5, 9), (-2, 4), (7, 7)][::order]
    files = [
        handmade.add(f"{at}.parquet", 2, stats=handmade.stats(2, {"v": at}, v=pair))
        for at, pair in enumerate(limits)
    ]
    snapshot = open_source("t", handmade.create(tmp_path, {"v": "long"}, *files)).snapshot()
    result, bounds = column_statistics(snapshot, "v"), file_bounds(snapshot, "v")
    filled = [one for one in bounds if not one.is_all_null]
    assert len(filled) == 2, "a file of NULLs bounds nothing"
    assert result.minimum == extreme([one.minimum for one in filled], min)
    assert result.maximum == extreme([one.maximum for one in filled], max)
    assert result.null_count == 3
