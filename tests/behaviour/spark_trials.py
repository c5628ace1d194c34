"""Random cases with Spark as the oracle: a plan, tiny tables, a batch of changes, other constants.

Law: the sketch is filled and carried over the batch by impctl's own circuit; Spark alone says what
the answers are, over whole tables and over the rows that the sketch's own predicate leaves. One
query asks Spark everything about a case, because asking is what costs.
Out of scope: statistics of files, the command line (`test_random_in_spark`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from impctl.compile.compile import choose_way
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import DOUBLE, Kind
from impctl.errors import ImpctlError
from impctl.plan.nodes import Plan, Query, attributes_of, scans_of
from impctl.reuse.verdict import check_reuse
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety.facts import Fact
from impctl.safety.judge import Verdict, carried, check_kept
from impctl.sketch.partition import BoundaryValue, RangePartition
from impctl.sketch.sketch import FragmentSet, range_filter
from impctl.spark.expressions import DIALECT
from impctl.spark.predicates import filter_condition
from impctl.spark.render import render_plan
from impctl.types import AccessId
from tests.plan.reuse.reuse_trials import with_other_constants
from tests.plan.tie_breaks import TieBreaks
from tests.plan.trials import TABLES, _checked, _facts, _few_groups, _rows, random_partition
from tests.plan.wide_plans import wide_plan
from tests.support.arrow_rows import arrow_rows
from tests.support.reference_expr import ReferenceFailure, Value
from tests.support.reference_plan import Tables, evaluate

Rows = list[dict[str, Value]]
Sketches = Mapping[AccessId, FragmentSet]
Answer = Counter[tuple[object, ...]]

_TIES = 300


@dataclass(frozen=True)
class Case:
    """Everything random about one case; `facts` are true before the batch and after it."""

    captured: Plan
    asked: Plan
    before: dict[str, Rows]
    changes: dict[str, list[tuple[dict[str, Value], int]]]
    after: dict[str, Rows]
    partitions: dict[AccessId, RangePartition]
    facts: tuple[Fact, ...]

    @property
    def sketched(self) -> dict[AccessId, str]:
        return {access: result.attribute for access, result in self.partitions.items()}


@dataclass(frozen=True)
class Asked:
    """A plan to be answered over the tables before the batch or after it, and its sketches."""

    plan: Plan
    is_after: bool
    sketches: Sketches


@dataclass
class SparkTally:
    """What a run of cases came to; every case ends in one of the first five."""

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
    """Cases with several right answers, of which the search found no way to the one given."""


class WrongAnswerError(AssertionError):
    """A sketch that changed what Spark answers."""


def make_case(seed: int) -> Case:
    """The case of a seed."""
    rng = Random(f"spark {seed}")
    root = wide_plan(rng)
    captured = apply_rules(root)
    asked = apply_rules(with_other_constants(rng, root, narrower=rng.random() < 0.7))
    few = rng.random() < 0.7
    before = {
        name: _few_groups(rng, name)
        if few and rng.random() < 0.5
        else _rows(rng, name, few_groups=few)
        for name in TABLES
    }
    changes = {name: _changes(rng, name, rows) for name, rows in before.items()}
    after = {name: _changed(rows, changes[name]) for name, rows in before.items()}
    scans = scans_of(root)
    chosen = [scan for scan in scans if rng.random() < 0.75] or [rng.choice(scans)]
    partitions = {}
    for scan in chosen:
        name, values = random_partition(rng, scan)
        column = next(column for column in TABLES[scan.table] if column.name == name)
        boundaries = tuple(_canonical(value, column.type.scale) for value in values)
        partitions[scan.access] = RangePartition(scan.table, name, column.type, boundaries)
    ever = {name: before[name] + after[name] for name in TABLES}
    facts = _checked(rng, _facts(rng, ever), ever)
    return Case(captured, asked, before, changes, after, partitions, tuple(facts))


def _canonical(value: Value, scale: int) -> BoundaryValue:
    if isinstance(value, Decimal):
        with localcontext(prec=60):  # its usual 28 digits would round
            return int(value.scaleb(scale))
    assert isinstance(value, int | float | str)
    return value


def _changes(rng: Random, table: str, rows: Rows) -> list[tuple[dict[str, Value], int]]:
    """Deleted and inserted rows, a deleted one that comes back too; now and then none."""
    if rng.random() < 0.25:
        return []
    gone = rng.sample(rows, min(len(rows), rng.randint(0, 3)))
    came = rng.sample(_rows(rng, table, few_groups=True), 2) if rng.random() < 0.8 else []
    back = [row for row in gone if rng.random() < 0.2]
    changes = [(row, -1) for row in gone] + [(row, 1) for row in (*came, *back)]
    rng.shuffle(changes)
    return changes


def _changed(rows: Rows, changes: Sequence[tuple[dict[str, Value], int]]) -> Rows:
    left = list(rows)
    for row, weight in changes:
        if weight < 0:
            left.pop(next(at for at, other in enumerate(left) if other is row))
    return left + [row for row, weight in changes if weight > 0]


def run_case(spark: Any, seed: int, tally: SparkTally) -> None:
    """Judge, fill, carry and compare one case; WrongAnswerError where a sketch loses something."""
    case = make_case(seed)
    tally.cases += 1
    query = Query("", case.captured)
    core = core_of(case.captured)
    verdict = check_kept(query, core, case.sketched, case.facts)
    if not verdict.safe:
        tally.refused += 1
        return
    kept = carried(verdict, replace(query, root=core), case.sketched)
    way = choose_way(core, verdict, kept, case.partitions)
    if way.compiled is None:
        tally.unmaintained += 1
        return
    try:
        first, second = _maintained(MaintainedQuery(way.compiled), case)
    except ImpctlError:
        tally.failed += 1
        return
    tally.checked += any(fact in kept.facts for fact in case.facts)
    tally.barriers += bool(kept.barrier_positions)
    asked = [Asked(case.captured, False, first), Asked(case.captured, True, second)]
    reuse = check_reuse(Query("", case.asked), query, case.sketched, case.facts)
    if case.asked != case.captured and reuse.allowed:
        tally.reused += 1
        there = {reuse.accesses[access]: result for access, result in second.items()}
        asked.append(Asked(case.asked, True, there))
    _compare(spark, seed, case, asked, verdict, tally)


def _maintained(session: MaintainedQuery, case: Case) -> tuple[Sketches, Sketches]:
    """The sketches of the first rows, and those after the batch."""
    read = {scan.table for scan in scans_of(case.captured)}
    session.load((name, _arrow(name, case.before[name])) for name in sorted(read))
    first = session.fragments()
    changes = {
        name: TableChange(
            _arrow(name, [row for row, _ in case.changes[name]]),
            np.array([weight for _, weight in case.changes[name]], dtype=np.int64),
        )
        for name in sorted(read)
        if case.changes[name]
    }
    session.step(changes, lambda source, keys: [_arrow(source.table, case.after[source.table])])
    return first, session.fragments()


def _arrow(table: str, rows: Rows) -> pa.Table:
    return arrow_rows(TABLES[table], rows)


def _compare(
    spark: Any, seed: int, case: Case, asked: Sequence[Asked], verdict: Verdict, tally: SparkTally
) -> None:
    parts = [part for one in asked for part in (replace(one, sketches={}), one)]
    texts = [_text(part, case.partitions, Random(seed)) for part in parts]
    answers = _answers(spark, _tables(case), texts, [part.plan for part in parts])
    if all(answer is None for answer in answers[::2]):
        tally.failed += 1
        return
    tally.judged += 1
    for at, one in enumerate(asked):
        whole, result = answers[2 * at], answers[2 * at + 1]
        if whole is None:
            continue
        tally.compared += 1
        if result == whole:
            continue
        if result is not None and verdict.ties is not None:
            tally.tied += 1
            tables = case.after if one.is_after else case.before
            if not _is_an_answer(result, one.plan, tables, Random(seed)):
                tally.undecided.append(seed)
            continue
        raise WrongAnswerError(f"seed {seed}, part {at}, {one.sketches}: {result}, not {whole}")


def _answers(
    spark: Any, tables: str, texts: Sequence[str], plans: Sequence[Plan]
) -> list[Answer | None]:
    """What Spark says to each text, None where it fails; asked one by one only where some fails."""
    from pyspark.errors import PySparkException

    united = " UNION ALL ".join(f"SELECT {at} part, r FROM ({t})" for at, t in enumerate(texts))
    try:
        rows = spark.sql(f"WITH {tables} {united}").collect()
    except PySparkException:
        if len(texts) == 1:
            return [None]
        each = zip(texts, plans, strict=True)
        return [_answers(spark, tables, [text], [plan])[0] for text, plan in each]
    result: list[Answer | None] = [Counter() for _ in texts]
    for part, text in rows:
        answer = result[part]
        assert answer is not None
        answer[_row(json.loads(text), plans[part])] += 1
    return result


def _row(values: Sequence[str | None], plan: Plan) -> tuple[object, ...]:
    kinds = [attribute.type for attribute in attributes_of(plan)]
    return tuple(
        _double(float(value)) if kind == DOUBLE and value is not None else value
        for value, kind in zip(values, kinds, strict=False)
    )


def _double(value: float) -> object:
    return "NaN" if value != value else float(f"{value:.9g}") + 0.0


def _tables(case: Case) -> str:
    """The tables that are read, before the batch and after it, as the start of a WITH."""
    read = sorted({scan.table for scan in scans_of(case.captured)})
    return ", ".join(
        f"{name}{int(is_after)} AS ({_values(name, rows[name])})"
        for is_after, rows in ((False, case.before), (True, case.after))
        for name in read
    )


def _text(asked: Asked, partitions: Mapping[AccessId, RangePartition], rng: Random) -> str:
    """The plan as SQL, sketched accesses by their predicate, each row of the answer as JSON."""
    plan, views, parts = asked.plan, {}, []
    for at, scan in enumerate(scans_of(plan)):
        views[scan.access] = f"{scan.table}{int(asked.is_after)}"
        result = asked.sketches.get(scan.access)
        if result is not None:
            chosen = range_filter(result, partitions[scan.access], limit=rng.choice((1, 2, 32)))
            condition = filter_condition(chosen).sql(DIALECT)
            rows = f"SELECT * FROM {views[scan.access]} WHERE {condition}"
            views[scan.access] = f"sketched{at}"
            parts.append(f"sketched{at} AS ({rows})")
    rendered = render_plan(plan, views)
    columns = [f"CAST(`{rendered.names[a.id]}` AS STRING)" for a in attributes_of(plan)]
    row = f"to_json(array({', '.join(columns)}))" if columns else "'[]'"
    start = f"WITH {', '.join(parts)} " if parts else ""
    return f"{start}SELECT {row} r FROM ({rendered.sql})"


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
    answer: Answer, plan: Plan, tables: Tables, rng: Random, tries: int = _TIES
) -> bool:
    """Whether some way of breaking ties gives this answer over the whole tables."""
    ties = TieBreaks(rng)
    try:
        return any(
            Counter(_plain(row, plan) for row in evaluate(plan, tables, None, ties.at_random))
            == answer
            for _ in range(tries)
        )
    except ReferenceFailure:
        return False


def _plain(row: Sequence[Value], plan: Plan) -> tuple[object, ...]:
    """The row as `_row` reads it from Spark's text."""
    kinds = [attribute.type for attribute in attributes_of(plan)]
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
