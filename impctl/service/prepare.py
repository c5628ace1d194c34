"""One query, read and planned, with the facts about its columns and the rows that expire."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.data.schema import DATE, TIMESTAMP, Column, quoted
from impctl.data.vector import Bools, Ints, from_arrow
from impctl.errors import (
    AssumptionBrokenError,
    ImpctlError,
    Location,
    RecaptureNeededError,
    TableError,
    UsageError,
)
from impctl.expr.evaluate import Condition
from impctl.expr.nodes import ColumnRef, Compare, Expr, Literal, Span, conjuncts
from impctl.plan.lineage import for_answer
from impctl.plan.nodes import Fixpoint, LiveRows, Plan, Query, Scan, Select, Witness
from impctl.safety.direction import Status
from impctl.safety.facts import NOTHING, Fact, FactKind, FactSource, broken_by, learn
from impctl.safety.judge import Verdict, carried_verdict, states_of
from impctl.sql.parameters import NEVER, RUN_INSTANT, BoundSql, Clock, bind, zone_of
from impctl.sql.statement import NO_EXPIRY, parse_query
from impctl.store.records import Assumption
from impctl.tables.changes import netted
from impctl.tables.rows import read_batches
from impctl.tables.snapshot import Snapshot, ValueBounds
from impctl.tables.statistics import column_statistics, file_bounds
from impctl.types import AccessId, AttributeId, ColumnName, TableName
from impctl.workload.models import ExpirySpec, LineageMode, QuerySpec, ViewSpec
from impctl.workload.yaml import offset_location, sql_location

if TYPE_CHECKING:
    from impctl.service.context import Context, Partitions, Versions
    from impctl.service.pinned import PinnedTables
    from impctl.service.results import CandidateEntry
    from impctl.sql.names import FullName
    from impctl.sql.views import ExpandedSql


# Tables whose rows expire: which are live at an instant, and when the next one expires. Law: a row
# is live at `now` iff its time is strictly later than `now - after`; a DATE counts as its midnight
# in the session's zone. The next expiry is never too late: until then no row of that version
# expires, so a result stays valid.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = 1_000_000


def live_rows(expiry: ExpirySpec, snapshot: Snapshot, now: datetime, zone: str) -> LiveRows:
    """The rows of a table that are live at this instant; UsageError if the column is missing or is
    not a time."""
    column = snapshot.schema.find(expiry.column)
    if column is None or column.type not in (DATE, TIMESTAMP):
        problem = "has no such column" if column is None else f"it is of type `{column.type}`"
        raise UsageError(
            f"Rows of table `{snapshot.table}` cannot expire by `{expiry.column}`: {problem}",
            hint="name a column of type TIMESTAMP or DATE under `expiry`",
            code="expiry_column",
            location=expiry.location,
        )
    try:
        edge = now - timedelta(microseconds=expiry.after)
        local = edge.astimezone(zone_of(zone))
    except OverflowError:
        raise UsageError(
            f"Rows of `{snapshot.table}` would expire before the earliest possible time at "
            f"{now.isoformat()}",
            hint="set `--now` or IMPCTL_NOW to a later time",
            code="now_range",
        ) from None
    if column.type == DATE:
        return LiveRows(column.name, Literal((local.date() - _EPOCH.date()).days, DATE))
    return LiveRows(column.name, Literal((edge - _EPOCH) // _MICROSECOND, TIMESTAMP))


def next_expiry(ctx: Context, versions: Versions, now: str) -> str:
    """The next instant at which a row live at `now` expires, or `NEVER`. In whole seconds, as
    instants of runs are; no row expires before it. Reads the column in files that may hold both
    live and expired rows. Empty if they cannot be read without Spark, so that every later run has
    to check."""
    instant, zone = datetime.fromisoformat(now), ctx.session_zone
    datetimes: list[datetime] = []
    for table, version in versions.items():
        expiry = ctx.workload.tables[table].expiry
        if expiry is None:
            continue
        try:
            snapshot = ctx.tables.snapshot(table, version)
            live = live_rows(expiry, snapshot, instant, zone)
            edge = live.later_than.value
            assert isinstance(edge, int)
            about = ("least above", version, live.column, edge)
            least = ctx.tables.fact(table, about, partial(least_above, snapshot, live.column, edge))
        except (RecaptureNeededError, TableError):
            return ""
        if least is not None:
            # A row that expires after the last representable year never does.
            with suppress(OverflowError):
                next_at = _instant(least, is_day=live.later_than.type == DATE, zone=zone)
                datetimes.append(next_at + timedelta(microseconds=expiry.after))
    if not datetimes:
        return NEVER
    micros = (min(datetimes) - _EPOCH) // _MICROSECOND
    try:
        return (_EPOCH + timedelta(seconds=-(-micros // _SECOND))).isoformat()
    except OverflowError:
        return NEVER


def _instant(value: int, *, is_day: bool, zone: str) -> datetime:
    if is_day:
        day = date(1970, 1, 1) + timedelta(days=value)
        return datetime.combine(day, time(), zone_of(zone)).astimezone(UTC)
    return _EPOCH + timedelta(microseconds=value)


def least_above(snapshot: Snapshot, column: ColumnName, edge: int) -> int | None:
    """A value above `edge` with no such value of the column below it; None if none is."""
    bounds = file_bounds(snapshot, column)
    dead = bounds.is_all_null | (bounds.has_high & (np.asarray(bounds.highs) <= edge))
    is_whole = ~dead & bounds.has_low & (np.asarray(bounds.lows) > edge)
    result = [int(low) for low in bounds.lows[is_whole]]
    torn = [file for file, read in zip(snapshot.files, ~dead & ~is_whole, strict=True) if read]
    for rows in read_batches(snapshot, [column], torn) if torn else ():
        values = from_arrow(rows.column(0), snapshot.readable(column).type)
        later = values.values[values.validity() & (values.values > edge)]
        if len(later):
            result.append(int(later.min()))
    return min(result, default=None)


# Law: a position in the planned text, with views expanded and parameters substituted, leads to the
# one in the workload file, also for a view's text.


class QuerySource(Struct, frozen=True):
    """The query, the file's views, and the text of each rewriting so far."""

    spec: QuerySpec
    views: Mapping[FullName, ViewSpec] = field(default_factory=dict)
    expanded: ExpandedSql | None = None
    bound: BoundSql | None = None

    def place(self, line: int, column: int) -> Location:
        """Map a line and column of the newest text to the workload file."""
        if self.bound is not None:
            line, column = self.bound.written_at(line, column)
        if self.expanded is None or not self.expanded.stretches:
            return sql_location(self.spec, line, column)
        name, offset = self.expanded.written_at(line, column)
        owner = next((view for view in self.views.values() if view.name == name), self.spec)
        return offset_location(owner, offset)

    def placed(self, error: ImpctlError) -> ImpctlError:
        from impctl.sql.views import view_label

        location = error.location
        if location is None:
            return error.at(self.spec.location) if isinstance(error, UsageError) else error
        if location.file == f"query `{self.spec.name}`":
            return error.at(self.place(location.line, location.column))
        for view in self.views.values():
            if location.file == f"query `{view_label(view.name)}`":
                return error.at(sql_location(view, location.line, location.column))
        return error


