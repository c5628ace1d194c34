"""Sketches asked anew by semi joins, and joined rows counted, against joins written down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from impctl.app.measuring.trees.joined_rows import MOST, joined_rows
from impctl.app.measuring.trees.semi_joins import NoSemiJoinsError, put_rows, sketch_question
from impctl.app.measuring.trees.streams import there_and_back
from impctl.app.measuring.trees.ways import Choices, Followed, choices_of
from impctl.app.workbench.workbench import Workbench
from impctl.bench.parquet_sql import ParquetSql
from impctl.errors import NotExactError
from impctl.plan.nodes import Plan
from impctl.workload.models import JoinStrategy
from tests.app.measuring.trees.joined_desk import joined_desk


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    with joined_desk(tmp_path_factory.mktemp("joined")) as desk:
        yield desk


def choices(desk: Workbench, query: str) -> Choices:
    return choices_of(desk, desk.workload.queries[query])


def core_of(found: Choices) -> Plan:
    core = found.way(JoinStrategy.INDEX).core
    assert core is not None
    return core


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    [
        "pair",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (*("path", "no_group", "hop3", "dead_ends", "kept", "triangle"),)
        ),
    ],
)
def test_semi_joins_find_what_joins_find_after_every_change(desk: Workbench, query: str) -> None:
    pytest.importorskip("duckdb")
    found = choices(desk, query)
    question = sketch_question(core_of(found), found.partitions)
    tables = found.tables()
    compiled = found.way(JoinStrategy.INDEX).compiled
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
    found = choices(desk, query)
    with pytest.raises(NoSemiJoinsError, match=reason):
        sketch_question(core_of(found), found.partitions)


def test_joined_rows_of_every_prefix_are_counted(desk: Workbench) -> None:
    pytest.importorskip("duckdb")
    connection = ParquetSql.open()
    assert connection is not None
    found = choices(desk, "hop3")
    tables = found.tables()
    put_rows(connection, tables)
    # The relation with a condition comes first.
    texts = (
        "SELECT COUNT(*) FROM g a, g b WHERE a.dst = b.src AND b.value < 300",
        "SELECT COUNT(*) FROM g a, g b, g c "
        "WHERE a.dst = b.src AND b.dst = c.src AND c.value < 300",
    )
    expected = sum(connection.run(text).column(0)[0].as_py() for text in texts)
    assert joined_rows(core_of(found), found.partitions, tables) == expected > 300
    connection.close()


def test_a_circle_counts_as_what_comes_before_it(desk: Workbench) -> None:
    found = choices(desk, "triangle")
    held = joined_rows(core_of(found), found.partitions, found.tables())
    assert held is not None
    assert held > 300


def test_what_cannot_be_counted_is_more_than_any_bound(
    desk: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(*_: object) -> Followed:
        raise NotExactError("a count beyond 62 bits", code="count_too_large", hint="none")

    monkeypatch.setattr("impctl.app.measuring.trees.joined_rows.Followed", too_many)
    found = choices(desk, "hop3")
    assert joined_rows(core_of(found), found.partitions, found.tables()) == MOST


def test_where_nothing_is_joined_there_is_nothing_to_count(desk: Workbench) -> None:
    found = choices(desk, "single")
    assert joined_rows(core_of(found), found.partitions, found.tables()) is None
    assert MOST > 4 * 10**18


def test_ways_are_those_of_a_capture(desk: Workbench) -> None:
    found = choices(desk, "pair")
    assert found.way(JoinStrategy.TREE).has_tree
    assert not found.way(JoinStrategy.INDEX).has_tree
    held = sum(len(rows) for rows in found.tables().values())
    assert held == 400
