"""Joins of rows that all change at once: what a step yields is in proportion to what it means."""

from __future__ import annotations

import numpy as np

from impctl.data.schema import LONG
from impctl.data.vector import Vector
from impctl.engine.batch import Batch
from impctl.engine.join import Join, Side
from impctl.engine.tags import RowTags

WIDTH = 12


def rows(name: str, *values: tuple[int, int]) -> Batch:
    """One column; a value and a weight per row, one sketched access, the value its fragment."""
    numbers = np.array([value for value, _ in values], dtype=np.int64)
    weights = np.array([weight for _, weight in values], dtype=np.int64)
    tags = (RowTags(numbers.astype(np.int32)),)
    return Batch({name: Vector(LONG, numbers)}, weights, tags)


def chain() -> list[Join]:
    """Cross joins of so many sides, each with the one before."""
    joins = []
    for number in range(1, WIDTH):
        before = tuple((f"c{at}", LONG) for at in range(number))
        left = Side(before, (), number)
        joins.append(Join(f"j{number}", left, Side(((f"c{number}", LONG),), (), 1), ()))
    return joins


def step(joins: list[Join], *values: tuple[int, int]) -> list[Batch]:
    """What every join yields where every side changes by these values."""
    result = [rows("c0", *values)]
    for number, join in enumerate(joins, 1):
        result.append(join.step(result[-1], rows(f"c{number}", *values)))
    return result[1:]


def test_sides_of_one_row_each_exchange_one_row() -> None:
    joins = chain()
    assert [len(batch) for batch in step(joins, (0, 1))] == [1] * (WIDTH - 1)
    for old in range(3):
        last = step(joins, (old, -1), (old + 1, 1))
        # Three times as many rows from join to join, were those that cancel not left out.
        assert [len(batch) for batch in last] == [2] * (WIDTH - 1)
        there = {
            int(weight): {int(last[-1].columns[f"c{at}"].values[row]) for at in range(WIDTH)}
            for row, weight in enumerate(last[-1].weights)
        }
        assert there == {-1: {old}, 1: {old + 1}}