# Facts about columns that make a sketch safe. Law: a fact is true of the pinned snapshot's rows, by
# statistics or by reading them; metadata is never enough, since a CHECK or NOT NULL only says what
# to look for. A fact without a CHECK is stored as an assumption. Deletions cannot break it, so
# checking each change's inserted rows keeps it true. A violation stops maintenance.


def constraint_facts(tables: PinnedTables, scans: Iterable[Scan]) -> tuple[Fact, ...]:
    """What CHECKs say and statistics confirm at the pinned versions, without re-check, since every
    use at other versions looks again. NOT NULL is not used: it may be added over rows that hold
    NULL."""
    claims = _stated_of(tables, scans)
    return tuple(dict.fromkeys(fact for snapshot, fact in claims if _is_confirmed(snapshot, fact)))


def facts_of(
    tables: PinnedTables, scans: Iterable[Scan], *, reads_checks: bool = False
) -> tuple[Fact, ...]:
    """Facts about the columns that a query reads, at the pinned versions. `reads_checks` adds what
    CHECKs say and statistics leave open, if the rows confirm it: that reads the column."""
    scans = tuple(scans)
    claims = tuple(_stated_of(tables, scans))
    result = dict.fromkeys(fact for snapshot, fact in claims if _is_confirmed(snapshot, fact))
    for scan in scans:
        snapshot = tables.snapshot(scan.table)
        for attribute in scan.attributes:
            column = snapshot.schema.find(attribute.name)
            if column is not None:
                result.update(dict.fromkeys(_facts(snapshot, scan.table, column)))
    for snapshot, fact in claims if reads_checks else ():
        known = replace(fact, source=FactSource.STATISTICS)
        if fact in result or known in result:
            continue
        column = snapshot.schema.find(fact.column)
        assert column is not None, "the CHECK was read over this schema"
        batches = read_batches(snapshot, [column.name])
        if not any(_breaking(rows, column, fact.kind).any() for rows in batches):
            result[known] = None
    return tuple(result)


