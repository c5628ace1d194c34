"""Random answers with Spark as the oracle: a plan, tiny tables, a batch of changes, an order.

Law: the engine answers twice, by one run over the tables after the batch and from rows that were
kept before it and carried over; Spark alone says what the answer is, with which Arrow types. Of
several right answers, where a LIMIT below may break ties either way, each counts.
Out of scope: files, sketches that narrow what is read (`test_answers_in_spark` has commands).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from impctl.compile.answers import answer_of_rows
from impctl.compile.compile import Compiled, answering_way, compile_answer
from impctl.compile.flows import BlockedError
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import Kind
from impctl.errors import ImpctlError
from impctl.plan.nodes import Plan, Query, Sort, SortKey, TopK, attributes_of, scans_of
from impctl.rules.finalize import AnswerPlan, answer_plan
from impctl.rules.optimize import apply_rules
from impctl.safety.judge import carried, check_safety
from impctl.spark.render import render_plan
from tests.behaviour.spark_trials import (
    Case,
    _arrow,
    _double,
    _is_an_answer,
    _plain,
    _tables,
    make_case,
)

_NEAR = 1e-9
_TIES = 20_000
"""Ways of breaking ties that are tried before an answer counts as wrong."""


@dataclass
class AnswerTally:
    """What a run came to: `kept` beside a sketch, `run` once, `ordered`; and other ends."""

    cases: int = 0
    blocked: int = 0
    run: int = 0
    kept: int = 0
    ordered: int = 0
    rows: int = 0
    spark_failed: int = 0
    engine_failed: int = 0
    both_failed: int = 0
    tied: int = 0
    unnoticed: list[int] = field(default_factory=list)
    """Cases where Spark fails and the engine, which computes less, does not."""


class WrongAnswerError(AssertionError):
    """An answer that is not Spark's."""


def run_answers(spark: Any, seed: int, tally: AnswerTally) -> None:
    """Compare one case; WrongAnswerError where the engine answers otherwise."""
    case, rng = make_case(seed), Random(f"order {seed}")
    tally.cases += 1
    root, is_ordered = _ordered(rng, case.captured)
    query = Query("", apply_rules(root))
    answer = answer_plan(query)
    try:
        once = compile_answer(answer)
    except BlockedError:
        tally.blocked += 1
        return
    wanted = _sparks(spark, case, root)
    result = {"one run": _by_run(answer, once, case), "kept": _by_state(query, answer, case)}
    for way, table in result.items():
        if table is None:
            continue
        if isinstance(table, ImpctlError):
            tally.both_failed += wanted is None
            tally.engine_failed += wanted is not None
            continue
        if wanted is None:
            tally.spark_failed += 1
            tally.unnoticed.append(seed)
            continue
        tally.run += way == "one run"
        tally.kept += way == "kept"
        tally.ordered += is_ordered
        tally.rows += len(table)
        _compare(table, wanted, root, case, f"seed {seed}, {way}", is_ordered, tally)


def _ordered(rng: Random, plan: Plan) -> tuple[Plan, bool]:
    """The plan as it is, or brought in an order in which only equal rows tie, and cut."""
    attributes = list(attributes_of(plan))
    kinds = {attribute.type.kind for attribute in attributes if attribute.type is not None}
    if not attributes or Kind.NULL in kinds or rng.random() < 0.4:
        return plan, False
    rng.shuffle(attributes)
    order = tuple(
        SortKey(attribute.ref(), rng.random() < 0.5, rng.random() < 0.5) for attribute in attributes
    )
    if rng.random() < 0.4:
        return Sort(plan, order), True
    return TopK(plan, order, rng.choice((0, 1, 3, 50)), rng.choice((0, 0, 1))), True


def _sparks(spark: Any, case: Case, root: Plan) -> pa.Table | None:
    """What Spark answers over the tables after the batch; None where it fails."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    views = {scan.access: f"{scan.table}1" for scan in scans_of(root)}
    rendered = render_plan(root, views)
    columns = ", ".join(f"`{rendered.names[a.id]}`" for a in attributes_of(root)) or "1"
    try:
        return spark.sql(f"WITH {_tables(case)} SELECT {columns} FROM ({rendered.sql})").toArrow()
    except (PySparkException, Py4JError):
        return None


def _by_run(answer: AnswerPlan, compiled: Compiled, case: Case) -> pa.Table | ImpctlError:
    try:
        compiled.circuit.start()
        for name in sorted({source.table for source in compiled.sources}):
            rows = _arrow(name, case.after[name])
            compiled.circuit.step(
                *(s.came(rows) if s.table == name else None for s in compiled.sources)
            )
        assert compiled.kept is not None
        return answer_of_rows(answer.ending, compiled.kept.whole(), "UTC")
    except ImpctlError as error:
        return error


def _by_state(query: Query, answer: AnswerPlan, case: Case) -> pa.Table | ImpctlError | None:
    """From the rows kept beside a sketch over the batch; None where there is no such."""
    verdict = check_safety(query, case.sketched, case.facts)
    if not verdict.safe:
        return None
    judged = carried(verdict, replace(query, root=answer.kept), case.sketched)
    try:
        compiled = answering_way(answer, judged, case.partitions).compiled
    except BlockedError:
        return None
    assert compiled is not None
    assert compiled.kept is not None
    read = sorted(set(compiled.tables))
    changes = {
        name: TableChange(
            _arrow(name, [row for row, _ in case.changes[name]]),
            np.array([weight for _, weight in case.changes[name]], dtype=np.int64),
        )
        for name in read
        if case.changes[name]
    }
    try:
        session = MaintainedQuery(compiled)
        session.load((name, _arrow(name, case.before[name])) for name in read)
        session.step(changes, lambda source, keys: [_arrow(source.table, case.after[source.table])])
        return answer_of_rows(answer.ending, compiled.kept.whole(), "UTC")
    except ImpctlError as error:
        return error


def _compare(
    result: pa.Table,
    wanted: pa.Table,
    root: Plan,
    case: Case,
    label: str,
    is_ordered: bool,
    tally: AnswerTally,
) -> None:
    if attributes_of(root):
        types = [[field.type for field in table.schema] for table in (result, wanted)]
        if types[0] != types[1]:
            raise WrongAnswerError(f"{label}: types {types[0]}, not {types[1]}")
        mine, theirs = _listed(result), _listed(wanted)
    else:
        mine, theirs = [()] * len(result), [()] * len(wanted)
    if not is_ordered:
        mine, theirs = sorted(mine, key=repr), sorted(theirs, key=repr)
    if len(mine) == len(theirs) and all(map(_same, mine, theirs)):
        return
    plain = Counter(_plain(row, root) for row in _values(result))
    if _is_an_answer(plain, root, case.after, Random(label), _TIES):
        tally.tied += 1
        return
    raise WrongAnswerError(f"{label}: {mine}, not {theirs}: {root}")


def _values(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _listed(table: pa.Table) -> list[tuple[object, ...]]:
    """Rows whose doubles are told to nine digits where they are only sorted by."""
    return [tuple(_double(v) if isinstance(v, float) else v for v in row) for row in _values(table)]


def _same(mine: tuple[object, ...], theirs: tuple[object, ...]) -> bool:
    return all(
        math.isclose(a, b, rel_tol=_NEAR, abs_tol=_NEAR)
        if isinstance(a, float) and isinstance(b, float)
        else a == b
        for a, b in zip(mine, theirs, strict=True)
    )
