"""CHECK constraints and column invariants of a table, kept with Spark's meaning.

Law: no batch puts in a row that Spark would refuse. deltalake tests constraints too, but reads them
by its own rules (`7 / 2` is 3, a NaN may be less than 0). So rows to insert are tested here, and an
update may set a column only where deltalake lets through no more than Spark.
Out of scope: NOT NULL (`tables.write.rows`; deltalake tests it in updates).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from impctl.data.schema import Kind, SqlType
from impctl.data.vector import from_arrow
from impctl.errors import ImpctlError, TableError, UsageError
from impctl.expr.evaluate import Condition, find_blocker
from impctl.expr.nodes import (
    And,
    ColumnRef,
    Compare,
    CompareOp,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    columns_of,
    walk,
)
from impctl.expr.types import type_of
from impctl.tables.write.predicates import read_condition

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.plan.nodes import Scan
    from impctl.tables.snapshot import Snapshot
    from impctl.types import ColumnName

_NODES = (And, Or, Not, Compare, InList, IsNull, Like, ColumnRef, Literal)
_FOREIGN = ("\\", '"', "--", "/*")
"""What a text for deltalake must not hold: other literals, or names, than in Spark."""

_EXACT_SCALE = 18
"""Digits that leave room for any integer beside them in 38."""


def check_rows(snapshot: Snapshot, rows: pa.Table) -> None:
    """Refuse rows that break a constraint, and tables with one that impctl cannot test."""
    for text in snapshot.constraints if len(rows) else ():
        scan, condition = _read(snapshot, text)
        used = columns_of(condition)
        read = {a.id: snapshot.column(a.name) for a in scan.attributes if a.id in used}
        is_opaque = any(column.type.kind is Kind.OTHER for column in read.values())
        if is_opaque or find_blocker(condition) is not None:
            raise _refused(snapshot, text, "cannot be checked by impctl")
        columns = {key: from_arrow(rows.column(c.name), c.type) for key, c in read.items()}
        if not Condition(condition).truth(columns, len(rows)).sure_true().all():
            raise UsageError(
                f"Table `{snapshot.table}` does not accept the batch: a row breaks its constraint"
                f" `{text}`",
                hint="correct the batch, or the table's constraints",
            )


def check_assignments(snapshot: Snapshot, assigned: Collection[ColumnName]) -> None:
    """Refuse to set columns of a constraint that deltalake might pass where Spark does not."""
    changed = {name.lower() for name in assigned}
    for text in snapshot.constraints:
        scan, condition = _read(snapshot, text)
        read = columns_of(condition)
        names = {a.name.lower() for a in scan.attributes if a.id in read}
        if names & changed and not _is_kept_by_deltalake(condition, text):
            raise _refused(snapshot, text, "has a different meaning in deltalake")


def _read(snapshot: Snapshot, text: str) -> tuple[Scan, Expr]:
    try:
        return read_condition(snapshot, text)
    except ImpctlError as error:
        raise _refused(snapshot, text, "cannot be parsed by impctl") from error


def _is_kept_by_deltalake(condition: Expr, text: str) -> bool:
    """Whether deltalake, given the text, passes no row for which Spark's condition fails."""
    if find_blocker(condition) is not None or any(mark in text for mark in _FOREIGN):
        return False
    return all(_is_alike(part) for part in walk(condition))


def _is_alike(part: Expr) -> bool:
    match part:
        case Compare():
            return _is_same_comparison(part.op, part.left, part.right)
        case InList():
            return all(
                _is_same_comparison(CompareOp.EQUAL, part.operand, option)
                for option in part.options
            )
        case IsNull() | Like():
            return isinstance(part.operand, ColumnRef)
        case Not():
            # What lets a NaN through too seldom lets it through too often once it is negated.
            return not any(
                isinstance(inner, Compare) and _is_fractional(inner) for inner in walk(part)
            )
        case _:
            return isinstance(part, _NODES)


def _is_same_comparison(op: CompareOp, left: Expr, right: Expr) -> bool:
    """Whether the two engines compare in one type; of doubles, only what no NaN passes wrongly."""
    if isinstance(left, Literal) and not isinstance(right, Literal):
        return _is_same_comparison(op.mirrored, right, left)
    own, beside = type_of(left), type_of(right)
    if not isinstance(left, ColumnRef) or own is None or beside is None:
        return False
    if isinstance(right, ColumnRef):
        return own == beside and not own.is_fractional and own.kind is not Kind.OTHER
    if not isinstance(right, Literal) or right.value is None:
        return False
    if own.is_fractional:
        return op in (CompareOp.GREATER, CompareOp.GREATER_EQUAL) and _is_plain_bound(right, own)
    if own.is_integral or own.kind is Kind.DECIMAL:
        return beside.is_integral and own.scale <= _EXACT_SCALE
    return own == beside and own.kind in (Kind.BOOLEAN, Kind.STRING)


def _is_plain_bound(literal: Literal, column: SqlType) -> bool:
    """Whether the number is one and the same beside the column of doubles or floats."""
    if literal.type.is_integral and isinstance(literal.value, int):
        return column.kind is Kind.DOUBLE or abs(literal.value) <= 2**24
    return literal.type.kind in (Kind.DECIMAL, Kind.DOUBLE)


def _is_fractional(part: Compare) -> bool:
    types = (type_of(part.left), type_of(part.right))
    return any(result is None or result.is_fractional for result in types)


def _refused(snapshot: Snapshot, text: str, problem: str) -> TableError:
    return TableError(
        f"impctl cannot write to table `{snapshot.table}`: its constraint `{text}` {problem}",
        hint="apply the batch with Spark and the Delta JAR",
        code="table_not_writable",
    )
