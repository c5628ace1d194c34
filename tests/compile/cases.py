"""Random plans' tables, changes and sketches; constants that move; doubles added in any order."""

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
    """The trial's partitions in impctl's own form."""
    tables = {scan.access: scan.table for scan in trial.root.scans}
    result = {}
    for access, (name, boundaries) in trial.partitions.items():
        kind = CATALOG[tables[access]].find(name).type
        scaled = [int(v.scaleb(kind.scale)) if isinstance(v, Decimal) else v for v in boundaries]
        result[access] = RangePartition(tables[access], name, kind, tuple(scaled))
    return result


def change_of(rng: Random, rows: Rows, spare: Rows) -> tuple[Rows, list[int]]:
    """Some rows out, some in; `rows` is brought up to date."""
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
    """A batch of some of the tables, which are brought up to date."""
    result = {}
    for name in names:
        if rng.random() < 0.7:
            rows, weights = change_of(rng, tables[name], spare[name])
            result[name] = TableChange(table_of(name, rows), np.array(weights, dtype=np.int64))
    return result


class Judged(Struct, frozen=True):
    """The plan whose lineage is the sketch, and of which of its top-k and fixpoints all rows do."""

    oracle: Plan
    barriers: tuple[int, ...]
    counted: frozenset[int]
    verdict: Verdict | None = None
    """On the oracle, where it has top-k or fixpoints."""

    @classmethod
    def of(
        cls, trial: Trial, root: Plan, verdict: Verdict, plain: Plan | None = None
    ) -> Judged | None:
        """None where ties, or what is not safe, leave several sketches right.

        `plain` is the plan without the rules, where it is not the trial's.
        """
        nodes = tuple(root.walk())
        last = next(at for at, node in enumerate(nodes) if not isinstance(node, Project | Sort))
        tops = {at for at, node in enumerate(nodes) if isinstance(node, TopK | Fixpoint)}
        if not tops:
            plain = trial.root if plain is None else plain
            # Of a window call that nobody reads the other rows of its partition are not needed.
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
        """The fragments of the result, and of the first rows of each top-k that counts whole."""
        result = annotate(self.oracle, tables, whole_windows=True)
        counted = {at: rows for at, rows in result.first_rows.items() if at in self.counted}
        result = replace(result, first_rows=counted)
        sketches = accurate_sketches(result, trial.root, tables, trial.partitions)
        return sketches if self.verdict is None else evened(self.oracle, self.verdict, sketches)


def _window_calls(plan: Plan) -> int:
    return sum(len(node.calls) for node in plan.walk() if isinstance(node, Window))


def of_witnesses(trial: Trial, root: Plan, verdict: Verdict) -> Judged | None:
    """The same of the plan that a sketch of witnesses is kept by; None where it has none."""
    if not verdict.safe:
        return None
    kept = kept_by_witnesses(root, trial, verdict)
    if kept == root:
        return None
    return Judged.of(trial, kept, carried_verdict(verdict, Query("", kept), trial.sketched), kept)


class SomeDistant(Struct, frozen=True):
    """Leaves a random part of the sides, and of the groupings, that can be read to the reader."""

    rng: Random
    groups: Random
    has_filter: bool = True
    by_scalars: bool = True
    """Whether rows that scalars select are left to the reader, which no conversion changes."""

    def choose(self, facts: SideFacts) -> SideChoice:
        if facts.by_scalars:
            strategy = Strategy.FILES if self.by_scalars else Strategy.INDEX
            return SideChoice(facts.name, facts.tables, strategy, "as is said")
        rng = self.groups if facts.is_grouping else self.rng
        is_distant = facts.readers and rng.random() < 0.5
        strategy = rng.choice(facts.readers) if is_distant else Strategy.INDEX
        return SideChoice(facts.name, facts.tables, strategy, "at random")


def some_buffers(rng: Random) -> dict[str, int]:
    """Small buffers for a random part of what could be bounded."""
    names = [f"{kind}{at}" for kind in ("top", "aggregate", "witness") for at in range(8)]
    return {name: rng.choice((1, 1, 2, 3)) for name in names if rng.random() < 0.5}


def moved_buffers(before: Dataflow, after: Dataflow) -> list[str]:
    """What a conversion did to first rows and values of MIN and MAX."""
    read = {*before.sides_by(Strategy.FILES), *after.sides_by(Strategy.FILES)}
    sizes = {one.piece: one.size for one in before.buffers if one.piece not in read}
    moved = []
    for one in after.buffers:
        if one.piece in sizes and (one.size is None) != (sizes[one.piece] is None):
            what = "groups" if one.piece.startswith("aggregate") else "first rows"
            moved.append(f"{what} {'kept again' if one.size is None else 'bounded'}")
    return moved


