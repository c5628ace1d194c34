"""Queries with one constant that moves, their sketches moved with it, and what they must come to.

Law: after every move, forth or back, with batches in the same step, the rows that carry each
fragment are those of a circuit that is filled anew with the constant of now; and the sketch has all
that the slow reference finds the answer to stem from.
Out of scope: which queries (`test_moved_above`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pyarrow as pa

from impctl.compile.buffers import Buffers
from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.flows import AsRecorded, Source
from impctl.compile.session import MaintainedQuery, Moving, TableChange, moved_above, untold
from impctl.data.schema import DOUBLE, INTEGER, Column, Schema
from impctl.data.vector import Vector
from impctl.errors import NotExactError
from impctl.plan.moved_conditions import moved_conditions
from impctl.plan.nodes import Plan, Query, scans_of
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety.judge import Verdict, carried, check_safety
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query
from impctl.types import AccessId, TableName
from tests.support.arrow_rows import arrow_rows
from tests.support.reference_expr import Value
from tests.support.reference_partners import ReferencePartners
from tests.support.reference_plan import annotate
from tests.support.restored_query import Stored, counts_of, restored

T = Schema((*(Column(name, INTEGER) for name in ("g", "day", "x")), Column("d", DOUBLE)))
CATALOG = {"t": T, "u": Schema((Column("g", INTEGER), Column("n", INTEGER)))}
SMALL, LARGE = (1, 2, 3, 4), (2, 4, 6, 8, 10)
ALL_KEPT = AsRecorded()
Rows = list[Mapping[str, Value]]


@dataclass(frozen=True)
class Planned:
    """A query as it is kept at one instant."""

    core: Plan
    verdict: Verdict
    partitions: Mapping[AccessId, RangePartition]

    def compiled(self, read: AsRecorded = ALL_KEPT, buffer: int | None = None) -> Compiled:
        return compile_plan(
            self.core,
            self.partitions,
            self.verdict.key_columns,
            read,
            barriers=self.verdict.barrier_positions,
            buffers=Buffers.of(buffer),
        )


@dataclass(frozen=True)
class Kept(Planned):
    """With the query itself, and what is said of all of it."""

    query: Query
    whole: Verdict


def unchanged(plan: Plan) -> Plan:
    return plan


@cache
def kept(sql: str, now: int, attribute: str, plan_for: Callable[[Plan], Plan] = unchanged) -> Kept:
    """`plan_for` makes the plan that is kept of the one after the rules."""
    query = parse_query(sql.format(now=now, early=now - 4), CATALOG)
    query = replace(query, root=plan_for(apply_rules(query.root)))
    sketched = {s.access: attribute for s in scans_of(query.root) if s.table == "t"}
    whole = check_safety(query, sketched, [])
    assert whole.safe, (sql, whole.reason)
    core = plan_for(core_of(query.root))
    boundaries = LARGE if attribute == "day" else SMALL
    partition = RangePartition("t", attribute, INTEGER, boundaries)
    verdict = carried(whole, replace(query, root=core), sketched)
    return Kept(core, verdict, dict.fromkeys(sketched, partition), query, whole)


def arrow(table: TableName, rows: Rows) -> pa.Table:
    return arrow_rows(CATALOG[table], rows)


def random_row(rng: random.Random, table: TableName) -> Mapping[str, Value]:
    """Days before and after all that the constant is; NULL everywhere."""

    def number(high: int) -> int | None:
        return None if rng.random() < 0.12 else rng.randrange(high)

    if table == "u":
        return {"g": number(6), "n": number(4)}
    sum_of = rng.choice((None, 0.1, 0.2, -0.3, 1e16, -1e16, 2.0, 4.0))
    return {"g": number(6), "day": number(12), "x": number(6), "d": sum_of}


@dataclass
class Case:
    """The tables as they are, and a query's state, moved on together."""

    rng: random.Random
    sql: str
    attribute: str
    distant: tuple[str, ...] = ()
    buffer: int | None = None
    plan_for: Callable[[Plan], Plan] = unchanged
    now: int = 6
    tables: dict[TableName, Rows] = field(default_factory=dict)
    stored: Stored = field(default_factory=dict)

    def __post_init__(self) -> None:
        for table in CATALOG:
            size = self.rng.choice((0, 1, 5, 12))
            self.tables[table] = [random_row(self.rng, table) for _ in range(size)]
        self.session = self.anew()

    def _kept(self, now: int) -> Kept:
        return kept(self.sql, now, self.attribute, self.plan_for)

    def _compiled(self, now: int) -> Compiled:
        return self._kept(now).compiled(AsRecorded(self.distant), self.buffer)

    def _started(self, now: int) -> tuple[MaintainedQuery, ReferencePartners]:
        session = MaintainedQuery(self._compiled(now))
        partitions = self._kept(now).partitions
        reference_partners = ReferencePartners(session.compiled, partitions, self.tables)
        session.read_by(reference_partners)
        return session, reference_partners

    def anew(self) -> MaintainedQuery:
        """A circuit filled with the tables as they are, for the constant of now."""
        session, partners = self._started(self.now)
        names = session.compiled.tables
        session.load([(name, arrow(name, self.tables[name])) for name in names], partners.pairs)
        return session

    def changed(self) -> dict[TableName, TableChange]:
        """A batch on some tables, or on none."""
        result = {}
        for table, rows in self.tables.items():
            if self.rng.random() < 0.4:
                continue
            gone = [
                rows.pop(self.rng.randrange(len(rows)))
                for _ in range(min(len(rows), self.rng.choice((0, 1, 2, 12))))
            ]
            came = [random_row(self.rng, table) for _ in range(self.rng.choice((0, 1, 4)))]
            rows += came
            weights = np.array([-1] * len(gone) + [1] * len(came), dtype=np.int64)
            result[table] = TableChange(arrow(table, [*gone, *came]), weights)
        return result

    def move(self, now: int) -> int:
        """Move the constant, and the tables, in one step; how many rows turned or moved."""
        before = self._kept(self.now)
        after = self._kept(now)
        assert before.verdict == after.verdict
        was = self._compiled(self.now)
        fresh, _ = self._started(now)
        self.session = restored(self.session, self.stored, fresh)
        conditions = moved_conditions(before.core, after.core, is_open_above=True)
        assert conditions is not None, self.sql
        above = moved_above(was, fresh.compiled, conditions)
        assert above is not None, self.sql
        assert untold(fresh.circuit, above) is None, self.sql
        changes, self.now = self.changed(), now

        def rows_of(asked: Sequence[Moving]) -> list[pa.Table]:
            (table,) = {source.table for source, _ in asked}
            return [arrow(table, self.tables[table])]

        def refill(source: Source, _: Mapping[str, Vector]) -> list[pa.Table]:
            return [arrow(source.table, self.tables[source.table])]

        _, count = self.session.move(changes, conditions, rows_of, refill, above)
        return count

    def check(self, *, is_exact: bool = True) -> None:
        """As anew, and as the reference finds."""
        if is_exact:
            assert counts_of(self.session) == counts_of(self.anew()), (
                self.sql,
                self.now,
                self.tables,
            )
        result = self._kept(self.now)
        told = annotate(result.query.root, self.tables, whole_windows=True)
        barriers = [told.first_rows.get(at, frozenset()) for at in result.whole.barrier_positions]
        for access, fragments in self.session.fragments().items():
            partition = result.partitions[access]
            values = [
                self.tables["t"][row][partition.attribute]
                for origin, row in told.lineage.union(*barriers)
                if origin == access
            ]
            needed = {_fragment(value, partition) for value in values}
            assert set(fragments.ids) >= needed, (self.sql, self.now, self.tables)