def _stated_of(tables: PinnedTables, scans: Iterable[Scan]) -> Iterator[tuple[Snapshot, Fact]]:
    for table in dict.fromkeys(scan.table for scan in scans):
        snapshot = tables.snapshot(table)
        yield from ((snapshot, fact) for fact in _stated_by_checks(snapshot, table))


def _stated_by_checks(snapshot: Snapshot, table: TableName) -> Iterator[Fact]:
    """Signs of columns from CHECK conditions; none for a condition that cannot be read. They are
    not trusted: where a table's protocol does not require CHECKs, writers insert rows without
    checking, and those rows stay when the protocol changes."""
    for text in snapshot.constraints:
        try:
            query = parse_query(
                f"SELECT * FROM {quoted(table)} WHERE {text}", {table: snapshot.schema}
            )
        except ImpctlError:
            continue
        names = {a.id: a.name for scan in query.root.scans for a in scan.attributes}
        for node in query.root.walk():
            for part in conjuncts(node.predicate) if isinstance(node, Select) else ():
                sign = _sign_of(part)
                if sign is not None:
                    yield Fact(table, names[sign[0]], sign[1], FactSource.CONSTRAINT)


def _sign_of(part: Expr) -> tuple[AttributeId, FactKind] | None:
    """The column and sign of a condition such as `x >= 0`."""
    if not (isinstance(part, Compare) and isinstance(part.left, ColumnRef)):
        return None
    if not (isinstance(part.right, Literal) and part.right.type.is_numeric):
        return None
    signs = learn(part, {}).get(part.left.id, NOTHING)
    if signs.nonnegative:
        return part.left.id, FactKind.NONNEGATIVE
    if signs.nonpositive:
        return part.left.id, FactKind.NONPOSITIVE
    return None


def _is_confirmed(snapshot: Snapshot, fact: Fact) -> bool:
    return _has_sign(column_statistics(snapshot, fact.column), fact.kind)


def _has_sign(statistics: ValueBounds, kind: FactKind) -> bool:
    """Whether statistics rule out a value that breaks the sign."""
    if kind is FactKind.NONNEGATIVE:
        return statistics.minimum is not None and statistics.minimum >= 0  # type: ignore[operator]  # numeric columns only
    is_bounded = statistics.maximum is not None and statistics.maximum <= 0  # type: ignore[operator]  # numeric columns only
    return is_bounded and not statistics.may_be_nan


def _breaking(rows: pa.Table, column: Column, kind: FactKind) -> Bools:
    """Which rows may break the fact, shape (rows,)."""
    vector = from_arrow(rows.column(column.name), column.type)
    broken = Condition(broken_by(kind, ColumnRef(column.name, column.type)))
    return broken.truth({column.name: vector}, len(vector)).may_true


