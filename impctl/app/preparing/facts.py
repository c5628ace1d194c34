"""Facts about columns that make a sketch safe, and their re-check on every change.

Law: a fact is true of the rows of the pinned snapshot, by its statistics or by reading them.
Metadata alone is never enough: a CHECK or NOT NULL only says what to look for. What no CHECK says
is stored as an assumption; because deletions cannot break it, looking at the inserted rows of every
change keeps it true for ever. A violation stops maintaining, it never widens silently.
Out of scope: what facts imply (`safety.judge`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from impctl.app.workbench.pinned import PinnedTables
from impctl.data.schema import Column, quoted
from impctl.data.vector import Bools, Ints, from_arrow
from impctl.errors import AssumptionBrokenError, ImpctlError
from impctl.expr.evaluate import Condition
from impctl.expr.nodes import ColumnRef, Compare, Expr, Literal, conjuncts
from impctl.plan.nodes import Scan, Select, nodes_of, scans_of
from impctl.safety.facts import NOTHING, Fact, FactKind, FactSource, broken_by, learn
from impctl.sql.statement import parse_query
from impctl.store.records import Assumption
from impctl.tables.changes import netted
from impctl.tables.rows import read_batches
from impctl.tables.snapshot import Snapshot
from impctl.tables.statistics import ColumnStatistics, column_statistics
from impctl.types import AttributeId, ColumnName, TableName


def constraint_facts(tables: PinnedTables, scans: Iterable[Scan]) -> tuple[Fact, ...]:
    """What CHECKs say and statistics confirm, at the pinned versions; it needs no re-check, since
    whoever asks at another version looks again.

    Not NOT NULL: it may be added over rows that hold NULL.
    """
    said = _said_of(tables, scans)
    return tuple(dict.fromkeys(fact for snapshot, fact in said if _is_confirmed(snapshot, fact)))


def facts_of(
    tables: PinnedTables, scans: Iterable[Scan], *, reads_checks: bool = False
) -> tuple[Fact, ...]:
    """What is known of the columns that a query reads, at the pinned versions.

    With `reads_checks` also what CHECKs say and statistics leave open, if the rows confirm it: the
    column is read for that.
    """
    scans = tuple(scans)
    said = tuple(_said_of(tables, scans))
    result = dict.fromkeys(fact for snapshot, fact in said if _is_confirmed(snapshot, fact))
    for scan in scans:
        snapshot = tables.snapshot(scan.table)
        for attribute in scan.attributes:
            column = snapshot.schema.find(attribute.name)
            if column is not None:
                result.update(dict.fromkeys(_facts(snapshot, scan.table, column)))
    for snapshot, fact in said if reads_checks else ():
        known = replace(fact, source=FactSource.STATISTICS)
        if fact not in result and known not in result and _holds(snapshot, fact):
            result[known] = None
    return tuple(result)


def _said_of(tables: PinnedTables, scans: Iterable[Scan]) -> Iterator[tuple[Snapshot, Fact]]:
    """What CHECKs say of the tables that a query reads."""
    for table in dict.fromkeys(scan.table for scan in scans):
        snapshot = tables.snapshot(table)
        for fact in _said_by_checks(snapshot, table):
            yield snapshot, fact


def _said_by_checks(snapshot: Snapshot, table: TableName) -> Iterator[Fact]:
    """Signs of columns that CHECK conditions ask for; none of a condition that is not read.

    They are not believed: a table whose protocol does not ask for it has writers that put in rows
    without a look, and what they put in stays when the protocol changes.
    """
    for text in snapshot.constraints:
        try:
            query = parse_query(
                f"SELECT * FROM {quoted(table)} WHERE {text}", {table: snapshot.schema}
            )
        except ImpctlError:
            continue
        names = {a.id: a.name for scan in scans_of(query.root) for a in scan.attributes}
        for node in nodes_of(query.root):
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


def _has_sign(statistics: ColumnStatistics, kind: FactKind) -> bool:
    """Whether statistics leave no room for a value that breaks the sign."""
    if kind is FactKind.NONNEGATIVE:
        return statistics.minimum is not None and statistics.minimum >= 0  # type: ignore[operator]  # numeric columns only
    is_bounded = statistics.maximum is not None and statistics.maximum <= 0  # type: ignore[operator]  # numeric columns only
    return is_bounded and not statistics.may_be_nan


def _holds(snapshot: Snapshot, fact: Fact) -> bool:
    """Whether it is true of every row, by reading the column."""
    column = snapshot.schema.find(fact.column)
    assert column is not None, "the CHECK was read over this schema"
    batches = read_batches(snapshot, [column.name])
    return not any(bool(_breaking(rows, column, fact.kind).any()) for rows in batches)


def _breaking(rows: pa.Table, column: Column, kind: FactKind) -> Bools:
    """Which rows may break such a fact of the column, shape (rows,)."""
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
    """The fact as the store keeps it."""
    return Assumption(fact.table, fact.column, str(fact.kind), str(fact.source))


def fact_of(assumption: Assumption) -> Fact:
    """The fact that the store keeps so."""
    kind, source = FactKind(assumption.kind), FactSource(assumption.source)
    return Fact(assumption.table, assumption.column, kind, source)


_IN_WORDS = {
    FactKind.NONNEGATIVE: ">= 0",
    FactKind.NONPOSITIVE: "<= 0",
    FactKind.NOT_NULL: "has no NULL",
    FactKind.NAN_FREE: "has no NaN",
}


def assumption_text(assumption: Assumption) -> str:
    """In words: the column, in backticks, and what is true of it, as in `>= 0`."""
    return f"`{assumption.table}.{assumption.column}` {_IN_WORDS[FactKind(assumption.kind)]}"


def columns_assumed(assumptions: Sequence[Assumption], table: TableName) -> tuple[ColumnName, ...]:
    """Columns of a table that a re-check has to read."""
    return tuple(dict.fromkeys(a.column for a in assumptions if a.table == table))


def recheck(
    assumptions: Sequence[Assumption],
    snapshot: Snapshot,
    rows: pa.Table,
    weights: Ints,
) -> None:
    """Look at the inserted rows of a change; AssumptionBrokenError names fact and column."""
    inserted = weights > 0
    for assumption in assumptions:
        if assumption.table != snapshot.table:
            continue
        column = snapshot.schema.find(assumption.column)
        assert column is not None
        breaking = _breaking(rows, column, FactKind(assumption.kind))
        if bool((breaking & inserted).any()) and _is_left(rows, weights, breaking):
            raise broken_assumption(assumption)


def _is_left(rows: pa.Table, weights: Ints, doubtful: Bools) -> bool:
    """Whether one of the doubtful rows is left at the end: one that came may have gone again."""
    chosen = np.flatnonzero(doubtful)
    _, left = netted(rows.take(pa.array(chosen)), weights[chosen])
    return bool((left > 0).any())


def broken_assumption(assumption: Assumption) -> AssumptionBrokenError:
    """The error for a change that breaks it."""
    return AssumptionBrokenError(
        f"A change violates an assumption of the sketch: {assumption_text(assumption)}",
        hint="run `impctl capture`; it chooses an attribute that is still safe, or reports why "
        "there is none",
    )
