"""Random cases with Spark as the oracle: a plan, tiny tables, changes, other constants."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, localcontext
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.compile.answers import answer_of_rows
from impctl.compile.compile import (
    Dataflow,
    compile_answer,
    plan_maintenance,
    plan_maintenance_of_answer,
)
from impctl.compile.flows import BlockedError
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import Kind
from impctl.errors import ImpctlError
from impctl.plan.nodes import Plan, Query, Sort, SortKey, TopK
from impctl.reuse.verdict import check_reuse
from impctl.rules.finalize import AnswerPlan, answer_plan
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety.facts import Fact
from impctl.safety.judge import Verdict, carried_verdict, check_safety, check_with_core
from impctl.sketch.sketch import BoundaryValue, RangePartition, RangeSet, range_filter
from impctl.spark.expressions import DIALECT
from impctl.spark.predicates import filter_condition
from impctl.spark.render import render_plan
from impctl.types import AccessId
from tests.plan.random_plans import wide_plan
from tests.plan.trials import (
    TABLES,
    TieBreaks,
    _checked,
    _facts,
    _few_groups,
    _rows,
    random_partition,
)
from tests.reuse.trials import with_other_constants
from tests.support.carried_queries import arrow_rows
from tests.support.reference_plan import ReferenceFailure, Tables, Value, evaluate

Rows = list[dict[str, Value]]
Sketches = Mapping[AccessId, RangeSet]

_TIES = 300


class Case(Struct, frozen=True):
    """Everything random about one case; `facts` are true before the batch and after it."""

    captured: Plan
    variant: Plan
    before: dict[str, Rows]
    changes: dict[str, list[tuple[dict[str, Value], int]]]
    after: dict[str, Rows]
    partitions: dict[AccessId, RangePartition]
    facts: tuple[Fact, ...]

    @property
    def sketched(self) -> dict[AccessId, str]:
        return {access: result.attribute for access, result in self.partitions.items()}


class Request(Struct, frozen=True):
    """A plan to run over the tables before or after the batch, and its sketches."""

    plan: Plan
    is_after: bool
    sketches: Sketches


class SparkTally(Struct, dict=True):
    """The outcome of a run of cases; each case counts in one of the first five."""

    cases: int = 0
    refused: int = 0
    unmaintained: int = 0
    failed: int = 0
    judged: int = 0
    compared: int = 0
    reused: int = 0
    checked: int = 0
    barriers: int = 0
    tied: int = 0
    undecided: list[int] = field(default_factory=list)
    """Cases with several correct results, where the search did not find the given one."""


class WrongAnswerError(AssertionError):
    """A sketch changed Spark's result."""


def make_case(seed: int) -> Case:
    """The case of a seed."""
    rng = Random(f"spark {seed}")
    root = wide_plan(rng)
    captured = apply_rules(root)
    variant = apply_rules(with_other_constants(rng, root, narrower=rng.random() < 0.7))
    has_few_groups = rng.random() < 0.7
    before = {
        name: _few_groups(rng, name)
        if has_few_groups and rng.random() < 0.5
        else _rows(rng, name, few_groups=has_few_groups)
        for name in TABLES
    }
    changes = {name: _changes(rng, name, rows) for name, rows in before.items()}
    after = {name: _changed(rows, changes[name]) for name, rows in before.items()}
    scans = root.scans
    sketched = [scan for scan in scans if rng.random() < 0.75] or [rng.choice(scans)]
    partitions = {}
    for scan in sketched:
        name, values = random_partition(rng, scan)
        column = next(column for column in TABLES[scan.table] if column.name == name)
        boundaries = tuple(_canonical(value, column.type.scale) for value in values)
        partitions[scan.access] = RangePartition(scan.table, name, column.type, boundaries)
    all_rows = {name: before[name] + after[name] for name in TABLES}
    facts = _checked(rng, _facts(rng, all_rows), all_rows)
    return Case(captured, variant, before, changes, after, partitions, tuple(facts))


def _canonical(value: Value, scale: int) -> BoundaryValue:
    if isinstance(value, Decimal):
        with localcontext(prec=60):  # its usual 28 digits would round
            return int(value.scaleb(scale))
    assert isinstance(value, int | float | str)
    return value