def _facts(snapshot: Snapshot, table: TableName, column: Column) -> Iterator[Fact]:
    # NULLs of other types are looked at only where NOT NULL is declared: each fact has to be
    # checked again with every change.
    is_declared = column.name in snapshot.not_null and column.name not in snapshot.columns.opaque
    if not (column.type.is_numeric or is_declared):
        return
    statistics = column_statistics(snapshot, column.name)
    source = FactSource.STATISTICS
    if statistics.null_count == 0:
        yield Fact(table, column.name, FactKind.NOT_NULL, source)
    if not column.type.is_numeric:
        return
    # Statistics of floating columns leave NaN out. It is the greatest value, so it harms no lower
    # bound (`safety.facts`), as a CHECK (x >= 0) lets it in too; they bound no upper side.
    if _has_sign(statistics, FactKind.NONNEGATIVE):
        yield Fact(table, column.name, FactKind.NONNEGATIVE, source)
    if column.type.is_fractional:
        return
    if _has_sign(statistics, FactKind.NONPOSITIVE):
        yield Fact(table, column.name, FactKind.NONPOSITIVE, source)


def assumption_of(fact: Fact) -> Assumption:
    return Assumption(fact.table, fact.column, str(fact.kind), str(fact.source))


def fact_of(assumption: Assumption) -> Fact:
    kind, source = FactKind(assumption.kind), FactSource(assumption.source)
    return Fact(assumption.table, assumption.column, kind, source)


_IN_WORDS = {
    FactKind.NONNEGATIVE: ">= 0",
    FactKind.NONPOSITIVE: "<= 0",
    FactKind.NOT_NULL: "has no NULL",
    FactKind.NAN_FREE: "has no NaN",
}


def assumption_text(assumption: Assumption) -> str:
    """The column in backticks and its fact, as in `>= 0`."""
    return f"`{assumption.table}.{assumption.column}` {_IN_WORDS[FactKind(assumption.kind)]}"


def columns_assumed(assumptions: Sequence[Assumption], table: TableName) -> tuple[ColumnName, ...]:
    """Columns of a table that a re-check has to read."""
    return tuple(dict.fromkeys(a.column for a in assumptions if a.table == table))


def recheck(
    assumptions: Sequence[Assumption], snapshot: Snapshot, rows: pa.Table, weights: Ints
) -> None:
    """Check the inserted rows of a change; AssumptionBrokenError names fact and column."""
    inserted = weights > 0
    for assumption in assumptions:
        if assumption.table != snapshot.table:
            continue
        column = snapshot.schema.find(assumption.column)
        assert column is not None
        breaking = _breaking(rows, column, FactKind(assumption.kind))
        if (breaking & inserted).any():
            # An inserted row may have been deleted again.
            chosen = np.flatnonzero(breaking)
            _, left = netted(rows.take(pa.array(chosen)), weights[chosen])
            if (left > 0).any():
                raise broken_assumption(assumption)


def broken_assumption(assumption: Assumption) -> AssumptionBrokenError:
    return AssumptionBrokenError(
        f"A change violates an assumption of the sketch: {assumption_text(assumption)}",
        hint="run `impctl capture`; it chooses an attribute that is still safe, or reports why "
        "there is none",
    )


# Law: a SQL error has its location in the workload file. The plan has the parameters' values;
# `query.sql` is the text with them, which Spark runs.