def recorded(compiled: Dataflow) -> StoredChoices:
    """The choices that the circuit was made by."""
    by_spark, by_files = map(compiled.sides_by, (Strategy.SPARK, Strategy.FILES))
    return StoredChoices(by_spark, from_files=by_files)


def whole_table(
    tables: Mapping[str, Rows], source: Source, keys: Mapping[str, Vector]
) -> list[pa.Table]:
    """All rows of a source's table, where a buffer asks for some."""
    return [table_of(source.table, tables[source.table]).select(source.scan.table_columns)]


def converted(
    session: MaintainedQuery, stored: Stored, compiled: Dataflow, partners: ReferencePartners
) -> tuple[MaintainedQuery, ReferencePartners]:
    """The session in a circuit that may keep other sides, and who reads those that it lacks."""
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
    """A query as it is kept at one instant."""

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


class Kept(Planned, Struct, frozen=True):
    """With the query itself, and what is said of all of it."""

    query: Query
    whole: Verdict

    @classmethod
    def of(
        cls,
        query: Query,
        partitions: Mapping[AccessId, RangePartition],
        plan_for: Callable[[Plan], Plan] = unchanged,
    ) -> Kept:
        """`plan_for` makes the plan that is kept of the one after the rules."""
        query = replace(query, root=plan_for(apply_rules(query.root)))
        sketched = {access: partition.attribute for access, partition in partitions.items()}
        whole = check_safety(query, sketched, [])
        core = plan_for(core_of(query.root))
        carried = replace(query, root=core)
        verdict = carried_verdict(whole, carried, sketched) if whole.safe else whole
        return cls(core, verdict, partitions, query, whole)


