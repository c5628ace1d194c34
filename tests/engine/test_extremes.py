"""Extremes, first rows and window values against a full sort, complete or bounded."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import DOUBLE, INTEGER, LONG, STRING, SqlType
from impctl.data.vector import Ints, Vector, from_arrow
from impctl.engine.accumulators import AggregateColumn, Count, Firsts
from impctl.engine.batch import Batch
from impctl.engine.extremes import (
    Best,
    BestValues,
    FirstValue,
    OrderedCounts,
    OrderedValues,
    OrderKey,
    ranks_of,
    values_of,
)
from impctl.engine.lookups import COMPLETE
from impctl.engine.tags import RowTags
from impctl.engine.topk import Cut, Limit, Top
from impctl.engine.window import CHOOSING, RANKS, WindowOperator
from impctl.engine.window import WindowValue as Placed
from impctl.errors import CountBelowZeroError, NotExactError
from impctl.expr.nodes import ColumnRef, Literal
from impctl.plan.nodes import Attribute, SortKey, WindowCall
from tests.support.random_cases import random_cases, random_seeds
from tests.support.reference_plan import Values, window_values


def ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def add(state: OrderedCounts, group: int, ranks: list[int], weight: int = 1) -> None:
    """Add one run."""
    state.change(ints([group] * len(ranks)), ints(ranks), ints([weight] * len(ranks)))


def best(state: OrderedCounts, *groups: int) -> list[int]:
    return [int(rank) for rank in state.best(ints(list(groups)))]


@pytest.mark.parametrize("reverse", [False, True])
def test_ranks_of_doubles_are_in_sparks_order(reverse: bool) -> None:
    tiny, huge = 5e-324, 1.7e308
    ordered = np.array([-np.inf, -huge, -1.5, -tiny, 0.0, tiny, 1.5, huge, np.inf, np.nan])
    ranks = ranks_of(Vector(DOUBLE, ordered), reverse=reverse)
    steps = np.diff(ranks)
    assert bool((steps < 0).all() if reverse else (steps > 0).all())
    assert repr(values_of(ranks, DOUBLE, reverse=reverse).tolist()) == repr(ordered.tolist())
    of_other_bits = np.array([0x7FF8_0000_0000_0001]).view(np.float64)
    alike = np.array([0.0, -0.0, np.nan, -np.nan, *of_other_bits])
    zero, minus_zero, *nans = ranks_of(Vector(DOUBLE, alike), reverse=reverse).tolist()
    assert zero == minus_zero
    assert len(set(nans)) == 1


@pytest.mark.parametrize("deleted", [7, 8, 9, 15, 16, 17, 40, 399])
def test_a_short_run_does_not_hide_values_of_a_cut_run(deleted: int) -> None:
    """Runs of 400, -8 and +1 values: the minimum is the ninth, not that of the newest run."""
    state = OrderedCounts("s")
    add(state, 1, list(range(1, 401)))
    add(state, 1, list(range(1, deleted + 1)), -1)
    add(state, 1, [5000])
    assert best(state, 1) == [deleted + 1]


def test_groups_that_need_windows_of_different_widths() -> None:
    state = OrderedCounts("s")
    for group in (1, 2, 3):
        add(state, group, list(range(10 * group, 10 * group + 100)))
    add(state, 2, list(range(20, 60)), -1)
    add(state, 3, list(range(30, 130)), -1)
    add(state, 2, [900])
    assert best(state, 3, 2, 1, 2, 7) == [0, 60, 10, 60, 0]


def test_a_value_at_the_read_edge_counts_and_a_missing_one_is_an_error() -> None:
    """The eighth value of a cut run, deleted in another run and counted twice in a third."""
    state = OrderedCounts("s")
    add(state, 1, list(range(1, 101)))
    add(state, 1, list(range(1, 9)), -1)
    add(state, 1, [8])
    assert best(state, 1) == [8]
    state = OrderedCounts("s")
    add(state, 1, list(range(1, 101)))
    add(state, 1, [0], -1)
    with pytest.raises(CountBelowZeroError):
        state.best(ints([1]))


@pytest.mark.parametrize("seed", range(20))
def test_against_a_plain_minimum(seed: int) -> None:
    rng = Random(seed)
    state = OrderedCounts("s")
    present: dict[int, list[int]] = {group: [] for group in range(4)}
    for _ in range(12):
        group = rng.randrange(4)
        members = present[group]
        if len(members) > 30 and rng.random() < 0.7:
            members.sort()
            deleted = members[: rng.randrange(1, len(members) + 1)]
            del members[: len(deleted)]
            add(state, group, deleted, -1)
        else:
            start = rng.randrange(500)
            inserted = [start + rng.randrange(300) for _ in range(rng.choice((1, 40, 200)))]
            members.extend(inserted)
            add(state, group, inserted)
        groups = list(present)
        rng.shuffle(groups)
        minima = [min(present[group], default=0) for group in groups]
        assert best(state, *groups) == minima


GROUP = np.array([7], dtype=np.int64)


def change(values: BestValues, edge: int, ranks: list[int], weight: int) -> Best:
    owners, weights = ints([0] * len(ranks)), ints([weight] * len(ranks))
    return values.change(GROUP, ints([edge]), owners, ints(ranks), weights)


def test_a_value_at_the_edge_is_counted_and_deleted() -> None:
    for copies in (1, 2):
        values = BestValues("v", 1)
        edge = int(change(values, COMPLETE, [1, 2, 3, 4, 5], 1).edges[0])
        assert edge < 5
        change(values, edge, [edge] * (copies - 1), 1)
        result = change(values, edge, list(range(1, edge + 1)), -1)
        assert bool(result.is_found[0]) == (copies > 1), "more may be in the table"
        assert copies == 1 or int(result.ranks[0]) == edge


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
@random_seeds(3, 6, 30)
def test_the_best_is_the_minimum(size: int, seed: int) -> None:
    rng = Random(seed)
    values = BestValues("v", size)
    present: list[int] = []
    edge = COMPLETE
    refills = 0
    for _ in range(60):
        if present and rng.random() < 0.6:
            present.sort()
            deleted = present[: rng.randrange(1, min(len(present), 4) + 1)]
            del present[: len(deleted)]
            result = change(values, edge, deleted, -1)
        else:
            inserted = [rng.randrange(12) for _ in range(rng.randrange(1, 9))]
            present.extend(inserted)
            result = change(values, edge, inserted, 1)
        edge = int(result.edges[0])
        if present and not result.is_found[0]:
            assert edge != COMPLETE
            refills += 1
            owners, weights = ints([0] * len(present)), ints([1] * len(present))
            result = values.refill(GROUP, owners, ints(present), weights)
            edge = int(result.edges[0])
        assert bool(result.is_found[0]) == bool(present)
        if present:
            assert int(result.ranks[0]) == min(present)
    assert refills > 0


ARROW = {INTEGER: pa.int32(), STRING: pa.string()}


def state_of(key: SqlType, *, reverse: bool = False, returns_key: bool = False) -> OrderedValues:
    return OrderedValues(
        "s", FirstValue("k", "k" if returns_key else "v", 0, 1, reverse), key, INTEGER
    )


def add_ordered(
    state: OrderedValues, kind: SqlType, rows: list[tuple[int, Any, Any]], sign: int = 1
) -> None:
    groups: Ints = np.array([group for group, _, _ in rows], dtype=np.int64)
    keys = from_arrow(pa.array([key for _, key, _ in rows], ARROW[kind]), kind)
    values = from_arrow(pa.array([value for _, _, value in rows], pa.int32()), INTEGER)
    state.add(groups, keys, values, np.full(len(rows), sign, dtype=np.int64))


def first(state: OrderedValues, *groups: int) -> list[tuple[int, Any]]:
    owners, values = state.first(np.array(groups, dtype=np.int64))
    if values is None:
        return []
    shown = [
        None if not ok else (v.as_py() if values.is_textual else int(v))
        for v, ok in zip(values.values, values.validity(), strict=True)
    ]
    return sorted(zip(owners.tolist(), shown, strict=True), key=repr)


def test_tied_values_are_returned_once_each() -> None:
    state = state_of(INTEGER)
    rows = [(1, 5, 10), (1, 3, 11), (1, 3, 12), (1, 3, 12), (2, 7, None), (1, None, 9)]
    add_ordered(state, INTEGER, rows)
    assert first(state, 2, 1) == [(0, None), (1, 11), (1, 12)]
    add_ordered(state, INTEGER, [(1, 3, 12)], -1)
    assert first(state, 1) == [(0, 11), (0, 12)]
    add_ordered(state, INTEGER, [(1, 3, 12), (1, 3, 11)], -1)
    assert first(state, 1) == [(0, 10)]
    assert first(state) == []


@pytest.mark.parametrize(("reverse", "least"), [(False, "prefix__"), (True, "prefix__\U0001f600")])
def test_texts_with_a_common_prefix(reverse: bool, least: str) -> None:
    texts = ["prefix__", "prefix__a", "prefix__\U0001f600", "prefix__\uffee", "prefix__a"]
    state = state_of(STRING, reverse=reverse, returns_key=True)
    add_ordered(state, STRING, [(1, text, 0) for text in texts])
    assert first(state, 1) == [(0, least)]
    add_ordered(state, STRING, [(1, least, 0)], -1)
    assert first(state, 1) == [(0, "prefix__\uffee" if reverse else "prefix__a")]


def test_too_many_ties_and_missing_values_are_errors() -> None:
    state = state_of(INTEGER)
    add_ordered(state, INTEGER, [(1, 0, value) for value in range(65)])
    with pytest.raises(NotExactError, match="More than 64 values"):
        first(state, 1)
    add_ordered(state, INTEGER, [(1, 0, 64)], -1)
    assert len(first(state, 1)) == 64
    other = state_of(INTEGER)
    add_ordered(other, INTEGER, [(1, 3, 7), (1, 3, 8)])
    add_ordered(other, INTEGER, [(1, 3, 9)], -1)
    with pytest.raises(CountBelowZeroError):
        first(other, 1)


def test_an_integral_first_value_has_the_output_type() -> None:
    column = AggregateColumn("y", INTEGER, FirstValue("k", "v", 0, 1, False), Count("k", 0))
    firsts = Firsts("f", [column], {"k": LONG, "v": LONG})
    one = np.ones(1, dtype=np.int64)
    firsts.add({"k": Vector(LONG, one), "v": Vector(LONG, one + 6)}, one, one)
    picked = firsts.of(one, {"count0": one})
    result = firsts.spread_out(Batch({}, one, ()), picked).columns["y"]
    assert (result.type, result.values.tolist()) == (INTEGER, [7])


Row = tuple[int | None, str | None, int | None]
COLUMNS = (("g", LONG), ("s", STRING), ("x", LONG))
ORDERS = {
    "one": (OrderKey("x", False, True),),
    "down, nulls last": (OrderKey("x", True, False), OrderKey("s", False, False)),
    "text with one prefix": (OrderKey("s", False, False), OrderKey("x", True, True)),
}


def batch(rows: Sequence[Row], weights: Sequence[int]) -> Batch:
    """Rows whose range is their x, so that equal rows have equal ranges."""
    parts = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    columns = {
        name: from_arrow(pa.array(part, pa.string() if kind == STRING else pa.int64()), kind)
        for (name, kind), part in zip(COLUMNS, parts, strict=True)
    }
    ranges = np.array([0 if row[2] is None else row[2] + 3 for row in rows], dtype=np.int32)
    return Batch(columns, np.array(weights, dtype=np.int64), (RowTags(ranges),))


def sort_key(row: Row, order: Sequence[OrderKey]) -> list[tuple[int, object]]:
    """The sort key of a row: NULL first or last, descending values negated."""
    result: list[tuple[int, object]] = []
    for key in order:
        value = row[{"s": 1, "x": 2}[key.column]]
        if value is None:
            result.append((0 if key.nulls_first else 2, 0))
        elif key.descending:
            result.append((1, -value))  # type: ignore[operator]  # only numbers are
        else:
            result.append((1, value))
    return result


def expected(
    rows: Counter[Row], order: Sequence[OrderKey], limit: Limit, *, grouped: bool
) -> Counter[tuple[object, ...]]:
    """How often each sort key is among the first rows, and with which ranks."""
    groups: dict[object, list[Row]] = {}
    for row in rows.elements():
        groups.setdefault(row[0] if grouped else None, []).append(row)
    result: Counter[tuple[object, ...]] = Counter()
    for group, members in groups.items():
        sort_keys = sorted((sort_key(row, order) for row in members), key=repr)
        sort_keys.sort(key=lambda parts: [(null_order, value) for null_order, value in parts])
        distinct = [
            one for index, one in enumerate(sort_keys) if index == 0 or one != sort_keys[index - 1]
        ]
        for index, one in enumerate(sort_keys):
            ranks = {
                Cut.ROW: index + 1,
                Cut.RANK: sort_keys.index(one) + 1,
                Cut.DENSE: distinct.index(one) + 1,
            }
            if limit.offset < ranks[limit.cut] <= limit.size:
                result[group, repr(one), ranks[limit.cut]] += 1
    return result


def shown(
    output: Counter[tuple[Row, int]], order: Sequence[OrderKey], *, grouped: bool
) -> Counter[tuple[object, ...]]:
    counts: Counter[tuple[object, ...]] = Counter()
    for (row, rank), weight in output.items():
        counts[row[0] if grouped else None, repr(sort_key(row, order)), rank] += weight
    return +counts


def rows_of(change: Batch) -> list[tuple[tuple[Row, int], int]]:
    if len(change) == 0:
        return []
    parts = [change.columns[name].to_arrow().to_pylist() for name in ("g", "s", "x", "rank")]
    rows = [((g, s, x), rank) for g, s, x, rank in zip(*parts, strict=True)]
    return list(zip(rows, change.weights.tolist(), strict=True))


@pytest.mark.slow
@random_cases(1, 1, 4)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(
    "limit",
    [Limit(3, Cut.ROW), Limit(5, Cut.ROW, 2), Limit(2, Cut.RANK), Limit(2, Cut.DENSE)],
    ids=lambda limit: f"{limit.cut} {limit.size} {limit.offset}",
)
def test_top_rows_match_a_full_sort(limit: Limit, name: str, grouped: bool, cases: range) -> None:
    """Complete, and with small buffers."""
    order = ORDERS[name]
    form = partial(
        Top, "t", COLUMNS, order, limit, 1, partition=("g",) if grouped else (), rank="rank"
    )
    for seed in cases:
        rng = random.Random(seed)
        table: Counter[Row] = Counter()
        tops = {buffer: form(buffer=buffer) for buffer in (None, 1, 4)}
        outputs: dict[int | None, Counter[tuple[Row, int]]] = {buffer: Counter() for buffer in tops}
        for top in tops.values():
            top.refill_from(lambda keys, table=table: whole(table))  # type: ignore[misc]  # bound now
        for _ in range(8):
            change = batch(*random_change(rng, table))
            expected_rows = expected(table, order, limit, grouped=grouped)
            for buffer, top in tops.items():
                output = outputs[buffer]
                for row, weight in rows_of(top.step(change)):
                    output[row] += weight
                assert all(weight >= 0 for weight in output.values())
                assert shown(output, order, grouped=grouped) == expected_rows, (seed, buffer, table)


def whole(table: Counter[Row]) -> Batch:
    rows = list(table.elements())
    return batch(rows, [1] * len(rows))


def random_change(rng: random.Random, table: Counter[Row]) -> tuple[list[Row], list[int]]:
    """Insert and delete some rows, mostly the best or worst; this updates `table`."""
    changed: list[Row] = []
    weights: list[int] = []
    for _ in range(rng.randint(0, 6)):
        present = sorted(table.elements(), key=repr)
        if present and rng.random() < 0.55:
            row = rng.choice(present[:4] if rng.random() < 0.5 else present[-4:])
            weight = -rng.randint(1, table[row])
        else:
            texts = (None, "a long prefix 1", "a long prefix 2", "b")
            row = (rng.choice((None, 0, 1)), rng.choice(texts), rng.choice((None, *range(-2, 5))))
            weight = rng.choice((1, 1, 2, 3))
        table[row] += weight
        if table[row] == 0:
            del table[row]
        changed.append(row)
        weights.append(weight)
    return changed, weights


def test_rows_below_the_limit_are_ignored_and_missing_rows_are_an_error() -> None:
    top = Top("t", COLUMNS, ORDERS["one"], Limit(2, Cut.ROW), 1)
    top.step(batch([(1, "a", 1), (1, "a", 2), (1, "a", 3)], [1, 1, 1]))
    assert len(top.step(batch([(1, "b", 5), (1, "a", 3)], [1, -1]))) == 0
    assert isinstance(top.step(batch([(1, "b", 0)], [1])).columns["x"], Vector)
    top = Top("t", COLUMNS, ORDERS["one"], Limit(2, Cut.RANK), 1)
    top.step(batch([(1, "a", 1)], [1]))
    with pytest.raises(CountBelowZeroError, match="never contained"):
        top.step(batch([(1, "a", 1)], [-2]))


WINDOW_COLUMNS = (("g", INTEGER), ("x", INTEGER), ("d", DOUBLE))
WindowRow = tuple[int | None, int | None, float]
CALLS: tuple[tuple[str, int], ...] = (
    *((name, 0) for name in sorted(RANKS)),
    ("lag", 1),
    ("lead", 2),
    ("lag", 0),
    ("lag", -1),
)


def batch_of(rows: list[WindowRow], weights: list[int]) -> Batch:
    columns = {}
    for index, (name, kind) in enumerate(WINDOW_COLUMNS):
        values = [row[index] for row in rows]
        known = np.array([value is not None for value in values], dtype=np.bool_)
        filled = np.array(
            [0 if v is None else v for v in values], np.float64 if index == 2 else int
        )
        columns[name] = Vector(kind, filled, None if known.all() else known)
    return Batch(columns, np.array(weights, np.int64), ())


def operator(function: str, offset: int, has_default: bool, *, descending: bool) -> WindowOperator:
    order = (OrderKey("x", descending, not descending),)
    if function in CHOOSING:
        order += (OrderKey("d", False, True),)
    argument = None if function in RANKS else "d"
    ahead = -offset if function == "lag" else offset
    otherwise = "d" if has_default and argument else None
    return WindowOperator(
        "w", WINDOW_COLUMNS, ["g"], [Placed("v", function, order, argument, ahead, otherwise)]
    )


def values_by_definition(
    rows: list[WindowRow], function: str, offset: int, has_default: bool, *, descending: bool
) -> Counter[object]:
    ref = {name: ColumnRef(name, kind) for name, kind in WINDOW_COLUMNS}
    arguments = () if function in RANKS else (ref["d"], Literal(offset, INTEGER))
    if has_default and arguments:
        arguments += (ref["d"],)
    key = SortKey(ref["x"], descending, not descending)
    call = WindowCall(Attribute("v", "v", DOUBLE), function, arguments, (), (key,))
    result: Counter[object] = Counter()
    sign = -1 if descending else 1

    def sort_key_of(row: WindowRow) -> tuple[object, ...]:
        sort_key = (row[1] is not None, sign * (row[1] or 0))
        if descending:
            sort_key = (row[1] is None, sign * (row[1] or 0))
        return (*sort_key, row[2]) if function in CHOOSING else sort_key

    for group in {row[0] for row in rows}:
        part = sorted((row for row in rows if row[0] == group), key=sort_key_of)
        values: list[Values] = [{"g": g, "x": x, "d": d} for g, x, d in part]
        placed = window_values(call, values, [sort_key_of(row) for row in part])
        result.update(zip(part, placed, strict=True))
    return result


def contents(batch: Batch) -> Counter[object]:
    result: Counter[object] = Counter()
    if len(batch):
        columns = [batch.columns[name].to_arrow().to_pylist() for name in ("g", "x", "d", "v")]
        for (*row, value), weight in zip(zip(*columns, strict=True), batch.weights, strict=True):
            result[(tuple(row), value)] += int(weight)
    return result


@random_cases(25, 90, 1_000)
def test_window_values_match_the_definition(cases: range) -> None:
    for seed in cases:
        rng = random.Random(seed)
        function, offset = rng.choice(CALLS)
        has_default, descending = rng.random() < 0.5, rng.random() < 0.5
        result = operator(function, offset, has_default, descending=descending)
        rows: list[WindowRow] = []
        state: Counter[object] = Counter()
        for _ in range(6):
            deleted = rng.sample(rows, rng.randrange(len(rows) + 1)) if rng.random() < 0.5 else []
            inserted: list[WindowRow] = [
                (rng.choice((1, 2, None)), rng.choice((0, 1, 2, None)), float(rng.randrange(3)))
                for _ in range(rng.randrange(5))
            ]
            inserted += rng.sample(deleted, len(deleted) // 2)
            for row in deleted:
                rows.remove(row)
            rows += inserted
            change = result.step(
                batch_of(deleted + inserted, [-1] * len(deleted) + [1] * len(inserted))
            )
            state.update(contents(change))
            expected_values = values_by_definition(
                rows, function, offset, has_default, descending=descending
            )
            assert Counter({k: n for k, n in state.items() if n}) == expected_values, (
                function,
                rows,
            )


def test_ties_are_an_error_only_if_one_is_chosen() -> None:
    rows: list[WindowRow] = [(1, 1, 0.0), (1, 1, 1.0)]
    by_x = (OrderKey("x", False, True),)
    for function in ("row_number", "lag", "lead"):
        placed = Placed("v", function, by_x, None if function in RANKS else "d", 1)
        result = WindowOperator("w", WINDOW_COLUMNS, ["g"], [placed])
        result.step(batch_of([rows[0]] * 2, [1, 1]))
        with pytest.raises(NotExactError, match=f"{function.upper()} is not deterministic"):
            result.step(batch_of([rows[1]], [1]))
    result = WindowOperator("w", WINDOW_COLUMNS, ["g"], [Placed("v", "rank", by_x)])
    assert len(result.step(batch_of(rows, [1, 1]))) == 2


def test_deleting_a_missing_row_is_an_error() -> None:
    result = operator("rank", 0, False, descending=False)
    with pytest.raises(CountBelowZeroError, match="never contained"):
        result.step(batch_of([(1, 1, 0.0)], [-1]))
