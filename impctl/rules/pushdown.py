"""Pushes predicates toward the scans, and finds columns that a join restricts by each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias, assert_never

from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import Kind
from impctl.expr import nodes as e
from impctl.plan import nodes as p
from impctl.plan.functions import VOLATILE
from impctl.plan.properties import can_fail, scan_conditions
from impctl.plan.recursion import stable_columns
from impctl.types import AccessId, AttributeId


def common_parts(root: p.Plan) -> p.Plan:
    """Factor the common parts of every condition out of its ORs: `(a AND b) OR (a AND c)` is `a AND
    (b OR c)` in three-valued logic too. Otherwise an equality of two tables inside an OR would be a
    cross join. What can fail stays, because a part before it may guard it."""
    plan = root.map_inputs(common_parts)
    match plan:
        case p.Select() | p.Join(null_aware=False):
            return plan.map(_factored)
    return plan


def _factored(predicate: e.Expr) -> e.Expr:
    """The predicate with common parts of each OR beside it; itself if there are none."""
    parts = e.conjuncts(predicate)
    result = tuple(piece for part in parts for piece in _factored_or(part))
    return predicate if result == parts else e.And(result, span=predicate.span)


def _factored_or(part: e.Expr) -> tuple[e.Expr, ...]:
    if not isinstance(part, e.Or):
        return (part,)
    sides = [e.conjuncts(side) for side in _sides(part)]
    known = [{_key(piece) for piece in side} for side in sides[1:]]
    common = {
        _key(piece): piece
        for piece in sides[0]
        if all(_key(piece) in keys for keys in known) and not can_fail(piece)
    }
    if not common:
        return (part,)
    rests = [tuple(piece for piece in side if _key(piece) not in common) for side in sides]
    pieces = tuple(common.values())
    if not all(rests):
        # One side requires nothing more, so the other sides' conditions have no effect.
        return pieces
    left = tuple(map(e.conjunction, rests))
    return (*pieces, e.Or(left, span=part.span))


def _sides(part: e.Expr) -> tuple[e.Expr, ...]:
    if not isinstance(part, e.Or):
        return (part,)
    return tuple(side for operand in part.operands for side in _sides(operand))


def _key(piece: e.Expr) -> e.Expr | frozenset[e.Expr]:
    """Identity of a part: for an equality its sides in any order."""
    if isinstance(piece, e.Compare) and piece.op is e.CompareOp.EQUAL:
        return frozenset({piece.left, piece.right})
    return piece


# Law of pushdown: the bag of rows stays the same. A predicate moves below an operator only if that
# does not change what the operator decides: never below LIMIT, grouping sets, a global aggregate,
# or the NULL-supplying side of an outer join; below grouping, DISTINCT, windows and set operations
# only if it cannot distinguish values that they treat as equal (0.0 and -0.0). Predicates with
# volatile functions stay, and nothing passes them; those that can fail never reach other rows than
# before.

Predicates = tuple[e.Expr, ...]

_SIZE_LIMIT = 1000
"""Maximal number of parts of a predicate that is copied through a projection."""
_EQUALITY_ONLY = (e.And, e.Or, e.Not, e.Compare, e.InList, e.IsNull, e.Literal, e.ColumnRef)


def push_selections(root: p.Plan) -> p.Plan:
    """Push every predicate as low as possible, also into join conditions, and merge adjacent
    selections."""
    return _push(root, ())


def _push(plan: p.Plan, predicates: Predicates) -> p.Plan:
    match plan:
        case p.Select():
            return _through_select(plan, predicates)
        case p.Project():
            return _through_project(plan, predicates)
        case p.Join():
            return _through_join(plan, predicates)
        case p.Aggregate():
            return _through_aggregate(plan, predicates)
        case p.Window():
            return _through_window(plan, predicates)
        case p.SetOperation():
            return _through_set_operation(plan, predicates)
        case p.Distinct():
            return _through(
                plan,
                predicates,
                lambda part: _is_fixed(part) and _keeps_equals(part, plan.attributes),
            )
        case p.Sort():
            return _through(plan, predicates, _is_fixed)
        case p.Explode():
            return _through_explode(plan, predicates)
        case p.Fixpoint():
            return _through_fixpoint(plan, predicates)
        case p.TopK() | p.Witness() | p.Scan() | p.Recursive() | p.OneRow():
            return _selected(plan.map_inputs(push_selections), predicates)
        case _:
            assert_never(plan)


_NO_COLUMNS: Mapping[AttributeId, e.Expr] = {}


def _through(
    plan: p.Distinct | p.Sort | p.Explode | p.Window | p.Project | p.Aggregate,
    predicates: Predicates,
    moves: Callable[[e.Expr], bool],
    columns: Mapping[AttributeId, e.Expr] = _NO_COLUMNS,
) -> p.Plan:
    """Push what `moves` below the node, which computes these `columns`."""
    moving, staying = _split(predicates, moves)
    below = tuple(predicate.substitute(columns) for predicate in moving) if columns else moving
    return _selected(replace(plan, child=_push(plan.child, below)), staying)


def _selected(plan: p.Plan, predicates: Predicates) -> p.Plan:
    if not predicates:
        return plan
    span = _covering(predicate.span for predicate in predicates)
    return p.Select(plan, e.conjunction(predicates, span), span=span)


def _covering(spans: Iterable[e.Span | None]) -> e.Span | None:
    """Span from the first to the last of the spans."""
    known = sorted((span for span in spans if span is not None), key=lambda span: span.start)
    if not known:
        return None
    return replace(known[0], end=max(span.end for span in known))


def _split(
    predicates: Predicates, moves: Callable[[e.Expr], bool]
) -> tuple[Predicates, Predicates]:
    """Predicates that move, and those that stay. One that can fail stays after any that stays,
    which may guard it."""
    moving: list[e.Expr] = []
    staying: list[e.Expr] = []
    for predicate in predicates:
        stays = not moves(predicate) or (bool(staying) and can_fail(predicate))
        (staying if stays else moving).append(predicate)
    return tuple(moving), tuple(staying)


def _is_fixed(expr: e.Expr) -> bool:
    """Whether the value depends only on the row."""
    return not any(isinstance(part, e.Call) and part.name in VOLATILE for part in expr.walk())


def _keeps_equals(predicate: e.Expr, attributes: Iterable[p.Attribute]) -> bool:
    """Whether rows that grouping treats as equal have the same result. Grouping and comparisons
    treat 0.0 and -0.0 as equal; functions and casts do not."""
    types = {attribute.id: attribute.type for attribute in attributes}
    exact = {Kind.FLOAT, Kind.DOUBLE, Kind.OTHER}
    for identity in predicate.columns:
        kind = types.get(identity)
        if kind is None or kind.kind in exact:
            return all(isinstance(part, _EQUALITY_ONLY) for part in predicate.walk())
    return True


def _reads_only(
    columns: frozenset[AttributeId], attributes: Sequence[p.Attribute]
) -> Callable[[e.Expr], bool]:
    """Whether a predicate reads some of these columns and no others, and keeps equals."""
    return lambda part: (
        bool(part.columns)
        and part.columns <= columns
        and _is_fixed(part)
        and _keeps_equals(part, attributes)
    )


def _through_select(plan: p.Select, predicates: Predicates) -> p.Plan:
    parts = e.conjuncts(plan.predicate)
    if not all(_is_fixed(part) for part in parts):
        # A volatile predicate must see the same rows.
        return _selected(replace(plan, child=_push(plan.child, ())), predicates)
    fixed, volatile = _split(predicates, _is_fixed)
    together = (*parts, *(part for part in fixed if part not in parts))
    return _selected(_push(plan.child, together), volatile)


def _through_project(plan: p.Project, predicates: Predicates) -> p.Plan:
    exprs = {output.attribute.id: output.expr for output in plan.outputs}
    if not all(_is_fixed(expr) for expr in exprs.values()):
        # Rows numbered or sampled here must stay the same.
        return _selected(replace(plan, child=_push(plan.child, ())), predicates)

    def moves(part: e.Expr) -> bool:
        return _is_fixed(part) and sum(1 for _ in part.substitute(exprs).walk()) <= _SIZE_LIMIT

    return _through(plan, predicates, moves, exprs)


def _through_aggregate(plan: p.Aggregate, predicates: Predicates) -> p.Plan:
    keys = {output.attribute.id: output.expr for output in plan.keys}
    attributes = [output.attribute for output in plan.keys]

    def moves(predicate: e.Expr) -> bool:
        return (
            bool(keys)
            and plan.grouping_sets is None
            and predicate.columns <= keys.keys()
            and _is_fixed(predicate)
            and all(_is_fixed(expr) for expr in keys.values())
            and _keeps_equals(predicate, attributes)
        )

    return _through(plan, predicates, moves, keys)


def _through_explode(plan: p.Explode, predicates: Predicates) -> p.Plan:
    """Predicates that can fail stay: below they would see rows without elements."""
    added = frozenset(attribute.id for attribute in plan.made)
    return _through(
        plan,
        predicates,
        lambda part: not part.columns & added and _is_fixed(part) and not can_fail(part),
    )


def _through_window(plan: p.Window, predicates: Predicates) -> p.Plan:
    shared = frozenset.intersection(
        *(
            frozenset(part.id for part in call.partition_by if isinstance(part, e.ColumnRef))
            for call in plan.calls
        )
    )
    return _through(plan, predicates, _reads_only(shared, plan.child.attributes))


def _through_set_operation(plan: p.SetOperation, predicates: Predicates) -> p.Plan:
    is_union = plan.kind is p.SetKind.UNION
    moving, staying = _split(
        predicates,
        # A predicate that can fail must not see rows that EXCEPT and INTERSECT drop.
        lambda part: (
            _is_fixed(part)
            and _keeps_equals(part, plan.attributes)
            and (is_union or not can_fail(part))
        ),
    )
    sides = (_push(side, _substituted(plan.attributes, side, moving)) for side in plan.inputs)
    return _selected(plan.with_inputs(tuple(sides)), staying)


def _through_fixpoint(plan: p.Fixpoint, predicates: Predicates) -> p.Plan:
    """Push into the base predicates over columns that are equal in all rows of a derivation. What
    can fail fails as before: rows of the base are rows of the fixpoint."""
    stable = stable_columns(plan) if predicates else frozenset()
    if plan.best is not None:
        # A predicate must keep all rows of a group or none.
        stable &= {plan.attributes[position].id for position in plan.best.keys}
    moving, staying = _split(predicates, _reads_only(stable, plan.attributes))
    below = _substituted(plan.attributes, plan.base, moving)
    moved = replace(plan, base=_push(plan.base, below), step=_push(plan.step, ()))
    return _selected(moved, staying)


def _substituted(
    outputs: Iterable[p.Attribute], side: p.Plan, predicates: Predicates
) -> Predicates:
    """The predicates over an input's columns, which match the outputs by position."""
    refs: dict[AttributeId, e.Expr] = {
        output.id: attribute.ref()
        for output, attribute in zip(outputs, side.attributes, strict=True)
    }
    return tuple(predicate.substitute(refs) for predicate in predicates)


