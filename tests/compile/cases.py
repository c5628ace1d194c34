"""Random plans with changes and sketches; moving constants; doubles summed in any order."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cache, partial
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.compile.buffers import Buffers
from impctl.compile.compile import Dataflow, compile_plan
from impctl.compile.flows import SideChoice, SideFacts, Source, StoredChoices, Strategy
from impctl.compile.session import (
    MaintainedQuery,
    Moving,
    TableChange,
    moved_above,
    transfer_state,
    why_not_computable,
)
from impctl.data.schema import DATE, DOUBLE, INTEGER, TIMESTAMP, Column, Schema
from impctl.data.vector import Vector
from impctl.errors import EvaluationError, NotExactError
from impctl.expr.nodes import Literal
from impctl.plan.lineage import moved_conditions
from impctl.plan.nodes import Fixpoint, LiveRows, Plan, Project, Query, Sort, TopK, Window
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety.judge import Verdict, carried_verdict, check_safety
from impctl.sketch.sketch import RangePartition
from impctl.sql.statement import parse_query
from impctl.types import AccessId, TableName
from tests.plan.random_fixpoints import kept_by_witnesses
from tests.plan.random_plans import CATALOG
from tests.plan.trials import Trial, accurate_sketches, evened
from tests.support import reference_plan
from tests.support.carried_queries import (
    ReferencePartners,
    Stored,
    arrow_rows,
    counts_of,
    restored,
    sketches_of,
)
from tests.support.random_cases import seen_in
from tests.support.reference_plan import ReferenceFailure, Tables, Value, annotate, bag, evaluate

Rows = list[Mapping[str, Value]]


def table_of(name: str, rows: Sequence[Mapping[str, Value]]) -> pa.Table:
    return arrow_rows(CATALOG[name], rows)


def partitions_of(trial: Trial) -> dict[str, RangePartition]:
    """The trial's partitions as `RangePartition`s."""
    tables = {scan.access: scan.table for scan in trial.root.scans}
    result = {}
    for access, (name, boundaries) in trial.partitions.items():
        kind = CATALOG[tables[access]].find(name).type
        scaled = [int(v.scaleb(kind.scale)) if isinstance(v, Decimal) else v for v in boundaries]
        result[access] = RangePartition(tables[access], name, kind, tuple(scaled))
    return result


def change_of(rng: Random, rows: Rows, spare: Rows) -> tuple[Rows, list[int]]:
    """Random deletions and insertions; updates `rows`."""
    changed: Rows = []
    weights: list[int] = []
    for _ in range(rng.randint(0, 4)):
        if rows and rng.random() < 0.5:
            changed.append(rows.pop(rng.randrange(len(rows))))
            weights.append(-1)
        elif spare:
            row = rng.choice(spare)
            rows.append(row)
            changed.append(row)
            weights.append(1)
    return changed, weights


def changes_of(
    rng: Random, names: Sequence[str], tables: dict[str, Rows], spare: Mapping[str, Rows]
) -> dict[str, TableChange]:
    """A batch of changes to some tables; updates `tables`."""
    result = {}
    for name in names:
        if rng.random() < 0.7:
            rows, weights = change_of(rng, tables[name], spare[name])
            result[name] = TableChange(table_of(name, rows), np.array(weights, dtype=np.int64))
    return result


