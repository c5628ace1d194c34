"""Which fragment a value has, against the definition, by both ways of looking it up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.data.schema import BINARY, DATE, DOUBLE, FLOAT, LONG, STRING, SqlType, decimal
from impctl.data.vector import Vector, from_arrow
from impctl.errors import UsageError
from impctl.sketch.partition import RangePartition

WIDE = decimal(38, 0)
NARROW = decimal(10, 2)
LONGS = st.one_of(st.integers(-5, 5), st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1, 2**53]))
DOUBLES = st.one_of(
    st.sampled_from([0.0, -0.0, math.inf, -math.inf, 5e-324, 1.5]), st.floats(allow_nan=False)
)
TEXTS = st.one_of(
    st.sampled_from(["", "a", "ab", "z", "é", "\uffff", "😀", "\x00"]), st.text(max_size=3)
)
WIDES = st.one_of(st.integers(-3, 3), st.sampled_from([2**63, -(2**63) - 1, 10**38 - 1, 2**90]))
KINDS: dict[SqlType, st.SearchStrategy[Any]] = {
    LONG: LONGS,
    DOUBLE: DOUBLES,
    FLOAT: st.floats(width=32, allow_nan=False),
    STRING: TEXTS,
    BINARY: st.binary(max_size=2),
    NARROW: LONGS,
    WIDE: WIDES,
}


def partition(kind: SqlType, *boundaries: Any) -> RangePartition:
    return RangePartition("t", "a", kind, boundaries)


def vector_of(kind: SqlType, values: list[Any]) -> Vector:
    """Canonical values; None is NULL."""
    valid = np.array([value is not None for value in values], dtype=np.bool_)
    given_mask = None if bool(valid.all()) else valid
    if kind in (STRING, BINARY):
        return from_arrow(pa.array(values, pa.string() if kind == STRING else pa.binary()), kind)
    filled = [0 if value is None else value for value in values]
    if kind.is_fractional:
        return Vector(kind, np.array(filled, dtype=np.float64), given_mask)
    narrow = all(-(2**63) <= value < 2**63 for value in filled)
    return Vector(kind, np.array(filled, dtype=np.int64 if narrow else object), given_mask)


def expected(range_partition: RangePartition, value: Any) -> int:
    """The definition, one boundary after the other."""
    if value is None:
        return range_partition.null_fragment
    if isinstance(value, float) and math.isnan(value):
        return len(range_partition.boundaries)
    return sum(1 for boundary in range_partition.boundaries if boundary <= value)


def check(range_partition: RangePartition, values: list[Any]) -> None:
    wanted = [expected(range_partition, value) for value in values]
    vector = vector_of(range_partition.type, values)
    assert range_partition.fragments_of(vector).tolist() == wanted
    assert range_partition.fragments_of(vector).dtype == np.int32
    slow = range_partition._one_by_one(vector)
    known = [place for place, value in enumerate(values) if value is not None and value == value]
    assert slow[known].tolist() == [wanted[place] for place in known]


@st.composite
def cases(draw: st.DrawFn) -> tuple[RangePartition, list[Any]]:
    kind = draw(st.sampled_from(list(KINDS)))
    boundaries = draw(st.lists(KINDS[kind], unique=True, max_size=6).map(sorted))
    own = st.sampled_from(boundaries) if boundaries else KINDS[kind]
    more = st.just(math.nan) if kind.is_fractional else st.none()
    values = draw(st.lists(st.one_of(KINDS[kind], own, st.none(), more), max_size=12))
    return partition(kind, *boundaries), values


@pytest.mark.slow
@given(cases())
def test_every_value_has_the_fragment_of_the_definition(
    case: tuple[RangePartition, list[Any]],
) -> None:
    check(*case)


def test_boundaries_belong_to_the_fragment_above() -> None:
    result = partition(LONG, 10, 20)
    assert (result.ranges, result.null_fragment, result.size) == (3, 3, 4)
    check(result, [9, 10, 11, 19, 20, 21, None, -(2**63), 2**63 - 1])


def test_doubles_at_the_edges() -> None:
    result = partition(DOUBLE, 0.0, math.inf)
    ids = result.fragments_of(
        vector_of(DOUBLE, [-5e-324, -0.0, 0.0, math.inf, math.nan, -math.inf])
    )
    assert ids.tolist() == [0, 1, 1, 2, 2, 0]
    minus = partition(DOUBLE, -0.0)
    assert minus.fragments_of(vector_of(DOUBLE, [-0.0, 0.0, -1.0])).tolist() == [1, 1, 0]


def test_a_null_slot_that_holds_nan_or_nonsense_is_null() -> None:
    valid = np.array([False, True])
    doubles = Vector(DOUBLE, np.array([math.nan, 1.0]), valid)
    assert partition(DOUBLE, 0.5).fragments_of(doubles).tolist() == [2, 1]
    wide = Vector(WIDE, np.array([2**100, 2**99], dtype=object), valid)
    assert partition(WIDE, 2**99).fragments_of(wide).tolist() == [2, 1]


def test_one_fragment_for_everything_but_null() -> None:
    for kind, values in ((LONG, [1, None]), (DOUBLE, [math.nan, None]), (STRING, ["x", None])):
        assert partition(kind).fragments_of(vector_of(kind, list(values))).tolist() == [0, 1]


def test_text_compares_by_code_point() -> None:
    """U+FFFF is below U+1F600 by code point and above it in UTF-16."""
    result = partition(STRING, "A", "a", "é", "\uffff", "😀")
    values = vector_of(STRING, ["", "Z", "z", "é", "\uffff", "😀", "😁"])
    assert result.fragments_of(values).tolist() == [0, 1, 2, 3, 4, 5, 5]
    encoded = [boundary.encode() for boundary in result.boundaries if isinstance(boundary, str)]
    assert encoded == sorted(encoded)


def test_narrow_values_among_wide_boundaries_and_the_other_way_round() -> None:
    check(partition(WIDE, -(2**90), 0, 2**90), [-(2**63), 0, 2**63 - 1])
    check(partition(WIDE, -1, 1), [2**90, -(2**90), 0, 2**63])


def test_sliced_text() -> None:
    whole = pa.array(["c", None, "a", "b"])
    result = partition(STRING, "b")
    assert result.fragments_of(from_arrow(whole[1:], STRING)).tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("kind", "boundaries"),
    [(LONG, (2, 1)), (LONG, (1, 1)), (DOUBLE, (-0.0, 0.0)), (STRING, ("b", "a"))],
)
def test_boundaries_must_increase(kind: SqlType, boundaries: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match="`t.a` must increase") as caught:
        partition(kind, *boundaries)
    assert caught.value.code == "boundaries_not_increasing"


def test_the_id_tells_partitions_apart() -> None:
    one = partition(LONG, 1, 2)
    assert one.id == RangePartition("t", "A", LONG, (1, 2)).id
    others = [
        partition(LONG, 1, 3),
        partition(LONG, 1),
        partition(decimal(19, 0), 1, 2),
        RangePartition("u", "a", LONG, (1, 2)),
        RangePartition("t", "b", LONG, (1, 2)),
    ]
    assert len({one.id, *(other.id for other in others)}) == 6


@pytest.mark.parametrize("kind", [LONG, NARROW, DATE], ids=str)
def test_a_table_of_near_boundaries_tells_what_a_search_does(kind: SqlType) -> None:
    """Of many values; of few no table is made, and far boundaries have none."""
    random = np.random.default_rng(1)
    ends = [-(2**63), -(2**63) + 1, 2**63 - 1, 0, -1]
    for boundaries in ((0,), (-3, 4, 5), (10, 1000), (-(2**63) + 1, -(2**63) + 9), (2**63 - 1,)):
        result = partition(kind, *boundaries)
        near = random.integers(-20, 1200, 2000)
        around = [bound + step for bound in boundaries for step in (-1, 0, 1)]
        values = [*near.tolist(), *ends, *(v for v in around if -(2**63) <= v < 2**63), None]
        many = result.fragments_of(vector_of(kind, values))
        assert many.dtype == np.int32
        assert many.tolist() == [expected(result, value) for value in values]
        few = [result.fragments_of(vector_of(kind, [value]))[0] for value in values[-40:]]
        assert few == many[-40:].tolist()
    assert partition(kind, 0, 2**40)._span is None
    assert partition(kind, -(2**63), 0)._span is None


@pytest.mark.parametrize(
    ("values", "wanted", "told"),
    [
        ([3, 12, 15], {1, 2}, True),
        ([3, 12, 15], {1, 2, 3, 0}, True),
        ([3, 25], {1, 3}, False),
        ([-5], {0}, True),
        ([], {0, 1, 2, 3, 4}, False),
    ],
)
def test_values_between_ranges_that_are_all_wanted(
    values: list[int], wanted: set[int], told: bool
) -> None:
    partition = RangePartition("t", "a", LONG, (0, 10, 20))
    mask = np.isin(np.arange(partition.size), list(wanted))
    vector = Vector(LONG, np.array(values, dtype=np.int64))
    assert partition.are_all_in(vector, mask) is told
    with_null = Vector(LONG, vector.values, np.ones(len(values), dtype=np.bool_))
    assert not partition.are_all_in(with_null, mask)
    if told:
        assert mask[partition.fragments_of(vector)].all()