def edges_at(now: int) -> dict[TableName, int]:
    """The newest time of each table that has expired: microseconds, and days."""
    return {"t": (now - 6) * 1_000_000, "u": now // 4 - 2}


@cache
def kept(
    sql: str,
    now: int,
    attribute: str,
    plan_for: Callable[[Plan], Plan] = unchanged,
    *,
    expires: bool = False,
) -> Kept:
    """With `expires` rows count as long as they are live."""
    kinds = {"t": TIMESTAMP, "u": DATE}
    live = {
        table: LiveRows(EXPIRY[table], Literal(edge, kinds[table]))
        for table, edge in (edges_at(now) if expires else {}).items()
    }
    query = parse_query(sql.format(now=now, early=now - 4), MOVING, live=live)
    partition = RangePartition("t", attribute, INTEGER, LARGE if attribute == "day" else SMALL)
    accesses = [s.access for s in apply_rules(query.root).scans if s.table == "t"]
    result = Kept.of(query, dict.fromkeys(accesses, partition), plan_for)
    assert result.whole.safe, (sql, result.whole.reason)
    return result


def arrow(table: TableName, rows: Rows) -> pa.Table:
    return arrow_rows(MOVING[table], rows)


def random_row(rng: random.Random, table: TableName) -> Mapping[str, Value]:
    """Days before and after all that the constant is; NULL everywhere."""

    def number(high: int) -> int | None:
        return None if rng.random() < 0.12 else rng.randrange(high)

    if table == "u":
        group, until = number(6), number(4)
        return {"g": group, "n": until, "until": until}
    sum_of = rng.choice((None, 0.1, 0.2, -0.3, 1e16, -1e16, 2.0, 4.0))
    group, day, x = number(6), number(12), number(6)
    # At the very edge, and just beside it.
    at = None if day is None else day * 1_000_000 + ((x or 0) - 2) // 2
    return {"g": group, "day": day, "x": x, "d": sum_of, "at": at}


class Case(Struct, dict=True):
    """The tables as they are, and a query's state, moved on together."""

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
        self.session = self.anew()

    def _kept(self, now: int) -> Kept:
        return kept(self.sql, now, self.attribute, self.plan_for, expires=self.expires)

    def _compiled(self, now: int) -> Dataflow:
        return self._kept(now).compiled(StoredChoices(self.distant), self.buffer)

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
        was_now, before, after = self.now, self._kept(self.now), self._kept(now)
        assert before.verdict == after.verdict
        was = self._compiled(self.now)
        fresh, _ = self._started(now)
        self.session = restored(self.session, self.stored, fresh)
        conditions = moved_conditions(before.core, after.core, is_open_above=True)
        assert conditions is not None, self.sql
        above = moved_above(was, fresh.compiled, conditions)
        assert above is not None, self.sql
        assert why_not_computable(fresh.circuit, above) is None, self.sql
        changes, self.now = self.changed(), now

        def rows_of(asked: Sequence[Moving]) -> list[pa.Table]:
            (table,) = {source.table for source, _ in asked}
            return [arrow(table, self.tables[table])]

        def refill(source: Source, _: Mapping[str, Vector]) -> list[pa.Table]:
            return [arrow(source.table, self.tables[source.table])]

        count = self.session.move(changes, conditions, rows_of, refill, above)
        assert not self.expires or count <= self.expired(was_now, now)
        return count

    def expired(self, was: int, now: int) -> int:
        """How many rows of the query's tables expired between the two, or are live again."""
        before, after = edges_at(was), edges_at(now)
        times = [
            (table, row[EXPIRY[table]])
            for table in self.session.compiled.tables
            for row in self.tables[table]
        ]
        return sum(
            at is not None and (at > before[table]) != (at > after[table]) for table, at in times
        )

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
        for access, ranges in self.session.ranges().items():
            partition = result.partitions[access]
            values = [
                self.tables["t"][row][partition.attribute]
                for origin, row in told.lineage.union(*barriers)
                if origin == access
            ]
            needed = {_fragment(value, partition) for value in values}
            assert set(ranges.ids) >= needed, (self.sql, self.now, self.tables)


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
    expires: bool = False,
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
            side, buffer = rng.choice(sides), rng.choice((None, 2))
            case = Case(rng, sql, attribute, side, buffer, plan_for, expires)
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
def kept_unsure(sql: str) -> Kept:
    query = parse_query(sql, {"t": SCHEMA, "side": SIDE})
    accesses = [s.access for s in apply_rules(query.root).scans if s.table == "t"]
    for chosen in (accesses, accesses[:1], accesses[1:]):
        result = Kept.of(query, dict.fromkeys(chosen, BY_G))
        if chosen and result.whole.safe:
            return result
    raise AssertionError(f"no sketch is safe for {sql}")


def compiled(sql: str) -> Dataflow:
    return kept_unsure(sql).compiled()


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
    """The sketches against several orders of adding: ranges beyond, and orders tried."""
    kept, held, slack = kept_unsure(sql), sketches_of(session), 0
    for turn in range(3):
        shown = {name: rng.sample(rows, len(rows)) for name, rows in tables.items()}
        result = annotate(kept.query.root, shown, whole_windows=True)
        barriers = [result.first_rows.get(at, frozenset()) for at in kept.whole.barrier_positions]
        ranges = [_unsure_fragment(row["g"]) for row in shown["t"]]
        lineage = result.lineage.union(*barriers)
        for access in kept.partitions:
            needed = {ranges[row] for origin, row in lineage if origin == access}
            assert held[access] >= needed, (sql, shown, held, needed)
            slack += len(held[access] - needed) if turn == 0 else 0
        seen = {
            access: [at for at, range_id in enumerate(ranges) if range_id in held[access]]
            for access in kept.partitions
        }
        # In one order of adding, the answer over the sketch is the answer.
        if any(len(rows) < len(shown["t"]) for rows in seen.values()):
            whole = bag(row for row, _ in result.rows)
            assert bag(evaluate(kept.query.root, shown, seen)) == whole, sql
    return slack, 3


def in_parts(values: Sequence[float]) -> float:
    """The sum as Spark may add it: some rows after each other, then what these gave."""
    middle = len(values) // 2
    parts = (values[:middle], values[middle:])
    with np.errstate(over="ignore", invalid="ignore"):
        return float(sum(np.float64(sum(map(np.float64, part))) for part in parts))


def add_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference adds exactly otherwise."""
    monkeypatch.setattr(reference_plan, "_double_total", in_parts)


def _unsure_fragment(value: Value) -> int:
    return 6 if value is None else min(int(value), 5)  # type: ignore[arg-type]  # an INTEGER


def one_case(queries: Sequence[str], pools: Sequence[Pool], seed: int, seen: Counter[str]) -> None:
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
            seen.update(cases=tried, slack=slack, wide=slack > 0, unsure=session.unsure_rows() > 0)
            session.step({name: changed(rng, name, tables[name], pool) for name in names})
            if rng.random() < 0.2:
                session = restored(session, stored, MaintainedQuery(compiled(sql)))
    except NotExactError:
        seen.update(["not exact", f"not exact: {sql}"])
    except (EvaluationError, ReferenceFailure):
        seen["failed"] += 1


def several_unsure_cases(
    queries: Sequence[str], seeds: Iterable[int], pools: Sequence[Pool] = POOLS
) -> Counter[str]:
    return seen_in(seeds, partial(one_case, queries, pools))
