"""One trial of the safety test: with an accepted sketch, the query's result is equal."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import DOUBLE, STRING, Schema
from impctl.plan.lineage import is_sketched_for_answer
from impctl.plan.nodes import Fixpoint, Plan, Query, Scan
from impctl.plan.recursion import keyed_rows
from impctl.safety.direction import Refusal
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.failures import Sizes, part_failure
from impctl.safety.judge import Verdict, check_safety
from impctl.types import AccessId, ColumnName
from tests.plan import random_plans
from tests.support.reference_plan import (
    Annotated,
    ReferenceFailure,
    Tables,
    Tuple,
    Value,
    annotate,
    bag,
    evaluate,
)

_TRIES = 2000


class TieBreaks:
    """Orders rows at random, and remembers the order."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._positions: dict[object, int] = {}

    def at_random(self, rows: list[Tuple]) -> None:
        """Shuffle the rows in place."""
        self._rng.shuffle(rows)
        self._positions.update((_key(row), position) for position, row in enumerate(rows))

    def as_before(self, rows: list[Tuple]) -> None:
        """Put known rows first in their earlier order, then the others at random."""
        self._rng.shuffle(rows)
        rows.sort(key=lambda row: self._positions.get(_key(row), len(self._positions)))


def _key(row: Tuple) -> object:
    """Identifies a row by its columns and its lineage."""
    return frozenset(row.values), row.lineage


def is_an_answer(result: object, root: Plan, tables: Tables, ties: TieBreaks) -> bool:
    """Whether some order of ties gives this result over the whole tables."""
    if any(bag(evaluate(root, tables, None, ties.as_before)) == result for _ in range(20)):
        return True
    return any(bag(evaluate(root, tables, None, ties.at_random)) == result for _ in range(_TRIES))


Sketches = Mapping[AccessId, Collection[int]]


def keyed_positions(root: Plan, verdict: Verdict) -> frozenset[int]:
    """The positions of keyed fixpoints."""
    nodes = tuple(root.walk())
    return frozenset(
        position for position in verdict.key_columns if isinstance(nodes[position], Fixpoint)
    )


def evened(root: Plan, verdict: Verdict, sketches: Sketches) -> dict[AccessId, set[int]]:
    """The sketches, merged over the accesses of each keyed fixpoint."""
    result = {access: set(ranges) for access, ranges in sketches.items()}
    for group in keyed_rows(root, verdict.key_columns).values():
        merged = set[int]().union(*(result[access] for access in group))
        result |= {access: set(merged) for access in group}
    return result


def tries(
    root: Plan, verdict: Verdict, sketches: Sketches, widened: Callable[[Sketches], Sketches]
) -> Iterator[dict[AccessId, set[int]]]:
    """These sketches and two wider ones, in the form that a query can use."""
    yield evened(root, verdict, sketches)
    for _ in range(2):
        yield evened(root, verdict, widened(sketches))


def without_keyed(root: Plan, verdict: Verdict, annotated: Annotated) -> Annotated:
    """The rows with what barriers need, but without all rows of fixpoints that are keyed or
    sketched for the answer."""
    nodes = enumerate(root.walk())
    others = {
        position
        for position, node in nodes
        if isinstance(node, Fixpoint) and is_sketched_for_answer(node)
    }
    others |= keyed_positions(root, verdict)
    kept = {
        position: rows for position, rows in annotated.first_rows.items() if position not in others
    }
    return replace(annotated, first_rows=kept)


TABLES = {**random_plans.CATALOG, "w": random_plans.WIDE_TABLE, "big": random_plans.BIG_TABLE}
"""The tables of trials. Only some makers read `w` and `big`."""

Boundaries = tuple[Value, ...]
Partitions = Mapping[AccessId, tuple[ColumnName, Boundaries]]
Kept = Callable[[Plan, "Trial", Verdict], Plan]


def fragment_of(value: Value, boundaries: Boundaries) -> int:
    """The range by definition: the number of boundaries <= the value; NULL is separate."""
    if value is None:
        return len(boundaries) + 1
    if isinstance(value, float) and math.isnan(value):
        return len(boundaries)
    return bisect_right(boundaries, value)  # type: ignore[type-var]  # one column, one type