class Judged(Struct, frozen=True):
    """The plan whose lineage is the sketch, and the top-k and fixpoints whose rows all count."""

    oracle: Plan
    barriers: tuple[int, ...]
    counted: frozenset[int]
    verdict: Verdict | None = None
    """The verdict on the oracle, if it has top-k or fixpoints."""

    @classmethod
    def of(
        cls, trial: Trial, root: Plan, verdict: Verdict, plain: Plan | None = None
    ) -> Judged | None:
        """None if ties or an unsafe plan allow several correct sketches.

        `plain` is the plan before the rules, if it is not the trial's.
        """
        nodes = tuple(root.walk())
        last = next(
            position for position, node in enumerate(nodes) if not isinstance(node, Project | Sort)
        )
        tops = {
            position for position, node in enumerate(nodes) if isinstance(node, TopK | Fixpoint)
        }
        if not tops:
            plain = trial.root if plain is None else plain
            # An unused window call does not need the other rows of its partition.
            is_less = _window_calls(root) < _window_calls(plain)
            return cls(root if is_less else plain, (), frozenset())
        counted = tops & {last, *verdict.barrier_positions}
        inner = tops - {last}
        if inner and not verdict.safe:
            return None
        if tops - counted and verdict.ties is not None:
            return None
        return cls(root, verdict.barrier_positions, frozenset(counted), verdict)

    def sketches(self, trial: Trial, tables: Tables) -> dict[str, set[int]]:
        """The ranges of the result, and of all first rows of each counted top-k."""
        result = annotate(self.oracle, tables, whole_windows=True)
        counted = {
            position: rows
            for position, rows in result.first_rows.items()
            if position in self.counted
        }
        result = replace(result, first_rows=counted)
        sketches = accurate_sketches(result, trial.root, tables, trial.partitions)
        return sketches if self.verdict is None else evened(self.oracle, self.verdict, sketches)


def _window_calls(plan: Plan) -> int:
    return sum(len(node.calls) for node in plan.walk() if isinstance(node, Window))


def of_witnesses(trial: Trial, root: Plan, verdict: Verdict) -> Judged | None:
    """`Judged.of` for the plan with witnesses; None if it has no witnesses."""
    if not verdict.safe:
        return None
    plan = kept_by_witnesses(root, trial, verdict)
    if plan == root:
        return None
    return Judged.of(trial, plan, carried_verdict(verdict, Query("", plan), trial.sketched), plan)


class SomeDistant(Struct, frozen=True):
    """Picks random sides and groupings to be read instead of stored."""

    rng: Random
    groups: Random
    has_filter: bool = True
    by_scalars: bool = True
    """Whether rows selected by scalars are read. No conversion changes this."""

    def choose(self, facts: SideFacts) -> SideChoice:
        if facts.by_scalars:
            strategy = Strategy.FILES if self.by_scalars else Strategy.INDEX
            return SideChoice(facts.name, facts.tables, strategy, "as is said")
        rng = self.groups if facts.is_grouping else self.rng
        is_distant = facts.readers and rng.random() < 0.5
        strategy = rng.choice(facts.readers) if is_distant else Strategy.INDEX
        return SideChoice(facts.name, facts.tables, strategy, "at random")


def random_buffers(rng: Random) -> dict[str, int]:
    """Small buffers for random pieces of state."""
    names = [f"{kind}{number}" for kind in ("top", "aggregate", "witness") for number in range(8)]
    return {name: rng.choice((1, 1, 2, 3)) for name in names if rng.random() < 0.5}


def moved_buffers(before: Dataflow, after: Dataflow) -> list[str]:
    """What a conversion bounded or made unbounded."""
    read = {*before.sides_by(Strategy.FILES), *after.sides_by(Strategy.FILES)}
    sizes = {buffer.piece: buffer.size for buffer in before.buffers if buffer.piece not in read}
    moved = []
    for buffer in after.buffers:
        if buffer.piece in sizes and (buffer.size is None) != (sizes[buffer.piece] is None):
            kind = "groups" if buffer.piece.startswith("aggregate") else "first rows"
            moved.append(f"{kind} {'kept again' if buffer.size is None else 'bounded'}")
    return moved


def recorded(compiled: Dataflow) -> StoredChoices:
    """The choices that the circuit was built with."""
    by_spark, by_files = map(compiled.sides_by, (Strategy.SPARK, Strategy.FILES))
    return StoredChoices(by_spark, from_files=by_files)


def whole_table(
    tables: Mapping[str, Rows], source: Source, keys: Mapping[str, Vector]
) -> list[pa.Table]:
    """All rows of a source's table, for a buffer that requests some of them."""
    return [table_of(source.table, tables[source.table]).select(source.scan.table_columns)]


