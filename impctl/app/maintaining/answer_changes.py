"""What came and went of an answer, from the rows that it is made of.

Law: applied to the answer before, the changes give the answer after, row for row and copy for copy:
no row goes that was not there. Rows are one where all values put out are, each rounded once: 0.0 is
not -0.0, NaN is NaN; what is the same before and after is no change. Rows that went come first,
each part in the order of its columns.
A row is sure if it is the same in whatever order the query's doubles are added up: where its rows
are at hand with their bounds, by these; where only values are, if no column is such a sum.
Out of scope: what comes and goes of the rows kept (`engine.result_rows`), files of changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from impctl.compile.answers import arrow_column, arrow_type, rows_asked_for
from impctl.compile.flows import typed
from impctl.data.keys import group_rows
from impctl.data.vector import Bools, Ints, Vector, concat
from impctl.engine.batch import Batch, empty_batch, identity_of
from impctl.engine.extremes import OrderKey, exact_ranks
from impctl.errors import EvaluationError, NotExactError
from impctl.expr.error_bounds import exactly
from impctl.expr.evaluate import Condition, Evaluator
from impctl.expr.nodes import Expr, columns_of
from impctl.rules.finalize import Ending
from impctl.types import AttributeId
from impctl.values import dataclass

CHANGE, COPIES, SURE = "_change", "_copies", "_sure"
"""The columns that say what became of a row, of how many copies, and whether that is sure."""

INSERT, DELETE = "insert", "delete"

NO_ROWS = empty_batch(0)
"""What an answer is made of before anything was there."""


def changes_by_rows(
    ending: Ending, change: Batch, bounded: Collection[AttributeId], zone: str
) -> pa.Table:
    """The changes by those of the rows kept, with their bounds; of an answer that is not cut."""
    assert not ending.is_cut, "what is cut is compared"
    change = _netted(change)
    values = {name: exactly(column) for name, column in change.columns.items()}
    kept, unsure = np.ones(len(change), dtype=np.bool_), np.zeros(len(change), dtype=np.bool_)
    for predicate in ending.predicates:
        if len(change):
            unsure |= _unsure_outcomes(predicate, change)
            kept &= Condition(predicate).truth(values, len(change)).sure_true()
    for one in ending.outputs:
        if len(change):
            unsure |= _unsure_values(one.expr, change)
    rows = Batch(values, change.weights, ()).keep(kept)
    return _put_out(ending, [_Part(ending, rows, 1)], unsure[kept] if bounded else None, zone)


@dataclass(frozen=True, slots=True)
class RowsOf:
    """Rows kept, and how the answer is made of them; which of its columns may have bounds."""

    ending: Ending
    rows: Batch
    bounded: frozenset[AttributeId] = frozenset()


def changes_between(before: RowsOf, after: RowsOf, zone: str) -> pa.Table:
    """The changes from one answer to another of the same columns."""
    went, came = (rows_asked_for(one.ending, one.rows) for one in (before, after))
    unsure = np.ones(len(went) + len(came), dtype=np.bool_) if after.bounded else None
    parts = [_Part(before.ending, went, -1), _Part(after.ending, came, 1)]
    return _put_out(after.ending, parts, unsure, zone)


def whole_answer(after: RowsOf, zone: str) -> pa.Table:
    """The answer as changes from nothing."""
    return changes_between(RowsOf(after.ending, NO_ROWS), after, zone)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows to put out as an answer's, with what their weights are multiplied by."""

    ending: Ending
    rows: Batch
    sign: int


@dataclass(frozen=True, slots=True)
class _Rows:
    """Values put out, each row once with its sum, in order; `unsure` where that may be asked."""

    columns: Sequence[Vector]
    weights: Ints
    unsure: Bools | None


def _put_out(ending: Ending, parts: Sequence[_Part], unsure: Bools | None, zone: str) -> pa.Table:
    filled = [part for part in parts if len(part.rows)]
    types = typed((one.attribute for one in ending.outputs), None)
    wanted = [arrow_type(kind, zone) for _, kind in types]
    result = _consolidated(filled, unsure) if filled else None
    if result is None:
        columns = [pa.array([], kind) for kind in wanted]
        weights, unsure = np.zeros(0, np.int64), None if unsure is None else np.zeros(0, np.bool_)
    else:
        weights, unsure = result.weights, result.unsure
        ones = np.ones(len(weights), dtype=np.int64)
        pairs = zip(result.columns, wanted, strict=True)
        columns = [arrow_column(column, ones, kind) for column, kind in pairs]
    said = {CHANGE: pa.array(np.where(weights < 0, DELETE, INSERT), pa.string())}
    said[COPIES] = pa.array(np.abs(weights), pa.int64())
    if unsure is not None:
        said[SURE] = pa.array(~unsure, pa.bool_())
    names = [one.attribute.name for one in ending.outputs]
    return pa.Table.from_arrays([*said.values(), *columns], names=[*said, *names])


