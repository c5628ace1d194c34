"""Answers materialized by join trees: rows and sketches are correct after every batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.answers import answer_of_rows
from impctl.compile.compile import Dataflow, compile_plan
from impctl.compile.flows import BlockedError
from impctl.compile.jointree.decompose import joined_columns
from impctl.compile.jointree.graph import NoTree, TreeShape
from impctl.compile.jointree.shape import planned_blocks
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import LONG
from impctl.engine.batch import Batch
from impctl.engine.jointree import enumerate
from impctl.engine.result_rows import AnswerRows
from impctl.errors import EvaluationError, JoinTooLargeError, NotExactError, QueryError
from impctl.plan.nodes import ComputedColumn, Distinct, Join, Project, Query
from impctl.rules.finalize import AnswerPlan, answer_plan
from impctl.rules.optimize import without_free_limit
from impctl.service.result_changes import changes_by_rows
from impctl.sketch.sketch import RangePartition
from impctl.sql.statement import parse_query
from tests.compile.jointree.shapes import CATALOG, AnswerMaker, tables_with_values
from tests.compile.jointree.test_build import (
    BATCHES,
    Row,
    changes_of,
    expected_sketches,
    partitions_of,
    table_of,
)
from tests.compile.test_plans import is_same, sorting
from tests.support.carried_queries import Stored, restored, sketches_of
from tests.support.random_cases import random_cases, seen_in
from tests.support.reference_plan import (
    ReferenceFailure,
    ReferenceLimit,
    evaluate,
    identity,
    listed,
)

Partitions = Mapping[str, RangePartition]


def planned(sql: str) -> Query:
    return without_free_limit(parse_query(sql, CATALOG))


def compiled(answer: AnswerPlan, partitions: Partitions, *, has_trees: bool) -> Dataflow:
    return compile_plan(
        answer.kept, partitions, {}, barriers=(), has_trees=has_trees, answer=answer
    )


def one_case(seed: int, counts: Counter[str]) -> None:
    rng = Random(seed)
    sql = AnswerMaker(rng).sql()
    try:
        query = planned(sql)
    except QueryError:
        counts["no query"] += 1
        return
    try:
        follow(query, rng, counts, f"{seed}: {sql}")
    except (ReferenceFailure, ReferenceLimit, NotExactError, EvaluationError):
        counts["not computed"] += 1


def follow(query: Query, rng: Random, counts: Counter[str], label: str) -> None:
    """Maintain a query over random tables and batches, with occasional restarts."""
    answer = answer_plan(query)
    tables = {name: [dict(row) for row in rows] for name, rows in tables_with_values(rng).items()}
    partitions = partitions_of(rng, answer.kept)
    splits = {name: rng.randint(0, 3) for name in tables}
    try:
        first = compiled(answer, partitions, has_trees=True)
    except BlockedError as error:
        counts[f"blocked: {error.message}"[:70]] += 1
        return
    if all(isinstance(shape, NoTree) for shape in first.shapes):
        counts["no tree"] += 1
        return
    session, joined = (
        MaintainedQuery(first),
        MaintainedQuery(compiled(answer, partitions, has_trees=False)),
    )
    stored = Stored()
    # Tables are loaded in two parts, possibly empty.
    parts = [(name, table_of(tables[name][: splits[name]])) for name in first.tables]
    parts += [(name, table_of(tables[name][splits[name] :])) for name in first.tables]
    for one in (session, joined):
        one.load(parts)
    before: Counter[Any] = Counter()
    is_noted = False
    for _ in range(BATCHES):
        rows = check(query, answer, session, tables, partitions, label)
        assert Counter(rows_shown(answer, joined)) == rows, f"{label}: the index join"
        assert sketches_of(joined) == sketches_of(session), f"{label}: the index join's sketches"
        if is_noted and not answer.ending.is_cut:
            change = answer_rows_of(session).noted()
            assert applied(before, answer, change, session, label) == rows, f"{label}: changes"
            past = answer_rows_of(session).before(change)
            assert Counter(listed(answer_of_rows(answer.ending, past, "UTC"))) == before, label
            counts["changes"] += len(change) > 0
        before = rows
        counts["answers"] += 1
        counts["filled answers"] += bool(rows)
        changes = changes_of(rng, tables, tables_with_values)
        if rng.random() < 0.3:
            session = restored(
                session, stored, MaintainedQuery(compiled(answer, partitions, has_trees=True))
            )
        is_noted = rng.random() < 0.75
        if is_noted:
            answer_rows_of(session).note()
        session.step(changes)
        joined.step(changes)
    for shape in first.shapes:
        counts[mode_of(shape)] += 1
    counts["trees"] += 1


def check(
    query: Query,
    answer: AnswerPlan,
    session: MaintainedQuery,
    tables: Mapping[str, list[Row]],
    partitions: Partitions,
    label: str,
) -> Counter[Any]:
    """Compare rows with the query's result and sketches with the lineage. Returns the rows."""
    rows = [tuple(map(identity, row)) for row in evaluate(sorting(query.root), tables)]
    result = rows_shown(answer, session)
    pairs = zip(sorted(rows, key=repr), sorted(result, key=repr), strict=False)
    assert len(rows) == len(result), label
    assert all(
        is_same(one, other)
        for mine, theirs in pairs
        for one, other in zip(mine, theirs, strict=True)
    ), label
    expected = expected_sketches(answer.kept, tables, partitions)
    ranges = sketches_of(session)
    first = answer.ending.first
    assert all(expected[access] <= result for access, result in ranges.items()), label
    # Rows skipped by OFFSET count too, and so may rows whose doubles are close to a boundary.
    if first is None or not (first.offset or answer_rows_of(session).bounded):
        assert ranges == {access: expected[access] for access in ranges}, label
    return Counter(result)