def converted(
    session: MaintainedQuery, stored: Stored, compiled: Dataflow, partners: ReferencePartners
) -> tuple[MaintainedQuery, ReferencePartners]:
    """The session converted to another circuit, and the reader of the sides it does not store."""
    after = restored(session, stored, MaintainedQuery(compiled))
    transfer_state(session, after, partners.whole, partial(whole_table, partners.tables))
    partners = replace(partners, compiled=compiled)
    after.read_by(partners)
    return after, partners


MOVING = {
    "t": Schema(
        (
            *(Column(name, INTEGER) for name in ("g", "day", "x")),
            Column("d", DOUBLE),
            Column("at", TIMESTAMP),
        )
    ),
    "u": Schema((Column("g", INTEGER), Column("n", INTEGER), Column("until", DATE))),
}
EXPIRY = {"t": "at", "u": "until"}
SMALL, LARGE = (1, 2, 3, 4), (2, 4, 6, 8, 10)
ALL_KEPT = StoredChoices()


class Planned(Struct, frozen=True):
    """The maintained plan of a query at one instant."""

    core: Plan
    verdict: Verdict
    partitions: Mapping[AccessId, RangePartition]

    def compiled(self, read: StoredChoices = ALL_KEPT, buffer: int | None = None) -> Dataflow:
        return compile_plan(
            self.core,
            self.partitions,
            self.verdict.key_columns,
            read,
            barriers=self.verdict.barrier_positions,
            buffers=Buffers.of(buffer),
        )


def unchanged(plan: Plan) -> Plan:
    return plan


class PlannedQuery(Planned, Struct, frozen=True):
    """Adds the query and the verdict on all of it."""

    query: Query
    whole: Verdict

    @classmethod
    def of(
        cls,
        query: Query,
        partitions: Mapping[AccessId, RangePartition],
        plan_for: Callable[[Plan], Plan] = unchanged,
    ) -> PlannedQuery:
        """`plan_for` turns the plan after the rules into the maintained one."""
        query = replace(query, root=plan_for(apply_rules(query.root)))
        sketched = {access: partition.attribute for access, partition in partitions.items()}
        whole = check_safety(query, sketched, [])
        core = plan_for(core_of(query.root))
        carried = replace(query, root=core)
        verdict = carried_verdict(whole, carried, sketched) if whole.safe else whole
        return cls(core, verdict, partitions, query, whole)


