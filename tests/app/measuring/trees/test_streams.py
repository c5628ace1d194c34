"""Streams of changes: what is told of each step is what the tables become, to the row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from impctl.app.measuring.trees.streams import Stream, outlived, there_and_back, window
from impctl.bench.large_joins.partners import partners_table


def rows(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*table.to_pydict().values(), strict=True))


def tables() -> dict[str, pa.Table]:
    return {
        "r": partners_table(60, 6, 1),
        "s": partners_table(20, 2, 2),
        "t": partners_table(5, 1, 3),
    }


def replayed(stream: Stream, steps: int) -> list[tuple[int, Mapping[str, pa.Table]]]:
    """The steps made by hand on bags of rows, which must be what the stream says."""
    held = {name: rows(table) for name, table in stream.start.items()}
    found = []
    for step in islice(stream.steps, steps):
        for name, change in step.changes().items():
            for row, weight in zip(
                zip(*change.rows.to_pydict().values(), strict=True), change.weights, strict=True
            ):
                held[name][row] += int(weight)
            assert min(held[name].values()) >= 0, "what was not there cannot go"
            assert +held[name] == rows(step.after[name])
        assert step.rows == sum(len(change.rows) for change in step.changes().values())
        found.append((step.rows, step.after))
    return found


def test_rows_come_and_go_again() -> None:
    stream = there_and_back(tables(), ("r", "s"), 16, 1)
    assert stream.start.keys() == {"r", "s", "t"}
    steps = replayed(stream, 6)
    assert [count for count, _ in steps] == [16] * 6, "twelve of sixty rows, four of twenty"
    assert [len(after["r"]) for _, after in steps] == [72, 60] * 3


def test_other_seeds_draw_other_rows() -> None:
    def first(seed: int) -> pa.Table:
        return next(there_and_back(tables(), ("r",), 8, seed).steps).came["r"]

    assert first(1).equals(first(1))
    assert not first(1).equals(first(2))


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_a_window_moves_in_order_and_round(share: float) -> None:
    stream = window(tables(), ("r", "s"), 16, order="id", share=share)
    size = int(60 * share)
    assert sorted(stream.start["r"].column("id").to_pylist()) == list(range(size))
    assert len(stream.start["t"]) == 5
    steps = replayed(stream, 25)
    for at, (count, after) in enumerate(steps, start=1):
        held = set(after["r"].column("id").to_pylist())
        assert held == {(6 * at + place) % 60 for place in range(size)}
        assert count == 2 * (6 + 2)


def test_a_window_never_moves_by_more_than_it_leaves_out() -> None:
    stream = window(tables(), ("s",), 100, order="id", share=0.9)
    ((count, _),) = replayed(stream, 1)
    assert count == 4


@pytest.mark.parametrize("lives", [1, 2, 3])
def test_rows_outlive_their_partners(lives: int) -> None:
    stream = outlived(tables(), ("r", "s"), 4, key="c", lives=lives, seed=1)
    assert len(stream.start["r"]) == 60 - 4 * 3, "of four keys half of the six rows are there"
    steps = replayed(stream, 4 * lives)
    assert [count for count, _ in steps] == [8, 8 + 2 * (12 // lives)] * (2 * lives)
    ids = [frozenset(after["r"].column("id").to_pylist()) for _, after in steps]
    start = frozenset(stream.start["r"].column("id").to_pylist())
    assert all(ids[2 * at] != start for at in range(1, lives))
    # As many rounds, and none of the rows that were there at first is.
    moving = start - ids[2 * lives - 1]
    assert len(moving) == 12
    gone = set(tables()["s"].column("c").to_pylist()) - set(
        steps[0][1]["s"].column("c").to_pylist()
    )
    for _, after in steps:
        held = Counter(after["r"].column("c").to_pylist())
        assert {held[key] for key in gone} == {3}, "as many of each key at any time"
    assert ids[-1] == start, "the other half has had its turn"
    assert all(
        len(after["s"]) == (12 if at % 2 == 0 else 20) for at, (_, after) in enumerate(steps)
    )