def _fragment(value: Value, partition: RangePartition) -> int:
    if value is None:
        return len(partition.boundaries) + 1
    return sum(boundary <= value for boundary in partition.boundaries)  # type: ignore[operator]  # INTEGERs


def several_cases(
    queries: Mapping[str, tuple[str, str]],
    cases: Iterable[int],
    sides: tuple[tuple[str, ...], ...] = ((),),
    *,
    is_exact: bool = True,
    plan_for: Callable[[Plan], Plan] = unchanged,
) -> Counter[str]:
    """Each query in turn, its constant moved forth and back; how many of what was seen."""
    seen: Counter[str] = Counter()
    names = list(queries)
    for seed in cases:
        rng = random.Random(seed)
        name = names[seed % len(names)]
        sql, attributes = queries[name]
        attribute = rng.choice(attributes.split())
        try:
            case = Case(rng, sql, attribute, rng.choice(sides), rng.choice((None, 2)), plan_for)
            for _ in range(4):
                by = rng.choice((0, 1, 1, 2, -1, -3, 40, -40))
                turned = case.move(min(max(case.now + by, -20), 30))
                case.check(is_exact=is_exact)
                seen["moves"] += 1
                seen[name] += turned > 0
        except NotExactError:
            assert not is_exact, sql
            seen["not exact"] += 1
    return seen
