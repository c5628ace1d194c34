"""Extremes, first rows and values by place, against sorting everything, kept whole or bounded."""

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
    """One run more."""
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
def test_a_greater_value_of_a_short_run_does_not_win_over_a_cut_one(deleted: int) -> None:
    """Runs of 400, -8 and +1 values: the ninth is the least, not the one of the newest run."""
    state = OrderedCounts("s")
    add(state, 1, list(range(1, 401)))
    add(state, 1, list(range(1, deleted + 1)), -1)
    add(state, 1, [5000])
    assert best(state, 1) == [deleted + 1]


def test_groups_that_need_a_wider_window_stand_beside_groups_that_do_not() -> None:
    state = OrderedCounts("s")
    for group in (1, 2, 3):
        add(state, group, list(range(10 * group, 10 * group + 100)))
    add(state, 2, list(range(20, 60)), -1)
    add(state, 3, list(range(30, 130)), -1)
    add(state, 2, [900])
    assert best(state, 3, 2, 1, 2, 7) == [0, 60, 10, 60, 0]


def test_a_value_at_the_edge_of_what_was_read_is_sure_and_one_never_held_an_error() -> None:
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
    held: dict[int, list[int]] = {group: [] for group in range(4)}
    for _ in range(12):
        group = rng.randrange(4)
        mine = held[group]
        if len(mine) > 30 and rng.random() < 0.7:
            mine.sort()
            gone = mine[: rng.randrange(1, len(mine) + 1)]
            del mine[: len(gone)]
            add(state, group, gone, -1)
        else:
            start = rng.randrange(500)
            new = [start + rng.randrange(300) for _ in range(rng.choice((1, 40, 200)))]
            mine.extend(new)
            add(state, group, new)
        groups = list(held)
        rng.shuffle(groups)
        wanted = [min(held[group], default=0) for group in groups]
        assert best(state, *groups) == wanted


GROUP = np.array([7], dtype=np.int64)


def change(values: BestValues, edge: int, ranks: list[int], weight: int) -> Best:
    owners, weights = ints([0] * len(ranks)), ints([weight] * len(ranks))
    return values.change(GROUP, ints([edge]), owners, ints(ranks), weights)


def test_a_value_at_the_edge_is_held_counted_and_can_go() -> None:
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
def test_the_best_is_the_least_of_all(size: int, seed: int) -> None:
    rng = Random(seed)
    values = BestValues("v", size)
    held: list[int] = []
    edge = COMPLETE
    refills = 0
    for _ in range(60):
        if held and rng.random() < 0.6:
            held.sort()
            gone = held[: rng.randrange(1, min(len(held), 4) + 1)]
            del held[: len(gone)]
            result = change(values, edge, gone, -1)
        else:
            new = [rng.randrange(12) for _ in range(rng.randrange(1, 9))]
            held.extend(new)
            result = change(values, edge, new, 1)
        edge = int(result.edges[0])
        if held and not result.is_found[0]:
            assert edge != COMPLETE
            refills += 1
            owners, weights = ints([0] * len(held)), ints([1] * len(held))
            result = values.refill(GROUP, owners, ints(held), weights)
            edge = int(result.edges[0])
        assert bool(result.is_found[0]) == bool(held)
        if held:
            assert int(result.ranks[0]) == min(held)
    assert refills > 0


ARROW = {INTEGER: pa.int32(), STRING: pa.string()}


def state_of(key: SqlType, *, reverse: bool = False, own: bool = False) -> OrderedValues:
    return OrderedValues("s", FirstValue("k", "k" if own else "v", 0, 1, reverse), key, INTEGER)


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


def test_every_value_that_ties_and_none_twice() -> None:
    state = state_of(INTEGER)
    rows = [(1, 5, 10), (1, 3, 11), (1, 3, 12), (1, 3, 12), (2, 7, None), (1, None, 9)]
    add_ordered(state, INTEGER, rows)
    assert first(state, 2, 1) == [(0, None), (1, 11), (1, 12)]
    add_ordered(state, INTEGER, [(1, 3, 12)], -1)
    assert first(state, 1) == [(0, 11), (0, 12)]
    add_ordered(state, INTEGER, [(1, 3, 12), (1, 3, 11)], -1)
    assert first(state, 1) == [(0, 10)]
    assert first(state) == []


@pytest.mark.parametrize(("reverse", "wanted"), [(False, "prefix__"), (True, "prefix__\U0001f600")])
def test_texts_that_share_their_first_bytes(reverse: bool, wanted: str) -> None:
    texts = ["prefix__", "prefix__a", "prefix__\U0001f600", "prefix__\uffee", "prefix__a"]
    state = state_of(STRING, reverse=reverse, own=True)
    add_ordered(state, STRING, [(1, text, 0) for text in texts])
    assert first(state, 1) == [(0, wanted)]
    add_ordered(state, STRING, [(1, wanted, 0)], -1)
    assert first(state, 1) == [(0, "prefix__\uffee" if reverse else "prefix__a")]


def test_too_many_ties_and_what_was_never_there_are_errors() -> None:
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


def test_an_integral_value_has_the_type_of_its_output_whatever_stands_for_it() -> None:
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
    """Rows whose fragment is their x, so that the same row always carries the same."""
    parts = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    columns = {
        name: from_arrow(pa.array(part, pa.string() if kind == STRING else pa.int64()), kind)
        for (name, kind), part in zip(COLUMNS, parts, strict=True)
    }
    ranges = np.array([0 if row[2] is None else row[2] + 3 for row in rows], dtype=np.int32)
    return Batch(columns, np.array(weights, dtype=np.int64), (RowTags(ranges),))


