"""Sketches asked anew by semi joins, and joined rows counted, against joins written down; streams
of changes, of which what is told of each step is what the tables become, to the row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from benchmarks.large_joins.partners import partners_table
from benchmarks.trees.joined_rows import MOST, joined_rows
from benchmarks.trees.semi_joins import NoSemiJoinsError, put_rows, sketch_question
from benchmarks.trees.streams import Stream, outlived, there_and_back, window
from benchmarks.trees.ways import Choices, Followed, choices_of
from impctl.bench.parquet_sql import ParquetSql
from impctl.errors import NotExactError
from impctl.plan.nodes import Plan
from impctl.service.context import Workbench
from impctl.workload.models import JoinStrategy
from tests.benchmarks.joined_desk import joined_desk


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    with joined_desk(tmp_path_factory.mktemp("joined")) as desk:
        yield desk


def choices(desk: Workbench, query: str) -> Choices:
    return choices_of(desk, desk.workload.queries[query])


def core_of(result: Choices) -> Plan:
    core = result.way(JoinStrategy.INDEX).core
    assert core is not None
    return core


@pytest.mark.slow
@pytest.mark.parametrize(
    "query", ["pair", "path", "no_group", "hop3", "dead_ends", "kept", "triangle"]
)
def test_semi_joins_find_what_joins_find_after_every_change(desk: Workbench, query: str) -> None:
    pytest.importorskip("duckdb")
    result = choices(desk, query)
    question = sketch_question(core_of(result), result.partitions)
    tables = result.tables()
    compiled = result.way(JoinStrategy.INDEX).compiled
    assert compiled is not None
    index = Followed(compiled, tables)
    connection = ParquetSql.open()
    assert connection is not None
    seen = set()
    stream = there_and_back(tables, tuple(tables), 40, 1)
    now = dict(tables)
    for _ in range(4):
        put_rows(connection, now)
        held = index.fragments()
        assert question.asked(connection) == held
        seen.add(tuple(sorted((access, part.ids) for access, part in held.items())))
        step = next(stream.steps)
        index.step(step)
        now |= step.after
    assert any(ids for sketches in seen for _, ids in sketches) == (query != "no_group")
    connection.close()


@pytest.mark.parametrize(
    ("query", "reason"),
    [("top", "LIMIT"), ("both", "UNION"), ("single", "nothing is joined")],
)
def test_what_has_no_such_question_is_told(desk: Workbench, query: str, reason: str) -> None:
    result = choices(desk, query)
    with pytest.raises(NoSemiJoinsError, match=reason):
        sketch_question(core_of(result), result.partitions)


def test_joined_rows_of_every_prefix_are_counted(desk: Workbench) -> None:
    pytest.importorskip("duckdb")
    connection = ParquetSql.open()
    assert connection is not None
    result = choices(desk, "hop3")
    tables = result.tables()
    put_rows(connection, tables)
    # The relation with a condition comes first.
    texts = (
        "SELECT COUNT(*) FROM g a, g b WHERE a.dst = b.src AND b.value < 300",
        "SELECT COUNT(*) FROM g a, g b, g c "
        "WHERE a.dst = b.src AND b.dst = c.src AND c.value < 300",
    )
    expected = sum(connection.run(text).column(0)[0].as_py() for text in texts)
    assert joined_rows(core_of(result), result.partitions, tables) == expected > 300
    connection.close()


def test_a_circle_counts_as_what_comes_before_it(desk: Workbench) -> None:
    result = choices(desk, "triangle")
    held = joined_rows(core_of(result), result.partitions, result.tables())
    assert held is not None
    assert held > 300


def test_what_cannot_be_counted_is_more_than_any_bound(
    desk: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_many = NotExactError("a count beyond 62 bits", code="count_too_large", hint="none")
    name = "benchmarks.trees.joined_rows.Followed"
    monkeypatch.setattr(name, Mock(side_effect=too_many))
    result = choices(desk, "hop3")
    assert joined_rows(core_of(result), result.partitions, result.tables()) == MOST


def test_where_nothing_is_joined_there_is_nothing_to_count(desk: Workbench) -> None:
    result = choices(desk, "single")
    assert joined_rows(core_of(result), result.partitions, result.tables()) is None
    assert MOST > 4 * 10**18


def test_ways_are_those_of_a_capture(desk: Workbench) -> None:
    result = choices(desk, "pair")
    assert result.way(JoinStrategy.TREE).has_tree
    assert not result.way(JoinStrategy.INDEX).has_tree
    held = sum(len(rows) for rows in result.tables().values())
    assert held == 400


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
    result = []
    for step in islice(stream.steps, steps):
        for name, change in step.changes().items():
            for row, weight in zip(
                zip(*change.rows.to_pydict().values(), strict=True), change.weights, strict=True
            ):
                held[name][row] += int(weight)
            assert min(held[name].values()) >= 0, "what was not there cannot go"
            assert +held[name] == rows(step.after[name])
        assert step.rows == sum(len(change.rows) for change in step.changes().values())
        result.append((step.rows, step.after))
    return result


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
