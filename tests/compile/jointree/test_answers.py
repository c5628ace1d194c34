"""Answers kept by join trees: after every batch the rows are the query's, and the sketches too."""

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
    partitions_of,
    table_of,
    wanted,
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


def one_case(seed: int, seen: Counter[str]) -> None:
    rng = Random(seed)
    sql = AnswerMaker(rng).sql()
    try:
        query = planned(sql)
    except QueryError:
        seen["no query"] += 1
        return
    try:
        follow(query, rng, seen, f"{seed}: {sql}")
    except (ReferenceFailure, ReferenceLimit, NotExactError, EvaluationError):
        seen["not computed"] += 1


def follow(query: Query, rng: Random, seen: Counter[str], what: str) -> None:
    """A query over random tables and batches, stopped and taken up again now and then."""
    answer = answer_plan(query)
    tables = {name: [dict(row) for row in rows] for name, rows in tables_with_values(rng).items()}
    partitions = partitions_of(rng, answer.kept)
    splits = {name: rng.randint(0, 3) for name in tables}
    try:
        first = compiled(answer, partitions, has_trees=True)
    except BlockedError as error:
        seen[f"blocked: {error.message}"[:70]] += 1
        return
    if all(isinstance(shape, NoTree) for shape in first.shapes):
        seen["no tree"] += 1
        return
    session, joined = (
        MaintainedQuery(first),
        MaintainedQuery(compiled(answer, partitions, has_trees=False)),
    )
    stored = Stored()
    # Tables come in two parts, perhaps an empty one.
    parts = [(name, table_of(tables[name][: splits[name]])) for name in first.tables]
    parts += [(name, table_of(tables[name][splits[name] :])) for name in first.tables]
    for one in (session, joined):
        one.load(parts)
    before: Counter[Any] = Counter()
    is_noted = False
    for _ in range(BATCHES):
        rows = check(query, answer, session, tables, partitions, what)
        assert Counter(shown(answer, joined)) == rows, f"{what}: the index join"
        assert sketches_of(joined) == sketches_of(session), f"{what}: the index join's sketches"
        if is_noted and not answer.ending.is_cut:
            change = kept_of(session).noted()
            assert applied(before, answer, change, session, what) == rows, f"{what}: changes"
            past = kept_of(session).before(change)
            assert Counter(listed(answer_of_rows(answer.ending, past, "UTC"))) == before, what
            seen["changes"] += len(change) > 0
        before = rows
        seen["answers"] += 1
        seen["filled answers"] += bool(rows)
        changes = changes_of(rng, tables, tables_with_values)
        if rng.random() < 0.3:
            session = restored(
                session, stored, MaintainedQuery(compiled(answer, partitions, has_trees=True))
            )
        is_noted = rng.random() < 0.75
        if is_noted:
            kept_of(session).note()
        session.step(changes)
        joined.step(changes)
    for shape in first.shapes:
        seen[mode_of(shape)] += 1
    seen["trees"] += 1


def check(
    query: Query,
    answer: AnswerPlan,
    session: MaintainedQuery,
    tables: Mapping[str, list[Row]],
    partitions: Partitions,
    what: str,
) -> Counter[Any]:
    """The rows kept against the query's, and the sketches against the lineage; the rows."""
    rows = [tuple(map(identity, row)) for row in evaluate(sorting(query.root), tables)]
    result = shown(answer, session)
    pairs = zip(sorted(rows, key=repr), sorted(result, key=repr), strict=False)
    assert len(rows) == len(result), what
    assert all(
        is_same(one, other)
        for mine, theirs in pairs
        for one, other in zip(mine, theirs, strict=True)
    ), what
    expected = wanted(answer.kept, tables, partitions)
    ranges = sketches_of(session)
    first = answer.ending.first
    assert all(expected[access] <= result for access, result in ranges.items()), what
    # Rows that OFFSET skips count too, and so may those that doubles put close to a border.
    if first is None or not (first.offset or kept_of(session).bounded):
        assert ranges == {access: expected[access] for access in ranges}, what
    return Counter(result)


def shown(answer: AnswerPlan, session: MaintainedQuery) -> list[tuple[object, ...]]:
    return listed(answer_of_rows(answer.ending, kept_of(session).whole(), "UTC"))


def kept_of(session: MaintainedQuery) -> AnswerRows:
    return session.compiled.kept


def applied(
    before: Counter[Any], answer: AnswerPlan, change: Batch, session: MaintainedQuery, what: str
) -> Counter[Any]:
    """An answer with the changes that were noted; none goes that was not there."""
    bounded = kept_of(session).bounded
    after = Counter(before)
    for row in listed(changes_by_rows(answer.ending, change, bounded, "UTC")):
        change, copies, *values = row
        values = values[1:] if bounded else values
        after[tuple(values)] += copies if change == identity("insert") else -copies  # type: ignore[operator]
    assert all(count >= 0 for count in after.values()), what
    return +after


