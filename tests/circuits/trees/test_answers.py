"""Answers kept by join trees: after every batch the rows are the query's, and the sketches too.

What came and went of the rows, batch by batch, leads from each answer to the next, and the rows are
those that the index join keeps. By hand: `-m "slow or not slow"` for thousands of cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from impctl.compile.answers import answer_of_rows
from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.flows import BlockedError
from impctl.compile.jointree.graph import NoTree
from impctl.compile.session import MaintainedQuery
from impctl.engine.batch import Batch
from impctl.engine.result_rows import AnswerRows
from impctl.errors import EvaluationError, NotExactError, QueryError
from impctl.plan.nodes import Query
from impctl.rules.finalize import AnswerPlan, answer_plan
from impctl.rules.optimize import whole_answer
from impctl.service.result_changes import changes_by_rows
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query
from tests.circuits.test_kept_answers import is_same, listed, sorting
from tests.circuits.trees.drawn import CATALOG
from tests.circuits.trees.random_answers import AnswerMaker, tables_with_values
from tests.circuits.trees.test_built import (
    BATCHES,
    Row,
    changes_of,
    partitions_of,
    table_of,
    wanted,
)
from tests.support.random_cases import random_cases, seen_in
from tests.support.reference_expr import ReferenceFailure, ReferenceLimit, identity
from tests.support.reference_plan import evaluate
from tests.support.restored_query import Stored, restored

Partitions = Mapping[str, RangePartition]


def planned(sql: str) -> Query:
    return whole_answer(parse_query(sql, CATALOG))


def compiled(
    answer: AnswerPlan, partitions: Partitions, trees: Mapping[str, int] | None
) -> Compiled:
    return compile_plan(answer.kept, partitions, {}, barriers=(), trees=trees, answer=answer)


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
    changed = {name: rng.randint(0, 3) for name in tables}
    try:
        first = compiled(answer, partitions, changed)
    except BlockedError as error:
        seen[f"blocked: {error.message}"[:70]] += 1
        return
    if all(isinstance(shape, NoTree) for shape in first.shapes):
        seen["no tree"] += 1
        return
    session, joined = MaintainedQuery(first), MaintainedQuery(compiled(answer, partitions, None))
    stored = Stored()
    for one in (session, joined):
        one.load([(name, table_of(tables[name])) for name in first.tables])
    before: Counter[Any] = Counter()
    is_noted = False
    for _ in range(BATCHES):
        rows = check(query, answer, session, tables, partitions, what)
        assert Counter(shown(answer, joined)) == rows, f"{what}: the index join"
        assert sketches(joined) == sketches(session), f"{what}: the index join's sketches"
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
                session, stored, MaintainedQuery(compiled(answer, partitions, changed))
            )
        is_noted = rng.random() < 0.75
        if is_noted:
            kept_of(session).note()
        session.step(changes)
        joined.step(changes)
    for shape in first.shapes:
        kind = "none" if isinstance(shape, NoTree) else str(shape.mode)
        seen[f"{kind}{'' if isinstance(shape, NoTree) or shape.joined is None else ' rows'}"] += 1
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
    fragments = sketches(session)
    first = answer.ending.first
    assert all(expected[access] <= result for access, result in fragments.items()), what
    # Rows that OFFSET skips count too, and so may those that doubles put close to a border.
    if first is None or not (first.offset or kept_of(session).bounded):
        assert fragments == {access: expected[access] for access in fragments}, what
    return Counter(result)


def sketches(session: MaintainedQuery) -> dict[str, set[int]]:
    return {access: set(part.ids) for access, part in session.fragments().items()}


def shown(answer: AnswerPlan, session: MaintainedQuery) -> list[tuple[object, ...]]:
    return listed(answer_of_rows(answer.ending, kept_of(session).whole(), "UTC"))


def kept_of(session: MaintainedQuery) -> AnswerRows:
    kept = session.compiled.kept
    assert kept is not None
    return kept


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
    0, 20, 400, also="1 8 10 14 15 19 22 25 28 29 35 40 41 45-47 49 50 55 57-60 62 63 66 68 69"
)
def test_random_answers(cases: Sequence[int]) -> None:
    seen = seen_in(cases, one_case)
    assert seen["trees"] > len(cases) / 2, seen
    assert seen["bits rows"] > len(cases) / 4, seen
    assert seen["filled answers"] > len(cases), seen
