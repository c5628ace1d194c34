"""Values beside extremes: ties, text with one beginning, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import INTEGER, LONG, STRING, SqlType
from impctl.data.vector import Ints, Vector, from_arrow
from impctl.engine.accumulators import AggregateColumn, Count, Firsts
from impctl.engine.batch import Batch
from impctl.engine.extremes import First, OrderedValues
from impctl.errors import CountBelowZeroError, NotExactError

ARROW = {INTEGER: pa.int32(), STRING: pa.string()}


def state_of(key: SqlType, *, reverse: bool = False, own: bool = False) -> OrderedValues:
    return OrderedValues("s", First("k", "k" if own else "v", 0, 1, reverse), key, INTEGER)


def add(
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
    add(
        state, INTEGER, [(1, 5, 10), (1, 3, 11), (1, 3, 12), (1, 3, 12), (2, 7, None), (1, None, 9)]
    )
    assert first(state, 2, 1) == [(0, None), (1, 11), (1, 12)]
    add(state, INTEGER, [(1, 3, 12)], -1)
    assert first(state, 1) == [(0, 11), (0, 12)]
    add(state, INTEGER, [(1, 3, 12), (1, 3, 11)], -1)
    assert first(state, 1) == [(0, 10)]
    assert first(state) == []


@pytest.mark.parametrize(("reverse", "wanted"), [(False, "prefix__"), (True, "prefix__\U0001f600")])
def test_texts_that_share_their_first_bytes(reverse: bool, wanted: str) -> None:
    texts = ["prefix__", "prefix__a", "prefix__\U0001f600", "prefix__\uffee", "prefix__a"]
    state = state_of(STRING, reverse=reverse, own=True)
    add(state, STRING, [(1, text, 0) for text in texts])
    assert first(state, 1) == [(0, wanted)]
    add(state, STRING, [(1, wanted, 0)], -1)
    assert first(state, 1) == [(0, "prefix__\uffee" if reverse else "prefix__a")]


def test_too_many_ties_and_what_was_never_there_are_errors() -> None:
    state = state_of(INTEGER)
    add(state, INTEGER, [(1, 0, value) for value in range(65)])
    with pytest.raises(NotExactError, match="More than 64 values"):
        first(state, 1)
    add(state, INTEGER, [(1, 0, 64)], -1)
    assert len(first(state, 1)) == 64
    other = state_of(INTEGER)
    add(other, INTEGER, [(1, 3, 7), (1, 3, 8)])
    add(other, INTEGER, [(1, 3, 9)], -1)
    with pytest.raises(CountBelowZeroError):
        first(other, 1)


def test_an_integral_value_has_the_type_of_its_output_whatever_stands_for_it() -> None:
    column = AggregateColumn("y", INTEGER, First("k", "v", 0, 1, False), Count("k", 0))
    firsts = Firsts("f", [column], {"k": LONG, "v": LONG})
    one = np.ones(1, dtype=np.int64)
    firsts.add({"k": Vector(LONG, one), "v": Vector(LONG, one + 6)}, one, one)
    picked = firsts.of(one, {"count0": one})
    result = firsts.spread_out(Batch({}, one, ()), picked).columns["y"]
    assert (result.type, result.values.tolist()) == (INTEGER, [7])