def _changes(rng: Random, table: str, rows: Rows) -> list[tuple[dict[str, Value], int]]:
    """Deleted and inserted rows, sometimes a deleted one inserted again, sometimes none."""
    if rng.random() < 0.25:
        return []
    deleted = rng.sample(rows, min(len(rows), rng.randint(0, 3)))
    inserted = rng.sample(_rows(rng, table, few_groups=True), 2) if rng.random() < 0.8 else []
    reinserted = [row for row in deleted if rng.random() < 0.2]
    changes = [(row, -1) for row in deleted] + [(row, 1) for row in (*inserted, *reinserted)]
    rng.shuffle(changes)
    return changes


def _changed(rows: Rows, changes: Sequence[tuple[dict[str, Value], int]]) -> Rows:
    rows_after = list(rows)
    for row, weight in changes:
        if weight < 0:
            rows_after.pop(next(index for index, other in enumerate(rows_after) if other is row))
    return rows_after + [row for row, weight in changes if weight > 0]


def run_case(spark: Any, seed: int, tally: SparkTally) -> None:
    """Judge, load, maintain and compare one case; WrongAnswerError if a sketch loses rows."""
    case = make_case(seed)
    tally.cases += 1
    query = Query("", case.captured)
    core = core_of(case.captured)
    verdict = check_with_core(query, core, case.sketched, case.facts)
    if not verdict.safe:
        tally.refused += 1
        return
    carried = carried_verdict(verdict, replace(query, root=core), case.sketched)
    maintenance = plan_maintenance(core, verdict, carried, case.partitions)
    if maintenance.compiled is None:
        tally.unmaintained += 1
        return
    try:
        first, second = _maintained(MaintainedQuery(maintenance.compiled), case)
    except ImpctlError:
        tally.failed += 1
        return
    tally.checked += any(fact in carried.facts for fact in case.facts)
    tally.barriers += bool(carried.barrier_positions)
    requests = [Request(case.captured, False, first), Request(case.captured, True, second)]
    reuse = check_reuse(Query("", case.variant), query, case.sketched, case.facts)
    if case.variant != case.captured and reuse.allowed:
        tally.reused += 1
        remapped = {reuse.accesses[access]: result for access, result in second.items()}
        requests.append(Request(case.variant, True, remapped))
    _compare(spark, seed, case, requests, verdict, tally)


def _maintained(session: MaintainedQuery, case: Case) -> tuple[Sketches, Sketches]:
    """The sketches before and after the batch."""
    read = {scan.table for scan in case.captured.scans}
    session.load((name, _arrow(name, case.before[name])) for name in sorted(read))
    first = session.ranges()
    _step(session, case, read)
    return first, session.ranges()


def _step(session: MaintainedQuery, case: Case, read: Iterable[str]) -> None:
    """Process the batch."""
    changes = {}
    for name in sorted(read):
        if case.changes[name]:
            rows, weights = zip(*case.changes[name], strict=True)
            changes[name] = TableChange(_arrow(name, [*rows]), np.array(weights, dtype=np.int64))
    session.step(changes, lambda source, keys: [_arrow(source.table, case.after[source.table])])


def _arrow(table: str, rows: Rows) -> pa.Table:
    return arrow_rows(TABLES[table], rows)


def _compare(
    spark: Any,
    seed: int,
    case: Case,
    requests: Sequence[Request],
    verdict: Verdict,
    tally: SparkTally,
) -> None:
    answers = [
        [
            _spark_result(spark, case, part, Random(seed))
            for part in (replace(one, sketches={}), one)
        ]
        for one in requests
    ]
    if all(expected is None for expected, _ in answers):
        tally.failed += 1
        return
    tally.judged += 1
    for index, (one, (expected, result)) in enumerate(zip(requests, answers, strict=True)):
        if expected is None:
            continue
        tally.compared += 1
        if result is not None and _are_same(result, expected, one.plan):
            continue
        if result is not None and verdict.ties is not None:
            tally.tied += 1
            tables = case.after if one.is_after else case.before
            if not _is_an_answer(result, one.plan, tables, Random(seed)):
                tally.undecided.append(seed)
            continue
        raise WrongAnswerError(
            f"seed {seed}, part {index}, {one.sketches}: {result}, not {expected}"
        )


