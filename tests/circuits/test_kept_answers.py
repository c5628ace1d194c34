"""Kept answers, and those by one run, against the reference: random queries, rows and changes.

After every batch the rows kept with the state give what the query gives over all rows, ordered and
cut as it asks, and so does its plan run once over them. Sums of the doubles are exact here.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 4,000 cases.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.answers import answer_of_rows
from impctl.compile.compile import Compiled, answering_way, compile_answer
from impctl.compile.flows import BlockedError
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.engine.result_rows import KeptRows
from impctl.errors import EvaluationError, NotExactError
from impctl.plan.nodes import Plan, Project, Query, Sort, TopK, attributes_of, scans_of
from impctl.rules.finalize import AnswerPlan, answer_plan
from impctl.rules.optimize import apply_rules
from impctl.safety.judge import carried, check_safety
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query
from tests.support.random_cases import random_cases
from tests.support.random_queries import (
    PARTITIONS,
    SCHEMA,
    Row,
    random_change,
    random_row,
    random_sql,
    table_of,
)
from tests.support.reference_expr import ReferenceFailure, ReferenceLimit, identity
from tests.support.reference_plan import evaluate


@dataclass(frozen=True)
class Case:
    """A query, its answer taken apart, the circuit that keeps it beside a sketch."""

    query: Query
    answer: AnswerPlan
    compiled: Compiled
    is_ordered: bool


def random_case(rng: random.Random) -> Case | None:
    """None for a query without a safe sketch, or one that the engine does not maintain."""
    sql, is_ordered = random_sql(rng), False
    partition = rng.choice(PARTITIONS)
    if rng.random() < 0.5:
        sql, is_ordered = ordered(rng, sql), True
    query = parse_query(sql, {"t": SCHEMA})
    ruled = replace(query, root=apply_rules(query.root))
    compiled = kept_beside(ruled, partition)
    if compiled is None:
        return None
    return Case(query, answer_plan(ruled), compiled, is_ordered)


def ordered(rng: random.Random, sql: str) -> str:
    """The query with an order in which only equal rows tie, and now and then a part of the rows."""
    columns = len(attributes_of(parse_query(sql, {"t": SCHEMA}).root))
    keys = [
        f"{at + 1}{rng.choice(['', ' DESC', ' NULLS LAST', ' DESC NULLS FIRST'])}"
        for at in rng.sample(range(columns), columns)
    ]
    cut = rng.choice(["", " LIMIT 2", " LIMIT 3 OFFSET 1", " LIMIT 50", " LIMIT 0"])
    return f"{sql} ORDER BY {', '.join(keys)}{cut}"


def kept_beside(
    query: Query, partition: RangePartition, trees: Mapping[str, int] | None = None
) -> Compiled | None:
    access = scans_of(query.root)[0].access
    sketched = {access: partition.attribute}
    verdict = check_safety(query, sketched, [])
    if not verdict.safe:
        return None
    answer = answer_plan(query)
    judged = carried(verdict, replace(query, root=answer.kept), sketched)
    try:
        return answering_way(answer, judged, {access: partition}, trees=trees).compiled
    except BlockedError:
        return None


def sorting(node: Plan) -> Plan:
    """The plan with its last order as a top-k of all rows, which the reference brings in order."""
    if isinstance(node, Project):
        return replace(node, child=sorting(node.child))
    return TopK(node.child, node.order, 1_000_000) if isinstance(node, Sort) else node


def listed(table: pa.Table) -> list[tuple[object, ...]]:
    columns = [[identity(value) for value in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * len(table)


def check(case: Case, kept: KeptRows | None, rows: list[Row], label: str) -> None:
    assert kept is not None
    try:
        expected = evaluate(sorting(case.query.root), {"t": rows})
    except ReferenceFailure:
        return
    wanted = [tuple(identity(value) for value in row) for row in expected]
    result = listed(answer_of_rows(case.answer.ending, kept.whole(), "UTC"))
    if not case.is_ordered:
        wanted, result = sorted(wanted, key=repr), sorted(result, key=repr)
    assert len(result) == len(wanted), label
    for mine, theirs in zip(result, wanted, strict=True):
        assert all(map(is_same, mine, theirs)), label


def is_same(mine: object, theirs: object) -> bool:
    """Equal, but for the last digits of a VARIANCE or STDDEV."""
    if isinstance(mine, float) and isinstance(theirs, float):
        return mine == theirs or math.isclose(mine, theirs, rel_tol=1e-12)
    return mine == theirs


def run_once(case: Case, rows: list[Row]) -> KeptRows | None:
    """The rows of one run over two halves of the table."""
    compiled = compile_answer(case.answer)
    compiled.circuit.start()
    for part in (rows[::2], rows[1::2]):
        scanned = [
            source.scan.read(table_of(part), np.ones(len(part), dtype=np.int64))
            for source in compiled.sources
        ]
        compiled.circuit.step(*scanned)
    return compiled.kept


@random_cases(0, 50, 600, also="0-9 71 80 83")
def test_answers_are_the_querys(cases: Sequence[int]) -> None:
    seen = several_cases(cases)
    assert seen["answers"] > len(cases)
    assert seen["ordered"] > len(cases) // 3


def several_cases(cases: Sequence[int]) -> dict[str, int]:
    seen = {"answers": 0, "ordered": 0}
    for case in cases:
        one_case(random.Random(f"answer {case}"), seen, f"case {case}")
    return seen


def one_case(rng: random.Random, seen: dict[str, int], label: str) -> None:
    case = random_case(rng)
    if case is None:
        return
    label = f"{label}: {case.query.sql}"
    session = MaintainedQuery(case.compiled)
    rows = [random_row(rng) for _ in range(rng.randint(0, 9))]
    try:
        session.load([("t", table_of(rows))])
        check(case, case.compiled.kept, rows, label)
        for _ in range(4):
            change, weights = random_change(rng, rows)
            session.step({"t": TableChange(table_of(change), np.array(weights, dtype=np.int64))})
            check(case, case.compiled.kept, rows, label)
            check(case, run_once(case, rows), rows, f"{label}, one run")
            seen["answers"] += 1
            seen["ordered"] += case.is_ordered
    except (ReferenceLimit, NotExactError, EvaluationError):
        # Doubles too close to call below the conditions at the end, or an overflow.
        return


def test_a_rank_by_doubles_that_goes_no_further_is_refused_in_advance() -> None:
    """Not when the first row comes: nothing above it has the column."""
    sql = (
        "SELECT DISTINCT n, r FROM (SELECT g, COUNT(*) n, row_number() OVER (PARTITION BY COUNT(*)"
        " ORDER BY SUM(d)) r FROM t GROUP BY g) q WHERE r <= 2"
    )
    query = parse_query(sql, {"t": SCHEMA})
    with pytest.raises(BlockedError, match="above a LIMIT"):
        compile_answer(answer_plan(replace(query, root=apply_rules(query.root))))