def accurate_sketches(
    annotated: Annotated,
    root: Plan,
    tables: Tables,
    partitions: Partitions,
    *,
    barriers: bool = True,
) -> dict[AccessId, set[int]]:
    """Exactly the ranges of the provenance; without `barriers`, only those of the lineage."""
    lineage = annotated.lineage
    if barriers:
        lineage = lineage.union(*annotated.first_rows.values())
    names = {scan.access: scan.table for scan in root.scans}
    sketches: dict[AccessId, set[int]] = {access: set() for access in partitions}
    for access, index in lineage:
        if access in partitions:
            column, boundaries = partitions[access]
            sketches[access].add(fragment_of(tables[names[access]][index][column], boundaries))
    return sketches


def instances_of(
    root: Plan, tables: Tables, partitions: Partitions, sketches: Sketches
) -> dict[AccessId, list[int]]:
    """The rows that each sketched access reads."""
    result = {}
    for scan in root.scans:
        if scan.access in partitions:
            column, boundaries = partitions[scan.access]
            result[scan.access] = [
                index
                for index, row in enumerate(tables[scan.table])
                if fragment_of(row[column], boundaries) in sketches[scan.access]
            ]
    return result


class Trial(Struct, frozen=True):
    """Everything random about one trial."""

    root: Plan
    tables: Tables
    partitions: Partitions
    facts: tuple[Fact, ...]

    @property
    def sketched(self) -> dict[AccessId, ColumnName]:
        return {access: column for access, (column, _) in self.partitions.items()}

    def columns(
        self, root: Plan, catalog: Mapping[str, Schema] = random_plans.CATALOG
    ) -> dict[AccessId, Any]:
        """The sketched columns of a plan with some of these accesses."""
        tables = {scan.access: scan.table for scan in root.scans}
        names = {access: name for access, name in self.sketched.items() if access in tables}
        return {access: catalog[tables[access]].find(name) for access, name in names.items()}