def _spark_result(spark: Any, case: Case, request: Request, rng: Random) -> pa.Table | None:
    """Spark's result with sketched accesses filtered by their predicates; None if it fails."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    plan, views, entries = request.plan, {}, [_tables(case)]
    for index, scan in enumerate(plan.scans):
        views[scan.access] = f"{scan.table}{int(request.is_after)}"
        result = request.sketches.get(scan.access)
        if result is not None:
            chosen = range_filter(
                result, case.partitions[scan.access], limit=rng.choice((1, 2, 32))
            )
            condition = filter_condition(chosen).sql(DIALECT)
            entries.append(f"cut{index} AS (SELECT * FROM {views[scan.access]} WHERE {condition})")
            views[scan.access] = f"cut{index}"
    sql = f"WITH {', '.join(entries)} SELECT * FROM ({render_plan(plan, views)})"
    try:
        return spark.sql(sql).toArrow()
    except (PySparkException, Py4JError):
        return None


def _double(value: float) -> object:
    return "NaN" if value != value else float(f"{value:.9g}") + 0.0


def _tables(case: Case) -> str:
    """WITH entries of the tables that are read, before and after the batch."""
    read = sorted({scan.table for scan in case.captured.scans})
    return ", ".join(
        f"{name}{int(is_after)} AS ({_values(name, rows[name])})"
        for is_after, rows in ((False, case.before), (True, case.after))
        for name in read
    )


def _values(table: str, rows: Rows) -> str:
    columns = list(TABLES[table])
    names = ", ".join(column.name for column in columns)
    if not rows:
        nothing = ", ".join(f"CAST(NULL AS {c.type.spark_name}) {c.name}" for c in columns)
        return f"SELECT {nothing} WHERE false"
    cells = [
        ", ".join(_cell(row[column.name], column.type.spark_name) for column in columns)
        for row in rows
    ]
    return f"SELECT * FROM VALUES {', '.join(f'({cell})' for cell in cells)} AS v({names})"


def _cell(value: Value, kind: str) -> str:
    return f"CAST({'NULL' if value is None else repr(str(value))} AS {kind})"


def _is_an_answer(
    answer: pa.Table, plan: Plan, tables: Tables, rng: Random, tries: int = _TIES
) -> bool:
    """Whether some way of breaking ties gives this result over the full tables."""
    expected, ties = Counter(_plain(row, plan) for row in _listed(answer, plan)), TieBreaks(rng)
    try:
        alternatives = (evaluate(plan, tables, None, ties.at_random) for _ in range(tries))
        return any(Counter(_plain(row, plan) for row in rows) == expected for rows in alternatives)
    except ReferenceFailure:
        return False


def _plain(row: Sequence[Any], plan: Plan) -> tuple[object, ...]:
    """The row in a common form for Spark and the reference."""
    kinds = [attribute.type for attribute in plan.attributes]
    return tuple(
        None if value is None else _cast_text(value, kind)
        for value, kind in zip(row, kinds, strict=True)
    )


def _cast_text(value: Value, kind: Any) -> object:
    if isinstance(value, float):
        return _double(value)
    if isinstance(value, bool):
        return str(value).lower()
    if kind is not None and kind.kind is Kind.DECIMAL:
        return f"{Decimal(str(value)):.{kind.scale}f}"
    return str(value)


_NEAR = 1e-9
_WAYS_OF_TIES = 20_000
"""Ways of breaking ties that are tried before a result counts as wrong."""


class AnswerTally(Struct, dict=True):
    """The outcome of a run: `kept` with a sketch, `run` once, `ordered`, and failures."""

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
    """Cases where Spark fails, but the engine does not, because it computes less."""


class NotSparksAnswerError(AssertionError):
    """A result differs from Spark's."""