def edges_at(now: int) -> dict[TableName, int]:
    """The newest expired time of each table, in microseconds and in days."""
    return {"t": (now - 6) * 1_000_000, "u": now // 4 - 2}


@cache
def planned_query(
    sql: str,
    now: int,
    attribute: str,
    plan_for: Callable[[Plan], Plan] = unchanged,
    *,
    expires: bool = False,
) -> PlannedQuery:
    """With `expires`, only live rows count."""
    kinds = {"t": TIMESTAMP, "u": DATE}
    live = {
        table: LiveRows(EXPIRY[table], Literal(edge, kinds[table]))
        for table, edge in (edges_at(now) if expires else {}).items()
    }
    query = parse_query(sql.format(now=now, early=now - 4), MOVING, live=live)
    partition = RangePartition("t", attribute, INTEGER, LARGE if attribute == "day" else SMALL)
    accesses = [s.access for s in apply_rules(query.root).scans if s.table == "t"]
    result = PlannedQuery.of(query, dict.fromkeys(accesses, partition), plan_for)
    assert result.whole.safe, (sql, result.whole.reason)
    return result


def arrow(table: TableName, rows: Rows) -> pa.Table:
    return arrow_rows(MOVING[table], rows)


def random_row(rng: random.Random, table: TableName) -> Mapping[str, Value]:
    """Days before and after every value of the constant; NULLs in every column."""

    def number(high: int) -> int | None:
        return None if rng.random() < 0.12 else rng.randrange(high)

    if table == "u":
        group, until = number(6), number(4)
        return {"g": group, "n": until, "until": until}
    sum_of = rng.choice((None, 0.1, 0.2, -0.3, 1e16, -1e16, 2.0, 4.0))
    group, day, x = number(6), number(12), number(6)
    # At the expiry boundary or next to it.
    time = None if day is None else day * 1_000_000 + ((x or 0) - 2) // 2
    return {"g": group, "day": day, "x": x, "d": sum_of, "at": time}


class Case(Struct, dict=True):
    """The current tables and a query's state, updated together."""

    rng: random.Random
    sql: str
    attribute: str
    distant: tuple[str, ...] = ()
    buffer: int | None = None
    plan_for: Callable[[Plan], Plan] = unchanged
    expires: bool = False
    now: int = 6
    tables: dict[TableName, Rows] = field(default_factory=dict)
    stored: Stored = field(default_factory=dict)

    def __post_init__(self) -> None:
        for table in MOVING:
            size = self.rng.choice((0, 1, 5, 12))
            self.tables[table] = [random_row(self.rng, table) for _ in range(size)]
        self.session = self.recomputed()

    def _planned(self, now: int) -> PlannedQuery:
        return planned_query(self.sql, now, self.attribute, self.plan_for, expires=self.expires)

    def _compiled(self, now: int) -> Dataflow:
        return self._planned(now).compiled(StoredChoices(self.distant), self.buffer)

    def _started(self, now: int) -> tuple[MaintainedQuery, ReferencePartners]:
        session = MaintainedQuery(self._compiled(now))
        partitions = self._planned(now).partitions
        reference_partners = ReferencePartners(session.compiled, partitions, self.tables)
        session.read_by(reference_partners)
        return session, reference_partners

    def recomputed(self) -> MaintainedQuery:
        """A session filled from the current tables, for the current constant."""
        session, partners = self._started(self.now)
        names = session.compiled.tables
        session.load([(name, arrow(name, self.tables[name])) for name in names], partners.pairs)
        return session

    def changed(self) -> dict[TableName, TableChange]:
        """A batch of changes to some tables, or to none."""
        result = {}
        for table, rows in self.tables.items():
            if self.rng.random() < 0.4:
                continue
            deleted = [
                rows.pop(self.rng.randrange(len(rows)))
                for _ in range(min(len(rows), self.rng.choice((0, 1, 2, 12))))
            ]
            inserted = [random_row(self.rng, table) for _ in range(self.rng.choice((0, 1, 4)))]
            rows += inserted
            weights = np.array([-1] * len(deleted) + [1] * len(inserted), dtype=np.int64)
            result[table] = TableChange(arrow(table, [*deleted, *inserted]), weights)
        return result

    def move(self, now: int) -> int:
        """Change the constant and the tables in one step. Returns the number of rows that moved."""
        previous, before, after = self.now, self._planned(self.now), self._planned(now)
        assert before.verdict == after.verdict
        compiled = self._compiled(self.now)
        fresh, _ = self._started(now)
        self.session = restored(self.session, self.stored, fresh)
        conditions = moved_conditions(before.core, after.core, is_open_above=True)
        assert conditions is not None, self.sql
        above = moved_above(compiled, fresh.compiled, conditions)
        assert above is not None, self.sql
        assert why_not_computable(fresh.circuit, above) is None, self.sql
        changes, self.now = self.changed(), now

        def rows_of(requested: Sequence[Moving]) -> list[pa.Table]:
            (table,) = {source.table for source, _ in requested}
            return [arrow(table, self.tables[table])]

        def refill(source: Source, _: Mapping[str, Vector]) -> list[pa.Table]:
            return [arrow(source.table, self.tables[source.table])]

        count = self.session.move(changes, conditions, rows_of, refill, above)
        assert not self.expires or count <= self.expired(previous, now)
        return count

    def expired(self, earlier: int, now: int) -> int:
        """The number of rows that expired between the two instants, or are live again."""
        before, after = edges_at(earlier), edges_at(now)
        times = [
            (table, row[EXPIRY[table]])
            for table in self.session.compiled.tables
            for row in self.tables[table]
        ]
        return sum(
            time is not None and (time > before[table]) != (time > after[table])
            for table, time in times
        )

    def check(self, *, is_exact: bool = True) -> None:
        """Compare with a recomputed session and with the reference."""
        if is_exact:
            assert counts_of(self.session) == counts_of(self.recomputed()), (
                self.sql,
                self.now,
                self.tables,
            )
        result = self._planned(self.now)
        annotated = annotate(result.query.root, self.tables, whole_windows=True)
        barriers = [
            annotated.first_rows.get(position, frozenset())
            for position in result.whole.barrier_positions
        ]
        for access, ranges in self.session.ranges().items():
            partition = result.partitions[access]
            values = [
                self.tables["t"][row][partition.attribute]
                for origin, row in annotated.lineage.union(*barriers)
                if origin == access
            ]
            needed = {_range_of(value, partition) for value in values}
            assert set(ranges.ids) >= needed, (self.sql, self.now, self.tables)


def _range_of(value: Value, partition: RangePartition) -> int:
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
    expires: bool = False,
) -> Counter[str]:
    """Move the constants of the queries back and forth. Returns counts of what happened."""
    counts: Counter[str] = Counter()
    names = list(queries)
    for seed in cases:
        rng = random.Random(seed)
        name = names[seed % len(names)]
        sql, attributes = queries[name]
        attribute = rng.choice(attributes.split())
        try:
            side, buffer = rng.choice(sides), rng.choice((None, 2))
            case = Case(rng, sql, attribute, side, buffer, plan_for, expires)
            for _ in range(4):
                by = rng.choice((0, 1, 1, 2, -1, -3, 40, -40))
                moved = case.move(min(max(case.now + by, -20), 30))
                case.check(is_exact=is_exact)
                counts["moves"] += 1
                counts[name] += moved > 0
        except NotExactError:
            assert not is_exact, sql
            counts["not exact"] += 1
    return counts


