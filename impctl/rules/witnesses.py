"""Plans by which a sketch of only the deciding rows is maintained.

Law: the plan yields the query's rows on every database; a witness node drops rows that do not
decide, so that the sketch has the lineage of deciding rows only. It is placed where that is proved
(docs/soundness.md, "Witnesses"): below a grouping with only MIN, MAX, BOOL_AND and BOOL_OR whose
values over part of the rows cannot be better, below DISTINCT, and on the right side of EXISTS or
IN. In a fixpoint that is a set one derivation of each row decides; the engine chooses it. Elsewhere
the whole lineage counts, and a note says why. Among equivalent rows those with the least sketched
values decide, so that the choice is always the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import INTEGER, Column, Kind
from impctl.expr import nodes as e
from impctl.expr.types import type_of
from impctl.plan import nodes as p
from impctl.plan.lineage import trace
from impctl.safety.direction import Relation, SafetyState, Status
from impctl.safety.judge import Verdict, states_of
from impctl.safety.transfer import LARGEST, SMALLEST, grouped_keys

if TYPE_CHECKING:
    from impctl.types import AccessId, AttributeId

_CHOOSES = "its sketch holds one derivation of each row (all derivations if Spark captures it)"
_FIRST = p.Attribute("impctl/first", "first", INTEGER, nullable=False)


class Witnessed(Struct, frozen=True):
    """The query with witness nodes in its plan, and notes on the lineage of nodes, by position in
    `walk()` of the original plan."""

    query: p.Query
    notes: Mapping[int, str]


def witnessed(query: p.Query, verdict: Verdict, columns: Mapping[AccessId, Column]) -> Witnessed:
    """The plan of an accepted query by which sketches of witnesses on these columns are
    maintained."""
    sketched = {access: column.name for access, column in columns.items()}
    placer = _Placer(states_of(verdict, query, sketched), columns, {})
    root = placer.placed(query.root)
    return Witnessed(replace(query, root=root), placer.notes)


def first_by(node: p.Witness, order: tuple[p.SortKey, ...]) -> p.TopK:
    """The rows that are first by one of a witness node's orders, with their rank."""
    rank = p.WindowCall(_FIRST, "rank", (), node.partition_by, order, span=node.span)
    return p.TopK(node.child, order, 1, rank=rank, span=node.span)


class _Placer(Struct):
    """Walks the plan; `states` are in the order of `walk()`."""

    states: Sequence[SafetyState]
    columns: Mapping[AccessId, Column]
    notes: dict[int, str]
    _position: int = 0

    def placed(self, node: p.Plan) -> p.Plan:
        """The node with witness nodes below it where they help."""
        position = self._position
        self._position += 1
        firsts: list[int] = []
        inputs: list[p.Plan] = []
        for child in node.inputs:
            firsts.append(self._position)
            inputs.append(self.placed(child))
        if isinstance(node, p.Fixpoint):
            # Inside, groups are whole and matches complete: a derivation has all these rows.
            for dropped in range(position, self._position):
                self.notes.pop(dropped, None)
            return self._derived(node, position)
        result = node.with_inputs(tuple(inputs))
        below = [self.states[first] for first in firsts]
        match result:
            case p.Aggregate():
                return self._grouped(result, self.states[position], below[0], position)
            case p.Distinct():
                return self._distinct(result, below[0], position)
            case p.Join(kind=p.JoinKind.SEMI):
                return self._matched(result, below[1], position)
        return result

    def _derived(self, node: p.Fixpoint, position: int) -> p.Plan:
        """The fixpoint with a choice among derivations, unless all of them count."""
        state = self.states[position]
        if state.status is not Status.EXACT or not state.sketched:
            # If it is no barrier, its rows have their own lineage.
            return node
        if not node.is_set:
            return self._whole(node, position, "UNION ALL counts all derivations of a row")
        if node.best is not None:
            return self._whole(node, position, "the best rows have all their derivations")
        self.notes[position] = _CHOOSES
        return replace(node, chooses=True)

    def _grouped(
        self, node: p.Aggregate, state: SafetyState, below: SafetyState, position: int
    ) -> p.Plan:
        if not _has_choice(below) or len(grouped_keys(node, below)) == len(below.sketched):
            return node
        if node.grouping_sets is not None:
            return self._whole(node, position, "GROUPING SETS need all rows of a group")
        orders: list[tuple[p.SortKey, ...]] = []
        for output in node.aggregates:
            order = _order_of(output.call)
            if order is None:
                name = output.call.function.upper()
                return self._whole(node, position, f"{name} needs all rows of a group")
            relation = state.columns.relations.get(output.attribute.id, Relation.UNKNOWN)
            if relation not in (Relation.EQUAL, _allowed(output.call)):
                reason = (
                    f"{output.call.function.upper()} over part of a group could be greater or "
                    "smaller than over all of it"
                )
                return self._whole(node, position, reason)
            orders.append(order)
        keys = tuple(key.expr for key in node.keys)
        return self._with_witness(node, node.child, keys, orders or [()], position)

    def _distinct(self, node: p.Distinct, below: SafetyState, position: int) -> p.Plan:
        if not _has_choice(below) or below.status is Status.KEYED:
            return node
        parts = tuple(attribute.ref() for attribute in node.attributes)
        return self._with_witness(node, node.child, parts, [()], position)

    def _matched(self, node: p.Join, right: SafetyState, position: int) -> p.Plan:
        """The right side reduced to one match per key, after the conditions on it alone."""
        partners = _partners(node)
        if not _has_choice(right) or (partners is not None and _is_keyed(partners[0], right)):
            return node
        if partners is None:
            # A condition may distinguish values that count as equal, -0.0 and 0.0.
            reason = "a condition other than the equalities reads a value that may be -0.0"
            return self._whole(node, position, reason)
        keys, conditions = partners
        rows = node.right
        if conditions:
            rows = p.Select(rows, e.conjunction(conditions), span=node.span)
        return self._with_witness(node, rows, keys, [()], position)

    def _with_witness(
        self,
        node: p.Aggregate | p.Distinct | p.Join,
        rows: p.Plan,
        parts: tuple[e.Expr, ...],
        orders: Sequence[tuple[p.SortKey, ...]],
        position: int,
    ) -> p.Plan:
        """The node over the deciding `rows`; ties go to the least sketched values."""
        if any(_adds_doubles(part) for part in rows.walk()):
            # The deciding row may depend on the order in which Spark adds.
            return self._whole(node, position, "sums of doubles vary from run to run")
        traced, least = self._traced(rows)
        # A constant orders nothing.
        keys = ([key for key in (*order, *least) if key.expr.columns] for order in orders)
        full = tuple(dict.fromkeys(map(tuple, keys)))
        if () in full:
            # Nothing distinguishes the rows, so all of them decide.
            return self._whole(node, position, "nothing determines which of its rows to keep")
        self.notes[position] = "its sketch holds only the rows that decide the result"
        deciding: p.Plan = p.Witness(traced, parts, full, span=node.span)
        match node:
            case p.Join():
                return replace(node, right=deciding)
            case p.Distinct():
                outputs = p.ComputedColumn.unchanged(rows.attributes)
                return replace(node, child=p.Project(deciding, outputs))
            case p.Aggregate():
                return replace(node, child=deciding)

    def _traced(self, rows: p.Plan) -> tuple[p.Plan, tuple[p.SortKey, ...]]:
        """The rows with all sketched columns that can be traced, and the order by these."""
        least: list[p.SortKey] = []
        for scan in rows.scans:
            column = self.columns.get(scan.access)
            traced = None if column is None else trace(rows, scan.access, column)
            if traced is not None:
                rows = traced.plan
                least.append(p.SortKey(traced.key.ref(), descending=False, nulls_first=False))
        return rows, tuple(least)

    def _whole(self, node: p.Plan, position: int, reason: str) -> p.Plan:
        self.notes[position] = f"its sketch holds the whole lineage: {reason}"
        return node