def run_answers(spark: Any, seed: int, tally: AnswerTally) -> None:
    """Compare one case; NotSparksAnswerError if the engine's result differs."""
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
    expected = _spark_result(spark, case, Request(root, True, {}), rng)
    result = {"one run": _by_run(answer, once, case), "kept": _by_state(query, answer, case)}
    for method, table in result.items():
        if table is None:
            continue
        if isinstance(table, ImpctlError):
            tally.both_failed += expected is None
            tally.engine_failed += expected is not None
            continue
        if expected is None:
            tally.spark_failed += 1
            tally.unnoticed.append(seed)
            continue
        tally.run += method == "one run"
        tally.kept += method == "kept"
        tally.ordered += is_ordered
        tally.rows += len(table)
        _compare_answers(table, expected, root, case, f"seed {seed}, {method}", is_ordered, tally)


def _ordered(rng: Random, plan: Plan) -> tuple[Plan, bool]:
    """The plan itself, or sorted so that only equal rows tie, possibly with a limit."""
    attributes = list(plan.attributes)
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


def _by_run(answer: AnswerPlan, compiled: Dataflow, case: Case) -> pa.Table | ImpctlError:
    try:
        compiled.circuit.start()
        for name in sorted({source.table for source in compiled.sources}):
            rows = _arrow(name, case.after[name])
            compiled.circuit.step(
                *(s.inserted(rows) if s.table == name else None for s in compiled.sources)
            )
        assert compiled.kept is not None
        return answer_of_rows(answer.ending, compiled.kept.whole(), "UTC")
    except ImpctlError as error:
        return error


def _by_state(query: Query, answer: AnswerPlan, case: Case) -> pa.Table | ImpctlError | None:
    """The result from materialized rows, maintained over the batch; None if there are none."""
    verdict = check_safety(query, case.sketched, case.facts)
    if not verdict.safe:
        return None
    judged = carried_verdict(verdict, replace(query, root=answer.kept), case.sketched)
    try:
        compiled = plan_maintenance_of_answer(answer, judged, case.partitions).compiled
    except BlockedError:
        return None
    assert compiled is not None
    assert compiled.kept is not None
    read = sorted(set(compiled.tables))
    try:
        session = MaintainedQuery(compiled)
        session.load((name, _arrow(name, case.before[name])) for name in read)
        _step(session, case, read)
        return answer_of_rows(answer.ending, compiled.kept.whole(), "UTC")
    except ImpctlError as error:
        return error


def _compare_answers(
    result: pa.Table,
    expected: pa.Table,
    root: Plan,
    case: Case,
    label: str,
    is_ordered: bool,
    tally: AnswerTally,
) -> None:
    if root.attributes:
        types = [[field.type for field in table.schema] for table in (result, expected)]
        if types[0] != types[1]:
            raise NotSparksAnswerError(f"{label}: types {types[0]}, not {types[1]}")
    if _are_same(result, expected, root, is_ordered=is_ordered):
        return
    if not _is_an_answer(result, root, case.after, Random(label), _WAYS_OF_TIES):
        raise NotSparksAnswerError(f"{label}: {result}, not {expected}: {root}")
    tally.tied += 1


def _are_same(
    result: pa.Table, expected: pa.Table, plan: Plan, *, is_ordered: bool = False
) -> bool:
    """Whether two results of the plan have the same rows, doubles within 1e-9."""
    ours, theirs = _listed(result, plan), _listed(expected, plan)
    if not is_ordered:
        ours, theirs = sorted(ours, key=repr), sorted(theirs, key=repr)
    return len(ours) == len(theirs) and all(map(_same, ours, theirs))


def _listed(table: pa.Table, plan: Plan) -> list[tuple[Any, ...]]:
    """The rows as tuples, empty if the plan has no columns. Doubles are rounded to the nine digits
    they are sorted by."""
    if not plan.attributes:
        return [()] * len(table)
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return [tuple(_double(v) if isinstance(v, float) else v for v in row) for row in rows]


def _same(ours: tuple[object, ...], theirs: tuple[object, ...]) -> bool:
    return all(
        math.isclose(a, b, rel_tol=_NEAR, abs_tol=_NEAR)
        if isinstance(a, float) and isinstance(b, float)
        else a == b
        for a, b in zip(ours, theirs, strict=True)
    )
