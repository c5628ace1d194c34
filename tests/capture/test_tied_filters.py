"""Accesses that read by one filter: all of them have it, or none, wherever they stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from impctl.data.schema import LONG
from impctl.plan.nodes import scans_of
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet, RangeFilter, fragments_between, range_filter
from impctl.spark.predicates import place_filters
from impctl.sql.statement import parse_query
from tests.support.schemas import schema_of

CATALOG = {"t": schema_of("a bigint, b bigint")}
A = RangePartition("t", "a", LONG, (1, 2, 3))
B = RangePartition("t", "b", LONG, (1, 2, 3))
APART = "SELECT x.a FROM t x, t y, t z"
SHARED = "WITH q AS (SELECT * FROM t) SELECT x.a FROM q x, t y, q z"
"""The first and the last access at one place."""


def _some(partition: RangePartition, *ids: int) -> RangeFilter:
    return range_filter(FragmentSet.of(ids, partition.size), partition)


def _read(
    sql: str, filters: Sequence[RangeFilter | None], group: Sequence[int]
) -> list[set[int] | None]:
    """The fragments that each access reads, None for all, where those of the group are tied."""
    query = parse_query(sql, CATALOG)
    names = [scan.access for scan in scans_of(query.root)]
    given = {n: one for n, one in zip(names, filters, strict=True) if one is not None}
    result = place_filters(query, given, [frozenset(names[at] for at in group)])
    return [set(_ids(result, name)) if name in result else None for name in names]


def _ids(result: Mapping[str, RangeFilter], name: str) -> Iterator[int]:
    for interval in result[name].intervals:
        yield from fragments_between(interval, result[name].partition)


def test_each_by_itself_without_a_group() -> None:
    filters = [_some(A, 0), _some(A, 2), _some(A, 3)]
    assert _read(APART, filters, ()) == [{0}, {2}, {3}]


def test_all_of_a_group_have_what_any_needs() -> None:
    filters = [_some(A, 0), _some(A, 2), _some(A, 3)]
    assert _read(APART, filters, (0, 1)) == [{0, 2}, {0, 2}, {3}]


def test_one_without_a_filter_takes_that_of_all() -> None:
    assert _read(APART, [_some(A, 0), None, _some(A, 3)], (0, 1)) == [None, None, {3}]
    whole = _some(A, 0, 1, 2, 3, 4)
    assert _read(APART, [_some(A, 0), whole, _some(A, 3)], (0, 1)) == [None, None, {3}]


def test_one_of_other_ranges_takes_the_filter_of_all() -> None:
    assert _read(APART, [_some(A, 0), _some(B, 0), _some(A, 3)], (0, 1)) == [None, None, {3}]


def test_a_place_shared_with_another_access_widens_the_whole_group() -> None:
    filters = [_some(A, 0), _some(A, 0), _some(A, 3)]
    assert _read(SHARED, filters, ()) == [{0, 3}, {0}, {0, 3}]
    assert _read(SHARED, filters, (0, 1)) == [{0, 3}, {0, 3}, {0, 3}]


def test_a_place_shared_with_an_access_that_reads_all_leaves_the_group_without() -> None:
    assert _read(SHARED, [_some(A, 0), _some(A, 0), None], (0, 1)) == [None, None, None]
