"""Joins of every kind, built from the inner join, DISTINCT and the union with signs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.flows import (
    BlockedError,
    Column,
    DistantJoin,
    Flow,
    SideChoice,
    SideFacts,
    Strategy,
    check,
    check_condition,
    known_type_of,
    over_rows,
    read_by_engine,
    readable,
    row_bytes,
    tables_of,
    typed,
)
from impctl.compile.jointree.decompose import all_of
from impctl.compile.jointree.graph import Equality
from impctl.engine import accumulators
from impctl.engine.join import JoinOperator, SelectByScalars, Side
from impctl.expr import nodes as e
from impctl.expr.types import common_type, type_of
from impctl.plan import nodes as p
from impctl.rules.pushdown import is_narrowed
from impctl.types import AttributeId

if TYPE_CHECKING:
    from impctl.compile.builder import CircuitBuilder

# Above the last condition, join or LIMIT no row is lost: a row of DISTINCT, a grouping or UNION
# stems from all its input rows, so the ranges are those of the rows below, whatever the values.

_WITH_BOUNDS = frozenset({"sum", "avg", *accumulators.FUNCTIONS})


def counted(root: p.Plan) -> p.Plan:
    """The plan without groupings at its top whose input has sums of doubles."""
    result = node = root
    while isinstance(node, p.Project | p.Sort | p.Aggregate | p.Distinct):
        (below,) = node.inputs
        if isinstance(node, p.Aggregate | p.Distinct) and _has_bounds(below):
            result = below
        node = below
    is_union = isinstance(node, p.SetOperation) and node.kind is p.SetKind.UNION and not node.all
    if is_union and _has_bounds(node):
        assert isinstance(node, p.SetOperation)
        return replace(node, all=True)
    return result


def _has_bounds(plan: p.Plan) -> bool:
    """Whether some value may depend on the order in which doubles are added."""
    return any(
        function in _WITH_BOUNDS and attribute.type is not None and attribute.type.is_fractional
        for node in plan.walk()
        for function, attribute in _computed(node)
    )


def _computed(node: p.Plan) -> Iterable[tuple[str, p.Attribute]]:
    match node:
        case p.Aggregate():
            return ((output.call.function, output.attribute) for output in node.aggregates)
        case p.Window():
            return ((call.function, call.attribute) for call in node.calls)
    return ()


# Join order and implied conditions of inner joins. Neither changes a row of the result. Both
# follow from the plan alone: a circuit that depended on sizes would not fit its stored state.
# Relations with an equality to a constant come first, then those with other conditions; next
# comes a relation that an equality connects, which avoids products.


class JoinInput(Struct, frozen=True):
    """One input of a chain of inner joins, its columns, and conditions on its rows."""

    plan: p.Plan
    ids: frozenset[AttributeId]
    implied: tuple[
        e.Expr, ...
    ]  # Conditions on this relation alone that conditions on several imply


class Joined(Struct, frozen=True):
    """Relations in join order, and all conditions. `equal` are plain columns of one type that the
    conditions make equal, in classes."""

    relations: tuple[JoinInput, ...]
    conditions: tuple[e.Expr, ...]
    equal: tuple[tuple[e.ColumnRef, ...], ...] = ()


def chain_of(node: p.Join) -> Joined:
    """The inner joins below and including `node` as one chain."""
    plans: list[p.Plan] = []
    conditions: list[e.Expr] = []
    _collect(node, plans, conditions)
    relations = [_relation(plan, conditions) for plan in plans]
    ordered = tuple(_ordered(relations, conditions))
    return Joined(ordered, tuple(conditions), _plain_classes(conditions))


def implied_equalities(
    equal: Sequence[Sequence[e.ColumnRef]],
    joined: frozenset[AttributeId],
    other: frozenset[AttributeId],
    stated: Sequence[e.Expr],
) -> list[e.Expr]:
    """Equalities between columns of the two that others imply, one per class. A class that a
    `stated` condition already connects adds none: it would look up the same value twice. Without
    them, relations that only join through a third one would be multiplied."""
    pairs = [part.columns for part in stated if _is_plain(part)]
    result: list[e.Expr] = []
    for members in equal:
        ids = {member.id for member in members}
        if any(pair <= ids and pair & joined and pair & other for pair in pairs):
            continue
        left = next((member for member in members if member.id in joined), None)
        right = next((member for member in members if member.id in other), None)
        if left is not None and right is not None:
            result.append(e.Compare(e.CompareOp.EQUAL, left, right))
    return result


def _plain_classes(conditions: Sequence[e.Expr]) -> tuple[tuple[e.ColumnRef, ...], ...]:
    plain = [part for part in conditions if isinstance(part, e.Compare) and _is_plain(part)]
    sides = [side for part in plain for side in (part.left, part.right)]
    columns = {side.id: side for side in sides if isinstance(side, e.ColumnRef)}
    return tuple(
        tuple(column for name, column in columns.items() if name in result)
        for result in _equal_columns(plain)
    )


def _is_plain(part: e.Expr) -> bool:
    """Whether it makes two columns of one type equal, which is transitive."""
    if not isinstance(part, e.Compare) or part.op is not e.CompareOp.EQUAL:
        return False
    left, right = part.left, part.right
    is_pair = isinstance(left, e.ColumnRef) and isinstance(right, e.ColumnRef)
    kinds = type_of(left), type_of(right)
    return is_pair and kinds[0] is not None and kinds[0] == kinds[1]


def _collect(node: p.Plan, plans: list[p.Plan], conditions: list[e.Expr]) -> None:
    if not isinstance(node, p.Join) or node.kind is not p.JoinKind.INNER:
        plans.append(node)
        return
    _collect(node.left, plans, conditions)
    _collect(node.right, plans, conditions)
    if node.condition is not None:
        conditions.extend(e.conjuncts(node.condition))


def _relation(plan: p.Plan, conditions: Sequence[e.Expr]) -> JoinInput:
    ids = plan.ids
    result = [_implied(condition, ids) for condition in conditions]
    return JoinInput(plan, ids, tuple(condition for condition in result if condition is not None))


def _implied(condition: e.Expr, ids: frozenset[AttributeId]) -> e.Expr | None:
    """What a disjunction implies for one relation, if every branch implies something for it."""
    if not isinstance(condition, e.Or) or condition.columns <= ids:
        return None
    branches = []
    for branch in condition.operands:
        parts = [part for part in e.conjuncts(branch) if part.columns and part.columns <= ids]
        implied = all_of(parts)
        if implied is None:
            return None
        branches.append(implied)
    return e.Or(tuple(branches))


def _ordered(relations: Sequence[JoinInput], conditions: Sequence[e.Expr]) -> list[JoinInput]:
    left = sorted(relations, key=_rank)
    ordered = [left.pop(0)]
    classes = _equal_columns(conditions)
    while left:
        best = max(left, key=lambda relation: _connection(relation, ordered, classes))
        left.remove(best)
        ordered.append(best)
    return ordered


def _connection(
    relation: JoinInput, joined: Sequence[JoinInput], classes: Sequence[frozenset[AttributeId]]
) -> int:
    """How well a relation fits next: 2 by a value only one joined relation has, 1 by another. If
    two joined relations share the value already, a third on it is likely to multiply rows."""
    best = 0
    for result in classes:
        holders = sum(1 for other in joined if result & other.ids)
        if result & relation.ids and holders:
            best = max(best, 2 if holders == 1 else 1)
    return best


def _equal_columns(conditions: Sequence[e.Expr]) -> list[frozenset[AttributeId]]:
    classes: list[frozenset[AttributeId]] = []
    for part in conditions:
        if not isinstance(part, e.Compare) or part.op is not e.CompareOp.EQUAL:
            continue
        if not (part.left.columns and part.right.columns):
            continue
        merged = part.left.columns | part.right.columns
        for other in [ids for ids in classes if ids & merged]:
            classes.remove(other)
            merged |= other
        classes.append(merged)
    return classes


def _rank(relation: JoinInput) -> int:
    """0 with an equality to a constant, 1 with another condition or a semi join, 2 without any."""
    result = list(relation.implied)
    plan = relation.plan
    if isinstance(plan, p.Join) and plan.kind is p.JoinKind.SEMI:
        return 1
    while isinstance(plan, p.Select):
        result.extend(e.conjuncts(plan.predicate))
        plan = plan.child
    if any(_is_point(part) for part in result):
        return 0
    return 1 if result else 2


def _is_point(part: e.Expr) -> bool:
    if isinstance(part, e.Or):
        return all(any(map(_is_point, e.conjuncts(branch))) for branch in part.operands)
    if isinstance(part, e.InList):
        return all(isinstance(option, e.Literal) for option in part.options)
    if not isinstance(part, e.Compare) or part.op is not e.CompareOp.EQUAL:
        return False
    return isinstance(part.left, e.Literal) or isinstance(part.right, e.Literal)


def pushed_below(node: p.Join) -> p.Join | None:
    """Move a semi or anti join down to the one relation of inner joins it reads; None if none.
    Which rows of that relation have a partner does not depend on what they are joined with."""
    if node.kind not in (p.JoinKind.SEMI, p.JoinKind.ANTI) or node.condition is None:
        return None
    if not (isinstance(node.left, p.Join) and node.left.kind is p.JoinKind.INNER):
        return None
    used = node.condition.columns & node.left.ids
    return _pushed_into(node.left, node, used) if used else None


def _pushed_into(into: p.Plan, node: p.Join, used: frozenset[AttributeId]) -> p.Join | None:
    if not isinstance(into, p.Join) or into.kind is not p.JoinKind.INNER:
        return replace(node, left=into)
    for side, plan in (("left", into.left), ("right", into.right)):
        if used <= plan.ids:
            below = _pushed_into(plan, node, used)
            return None if below is None else replace(into, **{side: below})
    return None


# Selection by scalars, the columns of relations with one row. Conditions that compare rows of one
# table with scalars only are evaluated on each changed row, and on the table's rows when a scalar
# changes (`engine.join`), so no rows are kept. Scalars are joined only if their columns are read
# elsewhere or carry ranges.


class ScalarSelection(Struct, frozen=True):
    """A relation, the relations whose columns are its scalars, and the conditions on both."""

    relation: JoinInput
    scalars: tuple[JoinInput, ...]
    conditions: tuple[e.Expr, ...]


def scalar_selections(chain: Joined) -> Iterator[ScalarSelection]:
    """The relations selected by scalars; one that all conditions join with scalars alone."""
    scalars = [relation for relation in chain.relations if is_scalar(relation.plan)]
    scalar_columns = frozenset[AttributeId]().union(*(scalar.ids for scalar in scalars))
    is_alone = len(scalars) == len(chain.relations) - 1
    for relation in chain.relations:
        if not _is_of_one_table(relation.plan):
            continue
        conditions = chain.conditions
        if not is_alone:
            conditions = tuple(
                part for part in conditions if _is_on_both(part, relation.ids, scalar_columns)
            )
        read = frozenset[AttributeId]().union(*(expr.columns for expr in conditions))
        used = tuple(scalar for scalar in scalars if scalar.ids & read)
        if used:
            yield ScalarSelection(relation, used, conditions)


def selected_chain(select: p.Select) -> Joined | None:
    """A relation joined with scalars alone, under all conditions; None for another plan. Conditions
    that can fail stay above a join, since it drops rows. One row drops none, so such conditions see
    the same rows if they are evaluated last."""
    if not isinstance(select.child, p.Join) or select.child.kind is not p.JoinKind.INNER:
        return None
    chain = chain_of(select.child)
    scalars = [relation for relation in chain.relations if is_scalar(relation.plan)]
    if len(scalars) != len(chain.relations) - 1:
        return None
    return replace(chain, conditions=(*chain.conditions, *e.conjuncts(select.predicate)))


def is_scalar(plan: p.Plan) -> bool:
    """Whether these columns are of at most one row, whatever is too close to call: ambiguous order
    may give several first rows."""
    while isinstance(plan, p.Select | p.Project):
        plan = plan.child
    return isinstance(plan, p.Aggregate) and not plan.keys and plan.grouping_sets is None


def is_read_elsewhere(
    root: p.Plan | None, scalar: JoinInput, conditions: Collection[e.Expr]
) -> bool:
    """Whether a scalar's column is read elsewhere than in these conditions, or is an output
    column."""
    return root is None or not scalar.ids.isdisjoint(
        {*root.ids, *_read(root, scalar.plan, conditions)}
    )


def _read(plan: p.Plan, without: p.Plan, conditions: Collection[e.Expr]) -> Iterator[AttributeId]:
    """The columns that are read in a plan, but not in this part of it."""
    if plan is without:
        return
    is_asking = isinstance(plan, p.Join | p.Select)
    for expr in plan.expressions:
        for part in e.conjuncts(expr):
            if not (is_asking and part in conditions):
                yield from part.columns
    for below in plan.inputs:
        if isinstance(plan, p.Distinct | p.SetOperation | p.Fixpoint | p.Recursive):
            yield from below.ids
        yield from _read(below, without, conditions)


def _is_on_both(condition: e.Expr, left: Set[AttributeId], right: Set[AttributeId]) -> bool:
    read = condition.columns
    return read <= left | right and bool(read & left) and bool(read & right)


def _is_of_one_table(plan: p.Plan) -> bool:
    while isinstance(plan, p.Select | p.Project):
        plan = plan.child
    return isinstance(plan, p.Scan)


# Joins as inner join, DISTINCT and signed union. With k the join keys and d the distinct rows:
# R semi S = R join d(k of S); R anti S = R minus (R semi S), without ranges of S; R left outer S
# = R join S plus (R anti S) padded with NULL; full outer adds the other side. With a condition on
# both sides beyond equal keys, R semi S = R join d(rows of R with a partner). NOT IN: a NULL on
# the right leaves nothing; a NULL on the left stays only while the right side is empty.


class _Condition(Struct, frozen=True):
    keys: tuple[Equality, ...]
    left: tuple[e.Expr, ...]  # Conjuncts on the left side alone
    right: tuple[e.Expr, ...]
    mixed: tuple[e.Expr, ...]

    def turned(self) -> _Condition:
        keys = tuple(key.turned() for key in self.keys)
        return _Condition(keys, self.right, self.left, self.mixed)


_NO_CONDITION = _Condition((), (), (), ())
_Selected = tuple[ScalarSelection, SideChoice]
"""A relation that is selected by scalars, and what is recorded of its rows."""


def build_join(builder: CircuitBuilder, node: p.Join, *, must_be_sure: bool) -> Flow:
    if node.kind is p.JoinKind.INNER:
        return _build_chain(builder, node, must_be_sure=must_be_sure)
    moved = pushed_below(node)
    if moved is not None:
        return _build_chain(builder, moved, must_be_sure=must_be_sure)
    paired = _as_pairs(builder, node, must_be_sure)
    if paired is not None:
        return paired
    # More rows on one side are harmless where each stays or goes for itself.
    is_semi = node.kind is p.JoinKind.SEMI
    left_is_free = node.kind in (p.JoinKind.SEMI, p.JoinKind.ANTI, p.JoinKind.LEFT)
    right_is_free = node.kind in (p.JoinKind.SEMI, p.JoinKind.RIGHT)
    left = builder.build(node.left, must_be_sure=must_be_sure or not left_is_free)
    right = builder.build(node.right, must_be_sure=must_be_sure or not right_is_free)
    parts = _JoinParts(builder, node, must_be_sure or not is_semi)
    rows = over_rows(node, left, right)
    return replace(_other_join(parts, left, right), rows=rows, is_plain=False)


def build_selected(builder: CircuitBuilder, node: p.Select, *, must_be_sure: bool) -> Flow | None:
    """Build a selection over a relation and scalars as one; None if it is none, or not chosen."""
    chain = selected_chain(node)
    if chain is None or not isinstance(node.child, p.Join):
        return None
    parts = _JoinParts(builder, node.child, must_be_sure)
    chosen = parts.chosen(chain)
    return _chained(parts, chain, chosen) if chosen else None


def _as_pairs(builder: CircuitBuilder, node: p.Join, must_be_sure: bool) -> Flow | None:
    """A semi join with scalars, whose one row is no partner twice; None if they select none."""
    if node.kind is not p.JoinKind.SEMI or not is_scalar(node.right):
        return None
    inner = replace(node, kind=p.JoinKind.INNER)
    parts, chain = _JoinParts(builder, inner, must_be_sure), chain_of(inner)
    chosen = parts.chosen(chain)
    if not chosen:
        return None
    pairs = _chained(parts, chain, chosen)
    kept = node.left.ids
    return replace(pairs, columns=tuple(c for c in pairs.columns if c[0] in kept))


def _other_join(parts: _JoinParts, left: Flow, right: Flow) -> Flow:
    builder, node = parts.builder, parts.node
    if node.kind is p.JoinKind.ANTI and node.null_aware:
        used = frozenset() if node.condition is None else node.condition.columns
        return parts.not_in(builder.sure(left, used), builder.sure(right, used))
    condition = _split_condition(node.condition, left, right)
    left, right = parts.sure_keys(left, right, condition)
    match node.kind:
        case p.JoinKind.SEMI:
            return parts.semi(left, right, condition)
        case p.JoinKind.ANTI:
            return parts.anti(left, right, condition)
        case _:
            return parts.outer(left, right, condition)


def _build_chain(builder: CircuitBuilder, node: p.Join, *, must_be_sure: bool) -> Flow:
    parts = _JoinParts(builder, node, must_be_sure)
    chain = chain_of(node)
    return _chained(parts, chain, parts.chosen(chain))


def _chained(parts: _JoinParts, chain: Joined, chosen: Sequence[_Selected]) -> Flow:
    """Join the relations in turn; each condition as soon as possible, those on scalars before any
    join."""
    builder = parts.builder
    scalar_conditions = [part for scalar, _ in chosen for part in scalar.conditions]
    waiting = [part for part in chain.conditions if part not in scalar_conditions]
    scalars = {id(scalar): scalar for selection, _ in chosen for scalar in selection.scalars}
    unread = {
        identity: scalar
        for identity, scalar in scalars.items()
        if not any(scalar.ids & part.columns for part in waiting)
        and not is_read_elsewhere(builder.plan, scalar, scalar_conditions)
    }
    flows: dict[int, Flow] = {}

    def flow_of(relation: JoinInput) -> Flow:
        if id(relation) not in flows:
            flows[id(relation)] = builder.build(relation.plan, must_be_sure=parts.must_be_sure)
        return flows[id(relation)]

    result: Flow | None = None
    for relation in chain.relations:
        if id(relation) in unread:
            continue
        flow = parts.filtered(flow_of(relation), relation.implied)
        for selection, choice in chosen:
            if selection.relation is relation:
                scalar_flows = [flow_of(scalar) for scalar in selection.scalars]
                flow = parts.by_scalars(flow, scalar_flows, selection, choice)
        if result is None:
            result = flow
            continue
        ready = [part for part in waiting if part.columns <= result.ids | flow.ids]
        waiting = [part for part in waiting if part not in ready]
        ready += implied_equalities(chain.equal, result.ids, flow.ids, ready)
        condition = None if not ready else e.And(tuple(ready))
        apart = _split_condition(condition, result, flow)
        result, flow = parts.sure_keys(result, flow, apart)
        result = parts.inner(result, flow, apart)
    assert result is not None
    # Of scalars that are not read above, only the ranges of their rows are joined.
    for flow in map(flow_of, unread.values()):
        if flow.accesses:
            result = parts.inner(result, flow, _NO_CONDITION)
    return parts.filtered(result, waiting)


class _JoinParts(Struct, frozen=True):
    builder: CircuitBuilder
    node: p.Join
    must_be_sure: bool

    def sure_keys(self, left: Flow, right: Flow, condition: _Condition) -> tuple[Flow, Flow]:
        """Both sides, with their join keys exact."""
        left_columns = [key.left.columns for key in condition.keys]
        right_columns = [key.right.columns for key in condition.keys]
        left = self.builder.sure(left, frozenset().union(*left_columns))
        return left, self.builder.sure(right, frozenset().union(*right_columns))

    def chosen(self, chain: Joined) -> list[_Selected]:
        """The relations of a chain that are chosen to be selected by scalars, and why."""
        result = []
        for selection in scalar_selections(chain):
            columns = typed(selection.relation.plan.attributes, self.node.span)
            (scan,) = selection.relation.plan.scans
            facts = SideFacts(
                f"{self.builder.name('scalars')}.rows",
                (scan.table,),
                row_bytes(columns, 1),
                (Strategy.FILES,),
                by_scalars=True,
            )
            choice = self.builder.chooser.choose(facts)
            if choice.strategy is Strategy.FILES:
                result.append((selection, choice))
        return result

    def by_scalars(
        self, rows: Flow, scalars: Sequence[Flow], selection: ScalarSelection, choice: SideChoice
    ) -> Flow:
        scalar = scalars[0]
        for other in scalars[1:]:
            scalar = self.inner(scalar, other, _NO_CONDITION)
        predicate = e.And(selection.conditions)
        check_condition(predicate, self.node.span)
        read = predicate.columns
        if rows.rows is None or not rows.is_plain or read & rows.approximate:
            raise BlockedError("what a scalar selects cannot be read again", self.node.span)
        scalar, bounds = self.builder.parted(scalar)
        bounds = {name: bound for name, bound in bounds.items() if name in read}
        stored_columns = {*read, *bounds.values()}
        operator = SelectByScalars(
            choice.side.removesuffix(".rows"),
            predicate,
            rows.columns,
            [column for column in scalar.columns if column[0] in stored_columns],
            bounds,
            len(rows.accesses),
            must_be_sure=self.must_be_sure,
        )
        wire = self.builder.put(operator, rows, scalar)
        self.builder.sides.append(choice)
        side = readable(choice.side, rows.rows, rows.columns, (), rows.accesses)
        self.builder.distant.append(DistantJoin(operator, None, (side,)))
        return replace(rows, wire=wire, rows=None)

    def inner(self, left: Flow, right: Flow, condition: _Condition) -> Flow:
        left = self.filtered(left, condition.left)
        right = self.filtered(right, condition.right)
        integral = left.integral | right.integral
        left, left_bounds = self.builder.parted(left)
        right, right_bounds = self.builder.parted(right)
        columns = (*left.columns, *right.columns)
        result = self._matched(left, right, condition.keys, columns)
        result = self.builder.rejoined(result, {**left_bounds, **right_bounds}, integral)
        return self.filtered(result, condition.mixed)

    def semi(self, left: Flow, right: Flow, condition: _Condition) -> Flow:
        """Rows of the left side with a partner; with their partners' ranges."""
        left = self.filtered(left, condition.left)
        if condition.mixed:
            return self._semi_by_rows(left, right, condition)
        right = self.filtered(right, condition.right)
        once, keys = self._distinct_keys(right, condition.keys)
        integral = left.integral
        left, bounds = self.builder.parted(left)
        return self.builder.rejoined(
            self._matched(left, once, keys, left.columns), bounds, integral
        )

    def _semi_by_rows(self, left: Flow, right: Flow, condition: _Condition) -> Flow:
        """The rows of the left side that occur among the pairs, compared by all columns."""
        pairs = self.inner(left, right, condition)
        # The ranges of the left row come with the row itself.
        pairs = self.builder.union([pairs], left.columns, right.accesses)
        # Rows are compared by their bounds too, which are bitwise equal for equal rows.
        integral = left.integral
        pairs, _ = self.builder.parted(pairs)
        left, bounds = self.builder.parted(left)
        fresh = self.builder.name("partnered")
        outputs = [(f"{fresh}/{name}", expr) for name, expr in left.refs()]
        columns = tuple((f"{fresh}/{name}", kind) for name, kind in left.columns)
        named = self.builder.project(pairs, outputs, columns, self.node)
        once = self.builder.distinct(named, columns, self.node)
        keys = tuple(
            Equality(e.ColumnRef(name, kind), e.ColumnRef(other, kind), null_safe=True)
            for (name, kind), (other, _) in zip(left.columns, columns, strict=True)
        )
        return self.builder.rejoined(
            self._matched(left, once, keys, left.columns), bounds, integral
        )

    def anti(self, left: Flow, right: Flow, condition: _Condition) -> Flow:
        """Rows of the left side without a partner; with their own ranges only."""
        flows = [left, self.semi(left, right, condition)]
        return self.builder.union(flows, left.columns, left.accesses, signs=(1, -1))

    def outer(self, left: Flow, right: Flow, condition: _Condition) -> Flow:
        """The inner join and, padded with NULL, the rows without a partner."""
        flows = [self.inner(left, right, condition)]
        if self.node.kind in (p.JoinKind.LEFT, p.JoinKind.FULL):
            alone = self.anti(left, right, condition)
            flows.append(self._padded(alone, left.columns, right.columns))
        if self.node.kind in (p.JoinKind.RIGHT, p.JoinKind.FULL):
            alone = self.anti(right, left, condition.turned())
            flows.append(self._padded(alone, right.columns, left.columns))
        columns = (*left.columns, *right.columns)
        return self.builder.union(flows, columns, (*left.accesses, *right.accesses))

    def _padded(self, flow: Flow, columns: tuple[Column, ...], padded: tuple[Column, ...]) -> Flow:
        padding = [(name, e.Literal(None, kind)) for name, kind in padded]
        return self.builder.project(flow, [*flow.refs(), *padding], (*columns, *padded), self.node)

    def not_in(self, left: Flow, right: Flow) -> Flow:
        """The null-aware anti join on one pair of values."""
        parts = () if self.node.condition is None else e.conjuncts(self.node.condition)
        pair = parts[0] if len(parts) == 1 else None
        key = None if pair is None else _key_of(pair, left, right)
        if key is None or key.null_safe:
            reason = "the engine supports NOT IN only with a single equality"
            raise BlockedError(reason, self.node.span)
        not_null = self.filtered(left, (e.Not(e.IsNull(key.left)),))
        result = self.anti(not_null, right, _Condition((key,), (), (), ()))
        flows = [self.anti(result, self.filtered(right, (e.IsNull(key.right),)), _NO_CONDITION)]
        unknown = self.filtered(left, (e.IsNull(key.left),))
        flows.append(self.anti(unknown, right, _NO_CONDITION))
        return self.builder.union(flows, left.columns, left.accesses)

    def filtered(self, flow: Flow, predicates: Sequence[e.Expr]) -> Flow:
        predicate = all_of(predicates)
        if predicate is None:
            return flow
        return self.builder.select(flow, predicate, self.node, must_be_sure=self.must_be_sure)

    def _matched(
        self, left: Flow, right: Flow, keys: Sequence[Equality], columns: tuple[Column, ...]
    ) -> Flow:
        name = self.builder.name("join")
        left_flow, left_side = self._side(left, [key.left for key in keys], f"{name}/left")
        right_flow, right_side = self._side(right, [key.right for key in keys], f"{name}/right")
        joined = _joined_plan(left_flow, left_side, right_flow, right_side, keys)
        builder = self.builder
        is_plain = left_flow.is_plain and right_flow.is_plain
        is_joined = joined is not None and is_plain
        left_side = self._chosen(left_flow, left_side, f"{name}.left", is_joined=is_joined)
        right_side = self._chosen(right_flow, right_side, f"{name}.right", is_joined=is_joined)
        operator = JoinOperator(name, left_side, right_side, [key.null_safe for key in keys])
        wire = builder.put(operator, left_flow, right_flow)
        accesses = (*left.accesses, *right.accesses)
        result = Flow(wire, columns, accesses, rows=joined, is_plain=is_plain)
        if operator.reads:
            both = ((left_flow, left_side, "left"), (right_flow, right_side, "right"))
            sides = tuple(
                read_by_engine(flow, f"{name}.{label}", side.columns, side.keys)
                for flow, side, label in both
                if side.is_distant
            )
            is_held = all(one.is_held for _, one, _ in both if one.is_distant)
            out = None
            if joined is not None and is_plain and not is_held:
                out = readable(name, joined, result.columns, (), result.accesses)
            builder.distant.append(DistantJoin(operator, out, sides))
        return result

    def _chosen(self, flow: Flow, side: Side, name: str, *, is_joined: bool) -> Side:
        """The side, kept or not; `is_joined` says that the join can be read as a whole."""
        plan = flow.rows
        size = row_bytes(side.columns, side.accesses)
        chooser = self.builder.chooser
        readers: tuple[Strategy, ...] = ()
        if side.keys and plan is not None:
            readers = (Strategy.FILES, Strategy.SPARK) if is_joined else (Strategy.FILES,)
        is_whole = plan is not None and not is_narrowed(plan, side.keys)
        facts = SideFacts(name, tables_of(plan), size, readers, is_whole=is_whole)
        choice = chooser.choose(facts)
        self.builder.sides.append(replace(choice, readers=readers, is_whole=is_whole))
        return replace(
            side,
            is_distant=choice.strategy is not Strategy.INDEX,
            has_filter=chooser.has_filter,
            is_held=choice.strategy is Strategy.FILES,
            room=choice.room,
        )

    def _side(self, flow: Flow, keys: Sequence[e.Expr], name: str) -> tuple[Flow, Side]:
        ids: list[AttributeId] = []
        computed: list[tuple[AttributeId, e.Expr]] = []
        for number, key in enumerate(keys):
            if isinstance(key, e.ColumnRef):
                ids.append(key.id)
                continue
            check(key, self.node.span)
            ids.append(f"{name}{number}")
            computed.append((ids[-1], key))
        types = [(key, known_type_of(expr, self.node.span)) for key, expr in computed]
        columns = (*flow.columns, *types)
        if computed:
            flow = self.builder.project(flow, (*flow.refs(), *computed), columns, self.node)
        return flow, Side(columns, tuple(ids), len(flow.accesses))

    def _distinct_keys(
        self, flow: Flow, keys: Sequence[Equality]
    ) -> tuple[Flow, tuple[Equality, ...]]:
        """The right side's keys, each once, and the keys that join with them."""
        name = self.builder.name("keys")
        columns = tuple(
            (f"{name}/{number}", known_type_of(key.right, self.node.span))
            for number, key in enumerate(keys)
        )
        outputs = [(identity, key.right) for (identity, _), key in zip(columns, keys, strict=True)]
        named = self.builder.project(flow, outputs, columns, self.node)
        once = self.builder.distinct(named, columns, self.node)
        joined = tuple(
            Equality(key.left, e.ColumnRef(*column), key.null_safe)
            for column, key in zip(columns, keys, strict=True)
        )
        return once, joined


