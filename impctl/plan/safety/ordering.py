"""Top-k and windows: when the first rows over the sketches are the first rows over the tables.

Law: a row that is not among the first k (ties included) over the tables must not overtake them over
the sketches; so each ORDER BY term is EQUAL, or can only move towards the end, NULLs included. Then
the lineage of all first rows, ties included, makes the node EXACT (a barrier). Ties that no ORDER
BY term breaks are a choice, recorded in `ties`.
Out of scope: gathering that lineage (`capture`, `maintain`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from impctl.data.schema import Kind
from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr, Span
from impctl.expr.types import type_of
from impctl.plan.nodes import SortKey, TopK, Window, WindowCall
from impctl.plan.safety.direction import Columns, direction
from impctl.plan.safety.facts import NOTHING, KnownSigns
from impctl.plan.safety.numbers import number_of
from impctl.plan.safety.relation import Relation
from impctl.plan.safety.signs import signs_of
from impctl.plan.safety.status import NodeState, Refusal, Status, equal_columns, refused
from impctl.plan.safety.wording import Wording, difference
from impctl.plan.whole_windows import is_whole
from impctl.types import AttributeId
from impctl.values import dataclass

_RANKS = frozenset({"rank", "dense_rank"})
_TIE_FREE = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist"})


def first_rows(
    node: TopK, child: NodeState, wording: Wording, *, as_barrier: bool = False
) -> NodeState:
    """The state of ORDER BY ... LIMIT, or of the first ranks per partition, over its child's.

    Ranks within the keys of a KEYED child stay KEYED, unless all first rows are to be kept.
    """
    ties = child.ties if child.ties is not None else _ties(node, child)
    result = replace(child, columns=_with_rank(child.columns, node.rank), ties=ties)
    if child.status is Status.EXACT:
        return result
    if not node.order:
        return refused("LIMIT without ORDER BY has no fixed result", node.span)
    if node.count is None:
        return refused(
            "OFFSET without LIMIT keeps the last rows, which may not be in the sketch", node.span
        )
    if node.rank is not None:
        is_keyed = child.status is Status.KEYED and _is_partitioned(node.rank, child)
        if is_keyed and not as_barrier:
            return result
        loose = next((e for e in node.partition_by if not child.columns.are_equal(e)), None)
        if loose is not None:
            text = f"`{node.rank.function}` is partitioned by `{wording.text(loose)}`, which"
            return refused(f"{text} can differ over part of a group", loose.span or node.span)
    objection = order_objection(node.order, child, wording)
    if objection is not None:
        return replace(objection, refusal=_placed(objection.refusal, node.span))
    return replace(result, status=Status.EXACT, keys={}, columns=_equal(result))


def _with_rank(columns: Columns, rank: WindowCall | None) -> Columns:
    if rank is None:
        return columns
    added = equal_columns((rank.attribute,), {rank.attribute.id: NOTHING})
    return Columns({**columns.relations, **added.relations}, {**columns.signs, **added.signs})


def _placed(refusal: Refusal | None, span: Span | None) -> Refusal | None:
    return replace(refusal, span=span) if refusal is not None and refusal.span is None else refusal


def _equal(state: NodeState) -> Columns:
    relations = dict.fromkeys(state.columns.relations, Relation.EQUAL)
    return Columns(relations, state.columns.signs)


def _ties(node: TopK, child: NodeState) -> Refusal | None:
    if node.rank is not None and node.rank.function in _TIE_FREE:
        return None
    terms = (*node.partition_by, *(key.expr for key in node.order))
    columns = frozenset(expr.id for expr in terms if isinstance(expr, ColumnRef))
    every = frozenset(child.columns.relations)
    if any(columns >= result for result in (*child.identifiers, every)):
        return None
    if node.rank is not None:
        return Refusal(
            f"`{node.rank.function}` is not deterministic, because its ORDER BY has ties",
            node.rank.span,
        )
    return Refusal(
        "ORDER BY has ties at the LIMIT and either of the tied rows may be returned", node.span
    )


def order_objection(
    order: tuple[SortKey, ...], child: NodeState, wording: Wording
) -> NodeState | None:
    """Refusal for the first ORDER BY term by which a row could overtake; None if there is none."""
    for key in order:
        relation = direction(key.expr, child.columns)
        if relation is Relation.EQUAL:
            continue
        text = wording.text(key.expr)
        sinking = Relation.AT_MOST if key.descending else Relation.AT_LEAST
        if relation is not sinking or not _has_own_order(key.expr):
            return refused(
                f"ORDER BY ranks by `{text}`, which {difference(relation)}",
                key.expr.span,
            )
        if key.nulls_first and not signs_of(key.expr, child.columns.signs).not_null:
            return refused(
                f"ORDER BY puts NULLs first, and `{text}` can be NULL over part of a group but not "
                "over all of it",
                key.expr.span,
            )
    return None


def _has_own_order(expr: Expr) -> bool:
    result = type_of(expr)
    return result is not None and result.kind is not Kind.OTHER


def window(node: Window, child: NodeState, wording: Wording) -> NodeState:
    """Exact where all rows of a window's partition are kept or dropped together."""
    columns = child.columns
    added = tuple(call.attribute for call in node.calls)
    signs: KnownSigns = {**columns.signs, **{attribute.id: NOTHING for attribute in added}}
    relations = {**columns.relations, **equal_columns(added, {}).relations}
    ties = child.ties if child.ties is not None else _window_ties(node, child)
    result = replace(child, columns=Columns(relations, signs), ties=ties)
    if child.status is Status.EXACT:
        return result
    for call in node.calls:
        if child.status is not Status.KEYED or not _is_partitioned(call, child):
            text = wording.slice(call.span) or call.function
            return refused(
                f"the sketch would give window function `{text}` incomplete partitions",
                call.span if call.span is not None else node.span,
            )
    return result