def _consolidated(parts: Sequence[_Part], unsure: Bools | None) -> _Rows:
    length = sum(len(part.rows) for part in parts)
    weights = np.concatenate([part.rows.weights * part.sign for part in parts])
    values = [_values(part) for part in parts]
    columns = [concat(list(same)) for same in zip(*values, strict=True)]
    grouping = group_rows([identity_of(column) for column in columns], length)
    sums = np.add.reduceat(weights[grouping.order], grouping.starts)
    left = np.flatnonzero(sums)
    kept, sums = grouping.first[left], sums[left]
    if unsure is not None:
        unsure = np.logical_or.reduceat(unsure[grouping.order], grouping.starts)[left]
    columns = [column.take(kept) for column in columns]
    order = _order(columns, sums)
    columns = [column.take(order) for column in columns]
    return _Rows(columns, sums[order], None if unsure is None else unsure[order])


def _values(part: _Part) -> list[Vector]:
    """The columns put out, every NaN the same."""
    rows = part.rows
    return [
        _same_nan(Evaluator(o.expr).values(rows.columns, len(rows))) for o in part.ending.outputs
    ]


def _order(columns: Sequence[Vector], weights: Ints) -> Ints:
    """What went before what came, each by its columns."""
    key = OrderKey("", descending=False, nulls_first=True)
    # Where values tie, as 0.0 and -0.0 do, their bits decide.
    ways = [way for column in columns for way in (column, identity_of(column))]
    ranks = [np.sign(weights), *(exact_ranks(way, key) for way in ways)]
    return np.lexsort(ranks[::-1])


def _same_nan(column: Vector) -> Vector:
    """The column without bounds, every NaN of it the same."""
    if not column.type.is_fractional:
        return column
    values = np.where(np.isnan(column.values), np.nan, column.values)
    return Vector(column.type, values, column.valid)


def _netted(change: Batch) -> Batch:
    """Each row once, with the widest of its bounds; what comes and goes alike left out."""
    if not len(change):
        return change
    columns = change.columns
    grouping = group_rows([identity_of(column) for column in columns.values()], len(change))
    sums = np.add.reduceat(change.weights[grouping.order], grouping.starts)
    left = np.flatnonzero(sums)
    result = {}
    for name, column in columns.items():
        taken = exactly(column).take(grouping.first[left])
        error = None
        if column.error is not None:
            error = np.maximum.reduceat(column.error[grouping.order], grouping.starts)[left]
        result[name] = Vector(taken.type, taken.values, taken.valid, error)
    return Batch(result, sums[left], ())


def _unsure_outcomes(predicate: Expr, rows: Batch) -> Bools:
    """Of which rows the condition may come out otherwise."""
    if not bool(_has_bound(predicate, rows).any()):
        return np.zeros(len(rows), dtype=np.bool_)
    try:
        return Condition(predicate).truth(rows.columns, len(rows)).is_unsure
    except (NotExactError, EvaluationError):
        return _has_bound(predicate, rows)


def _unsure_values(expr: Expr, rows: Batch) -> Bools:
    """Of which rows the value may come out otherwise."""
    bounded = _has_bound(expr, rows)
    if not bool(bounded.any()):
        return bounded
    try:
        value = Evaluator(expr).values(rows.columns, len(rows))
    except (NotExactError, EvaluationError):
        return bounded
    if value.error is None:
        return np.zeros(len(rows), dtype=np.bool_)
    return np.asarray((value.error != 0) & value.validity(), dtype=np.bool_)


def _has_bound(expr: Expr, rows: Batch) -> Bools:
    """Which rows have a value with a bound that the expression reads."""
    result = np.zeros(len(rows), dtype=np.bool_)
    for name in columns_of(expr):
        column = rows.columns[name]
        if column.error is not None:
            result |= (column.error != 0) & column.validity()
    return result
