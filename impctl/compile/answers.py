"""The answer of a query from its kept rows: evaluated, ordered, cut and output.

Values are rounded once; equal rows keep their number; ties are ordered by content, the same every
time. NotExactError for a condition on a value that is not exact, EvaluationError where Spark fails.
Columns have Spark's Arrow types.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from impctl.compile.flows import check, check_condition, typed
from impctl.data.keys import key_codes
from impctl.data.schema import INTEGRAL, Kind, SqlType
from impctl.data.vector import Bools, Ints, Vector, from_arrow, typed_arrow
from impctl.engine.batch import Batch, identity_of
from impctl.engine.extremes import OrderKey, exact_ranks
from impctl.engine.result_rows import AnswerRows, KeptRows
from impctl.expr.error_bounds import exactly
from impctl.expr.evaluate import Condition, Evaluator
from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr, Literal, Span, conjuncts
from impctl.tables import snapshot

if TYPE_CHECKING:
    from impctl.plan.nodes import Attribute, SortKey
    from impctl.rules.finalize import FinalSteps
    from impctl.types import AttributeId

_LOOKED_UP = INTEGRAL | {Kind.STRING, Kind.DATE}
"""Types of keys that can be looked up: equal values have one code."""

ANSWER = "answer"  # The name of the answer's rows among all that a circuit keeps


def kept_rows(ending: FinalSteps, bounded: Collection[AttributeId] = ()) -> KeptRows:
    """The operator that keeps rows, by the first column that is output unchanged."""
    columns = typed(ending.columns, None)
    shown = [output.expr.id for output in ending.outputs if isinstance(output.expr, ColumnRef)]
    keys = (shown or [name for name, _ in columns])[:1]
    return KeptRows(ANSWER, columns, keys, frozenset(bounded) & {name for name, _ in columns})


def check_ending(ending: FinalSteps, span: Span | None) -> None:
    """BlockedError if the answer cannot be computed from its rows exactly as Spark does."""
    for predicate in ending.predicates:
        check_condition(predicate, span)
    for expr in ending.values:
        check(expr, span)
    typed((output.attribute for output in ending.outputs), span)


def answer_of_rows(
    ending: FinalSteps, rows: Batch, zone: str, where: Expr | None = None
) -> pa.Table:
    """The answer; `rows` have `ending.columns` and positive weights, and may be more than needed.
    `where`, a condition on the answer's columns, selects its rows."""
    rows = answer_rows(ending, rows)
    if where is not None and len(rows):
        shown = {output.attribute.id: output.expr for output in ending.outputs}
        condition = where.substitute(shown)
        rows = rows.keep(Condition(condition).truth(rows.columns, len(rows)).sure_true())
    types = dict(typed((output.attribute for output in ending.outputs), None))
    columns = []
    for output in ending.outputs:
        kind = arrow_type(types[output.attribute.id], zone)
        # No rows may come without columns.
        column = Evaluator(output.expr).values(rows.columns, len(rows)) if len(rows) else None
        if column is None:
            columns.append(pa.array([], kind))
        else:
            columns.append(arrow_column(column, rows.weights, kind))
    names = [output.attribute.name for output in ending.outputs]
    return pa.Table.from_arrays(columns, names=names)


def answer_rows(ending: FinalSteps, rows: Batch) -> Batch:
    """The answer's rows among the kept ones, by value, cut and in order; not output yet."""
    # Without bounds: each value counts as it is.
    rows = Batch({name: exactly(column) for name, column in rows.columns.items()}, rows.weights, ())
    for predicate in ending.predicates:
        if len(rows):
            rows = rows.keep(Condition(predicate).truth(rows.columns, len(rows)).sure_true())
    if ending.first is not None:
        first = ending.first
        end = None if first.count is None else first.offset + first.count
        rows = _between(_sorted(rows, first.order), first.offset, end)
    if ending.first is None or ending.first.order != ending.order:
        rows = _sorted(rows, ending.order)
    return rows if ending.limit is None else _between(rows, 0, ending.limit)