def _through_join(plan: p.Join, predicates: Predicates) -> p.Plan:
    """Push predicates from above and conjuncts of the condition to the side each reads."""
    # A predicate that can fail must not see rows that the join drops.
    fixed, staying = _split(predicates, lambda part: _is_fixed(part) and not can_fail(part))
    above = _by_side(plan, fixed)
    on = e.conjuncts(plan.condition) if plan.condition is not None else ()
    if plan.null_aware or not all(_is_fixed(part) and not can_fail(part) for part in on):
        parts: tuple[Predicates, Predicates, Predicates] = ((), (), on)
    else:
        parts = _by_side(plan, on)
    left, right, matching, rest = _placed(plan.kind, above, parts)
    condition = _joined(matching, plan)
    moved = replace(
        plan, left=_push(plan.left, left), right=_push(plan.right, right), condition=condition
    )
    return _selected(moved, (*rest, *staying))


def _by_side(plan: p.Join, predicates: Predicates) -> tuple[Predicates, Predicates, Predicates]:
    """Predicates that read the left side only, the right side only, and all others."""
    lefts = plan.left.ids
    rights = plan.right.ids
    left, right, rest = [], [], []
    for predicate in predicates:
        columns = predicate.columns
        if columns and columns <= lefts:
            left.append(predicate)
        elif columns and columns <= rights:
            right.append(predicate)
        else:
            rest.append(predicate)
    return tuple(left), tuple(right), tuple(rest)