def rows_shown(answer: AnswerPlan, session: MaintainedQuery) -> list[tuple[object, ...]]:
    return listed(answer_of_rows(answer.ending, answer_rows_of(session).whole(), "UTC"))


def answer_rows_of(session: MaintainedQuery) -> AnswerRows:
    return session.compiled.kept


def applied(
    before: Counter[Any], answer: AnswerPlan, change: Batch, session: MaintainedQuery, label: str
) -> Counter[Any]:
    """The answer with the noted changes applied. Only existing rows are deleted."""
    bounded = answer_rows_of(session).bounded
    after = Counter(before)
    for row in listed(changes_by_rows(answer.ending, change, bounded, "UTC")):
        change, copies, *values = row
        values = values[1:] if bounded else values
        after[tuple(values)] += copies if change == identity("insert") else -copies  # type: ignore[operator]
    assert all(count >= 0 for count in after.values()), label
    return +after


@random_cases(
    0, 2, 400, also="1 8 10 14 15 19 22 25 28 29 35 40 41 45-47 49 50 55 57-60 62 63 66 68 69"
)
def test_random_answers(cases: Sequence[int]) -> None:
    counts = seen_in(cases, one_case)
    assert counts["trees"] > len(cases) / 2, counts
    assert counts["bits rows"] > len(cases) / 4, counts
    assert counts["filled answers"] > len(cases), counts


NOTHING = {column.name: None for column in CATALOG["r"]}
LEFT = "SELECT r.b, s.c FROM r LEFT JOIN s ON s.a = r.a"


class TreeAnswer:
    """A query's answer, materialized by a tree, with the sketch of `r` on `c`."""

    def __init__(self, sql: str) -> None:
        self.answer = answer_plan(planned(sql))
        scans = self.answer.kept.scans
        has_c = [scan for scan in scans if any(one.name == "c" for one in scan.attributes)]
        partitions = {
            scan.access: RangePartition(scan.table, "c" if has_c else "a", LONG, (1, 2, 3))
            for scan in has_c or scans
        }
        compiled = compile_plan(
            self.answer.kept, partitions, {}, barriers=None, has_trees=True, answer=self.answer
        )
        assert any(isinstance(shape, TreeShape) for shape in compiled.shapes)
        self.session = MaintainedQuery(compiled)
        self.kept = answer_rows_of(self.session)

    def step(self, **changes: list[tuple[int, dict[str, Any]]]) -> list[tuple[Any, ...]]:
        """Apply signed rows per table. Returns the changes of the answer as (copies, values...)."""
        self.kept.note()
        result = {}
        for name, rows in changes.items():
            weights = np.array([weight for weight, _ in rows], dtype=np.int64)
            result[name] = TableChange(table_of([{**NOTHING, **row} for _, row in rows]), weights)
        self.session.step(result)
        reported = changes_by_rows(self.answer.ending, self.kept.noted(), self.kept.bounded, "UTC")
        return [
            (copies if change == "insert" else -copies, *values)
            for change, copies, *values in rows_of(reported)
        ]

    def rows(self) -> Counter[tuple[Any, ...]]:
        return Counter(rows_of(answer_of_rows(self.answer.ending, self.kept.whole(), "UTC")))


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_negated_and_padded_edges_below_exists() -> None:
    tree = TreeAnswer(
        "SELECT r.b FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.a = r.a "
        "AND NOT EXISTS (SELECT 1 FROM t WHERE t.b = s.b))"
    )
    assert tree.step(r=[(1, {"a": 1, "b": 7})], s=[(1, {"a": 1, "b": 5})]) == [(1, 7)]
    assert tree.step(t=[(1, {"b": 5})]) == [(-1, 7)]
    assert tree.step(s=[(1, {"a": 1, "b": 6})]) == [(1, 7)]
    assert tree.step(t=[(-1, {"b": 5})]) == []
    tree = TreeAnswer(
        "SELECT r.b FROM r WHERE EXISTS (SELECT 1 FROM s LEFT JOIN t ON t.b = s.b WHERE s.a = r.a)"
    )
    assert tree.step(r=[(1, {"a": 1, "b": 7})], s=[(1, {"a": 1, "b": 5})]) == [(1, 7)]
    assert tree.step(t=[(1, {"b": 5})]) == []
    assert tree.step(t=[(-1, {"b": 5})]) == []
    assert tree.rows() == {(7,): 1}