class PreparedQuery(Struct, frozen=True):
    """A parsed query, `planned` with the plan after the rules, and what a sketch depends on. `core`
    has the same rows without output columns: these decide nothing about the sketch, so neither
    engine nor capture keeps them. Both record whether only the answer's lineage is wanted."""

    spec: QuerySpec
    bound: BoundSql
    query: Query
    planned: Query
    core: Plan
    source: QuerySource
    now: str = ""
    """The instant at which rows of tables with an expiry must be live, if it reads one."""

    @property
    def root(self) -> Plan:
        return self.planned.root

    @property
    def moments(self) -> Mapping[str, str]:
        """Clock constants of the text and of expiries, with their values by name."""
        return {**self.bound.moments, RUN_INSTANT: self.now} if self.now else self.bound.moments

    @property
    def moves_above(self) -> bool:
        """Whether clock constants may occur elsewhere than right above scans."""
        return bool(self.bound.moments)

    @property
    def scans(self) -> tuple[Scan, ...]:
        return self.root.scans

    @property
    def tables(self) -> tuple[TableName, ...]:
        return tuple(dict.fromkeys(scan.table for scan in self.scans))

    @property
    def table_of(self) -> Mapping[AccessId, TableName]:
        return {scan.access: scan.table for scan in self.scans}

    def place(self, span: Span | None) -> Location | None:
        """Map a position in the SQL text to the workload file."""
        if span is None:
            return None
        return self.source.place(span.line, span.column)

    def located(self, error: ImpctlError) -> ImpctlError:
        return self.source.placed(error)


Value = TypeVar("Value")


class _OnDemand(Mapping[TableName, Value]):
    """What `make` gives for each of these tables when it is asked for: a query reads the schemas of
    the tables that it names."""

    def __init__(self, tables: Collection[TableName], make: Callable[[TableName], Value]) -> None:
        self._tables = tables
        self._make = make

    def __getitem__(self, table: TableName) -> Value:
        if table not in self._tables:
            raise KeyError(table)
        return self._make(table)

    def __iter__(self) -> Iterator[TableName]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


def prepare(
    ctx: Context, spec: QuerySpec, moments: Mapping[str, str] | None = None
) -> PreparedQuery:
    """Parse and plan a query; QueryError names the place in the workload file. Clock constants are
    those of the run, or those in `moments` by name."""
    workload = ctx.workload
    source = QuerySource(spec, workload.views)
    try:
        clock = ctx.clock if moments is None else replace(ctx.clock, held=moments)
        sql = spec.sql
        if workload.views:
            from impctl.sql.views import expand_views

            views = {full: (view.name, view.sql) for full, view in workload.views.items()}
            expanded = expand_views(sql, views, workload.names, name=spec.name)
            source, sql = replace(source, expanded=expanded), expanded.sql
        bound = bind(sql, spec.params, name=spec.name, clock=clock, follows=spec.follows)
        source = replace(source, bound=bound)
        live, now = live_at(ctx, clock)
        result = ctx.memory.plans.of(
            bound.sql,
            _OnDemand(workload.tables, lambda table: ctx.tables.snapshot(table).schema),
            name=spec.name,
            zone=ctx.session_zone,
            names=workload.names,
            live=live,
            instant=now,
        )
        now = now if result.query.live else ""
        ruled, core = result.ruled, result.core
        if spec.lineage is LineageMode.ANSWER:
            ruled, core = replace(ruled, root=for_answer(ruled.root)), for_answer(core)
        prepared = PreparedQuery(spec, bound, result.query, ruled, core, source, now)
        read = {scan.table for scan in prepared.query.root.scans} if bound.bare else ()
        column = column_like_clock(ctx.tables, bound, read)
        if column is not None:
            raise UsageError(
                f"`{column[1]}` in query `{spec.name}` may mean the column of `{column[0]}` or "
                "the current time",
                hint=f"write `{column[1]}()` for the current time, or `{'.'.join(column)}` for "
                "the column",
                code="clock_ambiguous",
            )
        return prepared
    except ImpctlError as error:
        raise source.placed(error) from error.__cause__


def live_at(ctx: Context, clock: Clock) -> tuple[Mapping[TableName, LiveRows], str]:
    """What queries see of tables with an expiry, and the instant; nothing without an expiry."""
    expiries = {name: spec.expiry for name, spec in ctx.workload.tables.items() if spec.expiry}
    if not expiries:
        return NO_EXPIRY, ""
    now = clock.value(RUN_INSTANT)
    assert isinstance(now, datetime)

    def live(table: TableName) -> LiveRows:
        return live_rows(expiries[table], ctx.tables.snapshot(table), now, ctx.session_zone)

    return _OnDemand(expiries, live), clock.text(RUN_INSTANT)