@random_cases(
    0, 2, 400, also="1 8 10 14 15 19 22 25 28 29 35 40 41 45-47 49 50 55 57-60 62 63 66 68 69"
)
def test_random_answers(cases: Sequence[int]) -> None:
    seen = seen_in(cases, one_case)
    assert seen["trees"] > len(cases) / 2, seen
    assert seen["bits rows"] > len(cases) / 4, seen
    assert seen["filled answers"] > len(cases), seen


NOTHING = {column.name: None for column in CATALOG["r"]}
LEFT = "SELECT r.b, s.c FROM r LEFT JOIN s ON s.a = r.a"


class Kept:
    """A query's answer, kept by a tree, with the sketch of `r` on `c` beside it."""

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
        self.kept = kept_of(self.session)

    def step(self, **changes: list[tuple[int, dict[str, Any]]]) -> list[tuple[Any, ...]]:
        """Signed rows per table; what they do to the answer, as (copies, values...)."""
        self.kept.note()
        result = {}
        for name, rows in changes.items():
            weights = np.array([weight for weight, _ in rows], dtype=np.int64)
            result[name] = TableChange(table_of([{**NOTHING, **row} for _, row in rows]), weights)
        self.session.step(result)
        told = changes_by_rows(self.answer.ending, self.kept.noted(), self.kept.bounded, "UTC")
        return [
            (copies if change == "insert" else -copies, *values)
            for change, copies, *values in rows_of(told)
        ]

    def rows(self) -> Counter[tuple[Any, ...]]:
        return Counter(rows_of(answer_of_rows(self.answer.ending, self.kept.whole(), "UTC")))


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_of_edges_of_existence_the_uppermost_lets_rows_in_and_padding_is_no_row() -> None:
    tree = Kept(
        "SELECT r.b FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.a = r.a "
        "AND NOT EXISTS (SELECT 1 FROM t WHERE t.b = s.b))"
    )
    assert tree.step(r=[(1, {"a": 1, "b": 7})], s=[(1, {"a": 1, "b": 5})]) == [(1, 7)]
    assert tree.step(t=[(1, {"b": 5})]) == [(-1, 7)]
    assert tree.step(s=[(1, {"a": 1, "b": 6})]) == [(1, 7)]
    assert tree.step(t=[(-1, {"b": 5})]) == []
    tree = Kept(
        "SELECT r.b FROM r WHERE EXISTS (SELECT 1 FROM s LEFT JOIN t ON t.b = s.b WHERE s.a = r.a)"
    )
    assert tree.step(r=[(1, {"a": 1, "b": 7})], s=[(1, {"a": 1, "b": 5})]) == [(1, 7)]
    assert tree.step(t=[(1, {"b": 5})]) == []
    assert tree.step(t=[(-1, {"b": 5})]) == []
    assert tree.rows() == {(7,): 1}


def test_the_first_partner_takes_the_padded_rows_place_and_the_last_one_brings_it_back() -> None:
    tree = Kept(LEFT)
    assert tree.step(r=[(1, {"a": 1, "b": 7}), (1, {"a": None, "b": 8})]) == [
        (1, 7, None),
        (1, 8, None),
    ]
    assert tree.step(s=[(1, {"a": 1, "c": 2}), (1, {"a": 1, "c": 2})]) == [(-1, 7, None), (2, 7, 2)]
    assert tree.step(s=[(1, {"a": 1, "c": 3}), (-1, {"a": 1, "c": 2})]) == [(-1, 7, 2), (1, 7, 3)]
    # The row that it would be padded for comes with the partner's last copy.
    gone = [(-1, {"a": 1, "c": 2}), (-1, {"a": 1, "c": 3})]
    assert tree.step(s=gone, r=[(1, {"a": 1, "b": 9})]) == [
        (-1, 7, 2),
        (-1, 7, 3),
        (1, 7, None),
        (1, 9, None),
    ]
    assert tree.rows() == {(7, None): 1, (8, None): 1, (9, None): 1}


def test_a_row_that_only_moves_its_range_is_no_change() -> None:
    tree = Kept("SELECT r.b FROM r JOIN s ON s.a = r.a WHERE r.c >= 0")
    tree.step(r=[(1, {"a": 1, "b": 7, "c": 0})], s=[(1, {"a": 1})])
    moved = [(-1, {"a": 1, "b": 7, "c": 0}), (1, {"a": 1, "b": 7, "c": 3})]
    assert tree.step(r=moved) == []
    assert list(sketches_of(tree.session).values()) == [{3}]