def test_left_joined_rows_are_padded_only_without_partners() -> None:
    tree = TreeAnswer(LEFT)
    assert tree.step(r=[(1, {"a": 1, "b": 7}), (1, {"a": None, "b": 8})]) == [
        (1, 7, None),
        (1, 8, None),
    ]
    assert tree.step(s=[(1, {"a": 1, "c": 2}), (1, {"a": 1, "c": 2})]) == [(-1, 7, None), (2, 7, 2)]
    assert tree.step(s=[(1, {"a": 1, "c": 3}), (-1, {"a": 1, "c": 2})]) == [(-1, 7, 2), (1, 7, 3)]
    # A new row on the left arrives with the deletion of the partner's last copy.
    deleted = [(-1, {"a": 1, "c": 2}), (-1, {"a": 1, "c": 3})]
    assert tree.step(s=deleted, r=[(1, {"a": 1, "b": 9})]) == [
        (-1, 7, 2),
        (-1, 7, 3),
        (1, 7, None),
        (1, 9, None),
    ]
    assert tree.rows() == {(7, None): 1, (8, None): 1, (9, None): 1}


def test_moving_a_row_between_ranges_is_no_change() -> None:
    tree = TreeAnswer("SELECT r.b FROM r JOIN s ON s.a = r.a WHERE r.c >= 0")
    tree.step(r=[(1, {"a": 1, "b": 7, "c": 0})], s=[(1, {"a": 1})])
    moved = [(-1, {"a": 1, "b": 7, "c": 0}), (1, {"a": 1, "b": 7, "c": 3})]
    assert tree.step(r=moved) == []
    assert list(sketches_of(tree.session).values()) == [{3}]


def test_zeros_of_both_signs_join_and_keep_their_sign() -> None:
    tree = TreeAnswer(
        "SELECT r.rate, s.rate AS other FROM r JOIN s ON r.rate = s.rate AND r.a >= 0"
    )
    tree.step(r=[(1, {"a": 1, "rate": -0.0}), (1, {"a": 1, "rate": 0.0})], s=[(1, {"rate": 0.0})])
    rows = rows_of(answer_of_rows(tree.answer.ending, tree.kept.whole(), "UTC"))
    assert sorted(map(str, rows)) == ["(-0.0, 0.0)", "(0.0, 0.0)"]
    assert [str(row) for row in tree.step(r=[(-1, {"a": 1, "rate": -0.0})])] == ["(-1, -0.0, 0.0)"]


def test_rows_tied_at_a_row_number_are_in_the_sketch() -> None:
    """Which of the tied rows gets the number may change."""
    tree = TreeAnswer(
        "SELECT c, n FROM (SELECT r.c, COUNT(*) AS n, row_number() OVER (ORDER BY COUNT(*) DESC) "
        "AS p FROM r JOIN s ON s.a = r.a GROUP BY r.c) WHERE p <= 1"
    )
    tree.step(r=[(1, {"a": 1, "c": c}) for c in (0, 2, 3)], s=[(1, {"a": 1})])
    (result,) = (f for access, f in tree.session.ranges().items() if access.startswith("r"))
    assert sum(tree.rows().values()) == 1
    assert set(result.ids) == {0, 2, 3}


def test_a_step_without_notes_updates_the_rows() -> None:
    tree = TreeAnswer(LEFT)
    tree.step(r=[(1, {"a": 1, "b": 7})], s=[(1, {"a": 1, "c": 2})])
    change = TableChange(table_of([{**NOTHING, "a": 1, "c": 2}]), np.array([-1], dtype=np.int64))
    tree.session.step({"s": change})
    assert tree.rows() == {(7, None): 1}


