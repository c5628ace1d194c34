"""Ranks without a limit, LAG and LEAD: rows with values by their place in their partition.

Law: what places a row, and what it takes from others, is exact, which is found at every step, as is
that no two rows tie where that matters. Offsets are literals, as Spark wants them.
Out of scope: the rows' fragments (`circuits.windows`), ranks with a limit (`circuits.first_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.circuits.flows import BlockedError, Flow, known_type_of, typed
from impctl.circuits.plumbing import Plumbing
from impctl.data.schema import Kind, SqlType
from impctl.engine.extremes import OrderKey
from impctl.engine.window import CHOOSING, RANKS, Placed
from impctl.engine.window import Window as WindowOperator
from impctl.expr.nodes import Cast, ColumnRef, Expr, Literal, Span
from impctl.expr.types import as_decimal, narrowed, type_of
from impctl.plan.nodes import Window, WindowCall
from impctl.types import AttributeId

_MOVED = frozenset({"lag", "lead"})


def check_placed(call: WindowCall, span: Span | None) -> None:
    """BlockedError for a call that the engine does not place."""
    name, span = call.function.upper(), call.span or span
    if call.function not in RANKS | _MOVED:
        raise BlockedError(f"the engine does not support {name}", span)
    if call.frame is not None or not call.order:
        raise BlockedError(
            f"the engine does not support {name} without ORDER BY or with a frame", span
        )
    if call.function in _MOVED:
        _ahead(call, span)
        _taken(call, span)


def _taken(call: WindowCall, span: Span | None) -> tuple[Expr, ...]:
    """The value that others take of a row, and its default where there is one, of one type.

    A number that loses nothing by it has the value's type, whatever type Spark makes of both.
    """
    value, *default = call.arguments[::2]
    kind = known_type_of(value, span)
    if not default or type_of(default[0]) == kind:
        return (value, *default)
    own = type_of(default[0])
    is_constant = isinstance(default[0], Literal)
    if is_constant and own is not None and _fits(narrowed(default[0], own, kind), kind):
        return (value, Cast(default[0], kind))
    raise BlockedError(
        f"the default of {call.function.upper()} has a different type than its value", span
    )


def _fits(own: SqlType, kind: SqlType) -> bool:
    """Whether every number of one type is one of the other: whole numbers and decimals."""
    if not all(each.is_integral or each.kind is Kind.DECIMAL for each in (own, kind)):
        return False
    own, kind = as_decimal(own), as_decimal(kind)
    return own.scale <= kind.scale and own.precision - own.scale <= kind.precision - kind.scale


def _ahead(call: WindowCall, span: Span | None) -> int:
    """How many rows after its own one the value stands in."""
    ahead = 1
    if len(call.arguments) > 1:
        offset = call.arguments[1]
        if not isinstance(offset, Literal) or type(offset.value) is not int:
            raise BlockedError(f"the offset of {call.function.upper()} is not an integer", span)
        ahead = offset.value
    return -ahead if call.function == "lag" else ahead


def build_placed(
    builder: Plumbing,
    node: Window,
    rows: Flow,
    partition: Sequence[AttributeId],
    calls: Sequence[WindowCall],
) -> Flow:
    """The rows with a column per call; they have no accesses."""
    choosing = next((call for call in calls if call.function in CHOOSING), None)
    if choosing is not None and not builder.has_doubts:
        reason = f"the ORDER BY of {choosing.function.upper()} may have ties"
        raise BlockedError(reason, choosing.span or node.span)
    name = builder.name("places")
    computed: dict[Expr, AttributeId] = {}
    for call in calls:
        for expr in _used(call, node.span):
            computed.setdefault(
                expr, expr.id if isinstance(expr, ColumnRef) else f"{name}/{len(computed)}"
            )
    added = [(own, expr) for expr, own in computed.items() if own not in rows.ids]
    kinds = [(own, known_type_of(expr, node.span)) for own, expr in added]
    if added:
        rows = builder.project(rows, (*rows.refs(), *added), (*rows.columns, *kinds), node)
    rows = builder.sure(rows, (*computed.values(), *partition))
    rows, bounds = builder.parted(rows)
    placed = [_placed(call, computed, node.span) for call in calls]
    at = builder.put(WindowOperator(name, rows.columns, partition, placed), rows)
    results = typed([call.attribute for call in calls], node.span)
    whole = rows.whole
    flow = Flow(at, (*rows.columns, *results), ())
    return builder.rejoined(flow, bounds, whole)


def _used(call: WindowCall, span: Span | None) -> list[Expr]:
    """What is looked at of each row: what it sorts by, and what others take of it."""
    taken = _taken(call, span) if call.function in _MOVED else ()
    return [*(key.expr for key in call.order), *taken]


def _placed(call: WindowCall, columns: dict[Expr, AttributeId], span: Span | None) -> Placed:
    order = tuple(OrderKey(columns[k.expr], k.descending, k.nulls_first) for k in call.order)
    if call.function in RANKS:
        return Placed(call.attribute.id, call.function, order)
    value, *default = [columns[taken] for taken in _taken(call, span)]
    ahead = _ahead(call, call.span or span)
    otherwise = default[0] if default else None
    return Placed(call.attribute.id, call.function, order, value, ahead, otherwise)