def test_zeros_of_either_sign_are_joined_alike_and_put_out_as_they_are() -> None:
    tree = Kept("SELECT r.rate, s.rate AS other FROM r JOIN s ON r.rate = s.rate AND r.a >= 0")
    tree.step(r=[(1, {"a": 1, "rate": -0.0}), (1, {"a": 1, "rate": 0.0})], s=[(1, {"rate": 0.0})])
    rows = rows_of(answer_of_rows(tree.answer.ending, tree.kept.whole(), "UTC"))
    assert sorted(map(str, rows)) == ["(-0.0, 0.0)", "(0.0, 0.0)"]
    assert [str(row) for row in tree.step(r=[(-1, {"a": 1, "rate": -0.0})])] == ["(-1, -0.0, 0.0)"]


def test_who_ties_with_a_row_that_is_numbered_takes_part() -> None:
    """Which of them has the number is another one next time."""
    tree = Kept(
        "SELECT c, n FROM (SELECT r.c, COUNT(*) AS n, row_number() OVER (ORDER BY COUNT(*) DESC) "
        "AS p FROM r JOIN s ON s.a = r.a GROUP BY r.c) WHERE p <= 1"
    )
    tree.step(r=[(1, {"a": 1, "c": c}) for c in (0, 2, 3)], s=[(1, {"a": 1})])
    (result,) = (f for access, f in tree.session.ranges().items() if access.startswith("r"))
    assert sum(tree.rows().values()) == 1
    assert set(result.ids) == {0, 2, 3}


def test_a_step_that_nobody_notes_leaves_the_same_rows() -> None:
    tree = Kept(LEFT)
    tree.step(r=[(1, {"a": 1, "b": 7})], s=[(1, {"a": 1, "c": 2})])
    change = TableChange(table_of([{**NOTHING, "a": 1, "c": 2}]), np.array([-1], dtype=np.int64))
    tree.session.step({"s": change})
    assert tree.rows() == {(7, None): 1}


def test_above_a_live_tuple_not_everyone_is_live() -> None:
    """One of two that it joins with is wanted from above, the other one is not."""
    tree = Kept(
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


def test_the_rows_before_a_step_are_told_after_it_whatever_was_merged() -> None:
    tree = Kept("SELECT r.b, s.c FROM r JOIN s ON s.a = r.a")
    tree.step(r=[(1, {"a": 1, "b": 7})])
    for at in range(12):
        tree.step(s=[(1, {"a": 1, "c": at})])
        held = sorted(tree.rows())
        tree.kept.note()
        gone = TableChange(table_of([{**NOTHING, "a": 1, "c": at}]), np.array([-1]))
        tree.session.step({"s": gone})
        past = tree.kept.before(tree.kept.noted())
        assert sorted(rows_of(answer_of_rows(tree.answer.ending, past, "UTC"))) == held
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
def test_groups_are_the_trees_where_it_keeps_what_they_put_out(sql: str, modes: list[str]) -> None:
    blocks = planned_blocks(answer_plan(planned(sql)).kept, has_answer=True)
    assert [mode_of(one.shape) for one in blocks] == modes


def mode_of(shape: TreeShape | NoTree) -> str:
    if isinstance(shape, NoTree):
        return "none"
    return f"{shape.mode}{'' if shape.joined is None else ' rows'}"


def test_rows_are_told_apart_by_all_their_columns_whatever_goes_further() -> None:
    root = planned("SELECT r.b, s.c FROM r JOIN s ON s.a = r.a").root
    join = next(node for node in root.walk() if isinstance(node, Join))
    first, *_ = join.attributes
    above = Project(Distinct(join), (ComputedColumn(first, first.ref()),))
    result = joined_columns(above, join)
    assert [one.attribute for one in result] == list(join.attributes)
    assert len(result) > 1


def test_the_state_of_rows_that_are_told_grows_with_the_tables() -> None:
    tree = Kept("SELECT r.b, s.c FROM r JOIN s ON s.a = r.a")
    tree.step(
        r=[(1, {"a": 1, "b": at}) for at in range(60)],
        s=[(1, {"a": 1, "c": at}) for at in range(60)],
    )
    assert sum(tree.rows().values()) == 3600
    assert "answer.rows" not in {keeper.name for keeper in tree.session.keepers()}
    assert tree.session.state_bytes() < 3600 * 8


def test_more_rows_than_fit_are_not_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Kept("SELECT r.b, s.c FROM r JOIN s ON s.a = r.a")
    tree.step(r=[(1, {"a": 1, "b": 1})], s=[(1, {"a": 1, "c": at}) for at in range(9)])
    monkeypatch.setattr(enumerate, "MOST_PAIRS", 8)
    with pytest.raises(JoinTooLargeError, match="9 rows"):
        tree.kept.whole()