def make_trial(seed: int) -> Trial:
    """The trial of a seed. Four consecutive seeds share the plan and differ otherwise."""
    root, focused = _plan(seed // 4)
    rng = Random(seed)
    tables = {name: _rows(rng, name, few_groups=focused) for name in random_plans.CATALOG}
    partitions = random_partitions(rng, root)
    facts = _facts(rng, tables)
    return Trial(root, tables, partitions, tuple(_checked(Random(f"checks {seed}"), facts, tables)))


@lru_cache(maxsize=8)
def _plan(seed: int) -> tuple[Plan, bool]:
    """A plan, and whether it is a focused one; cached for the neighboring seeds."""
    rng = Random(seed)
    focused = rng.random() < 0.7
    return (
        random_plans.FocusedMaker(rng) if focused else random_plans.PlanMaker(rng)
    ).plan(), focused


def _rows(rng: Random, table: str, *, few_groups: bool) -> list[dict[str, Value]]:
    pools: dict[str, Sequence[Value]] = {}
    for column in TABLES[table]:
        mood = rng.randrange(4)
        if column.type == STRING:
            pool: list[Value] = ["a", "b", "ab"]
        elif column.type == DOUBLE:
            pool = [-1.5, -0.0, 0.0, 0.5, 2.0, 3.5]
            pool += [math.nan] if mood < 2 and rng.random() < 0.5 else []
            pool += [math.inf] if rng.random() < 0.1 else []
            pool += [-math.inf] if rng.random() < 0.1 else []
        elif column.type == random_plans.MONEY:
            pool = [Decimal(x) for x in ("-1.5", "0.0", "0.5", "2.5", "3.0")]
        elif column.type in (random_plans.WIDE, random_plans.LONG_SCALED):
            pool = list(random_plans.WIDE_VALUES[column.type])
        else:
            pool = [-2, -1, 0, 1, 1, 2, 3]
        if mood == 0:
            pool = [v for v in pool if isinstance(v, str) or not v < 0]  # type: ignore[operator]
        if mood == 1:
            pool = [v for v in pool if isinstance(v, str) or not v > 0]  # type: ignore[operator]
        if rng.random() < 0.5:
            pool = [*pool, None]
        pools[column.name] = pool
    if few_groups:
        pools[TABLES[table].names[0]] = (0, 0, 1) if rng.random() < 0.8 else (0, 1, None)
    count = rng.choice((2, 3, 4, 5, 6, 7))
    rows = [{name: rng.choice(pool) for name, pool in pools.items()} for _ in range(count)]
    if rng.random() < 0.3:
        rows.append(dict(rng.choice(rows)))
    return rows


def random_partitions(
    rng: Random, root: Plan, share: float = 0.75, *, alike: bool = False
) -> dict[AccessId, tuple[ColumnName, Boundaries]]:
    """Partitions of most accesses. With `alike`, a column has the same ranges for all accesses."""
    scans = root.scans
    partitions = {}
    shared: dict[tuple[str, str], Boundaries] = {}
    for scan in [scan for scan in scans if rng.random() < share] or [rng.choice(scans)]:
        column, boundaries = random_partition(rng, scan)
        first = shared.setdefault((scan.table, column), boundaries)
        partitions[scan.access] = column, first if alike else boundaries
    return partitions


def random_partition(rng: Random, scan: Scan) -> tuple[ColumnName, Boundaries]:
    column = rng.choice(list(TABLES[scan.table]))
    if column.type == STRING:
        values: list[Value] = ["a", "ab", "b"]
    elif column.type == random_plans.MONEY:
        values = [Decimal(x) for x in ("0.0", "0.5", "2.0")]
    elif column.type in (random_plans.WIDE, random_plans.LONG_SCALED):
        values = sorted(random_plans.WIDE_VALUES[column.type])
    elif scan.table == "big" and column.name in ("b", "m"):
        values = sorted(random_plans.BIG_VALUES[column.type])
    elif column.type == DOUBLE:
        values = [-1.0, 0.0, 0.5, 3.0]
    else:
        values = [-1, 0, 1, 2, 3]
    chosen = rng.sample(values, rng.randint(1, len(values)))
    return column.name, tuple(sorted(chosen))  # type: ignore[type-var]  # one column, one type


def _facts(rng: Random, tables: Tables, share: float = 0.8) -> list[Fact]:
    """True facts, some of them withheld."""
    result = []
    for table, rows in tables.items():
        for column in TABLES[table]:
            for kind, source in _true_facts([row[column.name] for row in rows]):
                if rng.random() < share:
                    result.append(Fact(table, column.name, kind, source))
    return result


def make_barrier_trial(seed: int) -> Trial:
    """A plan with a barrier whose order mostly depends on a sign, mostly known by a CHECK."""
    rng = Random(f"barrier {seed}")
    root = random_plans.BarrierMaker(rng).plan()
    tables = {name: _few_groups(rng, name) for name in random_plans.CATALOG}
    partitions = random_partitions(rng, root, 0.8)
    facts = _facts(rng, tables, 0.9)
    return Trial(root, tables, partitions, tuple(_checked(rng, facts, tables, 0.85)))


def make_failing_trial(seed: int) -> Trial:
    """A plan with steps that may fail over a part of a group."""
    rng = Random(f"failing {seed}")
    catalog = {**random_plans.CATALOG, "big": random_plans.BIG_TABLE}
    root = random_plans.FailingMaker(
        rng, drawn=("t", "t", "u", "big", "big"), catalog=catalog
    ).plan()
    tables: dict[str, list[dict[str, Value]]] = {
        name: _few_groups(rng, name) for name in random_plans.CATALOG
    }
    tables["big"] = random_plans.big_rows(rng)
    for row in (row for rows in tables.values() for row in rows):
        for name in row.keys() - {"g", "h", "s"}:
            row[name] = _zero_of(row[name]) if rng.random() < 0.6 else row[name]
        row["q" if "q" in row else "p"] = rng.randrange(8)
    partitions = random_partitions(rng, root, 0.9)
    for scan in root.scans:
        if scan.access in partitions and rng.random() < 0.7:
            # Ranges across groups, so that a sketch contains some groups partly.
            partitions[scan.access] = TABLES[scan.table].names[1], tuple(range(1, 8))
    return Trial(root, tables, partitions, tuple(_checked(rng, _facts(rng, tables), tables)))


def _zero_of(value: Value) -> Value:
    return value if value is None else type(value)(0)


def _few_groups(rng: Random, table: str) -> list[dict[str, Value]]:
    """Rows of up to four groups; most columns have no negative values."""
    rows = _rows(rng, table, few_groups=True) + _rows(rng, table, few_groups=True)
    key = TABLES[table].names[0]
    positive = {c.name for c in TABLES[table] if c.type != STRING and rng.random() < 0.8}
    for row in rows:
        row[key] = rng.choice((0, 1, 2, 3))
        for name in positive:
            value = row[name]
            row[name] = value if value is None else abs(value)  # type: ignore[arg-type]  # numbers
    return rows


def _checked(rng: Random, facts: list[Fact], tables: Tables, share: float = 0.5) -> list[Fact]:
    """The facts; in this share of the trials most signs are known by a CHECK.

    A CHECK and statistics prove the same facts in different ways, so both are needed. `x >= 0`
    allows NaN; `x <= 0` is not used for a column with NaN.
    """
    signs = {FactKind.NONNEGATIVE, FactKind.NONPOSITIVE}
    if rng.random() > share:
        return facts
    return [
        replace(fact, source=FactSource.CONSTRAINT)
        if fact.kind in signs and not _hides_nan(fact, tables) and rng.random() < 0.8
        else fact
        for fact in facts
    ]


def _hides_nan(fact: Fact, tables: Tables) -> bool:
    values = [row[fact.column] for row in tables[fact.table]]
    has_nan = any(isinstance(value, float) and math.isnan(value) for value in values)
    return fact.kind is FactKind.NONPOSITIVE and has_nan


def _true_facts(values: Sequence[Value]) -> list[tuple[FactKind, FactSource]]:
    known = [value for value in values if value is not None]
    clean = [v for v in known if not (isinstance(v, float) and math.isnan(v))]
    result = []
    if len(known) == len(values):
        result.append((FactKind.NOT_NULL, FactSource.STATISTICS))
    if len(clean) == len(known):
        result.append((FactKind.NAN_FREE, FactSource.STATISTICS))
    if any(isinstance(value, str) for value in known):
        return result
    if all(value >= 0 for value in clean):  # type: ignore[operator]  # numbers
        result.append((FactKind.NONNEGATIVE, FactSource.STATISTICS))
    if all(value <= 0 for value in clean):  # type: ignore[operator]  # numbers
        # Statistics do not see NaN, so this may be true of a column that holds NaN.
        result.append((FactKind.NONPOSITIVE, FactSource.STATISTICS))
        if len(clean) == len(known):
            result.append((FactKind.NONPOSITIVE, FactSource.CONSTRAINT))
    return result


class Tally(Struct, dict=True):
    """Counts of a run of trials."""

    trials: int = 0
    accepted: int = 0
    compared: int = 0
    tied: int = 0
    failed: int = 0
    failed_in_part: int = 0
    """Queries that failed only with the sketch, as predicted."""
    by_status: dict[str, int] | None = None


class Violation(AssertionError):
    """An accepted sketch changed the answer."""


def run_trial(
    seed: int,
    tally: Tally,
    *,
    rewrite: Callable[[Plan], Plan] = lambda root: root,
    make: Callable[[int], Trial] = make_trial,
    kept: Kept | None = None,
) -> None:
    """Judge and try one seed; Violation if an accepted sketch changes the answer.

    `kept` returns the plan whose lineage the sketch covers, if it is not the query's.
    """
    trial = make(seed)
    rng = Random(seed + 1)
    root = rewrite(trial.root)
    tally.trials += 1
    verdict = check_safety(Query("", root), trial.sketched, trial.facts)
    if not verdict.safe:
        return
    _check_assumptions(root, trial, verdict)
    tally.accepted += 1
    if tally.by_status is not None:
        tally.by_status[verdict.status] = tally.by_status.get(verdict.status, 0) + 1
    shuffled = rng.random() < 0.5
    order = TieBreaks(rng).at_random if shuffled else None
    try:
        match = annotate(root, trial.tables, None, order)
        answers = [bag(row for row, _ in match.rows)]
        if kept is not None:
            match = annotate(kept(root, trial, verdict), trial.tables, None, order)
    except ReferenceFailure:
        tally.failed += 1
        return
    match = without_keyed(root, verdict, match)
    partitions = trial.partitions
    sketches = accurate_sketches(match, root, trial.tables, partitions)
    for tried in tries(root, verdict, sketches, partial(_widened, rng, partitions=partitions)):
        instances = instances_of(root, trial.tables, partitions, tried)
        ties = TieBreaks(rng)
        order = ties.at_random if shuffled else None
        try:
            result = bag(evaluate(root, trial.tables, instances, order))
        except ReferenceFailure as failure:
            if not shuffled and foretold_failure(root, trial) is None:
                raise Violation(f"seed {seed}, sketch {tried}: {failure}") from failure
            tally.failed_in_part += 1
            continue
        tally.compared += 1
        if result in answers:
            continue
        if shuffled and verdict.ties is not None:
            tally.tied += 1
            if is_an_answer(result, root, trial.tables, ties):
                continue
        raise Violation(f"seed {seed}, sketch {tried}: {result} instead of {answers[0]}")


def foretold_failure(root: Plan, trial: Trial) -> Refusal | None:
    """What may fail over part of the rows, given true facts, row counts and bounds."""
    rows, bounds = {}, {}
    for scan in root.scans:
        rows[scan.access] = len(trial.tables[scan.table])
        for attribute in scan.attributes:
            values = [row[attribute.name] for row in trial.tables[scan.table]]
            known = [Fraction(v) for v in values if isinstance(v, int | Decimal)]
            if known and not any(isinstance(v, float) for v in values):
                bounds[attribute.id] = min(known), max(known)
    return part_failure(Query("", root), trial.sketched, trial.facts, Sizes(rows, bounds))


def check_keys(root: Plan, trial: Trial, verdict: Verdict) -> int:
    """Check that every group's rows are in the range of its key. Returns the number of groups."""
    nodes = list(root.walk())
    checked = 0
    keyed = [(root, {a: min(columns) for a, columns in verdict.keyed.items()})]
    keyed += [(nodes[position], dict(result)) for position, result in verdict.key_columns.items()]
    tables_of = {scan.access: scan.table for scan in root.scans}
    for node, columns in keyed:
        names = [attribute.id for attribute in node.attributes]
        for row, lineage in annotate(node, trial.tables).rows:
            for access, column in columns.items():
                attribute, boundaries = trial.partitions[access]
                expected = fragment_of(row[names.index(column)], boundaries)
                checked += 1
                for index in (index for origin, index in lineage if origin == access):
                    value = trial.tables[tables_of[access]][index][attribute]
                    if fragment_of(value, boundaries) != expected:
                        raise Violation(f"key {column} of {access} is not its fragment")
    return checked


def check_touch(seed: int, tally: Tally) -> None:
    """Touch maintenance: adding the ranges of all changed rows keeps the sketch safe."""
    trial = make_trial(seed)
    verdict = check_safety(Query("", trial.root), trial.sketched, trial.facts)
    tally.trials += 1
    if not verdict.root_keyed or verdict.ties is not None:
        return
    (access,) = trial.partitions
    table = next(scan.table for scan in trial.root.scans if scan.access == access)
    column, boundaries = trial.partitions[access]
    rows, changed = _changed(Random(seed + 2), trial.tables[table])
    after = {**trial.tables, table: rows}
    try:
        before = annotate(trial.root, trial.tables)
        sketches = accurate_sketches(before, trial.root, trial.tables, trial.partitions)
        sketches[access] |= {fragment_of(row[column], boundaries) for row in changed}
        instances = instances_of(trial.root, after, trial.partitions, sketches)
        whole = bag(evaluate(trial.root, after))
        tally.compared += 1
        if bag(evaluate(trial.root, after, instances)) != whole:
            raise Violation(f"seed {seed}: touch lost something")
    except ReferenceFailure:
        tally.failed += 1


def _changed(
    rng: Random, rows: Sequence[Mapping[ColumnName, Value]]
) -> tuple[list[Mapping[ColumnName, Value]], list[Mapping[ColumnName, Value]]]:
    """The table after a few insertions and deletions, and the rows inserted or deleted."""
    after, changed = list(rows), []
    for _ in range(rng.randint(1, 3)):
        if len(after) > 1 and rng.random() < 0.5:
            changed.append(after.pop(rng.randrange(len(after))))
            continue
        new = {name: rng.choice(rows)[name] for name in rows[0]}
        after.append(new)
        changed.append(new)
    return after, changed


def _check_assumptions(root: Plan, trial: Trial, verdict: Verdict) -> None:
    """Check that a verdict's assumptions are sufficient."""
    if len(verdict.assumptions) == 0:
        return
    sure = [fact for fact in trial.facts if fact.source is not FactSource.STATISTICS]
    second = check_safety(Query("", root), trial.sketched, [*sure, *verdict.assumptions])
    assert second.safe
    assert set(second.assumptions) == set(verdict.assumptions)


def _widened(rng: Random, sketches: Sketches, partitions: Partitions) -> dict[AccessId, set[int]]:
    return {
        access: set(ranges)
        | {f for f in range(len(partitions[access][1]) + 2) if rng.random() < 0.4}
        for access, ranges in sketches.items()
    }
