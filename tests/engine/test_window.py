"""Values by place against their definition, row by row, and rows that tie."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from impctl.data.schema import DOUBLE, INTEGER
from impctl.data.vector import Vector
from impctl.engine.batch import Batch
from impctl.engine.extremes import OrderKey
from impctl.engine.window import CHOOSING, RANKS, Placed, Window
from impctl.errors import CountBelowZeroError, NotExactError
from impctl.expr.nodes import ColumnRef, Literal
from impctl.plan.nodes import Attribute, SortKey, WindowCall
from tests.support.random_cases import random_cases
from tests.support.reference_window import Values, window_values

COLUMNS = (("g", INTEGER), ("x", INTEGER), ("d", DOUBLE))
Row = tuple[int | None, int | None, float]
CALLS: tuple[tuple[str, int], ...] = (
    *((name, 0) for name in sorted(RANKS)),
    ("lag", 1),
    ("lead", 2),
    ("lag", 0),
    ("lag", -1),
)


def batch_of(rows: list[Row], weights: list[int]) -> Batch:
    columns = {}
    for at, (name, kind) in enumerate(COLUMNS):
        values = [row[at] for row in rows]
        known = np.array([value is not None for value in values], dtype=np.bool_)
        filled = np.array([0 if v is None else v for v in values], np.float64 if at == 2 else int)
        columns[name] = Vector(kind, filled, None if known.all() else known)
    return Batch(columns, np.array(weights, np.int64), ())


def operator(function: str, offset: int, has_default: bool, *, descending: bool) -> Window:
    order = (OrderKey("x", descending, not descending),)
    if function in CHOOSING:
        order += (OrderKey("d", False, True),)
    argument = None if function in RANKS else "d"
    ahead = -offset if function == "lag" else offset
    otherwise = "d" if has_default and argument else None
    return Window("w", COLUMNS, ["g"], [Placed("v", function, order, argument, ahead, otherwise)])


def expected(
    rows: list[Row], function: str, offset: int, has_default: bool, *, descending: bool
) -> Counter[object]:
    ref = {name: ColumnRef(name, kind) for name, kind in COLUMNS}
    arguments = () if function in RANKS else (ref["d"], Literal(offset, INTEGER))
    if has_default and arguments:
        arguments += (ref["d"],)
    key = SortKey(ref["x"], descending, not descending)
    call = WindowCall(Attribute("v", "v", DOUBLE), function, arguments, (), (key,))
    result: Counter[object] = Counter()
    sign = -1 if descending else 1

    def place(row: Row) -> tuple[object, ...]:
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


def walk(seed: int) -> None:
    rng = random.Random(seed)
    function, offset = rng.choice(CALLS)
    has_default, descending = rng.random() < 0.5, rng.random() < 0.5
    result = operator(function, offset, has_default, descending=descending)
    rows: list[Row] = []
    state: Counter[object] = Counter()
    for _ in range(6):
        gone = rng.sample(rows, rng.randrange(len(rows) + 1)) if rng.random() < 0.5 else []
        come: list[Row] = [
            (rng.choice((1, 2, None)), rng.choice((0, 1, 2, None)), float(rng.randrange(3)))
            for _ in range(rng.randrange(5))
        ]
        come += rng.sample(gone, len(gone) // 2)
        for row in gone:
            rows.remove(row)
        rows += come
        change = result.step(batch_of(gone + come, [-1] * len(gone) + [1] * len(come)))
        for key, weight in contents(change).items():
            state[key] += weight
        state = Counter({key: weight for key, weight in state.items() if weight})
        wanted = expected(rows, function, offset, has_default, descending=descending)
        assert state == wanted, (function, rows)


@random_cases(60, 180, 1_000)
def test_values_are_those_of_the_definition(cases: range) -> None:
    for seed in cases:
        walk(seed)


def test_ties_are_an_error_only_where_something_is_chosen() -> None:
    rows: list[Row] = [(1, 1, 0.0), (1, 1, 1.0)]
    for function in ("row_number", "lag", "lead"):
        by_x = (OrderKey("x", False, True),)
        argument = None if function in RANKS else "d"
        result = Window("w", COLUMNS, ["g"], [Placed("v", function, by_x, argument, 1)])
        result.step(batch_of([rows[0]] * 2, [1, 1]))
        with pytest.raises(NotExactError, match=f"{function.upper()} is not deterministic"):
            result.step(batch_of([rows[1]], [1]))
    result = Window("w", COLUMNS, ["g"], [Placed("v", "rank", (OrderKey("x", False, True),))])
    assert len(result.step(batch_of(rows, [1, 1]))) == 2


def test_a_row_that_was_never_there_cannot_go() -> None:
    result = operator("rank", 0, False, descending=False)
    with pytest.raises(CountBelowZeroError, match="never contained"):
        result.step(batch_of([(1, 1, 0.0)], [-1]))