def column_like_clock(
    tables: PinnedTables, bound: BoundSql, read: Iterable[TableName]
) -> tuple[TableName, str] | None:
    """A column of a table read with a clock constant's name, which Spark prefers."""
    for name in bound.bare:
        for table in read:
            if tables.snapshot(table).schema.find(name) is not None:
                return table, name
    return None


# The plan whose lineage the sketches hold. Law: it yields the query's rows on every database, and
# its lineage suffices for the answer. It is the query's own plan, or for `lineage: witness` one in
# which what a single row decides has only that row's lineage; for `lineage: answer` rows of
# recursions outside the answer's lineage have none. Engine, Spark and verification use the same
# plan; queries never run by it.


class SketchedQuery(Struct, frozen=True):
    """A query with the partitions of its sketches, and the verdict that these are safe. If these
    were chosen now, also the `candidates` with the reason of each."""

    prepared: PreparedQuery
    verdict: Verdict
    partitions: Partitions
    candidates: tuple[CandidateEntry, ...] = ()

    @property
    def attributes(self) -> Mapping[AccessId, ColumnName]:
        return {access: partition.attribute for access, partition in self.partitions.items()}

    def verdict_of(self, root: Plan) -> Verdict:
        """The verdict for another plan of the query, such as its core."""
        query = replace(self.prepared.planned, root=root)
        return carried_verdict(self.verdict, query, self.attributes)


class MaterializedPlan(Struct, frozen=True):
    """The query with the captured plan, the verdict on it, and its core (decision 0008). `notes`
    say what the nodes of the query's own plan store, by their position."""

    query: Query
    verdict: Verdict
    core: Plan
    notes: Mapping[int, str]
    core_verdict: Verdict

    @property
    def has_witnesses(self) -> bool:
        """Whether the lineage is a choice: an unchanged row may become decisive."""
        nodes = self.query.root.walk()
        return any(isinstance(n, Witness) or (isinstance(n, Fixpoint) and n.chooses) for n in nodes)


def kept_plan(query: SketchedQuery) -> MaterializedPlan:
    """The plan that maintains the query's sketches."""
    from impctl.plan.lineage import answer_notes
    from impctl.rules.optimize import core_of
    from impctl.rules.witnesses import witnessed

    prepared, verdict = query.prepared, query.verdict
    if prepared.spec.lineage in (LineageMode.ALL, LineageMode.ANSWER):
        notes: Mapping[int, str] = {}
        if prepared.spec.lineage is LineageMode.ANSWER:
            # The planned query already has the answer's lineage.
            barriers, _ = sketched_nodes(prepared, verdict, query.attributes)
            notes = answer_notes(prepared.root, barriers)
        core = prepared.core
        return MaterializedPlan(prepared.planned, verdict, core, notes, query.verdict_of(core))
    columns = {a: Column(p.attribute, p.type) for a, p in query.partitions.items()}
    result = witnessed(prepared.planned, verdict, columns)
    carried = carried_verdict(verdict, result.query, query.attributes)
    core = core_of(result.query.root)
    of_core = carried_verdict(verdict, replace(result.query, root=core), query.attributes)
    return MaterializedPlan(result.query, carried, core, result.notes, of_core)


def sketched_nodes(
    prepared: PreparedQuery, verdict: Verdict, sketched: Mapping[AccessId, ColumnName]
) -> tuple[list[int], list[int]]:
    """Positions of plan nodes above a sketched access: those not keyed, those keyed."""
    states = states_of(verdict, prepared.planned, sketched)
    sketched_at = [index for index, state in enumerate(states) if state.sketched]
    keyed = [index for index in sketched_at if states[index].status is Status.KEYED]
    return [index for index in sketched_at if index not in keyed], keyed
