"""Changes of answers: applied one after the other they give every answer, copy for copy.

Random queries, among them joins, DISTINCT, LIMIT with and without an order, over rows that hurt:
duplicates, NULL, NaN, -0.0, doubles that add up otherwise in another order; random changes, with
rows deleted and inserted again and batches without rows.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 4,000 cases.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.answers import answer_of_rows
from impctl.compile.compile import Compiled, compile_answer
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import STRING, Column, Kind, Schema, SqlType, decimal
from impctl.engine.result_rows import KeptRows
from impctl.errors import EvaluationError, NotExactError
from impctl.rules.finalize import AnswerPlan, answer_plan
from impctl.rules.optimize import apply_rules
from impctl.service.result_changes import (
    CHANGE,
    COPIES,
    DELETE,
    INSERT,
    SURE,
    RowsOf,
    changes_between,
    changes_by_rows,
    whole_answer,
)
from impctl.sql.statement import parse_query
from tests.circuits.test_kept_answers import kept_beside, random_case
from tests.support.change_reader import Answer, identity
from tests.support.random_cases import random_cases
from tests.support.random_queries import (
    PARTITIONS,
    SCHEMA,
    Row,
    random_change,
    random_row,
    table_of,
)

_OTHERS = (
    "SELECT s, d FROM t WHERE x > -2",
    "SELECT DISTINCT g, d FROM t",
    "SELECT DISTINCT s FROM t WHERE x IS NOT NULL",
    "SELECT a.id, b.s, b.d FROM t a JOIN t b ON a.g = b.g WHERE b.x > 0",
    "SELECT a.g, COUNT(*) AS n, SUM(b.d) AS w FROM t a LEFT JOIN t b ON a.id = b.x GROUP BY a.g",
    "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM t u WHERE u.g = t.x)",
    "SELECT id, d FROM t LIMIT 3",
    "SELECT d, s FROM t ORDER BY x DESC, id LIMIT 4",
    "SELECT g, SUM(d) AS w FROM t GROUP BY g ORDER BY w DESC LIMIT 2",
    "SELECT g, ROUND(SUM(d), 1) AS w FROM t GROUP BY g HAVING SUM(d) > 0.3",
    "SELECT s, AVG(x) AS w FROM t GROUP BY s ORDER BY w LIMIT 2 OFFSET 1",
    "SELECT s FROM t UNION ALL SELECT s FROM t WHERE g = 1",
    "SELECT MAX(d) AS most, COUNT(*) AS n FROM t",
)


@dataclass(frozen=True)
class Case:
    """A query and the circuit that keeps its rows."""

    sql: str
    answer: AnswerPlan
    compiled: Compiled


def a_case(rng: random.Random) -> Case | None:
    if rng.random() < 0.4:
        result = random_case(rng)
        return None if result is None else Case(result.query.sql, result.answer, result.compiled)
    return case_of(rng.choice(_OTHERS), rng)


def case_of(sql: str, rng: random.Random) -> Case | None:
    query = parse_query(sql, {"t": SCHEMA})
    ruled = replace(query, root=apply_rules(query.root))
    trees: Mapping[str, int] | None = {} if rng.random() < 0.5 else None
    for partition in rng.sample(PARTITIONS, len(PARTITIONS)):
        compiled = kept_beside(ruled, partition, trees)
        if compiled is not None:
            return Case(sql, answer_plan(ruled), compiled)
    return None


def a_row(rng: random.Random) -> Row:
    row = random_row(rng)
    return {**row, "d": rng.choice([0.1, 0.2, 0.3, 0.7, row["d"]])}


def listed(table: pa.Table) -> list[tuple[object, ...]]:
    columns = [[identity(value) for value in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * len(table)


def applied(answer: Answer, changes: pa.Table, label: str) -> Answer:
    """The answer after the changes; they may not take what is not there."""
    own = [name for name in changes.column_names if name not in (CHANGE, COPIES, SURE)]
    rows = listed(changes.select([changes.column_names.index(name) for name in own]))
    after = answer.copy()
    said = zip(changes[CHANGE].to_pylist(), changes[COPIES].to_pylist(), strict=True)
    for row, (kind, copies) in zip(rows, said, strict=True):
        assert copies > 0, label
        if kind == DELETE:
            assert after[row] >= copies, f"{label}: {row} was not there"
            after[row] -= copies
        else:
            assert kind == INSERT
            after[row] += copies
    is_known = [list(pair) for pair in zip(changes[CHANGE].to_pylist(), rows, strict=True)]
    assert len(is_known) == len({repr(one) for one in is_known}), f"{label}: told twice"
    both = {repr(row) for kind, row in is_known if kind == DELETE}
    assert both.isdisjoint(repr(row) for kind, row in is_known if kind == INSERT), label
    return +after


def step(
    case: Case, session: MaintainedQuery, change: pa.Table, weights: Sequence[int]
) -> pa.Table:
    """The changes of one step, told as `maintain` tells them."""
    kept = case.compiled.kept
    assert kept is not None
    before = RowsOf(case.answer.ending, kept.whole(), kept.bounded)
    kept.note()
    session.step({"t": TableChange(change, np.array(weights, dtype=np.int64))})
    delta = kept.noted()
    between = changes_between(before, RowsOf(case.answer.ending, kept.whole(), kept.bounded), "UTC")
    if case.answer.ending.is_cut:
        return between
    result = changes_by_rows(case.answer.ending, delta, kept.bounded, "UTC")
    both = [one.select([n for n in one.column_names if n != SURE]) for one in (result, between)]
    assert listed(both[0]) == listed(both[1]), case.sql
    return result


@pytest.mark.slow
@random_cases(20, 54, 400)
def test_changes_rebuild_every_answer(cases: range) -> None:
    seen = several_cases(cases)
    assert seen["steps"] > 2 * len(cases)
    for kind in ("cut", "deletes", "copies", "empty", "unsure", "sure"):
        assert seen[kind] > len(cases) // 20, kind


def several_cases(cases: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for case in cases:
        one_case(random.Random(f"changes {case}"), seen, f"case {case}")
    return seen


def one_case(rng: random.Random, seen: Counter[str], label: str) -> None:
    case = a_case(rng)
    if case is None:
        return
    label = f"{label}: {case.sql}"
    session, kept = MaintainedQuery(case.compiled), case.compiled.kept
    assert kept is not None
    rows = [a_row(rng) for _ in range(rng.randint(0, 9))]
    try:
        session.load([("t", table_of(rows))])
        first = whole_answer(RowsOf(case.answer.ending, kept.whole(), kept.bounded), "UTC")
        answer = applied(Counter(), first, label)
        for _ in range(6):
            change, weights = random_change(rng, rows)
            result = step(case, session, table_of(change), weights)
            answer = applied(answer, result, label)
            wanted = Counter(listed(answer_of_rows(case.answer.ending, kept.whole(), "UTC")))
            assert answer == wanted, label
            check_order(result, label)
            count(seen, case, result)
    except (NotExactError, EvaluationError):
        # Doubles too close to call below the conditions at the end, or an overflow.
        return


def check_order(changes: pa.Table, label: str) -> None:
    """Rows that went first, each part in the order of the first column, NULL first."""
    kinds = changes[CHANGE].to_pylist()
    assert kinds == sorted(kinds), label
    at = 3 if SURE in changes.column_names else 2
    keys = [rank(value) for value in changes.column(at).to_pylist()]
    for (kind, key), (next_kind, next_key) in pairwise(zip(kinds, keys, strict=True)):
        assert kind != next_kind or key <= next_key, label


def rank(value: object) -> tuple[int, object]:
    if value is None:
        return (0, 0)
    if isinstance(value, float) and math.isnan(value):
        return (2, 0)
    return (1, value.encode() if isinstance(value, str) else value)


def count(seen: Counter[str], case: Case, changes: pa.Table) -> None:
    seen["steps"] += 1
    seen["cut"] += case.answer.ending.is_cut
    seen["deletes"] += DELETE in changes[CHANGE].to_pylist()
    seen["copies"] += any(copies > 1 for copies in changes[COPIES].to_pylist())
    seen["empty"] += len(changes) == 0
    if SURE in changes.column_names:
        seen["unsure"] += False in changes[SURE].to_pylist()
        seen["sure"] += True in changes[SURE].to_pylist()


def one_step(
    sql: str,
    rows: Sequence[Mapping[str, object]],
    change: Sequence[Mapping[str, object]],
    weights: Sequence[int],
) -> pa.Table:
    """The changes of one step of a query over these rows; columns not given are NULL."""
    case = case_of(sql, random.Random(1))
    assert case is not None
    session = MaintainedQuery(case.compiled)
    nothing = dict.fromkeys(column.name for column in SCHEMA.columns)
    session.load([("t", table_of([{**nothing, **row} for row in rows]))])
    return step(case, session, table_of([{**nothing, **row} for row in change]), weights)


def test_a_sum_that_rounds_to_the_same_is_no_change() -> None:
    sql = "SELECT g, SUM(d) AS w FROM t GROUP BY g"
    changes = one_step(sql, [{"g": 1, "d": 1e16}], [{"g": 1, "d": 0.25}], [1])
    assert changes.num_rows == 0


def test_a_row_that_came_back_is_no_change() -> None:
    sql = "SELECT id, s FROM t"
    row = {"id": 1, "s": "a"}
    assert one_step(sql, [row], [row, row], [-1, 1]).num_rows == 0


def test_copies_are_told_of_once() -> None:
    row = {"id": 1, "s": "a"}
    (told,) = one_step("SELECT s FROM t", [row], [row, row, row], [1, 1, 1]).to_pylist()
    assert told == {CHANGE: INSERT, COPIES: 3, "s": "a"}


def test_zero_and_minus_zero_are_two_rows_and_nan_is_one() -> None:
    zero, minus, nan = ({"id": 1, "d": d} for d in (0.0, -0.0, math.nan))
    changes = one_step("SELECT d FROM t", [zero, nan], [zero, minus, nan, nan], [-1, 1, -1, 1])
    told = [(row[CHANGE], math.copysign(1, row["d"])) for row in changes.to_pylist()]
    assert told == [(DELETE, 1.0), (INSERT, -1.0)]


def test_what_a_limit_lets_in_is_told() -> None:
    rows = [{"id": at, "x": at} for at in range(5)]
    sql = "SELECT id FROM t ORDER BY x DESC LIMIT 2"
    changes = one_step(sql, rows, [{"id": 4, "x": 4}], [-1])
    assert [(r[CHANGE], r["id"]) for r in changes.to_pylist()] == [(DELETE, 4), (INSERT, 2)]


@pytest.mark.parametrize(
    ("sql", "doubles", "sure"),
    [
        # A sum that no order of its additions changes, and one that may come out otherwise.
        ("SELECT g, SUM(d) AS w FROM t GROUP BY g", [0.1, 0.2, 0.3], False),
        # Rounded, it is the same whatever the order is.
        ("SELECT g, ROUND(SUM(d), 2) AS w FROM t GROUP BY g", [0.1, 0.2, 0.3], True),
        # Far from the limit, and too close to it to call.
        ("SELECT g FROM t GROUP BY g HAVING SUM(d) > 0.2", [0.1, 0.2, 0.3], True),
        ("SELECT g FROM t GROUP BY g HAVING SUM(d) >= 0.6", [0.1, 0.2, 0.3], False),
        # Of two groups that come out alike, the less sure one tells: it is rounded at a tie.
        ("SELECT ROUND(SUM(d), 0) AS w FROM t GROUP BY d > 2.9D", [3.0, 0.1, 2.4], False),
        # Cut, where bounds are not kept: unsure, unless nothing rests on a sum.
        ("SELECT g, SUM(d) AS w FROM t GROUP BY g ORDER BY g LIMIT 1", [0.5], False),
    ],
)
def test_what_is_sure(sql: str, doubles: list[float], sure: bool) -> None:
    changes = one_step(sql, [], [{"g": 1, "d": d} for d in doubles], [1] * len(doubles))
    assert changes[SURE].to_pylist() == [sure]


def run_once(answer: AnswerPlan, rows: Sequence[Row]) -> KeptRows:
    """The rows of one run over a table, row by row."""
    compiled = compile_answer(answer)
    compiled.circuit.start()
    (source,) = compiled.sources
    for row in rows:
        compiled.circuit.step(source.scan.read(table_of([row]), np.ones(1, dtype=np.int64)))
    assert compiled.kept is not None
    return compiled.kept


def test_without_sums_of_doubles_nothing_is_said_of_being_sure() -> None:
    assert SURE not in one_step("SELECT d FROM t", [], [{"d": 0.1}], [1]).column_names
    assert (
        SURE
        not in one_step("SELECT d FROM t ORDER BY d LIMIT 1", [], [{"d": 0.1}], [1]).column_names
    )


def test_a_limit_without_an_order_leaves_the_same_rows_whatever_their_order_was() -> None:
    query = parse_query("SELECT id, s FROM t LIMIT 2", {"t": SCHEMA})
    ruled = replace(query, root=apply_rules(query.root))
    result = set()
    for seed in range(8):
        rng = random.Random(seed)
        rows = [
            {**random_row(random.Random(0)), "id": at % 4, "s": "ab"[at % 2]} for at in range(6)
        ]
        rng.shuffle(rows)
        answer = answer_plan(ruled)
        kept = run_once(answer, rows)
        result.add(repr(listed(answer_of_rows(answer.ending, kept.whole(), "UTC"))))
    assert len(result) == 1


EVERY = Schema(
    (
        Column("yes", SqlType(Kind.BOOLEAN)),
        Column("tiny", SqlType(Kind.BYTE)),
        Column("single", SqlType(Kind.FLOAT)),
        Column("text", STRING),
        Column("raw", SqlType(Kind.BINARY)),
        Column("wide", decimal(38, 10)),
        Column("day", SqlType(Kind.DATE)),
        Column("at", SqlType(Kind.TIMESTAMP)),
        Column("local", SqlType(Kind.TIMESTAMP_NTZ)),
    )
)
TYPES = [
    pa.bool_(),
    pa.int8(),
    pa.float32(),
    pa.string(),
    pa.binary(),
    pa.decimal128(38, 10),
    pa.date32(),
    pa.timestamp("us", tz="Europe/Berlin"),
    pa.timestamp("us"),
]


def test_every_type_is_told_as_spark_gives_it() -> None:
    """Values at the ends of their types, in the order of the columns, NULL first."""
    names = [column.name for column in EVERY.columns]
    query = parse_query(f"SELECT {', '.join(names)} FROM t", {"t": EVERY})
    answer = answer_plan(replace(query, root=apply_rules(query.root)))
    last, first = datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(1, 1, 1)
    rows = [
        (None,) * len(names),
        (False, -128, -0.0, "", b"", Decimal("-" + "9" * 28 + ".5"), first.date(), first, first),
        (True, 127, 3.5, "\U0001f600", b"\xff\x00", Decimal("1e-10"), last.date(), last, last),
    ]
    columns = []
    for values, kind in zip(zip(*rows, strict=True), TYPES, strict=True):
        if pa.types.is_timestamp(kind):
            # Python has no year before 1 or after 9999, which a zone would lead to.
            columns.append(pa.array(values, pa.timestamp("us")).cast(pa.int64()).view(kind))
        else:
            columns.append(pa.array(values, kind))
    table = pa.table(columns, names=names)
    compiled = compile_answer(answer)
    compiled.circuit.start()
    (source,) = compiled.sources
    compiled.circuit.step(source.scan.read(table.take([2, 1, 0]), np.ones(3, dtype=np.int64)))
    assert compiled.kept is not None
    result = whole_answer(RowsOf(answer.ending, compiled.kept.whole()), "Europe/Berlin")
    assert result.schema.types[2:] == TYPES
    assert result.select(names).combine_chunks().equals(table)