def _is_partitioned(call: WindowCall, child: NodeState) -> bool:
    columns = {expr.id for expr in call.partition_by if isinstance(expr, ColumnRef)}
    return all(columns & keys for keys in child.keys.values())


def _window_ties(node: Window, child: NodeState) -> Refusal | None:
    for call in node.calls:
        terms = (*call.partition_by, *(key.expr for key in call.order))
        columns = frozenset(expr.id for expr in terms if isinstance(expr, ColumnRef))
        peers = call.frame is None or not call.frame.lower().lstrip().startswith("rows")
        aggregate = call.function in ("count", "sum", "min", "max", "avg") and (
            peers or is_whole(call)
        )
        if call.function in _TIE_FREE or aggregate:
            continue
        if not any(columns >= result for result in child.identifiers):
            return Refusal(
                f"`{call.function}` is not deterministic, because its ORDER BY has ties",
                call.span,
            )
    return None


def first_rows_per_partition(
    predicate: Expr, below: Window, child: NodeState, wording: Wording
) -> NodeState | None:
    """`rank <= k` directly above the window, at the root; None if it is another shape.

    Sound because the rows of rank k and better are all in the result, so their lineage is in the
    sketch, and no other row can overtake them. For `row_number` all columns must be EQUAL, because
    which of two tied rows is numbered first is open.
    """
    if len(below.calls) != 1 or child.status is Status.EXACT:
        return None
    call = below.calls[0]
    bound = rank_bound(predicate, call.attribute.id)
    if bound is None or not bound.is_all:
        return None
    plain = call.function == "row_number" and child.is_equal
    if not call.order or not (plain or call.function in _RANKS):
        return None
    if not all(child.columns.are_equal(expr) for expr in call.partition_by):
        return None
    objection = order_objection(call.order, child, wording)
    if objection is not None:
        return objection
    relations = dict.fromkeys((*child.columns.relations, call.attribute.id), Relation.EQUAL)
    signs = {**child.columns.signs, call.attribute.id: NOTHING}
    ties = child.ties if child.ties is not None else _window_ties(below, child)
    return replace(
        child, status=Status.EXACT, keys={}, columns=Columns(relations, signs), ties=ties
    )


@dataclass(frozen=True, slots=True)
class RankBound:
    """What a predicate lets through: no rank beyond `count`, and `is_all` every one up to it."""

    count: int
    is_all: bool


def rank_bound(predicate: Expr, rank: AttributeId) -> RankBound | None:
    """`rank <= k`, `rank < k`, `rank = k`, either way round; None for anything else."""
    if not isinstance(predicate, Compare):
        return None
    left, right, op = predicate.left, predicate.right, predicate.op
    if isinstance(right, ColumnRef):
        left, right, op = right, left, op.mirrored
    if not isinstance(left, ColumnRef) or left.id != rank:
        return None
    number = number_of(right)
    if number is None:
        return None
    match op:
        case CompareOp.LESS_EQUAL:
            return RankBound(max(math.floor(number), 0), True)
        case CompareOp.LESS:
            return RankBound(max(math.ceil(number) - 1, 0), True)
        case CompareOp.EQUAL:
            count = max(int(number), 0) if number == int(number) else 0
            return RankBound(count, count <= 1)
        case _:
            return None