def _joined(parts: Predicates, plan: p.Join) -> e.Expr | None:
    if not parts:
        return None
    if plan.condition is not None and parts == e.conjuncts(plan.condition):
        return plan.condition
    return e.conjunction(parts, _covering(part.span for part in parts))


def _placed(
    kind: p.JoinKind,
    above: tuple[Predicates, Predicates, Predicates],
    on: tuple[Predicates, Predicates, Predicates],
) -> tuple[Predicates, Predicates, Predicates, Predicates]:
    """Predicates for the left, the right, the join condition, and above the join."""
    above_left, above_right, above_both = above
    on_left, on_right, on_both = on
    match kind:
        case p.JoinKind.INNER:
            return (*on_left, *above_left), (*on_right, *above_right), (*on_both, *above_both), ()
        case p.JoinKind.LEFT:
            return above_left, on_right, (*on_left, *on_both), (*above_right, *above_both)
        case p.JoinKind.RIGHT:
            return on_left, above_right, (*on_right, *on_both), (*above_left, *above_both)
        case p.JoinKind.FULL:
            return (), (), (*on_left, *on_right, *on_both), (*above_left, *above_right, *above_both)
        case p.JoinKind.SEMI:
            return (*above_left, *on_left), on_right, on_both, (*above_right, *above_both)
        case p.JoinKind.ANTI:
            return above_left, on_right, (*on_left, *on_both), (*above_right, *above_both)
        case _:
            assert_never(kind)