SCHEMA = Schema((Column("g", INTEGER), Column("h", INTEGER), Column("d", DOUBLE)))
SIDE = Schema((Column("k", INTEGER), Column("w", DOUBLE)))
BY_G = RangePartition("t", "g", INTEGER, (1, 2, 3, 4, 5))
SUMS = "SELECT g, SUM(d) AS s FROM t GROUP BY g"
Pool = tuple[float | None, ...]
POOLS: tuple[Pool, ...] = (
    (1e16, -1e16, 1.0, 2.0, -1.0),
    (0.1, 0.2, 0.3, -0.3, 1.1, -0.6),
    (1.0, 2.0, 3.0, -0.0, 0.0),
    (math.nan, math.inf, -math.inf, 1.0),
    (1e308, -1e308, 1e308, -math.inf, 5.0),
    (None, 1.0, 2.5, 1e-300, -1e-300),
)


@cache
def planned_unsure(sql: str) -> PlannedQuery:
    query = parse_query(sql, {"t": SCHEMA, "side": SIDE})
    accesses = [s.access for s in apply_rules(query.root).scans if s.table == "t"]
    for chosen in (accesses, accesses[:1], accesses[1:]):
        result = PlannedQuery.of(query, dict.fromkeys(chosen, BY_G))
        if chosen and result.whole.safe:
            return result
    raise AssertionError(f"no sketch is safe for {sql}")


def compiled(sql: str) -> Dataflow:
    return planned_unsure(sql).compiled()


def unsure_table(name: str, rows: Rows) -> pa.Table:
    return arrow_rows(SIDE if name == "side" else SCHEMA, rows)


def unsure_row(rng: random.Random, name: str, pool: Pool) -> Mapping[str, Value]:
    if name == "side":
        return {"k": rng.randrange(6), "w": rng.choice(pool)}
    return {"g": rng.choice((*range(6), None)), "h": rng.randrange(2), "d": rng.choice(pool)}