def _adds_doubles(node: p.Plan) -> bool:
    match node:
        case p.Aggregate():
            results = [(output.attribute, _order_of(output.call)) for output in node.aggregates]
        case p.Window():
            results = [
                (call.attribute, _order_of(p.AggregateCall(call.function, call.arguments)))
                for call in node.calls
            ]
        case _:
            return False
    return any(
        attribute.type is None or (attribute.type.is_fractional and order is None)
        for attribute, order in results
    )


def _has_choice(below: SafetyState) -> bool:
    """Whether choosing among the rows below could avoid ranges."""
    return below.status is not Status.EXACT and bool(below.sketched)


def _is_keyed(parts: tuple[e.Expr, ...], below: SafetyState) -> bool:
    """Whether all rows with equal parts are in one range."""
    used = {part.id for part in parts if isinstance(part, e.ColumnRef)}
    is_keyed = below.status is Status.KEYED
    return is_keyed and all(below.keys.get(access, frozenset()) & used for access in below.sketched)


def _allowed(call: p.AggregateCall) -> Relation:
    return Relation.AT_MOST if call.function in LARGEST else Relation.AT_LEAST


def _order_of(call: p.AggregateCall) -> tuple[p.SortKey, ...] | None:
    """The order whose first row has the call's value; None if no single row has it."""
    if call.function not in LARGEST | SMALLEST or len(call.arguments) != 1:
        return None
    value = call.arguments[0]
    if call.condition is not None:
        kind = type_of(value)
        if kind is None:
            return None
        value = e.Case(((call.condition, value),), e.Literal(None, kind))
    return (p.SortKey(value, descending=call.function in LARGEST, nulls_first=False),)


def _partners(node: p.Join) -> tuple[tuple[e.Expr, ...], tuple[e.Expr, ...]] | None:
    """What equivalent matches have in common, and the conditions on the right side alone. Other
    conditions depend on a match by the right side of an equality, or by the columns that they read;
    None if equal values of these columns may decide differently."""
    right = {attribute.id: attribute for attribute in node.right.attributes}
    keys: list[e.Expr] = []
    conditions: list[e.Expr] = []
    for part in () if node.condition is None else e.conjuncts(node.condition):
        used = part.columns & right.keys()
        if not used:
            continue
        if used == part.columns:
            conditions.append(part)
            continue
        equated = _equated_right(part, right.keys())
        if equated is None and any(_may_be_negative_zero(right[name]) for name in used):
            return None
        keys += [right[name].ref() for name in sorted(used)] if equated is None else [equated]
    return tuple(dict.fromkeys(keys)), tuple(conditions)


def _may_be_negative_zero(attribute: p.Attribute) -> bool:
    kind = attribute.type
    return kind is None or kind.is_fractional or kind.kind is Kind.OTHER


def _equated_right(part: e.Expr, right: Collection[AttributeId]) -> e.Expr | None:
    """The right side of an equality between the sides."""
    if not isinstance(part, e.Compare):
        return None
    if part.op not in (e.CompareOp.EQUAL, e.CompareOp.NULL_SAFE_EQUAL):
        return None
    for first, second in ((part.left, part.right), (part.right, part.left)):
        if not first.columns & set(right) and second.columns <= set(right):
            return second
    return None