# Ties. Law: if a column of an access is tied to another's, all its rows may be skipped whose value
# (including NULL) is in no row of the other access that the plan sees: the plan yields the same
# bag. A predicate that is true of all values of one side of an equality join can be put above the
# other side, unless that side keeps rows without matches; from there it is pushed down like any
# predicate. So ties are found by pushing down placeholders. Several ties hold together, because
# each predicate drops no row with a match.


class ScanColumn(Struct, frozen=True):
    access: AccessId
    attribute: p.Attribute


class ColumnTie(Struct, frozen=True):
    """Rows are needed only for values of `column` that `to` has."""

    column: ScanColumn
    to: ScanColumn


Origins: TypeAlias = Mapping[AttributeId, frozenset[ScanColumn]]
"""Per attribute of a plan the columns that have all its values except NULL."""
_NARROWS_LEFT = frozenset({p.JoinKind.INNER, p.JoinKind.RIGHT, p.JoinKind.SEMI})
_NARROWS_RIGHT = frozenset({p.JoinKind.INNER, p.JoinKind.LEFT, p.JoinKind.SEMI, p.JoinKind.ANTI})
"""Kinds that drop rows of a side without a match on the other."""


def tied_columns(root: p.Plan) -> tuple[ColumnTie, ...]:
    """All ties between accesses of the plan."""
    if not any(isinstance(node, p.Join) for node in root.walk()):
        return ()
    result = _Marking({}, [])
    marked = push_selections(result.of(root)[0])
    ties: dict[ColumnTie, None] = {}
    accesses = {scan.access: scan for scan in root.scans}
    for access, conditions in scan_conditions(marked).items():
        attributes = {attribute.id: attribute for attribute in accesses[access].attributes}
        for condition in conditions:
            if not isinstance(condition, e.InList) or not isinstance(
                condition.operand, e.ColumnRef
            ):
                continue
            sources = result.sources.get(id(condition.options[0]), frozenset())
            if sources:
                column = ScanColumn(access, attributes[condition.operand.id])
                ties |= dict.fromkeys(
                    ColumnTie(column, other) for other in sources if other.access != access
                )
    return tuple(sorted(ties, key=lambda tied: (tied.column.access, tied.to.access)))