def _joined_plan(
    left: Flow, left_side: Side, right: Flow, right_side: Side, keys: Sequence[Equality]
) -> p.Join | None:
    """The join as a plan over the tables; None if a side has none."""
    if left.rows is None or right.rows is None:
        return None
    left_types, right_types = dict(left.columns), dict(right.columns)
    parts: list[e.Expr] = [
        e.Compare(
            e.CompareOp.NULL_SAFE_EQUAL if key.null_safe else e.CompareOp.EQUAL,
            e.ColumnRef(left_key, left_types[left_key]),
            e.ColumnRef(right_key, right_types[right_key]),
        )
        for left_key, right_key, key in zip(left_side.keys, right_side.keys, keys, strict=True)
    ]
    return p.Join(p.JoinKind.INNER, left.rows, right.rows, all_of(parts))


def _split_condition(condition: e.Expr | None, left: Flow, right: Flow) -> _Condition:
    keys, lefts, rights, mixed = [], [], [], []
    for part in () if condition is None else e.conjuncts(condition):
        used = part.columns
        key = _key_of(part, left, right)
        if key is not None:
            keys.append(key)
        elif used <= left.ids:
            lefts.append(part)
        elif used <= right.ids:
            rights.append(part)
        else:
            mixed.append(part)
    return _Condition(tuple(keys), tuple(lefts), tuple(rights), tuple(mixed))


def _key_of(part: e.Expr, left: Flow, right: Flow) -> Equality | None:
    if not isinstance(part, e.Compare) or part.op not in (
        e.CompareOp.EQUAL,
        e.CompareOp.NULL_SAFE_EQUAL,
    ):
        return None
    left_expr, right_expr = part.left, part.right
    if left_expr.columns <= right.ids and right_expr.columns <= left.ids:
        left_expr, right_expr = right_expr, left_expr
    left_ids, right_ids = left_expr.columns, right_expr.columns
    if not (left_ids and right_ids and left_ids <= left.ids and right_ids <= right.ids):
        return None
    if (
        left_ids & left.approximate - left.integral
        or right_ids & right.approximate - right.integral
    ):
        # What is equal only within a bound cannot be looked up.
        return None
    kind, their_kind = type_of(left_expr), type_of(right_expr)
    if kind is None or their_kind is None:
        return None
    common = common_type(kind, their_kind)
    if common is None:
        return None
    left_expr = left_expr if kind == common else e.Cast(left_expr, common)
    right_expr = right_expr if their_kind == common else e.Cast(right_expr, common)
    return Equality(left_expr, right_expr, part.op is e.CompareOp.NULL_SAFE_EQUAL)
