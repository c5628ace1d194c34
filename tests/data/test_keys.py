"""Key codes, groups and orders, compared with a dictionary and NumPy, also if codes collide."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from impctl.data import keys
from impctl.data.keys import (
    ascending,
    code_of,
    distinct_values,
    ends_of,
    group_rows,
    in_order,
    key_codes,
    normalise,
    perhaps_in,
    same_keys,
    start_of,
    starts_in,
    when_many,
)
from impctl.data.schema import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    LONG,
    NULL,
    STRING,
    SqlType,
    decimal,
)
from impctl.data.vector import INT64_MAX, INT64_MIN, Ints, Vector, from_arrow
from tests.support.random_cases import FEW

WIDE = decimal(38, 2)
ARROW = {
    LONG: pa.int64(),
    DOUBLE: pa.float64(),
    STRING: pa.string(),
    BINARY: pa.binary(),
    BOOLEAN: pa.bool_(),
    WIDE: pa.decimal128(38, 2),
}
VALUES: dict[SqlType, st.SearchStrategy[Any]] = {
    LONG: st.sampled_from([None, 0, 1, -1, 2**63 - 1, -(2**63)]),
    DOUBLE: st.sampled_from([None, 0.0, -0.0, math.nan, -math.nan, 1.5, math.inf, 5e-324]),
    STRING: st.sampled_from([None, "", "a", "aa", "\x00", "é", "ab", "ba", "😀"]),
    BINARY: st.sampled_from([None, b"", b"\x00", b"\x00\x00", b"\xff", b"a"]),
    BOOLEAN: st.sampled_from([None, True, False]),
    WIDE: st.sampled_from([None, *map(Decimal, ("0.00", "-0.01", "1e35", "-1e35", "9.99"))]),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[SqlType], list[tuple[Any, ...]]]:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=0, max_size=3))
    rows = draw(st.lists(st.tuples(*(VALUES[kind] for kind in types)), max_size=25))
    return types, rows


def columns_of(types: Sequence[SqlType], rows: Sequence[tuple[Any, ...]]) -> list[Vector]:
    return [
        from_arrow(pa.array([row[index] for row in rows], ARROW[kind]), kind)
        for index, kind in enumerate(types)
    ]


def identity(value: Any) -> Any:
    """Equality of GROUP BY: NaN equals NaN, and Python has -0.0 equal 0.0."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else (type(value), value)