class _Marking(Struct, frozen=True):
    """Puts placeholders above sides of joins, each identified by the literal object in it."""

    sources: dict[int, frozenset[ScanColumn]]
    kept: list[e.Literal]
    """Keeps the literals alive, so that no other object gets the `id` of one."""

    def of(self, plan: p.Plan) -> tuple[p.Plan, Origins]:
        """The plan with placeholders, and the origins of its values."""
        below = [self.of(child) for child in plan.inputs]
        origins = [result for _, result in below]
        marked = plan.with_inputs(tuple(child for child, _ in below))
        match marked:
            case p.Scan():
                return marked, {
                    a.id: frozenset({ScanColumn(marked.access, a)}) for a in marked.attributes
                }
            case p.Select() | p.Sort() | p.TopK() | p.Distinct() | p.Window() | p.Explode():
                return marked, origins[0]
            case p.Project():
                return marked, p.renamed(marked.outputs, origins[0])
            case p.Aggregate():
                return marked, p.renamed(marked.keys, origins[0])
            case p.Join():
                return self._joined(marked, *origins)
        return marked, {}

    def _joined(self, join: p.Join, left: Origins, right: Origins) -> tuple[p.Plan, Origins]:
        both = dict(left) if join.kind in (p.JoinKind.SEMI, p.JoinKind.ANTI) else {**left, **right}
        if join.null_aware or join.condition is None:
            return join, both
        sides = {**dict.fromkeys(left, True), **dict.fromkeys(right, False)}
        for part in e.conjuncts(join.condition):
            match part:
                case e.Compare(e.CompareOp.EQUAL, e.ColumnRef() as first, e.ColumnRef() as second):
                    pass
                case _:
                    continue
            if first.type != second.type or sides.get(first.id) is sides.get(second.id):
                continue
            left_ref, right_ref = (first, second) if sides.get(first.id) else (second, first)
            if join.kind in _NARROWS_LEFT and right_ref.id in right:
                join = replace(join, left=self._marked(join.left, left_ref, right[right_ref.id]))
            if join.kind in _NARROWS_RIGHT and left_ref.id in left:
                join = replace(join, right=self._marked(join.right, right_ref, left[left_ref.id]))
        return join, both

    def _marked(self, side: p.Plan, ref: e.ColumnRef, sources: frozenset[ScanColumn]) -> p.Plan:
        literal = e.Literal(len(self.kept), ref.type)
        self.kept.append(literal)
        self.sources[id(literal)] = sources
        return p.Select(side, e.InList(ref, (literal,)))


_BY_LEFT = frozenset({p.JoinKind.INNER, p.JoinKind.LEFT, p.JoinKind.SEMI, p.JoinKind.ANTI})
_BY_RIGHT = frozenset({p.JoinKind.INNER, p.JoinKind.RIGHT})


def column_behind(plan: p.Plan, attribute: AttributeId) -> ScanColumn | None:
    """The column of an access that the plan yields unchanged as this attribute, or None. Rows of
    the plan with a value of the attribute derive only from rows of the access with that value."""
    return _columns_behind(plan).get(attribute)


def _columns_behind(plan: p.Plan) -> Mapping[AttributeId, ScanColumn]:
    match plan:
        case p.Scan():
            return {a.id: ScanColumn(plan.access, a) for a in plan.attributes}
        case p.Select() | p.Sort() | p.Distinct():
            return _columns_behind(plan.child)
        case p.Project():
            return p.renamed(plan.outputs, _columns_behind(plan.child))
        case p.Aggregate(grouping_sets=None):
            return p.renamed(plan.keys, _columns_behind(plan.child))
        case p.Join():
            left = _columns_behind(plan.left) if plan.kind in _BY_LEFT else {}
            right = _columns_behind(plan.right) if plan.kind in _BY_RIGHT else {}
            return {**left, **right}
    return {}


def is_narrowed(plan: p.Plan, keys: Collection[AttributeId]) -> bool:
    """Whether a read by values of these attributes may skip rows of an access."""
    return any(column_behind(plan, key) is not None for key in keys)
