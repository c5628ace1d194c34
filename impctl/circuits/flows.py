"""What flows between the operators of a circuit under construction, and what cannot.

Law: a flow names every column of its batches with its type, and the accesses its tags stand for,
in the tags' order; `approximate` are the columns that carry an error bound.
Out of scope: which operators there are (`circuits.build`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from impctl.data.schema import Kind, SqlType
from impctl.engine.batch import Batch
from impctl.engine.linear import Scan as ScanOperator
from impctl.errors import ImpctlError
from impctl.expr.evaluate import Blocker, find_blocker, find_condition_blocker
from impctl.expr.nodes import ColumnRef, Expr, Span
from impctl.expr.types import type_of
from impctl.plan.explain import expr_text, shortened
from impctl.plan.nodes import Attribute, Join, Plan, SetOperation
from impctl.types import AccessId, AttributeId, TableName
from impctl.values import dataclass

Column = tuple[AttributeId, SqlType]


_LONGEST = 60
"""Characters of an expression that a message shows."""


class BlockedError(ImpctlError):
    """The plan has a part the engine does not maintain; carries the reason and the place.

    `way` turns it into touch mode or recapture; a measure that compiles plans itself, into an error
    of its own.
    """

    def __init__(self, reason: str, span: Span | None) -> None:
        super().__init__(reason, code="not_incremental")
        self.span = span


@dataclass(frozen=True, slots=True)
class Source:
    """Where changes of one table access enter the circuit.

    Of its rows only those come further of which all `conditions` are true.
    """

    access: AccessId
    table: TableName
    scan: ScanOperator
    conditions: tuple[Expr, ...] = ()

    def came(self, rows: pa.Table) -> Batch:
        """All of these rows of the table, as what comes in."""
        return self.scan.read(rows, np.ones(len(rows), dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Flow:
    """The output of the operator (or, below zero, source) at position `at`.

    `whole` are those of the approximate columns whose bounds are zero unless magnitudes add up to
    2^53. `plan` yields the same rows from the tables, where selections, projections and inner joins
    do; `computed` does, by the engine alone, where there are other joins, set operations, or
    groupings whose groups can be read. `carried` are those of the columns that no node of the plan
    knows, which pass through all that stands above a join tree.
    """

    at: int
    columns: tuple[Column, ...]
    accesses: tuple[AccessId, ...]
    approximate: frozenset[AttributeId] = frozenset()
    plan: Plan | None = None
    whole: frozenset[AttributeId] = frozenset()
    carried: tuple[Column, ...] = ()
    computed: Plan | None = None

    @property
    def ids(self) -> frozenset[AttributeId]:
        return frozenset(name for name, _ in self.columns)

    @property
    def rows(self) -> Plan | None:
        """A plan of the same rows from the tables, if there is one."""
        return self.computed if self.plan is None else self.plan

    def refs(self) -> list[tuple[AttributeId, Expr]]:
        """Every column as the expression that passes it on."""
        return [(name, ColumnRef(name, kind)) for name, kind in self.columns]


def over_rows(node: Join | SetOperation, left: Flow, right: Flow) -> Plan | None:
    """The node over what its two sides are read from; None where one cannot be."""
    if left.rows is None or right.rows is None:
        return None
    return replace(node, left=left.rows, right=right.rows)


def known_type(sql_type: SqlType | None, span: Span | None, what: str = "a value") -> SqlType:
    """The type of `what`, or BlockedError where the engine does not know it."""
    if sql_type is None or sql_type.kind is Kind.OTHER:
        raise BlockedError(f"{what} has a type that the engine does not support", span)
    return sql_type


def known_type_of(expr: Expr, span: Span | None) -> SqlType:
    """The type of an expression, or BlockedError where the engine does not know it."""
    return known_type(type_of(expr), expr.span or span, _shown(expr))


def typed(attributes: Iterable[Attribute], span: Span | None) -> tuple[Column, ...]:
    """Identity and type of each attribute."""
    return tuple((one.id, known_type(one.type, span, f"`{one.name}`")) for one in attributes)


def _shown(expr: Expr) -> str:
    return f"`{shortened(expr_text(expr), _LONGEST)}`"


def check(expr: Expr, span: Span | None) -> None:
    """BlockedError where the engine cannot compute the expression."""
    _raise(find_blocker(expr), span)


def check_condition(expr: Expr, span: Span | None) -> None:
    """BlockedError where the engine cannot tell whether the expression is true."""
    _raise(find_condition_blocker(expr), span)


def _raise(blocker: Blocker | None, span: Span | None) -> None:
    if blocker is not None:
        reason = blocker.reason.replace("an expression", _shown(blocker.part), 1)
        raise BlockedError(reason, blocker.part.span or span)


def refuse_approximate(flow: Flow, what: str, span: Span | None) -> None:
    """BlockedError where a column of the flow is not exact."""
    if flow.approximate & flow.ids:
        raise BlockedError(f"the engine does not support {what} a sum of doubles", span)