def model(rows: Iterable[tuple[Any, ...]]) -> set[frozenset[int]]:
    groups: dict[Any, set[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(tuple(identity(value) for value in row), set()).add(number)
    return {frozenset(members) for members in groups.values()}


def check_groups(types: Sequence[SqlType], rows: Sequence[tuple[Any, ...]]) -> None:
    columns = columns_of(types, rows)
    result = group_rows(columns, len(rows))
    order = np.arange(len(rows))[result.order]
    ends = [*result.starts[1:].tolist(), len(rows)] if result.groups else []
    parts = [
        frozenset(order[start:end].tolist())
        for start, end in zip(result.starts.tolist(), ends, strict=True)
    ]
    assert set(parts) == model(rows)
    assert len(parts) == result.groups
    index = result.index()
    for group, part in enumerate(parts):
        assert int(result.first[group]) in part
        assert all(index[row] == group for row in part)
    assert result.codes.tolist() == sorted(result.codes.tolist())
    codes = keys.key_codes(columns, len(rows))
    assert (codes == result.codes[index]).all()


@FEW
@given(tables())
def test_groups_match_a_dictionary(table: tuple[list[SqlType], list[Any]]) -> None:
    check_groups(*table)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["key_codes", "_column_codes"])
@pytest.mark.parametrize("codes", [1, 3])
def test_groups_when_codes_collide(name: str, codes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With only a few different codes, keys decide."""
    original = getattr(keys, name)
    monkeypatch.setattr(keys, name, lambda *arguments: original(*arguments) % codes)
    monkeypatch.setattr(keys, "_is_injective", lambda columns: not columns)
    splits = []
    split = keys._split_collisions

    def counted(columns: Sequence[Vector], result: Any) -> Any:
        splits.append(len(result))
        return split(columns, result)

    monkeypatch.setattr(keys, "_split_collisions", counted)

    @settings(FEW, database=None)
    @given(tables())
    @example(([LONG], [(0,), (1,), (2,), (3,)]))
    def run(table: tuple[list[SqlType], list[Any]]) -> None:
        check_groups(*table)

    run()
    assert splits, "no collision was ever split"


@FEW
@given(tables(), st.data())
def test_codes_do_not_depend_on_the_batch(
    table: tuple[list[SqlType], list[Any]], data: st.DataObject
) -> None:
    types, rows = table
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    whole = key_codes(columns_of(types, rows), len(rows))
    alone = key_codes(columns_of(types, rows[start:stop]), stop - start)
    assert alone.tolist() == whole[start:stop].tolist()
    sliced = [
        from_arrow(pa.array([row[index] for row in rows], ARROW[kind])[start:stop], kind)
        for index, kind in enumerate(types)
    ]
    assert key_codes(sliced, stop - start).tolist() == whole[start:stop].tolist()


@FEW
@given(tables(), st.randoms(use_true_random=False))
def test_same_keys_matches_group_keys(table: tuple[list[SqlType], list[Any]], rng: Any) -> None:
    types, rows = table
    others = list(rows)
    rng.shuffle(others)
    result = same_keys(columns_of(types, rows), columns_of(types, others))
    if not types:
        assert result is None
        return
    expected = [
        tuple(map(identity, row)) == tuple(map(identity, other))
        for row, other in zip(rows, others, strict=True)
    ]
    assert result.tolist() == expected


def test_codes_differ_by_key() -> None:
    """Not guaranteed, but useful: none of these many different keys collide."""
    texts = ["", "\x00", "\x00\x00", "a", "ab", "ba", *(f"key {i}" for i in range(20_000))]
    pairs = np.arange(200, dtype=np.int64)
    wide = [2**100 * sign + low for sign in (1, -1) for low in range(1000)]
    for columns in (
        [from_arrow(pa.array(texts), STRING)],
        [Vector(LONG, np.repeat(pairs, 200)), Vector(LONG, np.tile(pairs, 200))],
        [Vector(WIDE, np.array(wide, dtype=object))],
    ):
        assert len(np.unique(key_codes(columns, len(columns[0])))) == len(columns[0])


def test_decimal_code_is_independent_of_storage() -> None:
    values = [0, 1, -1, 2**63 - 1, -(2**63)]
    narrow = Vector(WIDE, np.array(values, dtype=np.int64))
    objects = Vector(WIDE, np.array(values, dtype=object))
    beside_wide = Vector(WIDE, np.array([*values, 2**90], dtype=object))
    assert key_codes([narrow], 5).tolist() == key_codes([objects], 5).tolist()
    assert key_codes([beside_wide], 6).tolist()[:5] == key_codes([narrow], 5).tolist()


def test_null_slots_are_ignored() -> None:
    valid = np.array([False, False])
    for kind, values in (
        (LONG, np.array([1, 2])),
        (DOUBLE, np.array([1.0, math.nan])),
        (WIDE, np.array([2**90, -1], dtype=object)),
        (DATE, np.array([7, 8])),
    ):
        codes = key_codes([Vector(kind, values, valid)], 2)
        assert codes[0] == codes[1]
        assert group_rows([Vector(kind, values, valid)], 2).groups == 1


def test_nans_and_zeros_have_one_code_each() -> None:
    nans = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x7FFFFFFFFFFFFFFF], dtype=np.uint64)
    values = np.concatenate([nans.view(np.float64), [math.nan, 0.0, -0.0]])
    for kind in (DOUBLE, FLOAT):
        codes = key_codes([Vector(kind, values)], 6)
        assert len(set(codes[:4].tolist())) == 1
        assert codes[4] == codes[5] != codes[0]
        shown = normalise(Vector(kind, values)).values
        assert not np.signbit(shown[5])
    assert np.signbit(values[5]), "the input was changed"


def test_sliced_text_with_nulls() -> None:
    texts = pa.array(["xx", None, "", "é", None, "b", "é"], pa.large_string())
    codes = key_codes([from_arrow(texts, STRING)], 7)
    for start in range(7):
        part = from_arrow(texts[start:], STRING)
        assert key_codes([part], 7 - start).tolist() == codes[start:].tolist()
    assert codes[1] == codes[4]
    assert codes[3] == codes[6]
    assert codes[2] not in (codes[1], codes[0])


def test_void_and_no_columns() -> None:
    nothing = np.zeros(3, dtype=np.int64)
    void = Vector(NULL, nothing, nothing.astype(np.bool_))
    assert group_rows([void], 3).groups == 1
    assert group_rows([], 3).groups == 1
    assert group_rows([], 0).groups == 0
    assert group_rows([void.take(np.zeros(0, dtype=np.int64))], 0).index().tolist() == []


@pytest.mark.slow
@pytest.mark.parametrize("spread", [1, 7, 2**16 - 1, 2**16, 2**40, 2**64 - 1])
@pytest.mark.parametrize("lowest", [0, -5, -(2**63)])
def test_groups_of_codes_with_any_spread(spread: int, lowest: int) -> None:
    random = np.random.default_rng(spread % 1000)
    drawn = random.integers(0, 40, 3000)
    drawn[:2] = 0, 40
    reached = [min(lowest + int(step) * spread // 40, 2**63 - 1) for step in drawn]
    values = np.array(reached, dtype=object)
    column = Vector(LONG, values.astype(np.int64), None)
    result = group_rows([column], len(values))
    ordered = column.values[result.order]
    assert sorted(result.order.tolist()) == list(range(len(values)))
    assert (np.diff(ordered.astype(object)) >= 0).all()
    assert result.codes.tolist() == sorted(set(column.values.tolist()))
    assert ordered[result.starts].tolist() == result.codes.tolist()
    assert column.values[result.first].tolist() == result.codes.tolist()


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_code_of_matches_key_codes(columns: int) -> None:
    values = [0, 1, -1, 2**31, -(2**31), 2**62 + 12345, INT64_MAX, INT64_MIN]
    rows = list(itertools.product(values, repeat=columns))
    vectors = [Vector(LONG, np.array(column, dtype=np.int64)) for column in zip(*rows, strict=True)]
    assert [code_of(row) for row in rows] == key_codes(vectors, len(rows)).tolist()


def hard_codes(rng: np.random.Generator, n: int) -> Iterator[Ints]:
    """Dense, repeated, negative, 64-bit, nearly sorted and descending codes."""
    for bits in (1, 3, 15, 16, 17, 31, 32, 33, 47, 48, 49, 62):
        yield rng.integers(0, 1 << bits, n)
        yield rng.integers(0, 1 << bits, n) - (1 << bits) // 2
    yield rng.integers(INT64_MIN, INT64_MAX, n, endpoint=True)
    yield np.where(rng.random(n) < 0.5, INT64_MIN, INT64_MAX)
    yield np.concatenate([np.sort(rng.integers(0, 10**6, n // 3)) for _ in range(3)])
    yield np.arange(n)[::-1].copy()
    yield np.full(n, -7)


@pytest.mark.parametrize("few", [2, 2_000])
@pytest.mark.parametrize("cached", [0, 1 << 19])
def test_ascending_is_stable(few: int, cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_FEW", few)
    monkeypatch.setattr(keys, "_CACHED", cached)
    rng = np.random.default_rng(few + cached)
    for n in (0, 1, 2, 50, 3_000):
        for codes in hard_codes(rng, n):
            before = codes.copy()
            assert np.array_equal(ascending(codes), np.argsort(codes, kind="stable"))
            assert np.array_equal(in_order(codes), np.sort(codes))
            assert np.array_equal(codes, before)


def test_when_many_returns_the_order() -> None:
    for codes in hard_codes(np.random.default_rng(3), 3_000):
        by, ordered = when_many(codes)
        assert np.array_equal(ordered, np.sort(codes))
        assert by is None or np.array_equal(codes[by], ordered)


def test_distinct_values_and_candidates() -> None:
    for codes in hard_codes(np.random.default_rng(4), 3_000):
        assert np.array_equal(distinct_values(codes), np.unique(codes))
        known = np.unique(codes[:100])
        candidates = perhaps_in(known, codes)
        assert set(np.flatnonzero(np.isin(codes, known))) <= set(candidates.tolist())
        assert np.array_equal(candidates, np.unique(candidates))
    assert distinct_values(np.array([3, -1, 3, 2, -1])).tolist() == [-1, 2, 3]
    assert distinct_values(np.array([], dtype=np.int64)).tolist() == []


@pytest.mark.parametrize("size", [1, 999, 1000, 5000])
@pytest.mark.parametrize("disturbed", [False, True])
def test_groups_of_sorted_rows(size: int, disturbed: bool) -> None:
    codes = np.sort(np.random.default_rng(size).integers(0, 50, size))
    if disturbed and size > 1:
        codes[-2:] = codes[-1], -1
    weights = np.random.default_rng(1).integers(-1, 3, size)
    grouping = group_rows([Vector(LONG, codes)], size)
    distinct, sizes = np.unique(codes, return_counts=True)
    assert grouping.codes.tolist() == codes[grouping.first].tolist() == distinct.tolist()
    assert (grouping.codes[grouping.index()] == codes).all()
    expected = [int(weights[codes == code].sum()) for code in grouping.codes]
    assert grouping.sums(weights).tolist() == expected
    ones = np.ones(size, dtype=np.int64)
    assert grouping.sums(ones).tolist() == grouping.sizes().tolist() == sizes.tolist()


def test_sorted_rows_are_not_copied() -> None:
    codes = np.sort(np.random.default_rng(3).integers(0, 50, 5000))
    grouping = group_rows([Vector(LONG, codes)], len(codes))
    assert np.shares_memory(codes[grouping.order], codes)


@pytest.mark.parametrize(
    ("columns", "starts", "positions"),
    [
        (([1, 1, 1, 2, 2], [5, 5, 6, 6, 6]), [True, False, True, True, False], [0, 0, 2, 3, 3]),
        (([], []), [], []),
        (([7], [7]), [True], [0]),
    ],
)
def test_starts_where_any_column_changes(
    columns: tuple[list[int], ...], starts: list[bool], positions: list[int]
) -> None:
    result = starts_in(*(np.array(column, dtype=np.int64) for column in columns))
    assert (result.tolist(), start_of(result).tolist()) == (starts, positions)


def test_ends_match_a_search() -> None:
    """Slices of any length: empty ones, and ones at or beyond the end of the codes."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        codes = np.sort(rng.integers(0, int(rng.choice([3, 30, 300])), int(rng.integers(0, 40))))
        low = rng.integers(-2, 310, 12)
        high = low + rng.integers(0, int(rng.choice([2, 20, 400])), 12)
        for side in ("left", "right"):
            first = codes.searchsorted(low, side)  # type: ignore[call-overload]
            ends = ends_of(codes, first, high, side)  # type: ignore[arg-type]
            expected = codes.searchsorted(high, side)  # type: ignore[call-overload]
            assert ends.tolist() == (expected.tolist() if len(codes) else first.tolist()), seed