def changed(rng: random.Random, name: str, rows: Rows, pool: Pool) -> TableChange:
    changes: Rows = []
    weights: list[int] = []
    for _ in range(rng.randint(0, 4)):
        if rows and rng.random() < 0.45:
            changes.append(rows.pop(rng.randrange(len(rows))))
            weights.append(-1)
        else:
            rows.append(unsure_row(rng, name, pool))
            changes.append(rows[-1])
            weights.append(1)
    return TableChange(unsure_table(name, changes), np.array(weights, dtype=np.int64))


def check(
    sql: str, session: MaintainedQuery, tables: Mapping[str, Rows], rng: random.Random
) -> tuple[int, int]:
    """Compare the sketches with several orders of summation. Returns excess ranges, and orders."""
    planned, sketches, slack = planned_unsure(sql), sketches_of(session), 0
    for attempt in range(3):
        shuffled = {name: rng.sample(rows, len(rows)) for name, rows in tables.items()}
        result = annotate(planned.query.root, shuffled, whole_windows=True)
        barriers = [
            result.first_rows.get(position, frozenset())
            for position in planned.whole.barrier_positions
        ]
        ranges = [_unsure_range(row["g"]) for row in shuffled["t"]]
        lineage = result.lineage.union(*barriers)
        for access in planned.partitions:
            needed = {ranges[row] for origin, row in lineage if origin == access}
            assert sketches[access] >= needed, (sql, shuffled, sketches, needed)
            slack += len(sketches[access] - needed) if attempt == 0 else 0
        instances = {
            access: [
                position for position, range_id in enumerate(ranges) if range_id in sketches[access]
            ]
            for access in planned.partitions
        }
        # In the same order, the query over the sketch gives the query's result.
        if any(len(rows) < len(shuffled["t"]) for rows in instances.values()):
            whole = bag(row for row, _ in result.rows)
            assert bag(evaluate(planned.query.root, shuffled, instances)) == whole, sql
    return slack, 3


def in_parts(values: Sequence[float]) -> float:
    """The sum as Spark may compute it: two partial sums, then their sum."""
    middle = len(values) // 2
    parts = (values[:middle], values[middle:])
    with np.errstate(over="ignore", invalid="ignore"):
        return float(sum(np.float64(sum(map(np.float64, part))) for part in parts))


def add_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the reference sum in a fixed order. By default its sums are exact."""
    monkeypatch.setattr(reference_plan, "_double_total", in_parts)


def _unsure_range(value: Value) -> int:
    return 6 if value is None else min(int(value), 5)  # type: ignore[arg-type]  # an INTEGER


def one_case(
    queries: Sequence[str], pools: Sequence[Pool], seed: int, counts: Counter[str]
) -> None:
    rng = random.Random(seed)
    sql = queries[seed % len(queries)]
    pool = rng.choice(pools)
    tables: dict[str, Rows] = {
        name: [unsure_row(rng, name, pool) for _ in range(rng.randint(0, 9))]
        for name in ("t", "side")
    }
    session, stored = MaintainedQuery(compiled(sql)), Stored()
    names = session.compiled.tables
    try:
        session.load([(name, unsure_table(name, tables[name])) for name in names])
        for _ in range(4):
            slack, tried = check(sql, session, tables, rng)
            counts.update(
                cases=tried, slack=slack, wide=slack > 0, unsure=session.unsure_rows() > 0
            )
            session.step({name: changed(rng, name, tables[name], pool) for name in names})
            if rng.random() < 0.2:
                session = restored(session, stored, MaintainedQuery(compiled(sql)))
    except NotExactError:
        counts.update(["not exact", f"not exact: {sql}"])
    except (EvaluationError, ReferenceFailure):
        counts["failed"] += 1


def several_unsure_cases(
    queries: Sequence[str], seeds: Iterable[int], pools: Sequence[Pool] = POOLS
) -> Counter[str]:
    return seen_in(seeds, partial(one_case, queries, pools))