def looked_up_key(ending: FinalSteps, kept: AnswerRows, where: Expr) -> int | None:
    """The code of the one key for which a condition on the answer's columns can be true. None if
    there may be several, or if other rows decide which rows there are. Only for keys whose equality
    is that of their contents."""
    types = dict(kept.columns)
    if ending.is_cut or not kept.keys or types[kept.keys[0]].kind not in _LOOKED_UP:
        return None
    shown = {output.attribute.id: output.expr for output in ending.outputs}
    (key,) = kept.keys
    for part in conjuncts(where.substitute(shown)):
        if not isinstance(part, Compare) or part.op is not CompareOp.EQUAL:
            continue
        for column, value in ((part.left, part.right), (part.right, part.left)):
            is_key = isinstance(column, ColumnRef) and column.id == key
            if is_key and isinstance(value, Literal) and value.value is not None:
                return _code(value, types[key])
    return None


def _code(value: Literal, kind: SqlType) -> int | None:
    """The code of a key with this value; None if the types do not compare as they are."""
    if value.type.kind is not kind.kind and not {value.type.kind, kind.kind} <= INTEGRAL:
        return None
    return int(key_codes([Vector(kind, Evaluator(value).values({}, 1).values)], 1)[0])


def arrow_type(kind: SqlType, zone: str) -> pa.DataType:
    """What Spark's `toArrow` gives."""
    match kind.kind:
        case Kind.TIMESTAMP:
            return pa.timestamp("us", tz=zone)
        case Kind.STRING:
            return pa.string()
        case Kind.BINARY:
            return pa.binary()
        case Kind.NULL:
            return pa.null()
        case _:
            return snapshot.arrow_type(kind)


def answer_where(table: pa.Table, outputs: Sequence[Attribute], where: Expr) -> pa.Table:
    """The rows of an answer, computed elsewhere, for which a condition on its columns is true."""
    kinds = dict(typed(outputs, None))
    arrays = zip(outputs, table.columns, strict=True)
    columns = {output.id: from_arrow(array, kinds[output.id]) for output, array in arrays}
    return table.filter(pa.array(Condition(where).truth(columns, len(table)).sure_true()))


def _between(rows: Batch, start: int, end: int | None) -> Batch:
    """The rows from one position to another, each copy counted."""
    reached = np.cumsum(rows.weights)
    low = np.maximum(reached - rows.weights, start)
    high = reached if end is None else np.minimum(reached, end)
    copies = np.maximum(high - low, 0)
    indexes = np.flatnonzero(copies)
    return Batch(rows.take(indexes).columns, copies[indexes], ())


def _sorted(rows: Batch, order: Sequence[SortKey]) -> Batch:
    if len(rows) <= 1 or not order:
        return rows
    ranks = []
    for key in order:
        vector = exactly(Evaluator(key.expr).values(rows.columns, len(rows)))
        ranks.append(exact_ranks(vector, OrderKey("", key.descending, key.nulls_first)))
    order_of_rows = np.lexsort(ranks[::-1])
    ties = _ties([rank[order_of_rows] for rank in ranks])
    if bool(ties.any()):
        tied = rows.take(order_of_rows[ties])
        by_name = [tied.columns[name] for name in sorted(tied.columns)]
        content_ranks = [
            exact_ranks(identity_of(column), OrderKey("", False, False)) for column in by_name
        ]
        tied_ranks = [rank[order_of_rows[ties]] for rank in ranks]
        order_of_rows[ties] = order_of_rows[ties][np.lexsort([*content_ranks, *tied_ranks[::-1]])]
    return rows.take(order_of_rows)


def _ties(ranks: Sequence[Ints]) -> Bools:
    """Mark the sorted rows that have an equal neighbour."""
    same = np.ones(len(ranks[0]) - 1, dtype=np.bool_)
    for rank in ranks:
        same &= rank[1:] == rank[:-1]
    result: Bools = np.concatenate([[False], same]) | np.concatenate([same, [False]])
    return result


def arrow_column(column: Vector, weights: Ints, target: pa.DataType) -> pa.Array:
    """The column with each row repeated by its weight."""
    if bool((weights != 1).any()):
        column = column.take(np.repeat(np.arange(len(weights), dtype=np.int64), weights))
    return typed_arrow(column, target)