def test_a_live_tuple_may_have_a_dead_partner() -> None:
    """Of its two partners, only one joins with the rows above."""
    tree = TreeAnswer(
        "SELECT r.b, s.b AS c FROM r JOIN s ON r.a = s.a JOIN t ON s.b = t.b JOIN u ON t.c = u.c "
        "JOIN v ON u.d = v.d"
    )
    others = {"t": {"b": 1, "c": 1}, "u": {"c": 1, "d": 1}, "v": {"d": 1}}
    tree.step(
        r=[(1, {"a": 1, "b": 6})],
        s=[(1, {"a": 1, "b": 1}), (1, {"a": 1, "b": 9})],
        **{name: [(1, row)] for name, row in others.items()},
    )
    assert tree.step(r=[(1, {"a": 1, "b": 7})]) == [(1, 7, 1)]
    assert tree.step(v=[(1, {"d": 1})]) == [(1, 6, 1), (1, 7, 1)]


def test_rows_before_a_step_are_available_after_merges() -> None:
    tree = TreeAnswer("SELECT r.b, s.c FROM r JOIN s ON s.a = r.a")
    tree.step(r=[(1, {"a": 1, "b": 7})])
    for value in range(12):
        tree.step(s=[(1, {"a": 1, "c": value})])
        expected = sorted(tree.rows())
        tree.kept.note()
        deletion = TableChange(table_of([{**NOTHING, "a": 1, "c": value}]), np.array([-1]))
        tree.session.step({"s": deletion})
        past = tree.kept.before(tree.kept.noted())
        assert sorted(rows_of(answer_of_rows(tree.answer.ending, past, "UTC"))) == expected
        assert tree.rows() == {}


@pytest.mark.parametrize(
    ("sql", "modes"),
    [
        ("SELECT r.b, s.c FROM r JOIN s ON s.a = r.a", ["bits rows"]),
        ("SELECT DISTINCT r.b FROM r JOIN s ON s.a = r.a", ["ring"]),
        ("SELECT DISTINCT r.b, s.b FROM r JOIN s ON s.a = r.a", ["bits rows"]),
        ("SELECT r.b, SUM(s.c) FROM r JOIN s ON s.a = r.a GROUP BY r.b", ["ring"]),
        ("SELECT r.b, MIN(s.name) FROM r JOIN s ON s.a = r.a GROUP BY r.b", ["bits rows"]),
        ("SELECT COUNT(*) FROM (SELECT DISTINCT r.b FROM r JOIN s ON s.a = r.a)", ["ring"]),
        ("SELECT r.b FROM r JOIN s ON s.a = r.a GROUP BY r.b HAVING COUNT(*) > 1", ["ring"]),
        ("SELECT r.b FROM r JOIN s ON s.a = r.a UNION SELECT a FROM t", ["bits rows", "none"]),
    ],
)
def test_which_trees_keep_groups_and_which_keep_rows(sql: str, modes: list[str]) -> None:
    blocks = planned_blocks(answer_plan(planned(sql)).kept, has_answer=True)
    assert [mode_of(one.shape) for one in blocks] == modes


def mode_of(shape: TreeShape | NoTree) -> str:
    if isinstance(shape, NoTree):
        return "none"
    return f"{shape.mode}{'' if shape.joined is None else ' rows'}"


def test_all_columns_of_joined_rows_distinguish_them() -> None:
    root = planned("SELECT r.b, s.c FROM r JOIN s ON s.a = r.a").root
    join = next(node for node in root.walk() if isinstance(node, Join))
    first, *_ = join.attributes
    above = Project(Distinct(join), (ComputedColumn(first, first.ref()),))
    result = joined_columns(above, join)
    assert [one.attribute for one in result] == list(join.attributes)
    assert len(result) > 1


def test_tree_state_grows_with_tables_not_answers() -> None:
    tree = TreeAnswer("SELECT r.b, s.c FROM r JOIN s ON s.a = r.a")
    tree.step(
        r=[(1, {"a": 1, "b": value}) for value in range(60)],
        s=[(1, {"a": 1, "c": value}) for value in range(60)],
    )
    assert sum(tree.rows().values()) == 3600
    assert "answer.rows" not in {keeper.name for keeper in tree.session.keepers()}
    assert tree.session.state_bytes() < 3600 * 8


def test_too_many_answer_rows_raise_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = TreeAnswer("SELECT r.b, s.c FROM r JOIN s ON s.a = r.a")
    tree.step(r=[(1, {"a": 1, "b": 1})], s=[(1, {"a": 1, "c": value}) for value in range(9)])
    monkeypatch.setattr(enumerate, "MOST_PAIRS", 8)
    with pytest.raises(JoinTooLargeError, match="9 rows"):
        tree.kept.whole()