def standing(row: Row, order: Sequence[OrderKey]) -> list[tuple[int, object]]:
    """What sorts as the order does: NULL by its place, descending values turned round."""
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
    """How often each standing is among the first rows, and with which ranks."""
    groups: dict[object, list[Row]] = {}
    for row in rows.elements():
        groups.setdefault(row[0] if grouped else None, []).append(row)
    result: Counter[tuple[object, ...]] = Counter()
    for group, members in groups.items():
        standings = sorted((standing(row, order) for row in members), key=repr)
        standings.sort(key=lambda parts: [(place, value) for place, value in parts])
        distinct = [one for at, one in enumerate(standings) if at == 0 or one != standings[at - 1]]
        for at, one in enumerate(standings):
            ranks = {
                Cut.ROW: at + 1,
                Cut.RANK: standings.index(one) + 1,
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
        counts[row[0] if grouped else None, repr(standing(row, order)), rank] += weight
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
def test_it_is_what_sorting_everything_gives(
    limit: Limit, name: str, grouped: bool, cases: range
) -> None:
    """Kept whole, and in small buffers."""
    order = ORDERS[name]
    form = partial(
        Top, "t", COLUMNS, order, limit, 1, partition=("g",) if grouped else (), rank="rank"
    )
    for seed in cases:
        rng = random.Random(seed)
        held: Counter[Row] = Counter()
        tops = {buffer: form(buffer=buffer) for buffer in (None, 1, 4)}
        outputs: dict[int | None, Counter[tuple[Row, int]]] = {buffer: Counter() for buffer in tops}
        for top in tops.values():
            top.refill_from(lambda keys, held=held: whole(held))  # type: ignore[misc]  # bound now
        for _ in range(8):
            change = batch(*random_change(rng, held))
            wanted = expected(held, order, limit, grouped=grouped)
            for buffer, top in tops.items():
                output = outputs[buffer]
                for row, weight in rows_of(top.step(change)):
                    output[row] += weight
                assert all(weight >= 0 for weight in output.values())
                assert shown(output, order, grouped=grouped) == wanted, (seed, buffer, held)


def whole(held: Counter[Row]) -> Batch:
    rows = list(held.elements())
    return batch(rows, [1] * len(rows))


def random_change(rng: random.Random, held: Counter[Row]) -> tuple[list[Row], list[int]]:
    """Some rows in, some out, the best ones rather; `held` is brought up to date."""
    changed: list[Row] = []
    weights: list[int] = []
    for _ in range(rng.randint(0, 6)):
        present = sorted(held.elements(), key=repr)
        if present and rng.random() < 0.55:
            row = rng.choice(present[:4] if rng.random() < 0.5 else present[-4:])
            weight = -rng.randint(1, held[row])
        else:
            texts = (None, "a long prefix 1", "a long prefix 2", "b")
            row = (rng.choice((None, 0, 1)), rng.choice(texts), rng.choice((None, *range(-2, 5))))
            weight = rng.choice((1, 1, 2, 3))
        held[row] += weight
        if held[row] == 0:
            del held[row]
        changed.append(row)
        weights.append(weight)
    return changed, weights


def test_rows_beyond_the_border_say_nothing_and_none_that_was_never_there_can_go() -> None:
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
    for at, (name, kind) in enumerate(WINDOW_COLUMNS):
        values = [row[at] for row in rows]
        known = np.array([value is not None for value in values], dtype=np.bool_)
        filled = np.array([0 if v is None else v for v in values], np.float64 if at == 2 else int)
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


def values_by_place(
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

    def place(row: WindowRow) -> tuple[object, ...]:
        standing = (row[1] is not None, sign * (row[1] or 0))
        if descending:
            standing = (row[1] is None, sign * (row[1] or 0))
        return (*standing, row[2]) if function in CHOOSING else standing

    for group in {row[0] for row in rows}:
        part = sorted((row for row in rows if row[0] == group), key=place)
        values: list[Values] = [{"g": g, "x": x, "d": d} for g, x, d in part]
        placed = window_values(call, values, [place(row) for row in part])
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
def test_values_are_those_of_the_definition(cases: range) -> None:
    for seed in cases:
        rng = random.Random(seed)
        function, offset = rng.choice(CALLS)
        has_default, descending = rng.random() < 0.5, rng.random() < 0.5
        result = operator(function, offset, has_default, descending=descending)
        rows: list[WindowRow] = []
        state: Counter[object] = Counter()
        for _ in range(6):
            gone = rng.sample(rows, rng.randrange(len(rows) + 1)) if rng.random() < 0.5 else []
            come: list[WindowRow] = [
                (rng.choice((1, 2, None)), rng.choice((0, 1, 2, None)), float(rng.randrange(3)))
                for _ in range(rng.randrange(5))
            ]
            come += rng.sample(gone, len(gone) // 2)
            for row in gone:
                rows.remove(row)
            rows += come
            change = result.step(batch_of(gone + come, [-1] * len(gone) + [1] * len(come)))
            state.update(contents(change))
            wanted = values_by_place(rows, function, offset, has_default, descending=descending)
            assert Counter({k: n for k, n in state.items() if n}) == wanted, (function, rows)


def test_ties_are_an_error_only_where_something_is_chosen() -> None:
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


def test_a_row_that_was_never_there_cannot_go() -> None:
    result = operator("rank", 0, False, descending=False)
    with pytest.raises(CountBelowZeroError, match="never contained"):
        result.step(batch_of([(1, 1, 0.0)], [-1]))
