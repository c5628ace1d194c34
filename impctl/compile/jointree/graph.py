"""The join graph of a part of a plan: relations, classes of equal columns, edges."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from operator import itemgetter, or_

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.data.schema import TEMPORAL, Kind
from impctl.engine import accumulators
from impctl.engine.jointree.spec import Edge, TreeMode
from impctl.expr import nodes as e
from impctl.expr.types import groups_as_compared, type_of
from impctl.plan import nodes as p
from impctl.plan.functions import VOLATILE
from impctl.plan.properties import part_can_fail
from impctl.types import AccessId, AttributeId, ColumnName

# The shape of a join tree, or why a plan has none. It follows from the plan, and determines the
# operators. Nodes stand children before parents, the root last. Of several equal columns a node
# keeps one.


class Reason(StrEnum):
    ONE_TABLE = "one_table"
    ONE_BAG = "one_bag"  # All relations end up in one bag, so there is no edge
    NOT_AT_THE_TOP = "not_at_the_top"
    """A node between the joins and the result depends on which rows are in which group."""
    CALL = "call"  # An aggregate that cannot be computed from sums per key
    MAY_FAIL = "may_fail"
    """An expression that may fail on rows without partners, on which only a tree computes it."""
    UNSURE = "unsure"  # An expression reads a sum of doubles, which is known within a bound only


class NoTree(Struct, frozen=True):
    """The reason, its text, and the place in the SQL."""

    reason: Reason
    text: str
    span: e.Span | None = None


class CircleRows(Struct, frozen=True):
    """Relations that equal columns, and no other conditions, join in a circle. `keys` are per
    relation its classes, ascending, and its column of each; `null_safe` says per class whether NULL
    equals NULL."""

    plans: tuple[p.Plan, ...]
    keys: tuple[tuple[tuple[int, e.Expr], ...], ...]
    null_safe: tuple[bool, ...]


class ShapeNode(Struct, frozen=True):
    """One bag of the tree. `rows` is the plan of the bag's rows; None for a virtual root, whose
    rows are all combinations of what it keeps. `kept` are distinct expressions over these rows
    (virtual root: over those of its children). `key` are positions in `kept`, pairwise equal to the
    positions `parent_key` in the parent's; `null_safe` says where NULL equals NULL. The `key` of
    the root are the group columns. `arguments` are the call columns of this bag, as positions in
    the calls of `TreeShape.aggregate`; `shown` are the columns of joined rows of this bag, each
    with its position in `kept`. A bag with a `circle` is probed."""

    accesses: tuple[AccessId, ...]
    rows: p.Plan | None
    kept: tuple[e.Expr, ...]
    key: tuple[int, ...]
    null_safe: tuple[bool, ...] = ()
    parent: int | None = None
    parent_key: tuple[int, ...] = ()
    edge: Edge = Edge.INNER
    arguments: tuple[int, ...] = ()
    shown: tuple[tuple[e.ColumnRef, int], ...] = ()
    circle: CircleRows | None = None


class TreeShape(Struct, frozen=True):
    """A tree for a block of a plan. In ring mode `aggregate` is the block's grouping over the rows
    of the nodes; `groups[i]` is the position in the root's `kept` of the i-th grouping column,
    perhaps of another integral type, which fits values of groups with rows. `top` is the plan node
    whose input the tree's groups replace: the plan's own grouping. In bits mode nothing is grouped.
    `joined` are the requested columns of joined rows, in terms of those shown; None if only
    participation of rows is needed."""

    nodes: tuple[ShapeNode, ...]
    mode: TreeMode
    aggregate: p.Aggregate | None = None
    groups: tuple[int, ...] = ()
    top: p.Aggregate | None = None
    joined: tuple[p.ComputedColumn, ...] | None = None

    @property
    def root(self) -> ShapeNode:
        return self.nodes[-1]

    @property
    def height(self) -> int:
        return height_of(self.nodes)

    def children_of(self, index: int) -> tuple[int, ...]:
        return tuple(i for i, node in enumerate(self.nodes) if node.parent == index)


def height_of(nodes: Sequence[ShapeNode]) -> int:
    """The greatest distance of a node from the root; parents stand after their children."""
    depths = [0] * len(nodes)
    for index in reversed(range(len(nodes))):
        parent = nodes[index].parent
        depths[index] = 0 if parent is None else 1 + depths[parent]
    return max(depths)


class Merging(Struct, frozen=True):
    """Why relations are one bag, and the place in the SQL."""

    text: str
    span: e.Span | None


Values = dict[AttributeId, e.Expr]  # Columns in terms of others

# Classes of columns that conditions make equal: in every joined row all members are equal, so one
# stands for all. All integral types count as one; other types must be the same, because equality of
# two types is not transitive (`'01' = 1` and `'1' = 1`). A class is null-safe iff all its
# equalities are (`<=>`): with one `=`, no joined row has NULL there. Members may be computed, each
# from one relation.

_EQUALITIES = (e.CompareOp.EQUAL, e.CompareOp.NULL_SAFE_EQUAL)


class Equality(Struct, frozen=True):
    """Expressions over the two sides of a join that a condition makes equal."""

    left: e.Expr
    right: e.Expr
    null_safe: bool
    span: e.Span | None = None

    @property
    def sides(self) -> tuple[e.Expr, e.Expr]:
        return self.left, self.right

    def turned(self) -> Equality:
        return Equality(self.right, self.left, self.null_safe, self.span)


class KeyClass(Struct, frozen=True):
    """Equal expressions in the order of the SQL, with the relation of each."""

    members: tuple[tuple[int, e.Expr], ...]
    null_safe: bool

    @property
    def relations(self) -> frozenset[int]:
        return frozenset(relation for relation, _ in self.members)

    def has(self, expr: e.Expr) -> bool:
        return any(is_same(expr, member) for _, member in self.members)

    def members_in(self, relations: Collection[int]) -> tuple[e.Expr, ...]:
        return tuple(member for relation, member in self.members if relation in relations)


def is_same(left: e.Expr, right: e.Expr) -> bool:
    """Whether they are one column, or computed alike; a column may be NULL in one place only."""
    if isinstance(left, e.ColumnRef) and isinstance(right, e.ColumnRef):
        return left.id == right.id
    return left == right


def equality_of(condition: e.Expr, bounded: Collection[AttributeId]) -> Equality | None:
    """The equality of hashable values that a condition states, if any; `bounded` columns have
    none."""
    if not isinstance(condition, e.Compare) or condition.op not in _EQUALITIES:
        return None
    left, right = condition.left, condition.right
    kind = type_of(left)
    if not groups_as_compared(kind, type_of(right)) or kind is None:
        return None
    if kind.kind in (Kind.OTHER, Kind.NULL) or condition.columns & frozenset(bounded):
        return None
    if any(isinstance(part, e.Call) and part.name in VOLATILE for part in condition.walk()):
        return None
    return Equality(left, right, condition.op is e.CompareOp.NULL_SAFE_EQUAL, condition.span)


def classes_of(equalities: Sequence[tuple[Equality, tuple[int, int]]]) -> tuple[KeyClass, ...]:
    """The classes that result from equalities between relations (each with those of its sides)."""
    key_classes: list[KeyClass] = []
    for equality, owners in equalities:
        members = list(zip(owners, equality.sides, strict=True))
        null_safe = equality.null_safe
        for other in [
            key_class
            for key_class in key_classes
            if any(key_class.has(side) for side in equality.sides)
        ]:
            key_classes.remove(other)
            members = [*other.members, *(new for new in members if not other.has(new[1]))]
            null_safe = null_safe and other.null_safe
        key_classes.append(KeyClass(tuple(members), null_safe))
    # The members by relation; within a relation in input order.
    ordered = (
        replace(key_class, members=tuple(sorted(key_class.members, key=itemgetter(0))))
        for key_class in key_classes
    )
    return tuple(sorted(ordered, key=lambda key_class: key_class.members[0][0]))


# What a block joins: the combinations of the relations' rows that meet the conditions, and the
# requirements of the joins beside, are the rows of the plan. Selections, columns and joins are
# taken apart, with expressions in terms of the relations' columns. Semi, anti and left joins stand
# beside, since they do not depend on what their rows are joined with.

_BESIDE = frozenset({p.JoinKind.SEMI, p.JoinKind.ANTI, p.JoinKind.LEFT, p.JoinKind.RIGHT})


class OuterOrSemiJoin(Struct, frozen=True):
    """A semi, anti or left join: its other side, and the parts of its condition. `padded` are the
    columns of a left join's other side, NULL without a partner. A right join is turned into a left
    one."""

    kind: p.JoinKind
    other: p.Plan
    parts: tuple[e.Expr, ...]
    null_aware: bool
    span: e.Span | None

    @property
    def ids(self) -> frozenset[AttributeId]:
        return self.other.ids

    @property
    def padded(self) -> frozenset[AttributeId]:
        return self.ids if self.kind is p.JoinKind.LEFT else frozenset()


class Relations(Struct, frozen=True):
    """Relations in the order of the SQL, conditions, joins beside them, and columns on top. `late`
    are conditions that stood above a join, so that only its rows met them; `values` are the columns
    of projections in terms of the relations' own."""

    plans: tuple[p.Plan, ...]
    conditions: tuple[e.Expr, ...] = ()
    late: tuple[e.Expr, ...] = ()
    beside: tuple[OuterOrSemiJoin, ...] = ()
    values: Values = field(default_factory=dict)

    def resolved(self, expr: e.Expr) -> e.Expr:
        """The expression in terms of the relations' own columns."""
        return expr.substitute(self.values) if self.values else expr

    def owners_of(self, expr: e.Expr) -> frozenset[int]:
        """The relations that the expression reads; left joins are numbered after all relations."""
        sets = (*(plan.ids for plan in self.plans), *(join.padded for join in self.beside))
        used = expr.columns
        return frozenset(index for index, ids in enumerate(sets) if ids & used)

    def host_of(self, beside: int) -> frozenset[int]:
        """What a join beside reads, as for `owners_of`; the first relation if it reads none."""
        read = frozenset().union(*map(self.owners_of, self.beside[beside].parts))
        return read - {len(self.plans) + beside} or frozenset({0})


def relations_of(plan: p.Plan) -> Relations:
    """The relations joined at the top of the plan."""
    match plan:
        case p.Select() if _has_join(plan.child):
            below = relations_of(plan.child)
            parts = tuple(below.resolved(part) for part in e.conjuncts(plan.predicate))
            return _together(below, Relations((), parts, parts))
        case p.Project() if _has_join(plan.child):
            below = relations_of(plan.child)
            values = {output.attribute.id: below.resolved(output.expr) for output in plan.outputs}
            return _together(below, Relations((), values=values))
        case p.Sort() if _has_join(plan.child):
            return relations_of(plan.child)
        case p.Join(kind=p.JoinKind.INNER):
            left, right = relations_of(plan.left), relations_of(plan.right)
            both = _together(left, right)
            parts = () if plan.condition is None else e.conjuncts(plan.condition)
            return _together(both, Relations((), tuple(both.resolved(part) for part in parts)))
        case p.Join() if plan.kind in _BESIDE:
            return _with_beside(plan)
    return Relations((plan,))


def _has_join(plan: p.Plan) -> bool:
    while isinstance(plan, p.Select | p.Project | p.Sort):
        plan = plan.child
    return isinstance(plan, p.Join) and (plan.kind is p.JoinKind.INNER or plan.kind in _BESIDE)


def _with_beside(join: p.Join) -> Relations:
    is_turned = join.kind is p.JoinKind.RIGHT
    preserved, other = (join.right, join.left) if is_turned else (join.left, join.right)
    kind = p.JoinKind.LEFT if is_turned else join.kind
    below = relations_of(preserved)
    conditions = () if join.condition is None else e.conjuncts(join.condition)
    parts = tuple(below.resolved(part) for part in conditions)
    span = join.span or next((part.span for part in parts if part.span is not None), None)
    joined = OuterOrSemiJoin(kind, other, parts, join.null_aware, span)
    return _together(below, Relations((), beside=(joined,)))


def _together(left: Relations, right: Relations) -> Relations:
    return Relations(
        (*left.plans, *right.plans),
        (*left.conditions, *right.conditions),
        (*left.late, *right.late),
        (*left.beside, *right.beside),
        {**left.values, **right.values},
    )


# Columns that are, or are computed from, sums of doubles, and so have an error bound. All others
# are exact, so rows may be looked up by them.

_WITH_BOUNDS = frozenset({"sum", "avg", *accumulators.FUNCTIONS})


def bounded_columns(plan: p.Plan) -> frozenset[AttributeId]:
    """The columns of the plan that have an error bound, and maybe some that have none."""
    below = frozenset().union(*(bounded_columns(child) for child in plan.inputs))
    bounded: Iterable[AttributeId]
    match plan:
        case p.Project():
            bounded = (out.attribute.id for out in plan.outputs if out.expr.columns & below)
        case p.Aggregate():
            keys = ((key.attribute, "", (key.expr,)) for key in plan.keys)
            calls = (
                (
                    aggregate.attribute,
                    aggregate.call.function,
                    _read(aggregate.call.arguments, aggregate.call.condition),
                )
                for aggregate in plan.aggregates
            )
            computed = (*keys, *calls)
            bounded = (a.id for a, name, read in computed if _is_bounded(a, name, read, below))
        case p.Window():
            bounded = (
                call.attribute.id
                for call in plan.calls
                if _is_bounded(call.attribute, call.function, call.arguments, below)
            )
            return below | frozenset(bounded)
        case p.SetOperation() | p.Fixpoint():
            sides = [side.attributes for side in plan.inputs]
            rows = zip(plan.attributes, *sides, strict=True)
            bounded = (a.id for a, left, right in rows if {left.id, right.id} & below)
        case _:
            return below
    return frozenset(bounded)


def _read(arguments: tuple[e.Expr, ...], condition: e.Expr | None) -> tuple[e.Expr, ...]:
    return arguments if condition is None else (*arguments, condition)


def _is_bounded(
    attribute: p.Attribute, function: str, read: Iterable[e.Expr], below: frozenset[AttributeId]
) -> bool:
    is_sum = attribute.type is None or attribute.type.is_fractional
    return (function in _WITH_BOUNDS and is_sum) or any(expr.columns & below for expr in read)


# Semi, anti and left joins as edges of a tree, or why one is joined inside a bag instead. An edge
# compares equal keys only; conditions on the other side go to that side. Above a left join, nothing
# may read a padded column except arguments of its side alone that are NULL with it: then padding
# adds nothing to their sums.

_EDGES = {p.JoinKind.SEMI: Edge.SEMI, p.JoinKind.ANTI: Edge.ANTI, p.JoinKind.LEFT: Edge.LEFT}


class EdgeJoin(Struct, frozen=True):
    """A join beside as an edge, with the equalities of columns above it and below, and the
    conditions on its other side."""

    edge: Edge
    keys: tuple[Equality, ...]
    filters: tuple[e.Expr, ...]


def edge_of(
    beside: OuterOrSemiJoin,
    classes: Sequence[KeyClass],
    bounded: Collection[AttributeId],
    read_above: Collection[AttributeId],
) -> EdgeJoin | Merging:
    """The edge, or why there is none. `bounded` are columns of either side with error bounds;
    `read_above` are those used otherwise than as arguments."""
    if beside.null_aware:
        return Merging("NOT IN depends on all rows of its other side", beside.span)
    if beside.padded & frozenset(read_above):
        return Merging("a column of the optional side is read above the join", beside.span)
    keys: list[Equality] = []
    filters: list[e.Expr] = []
    for part in beside.parts:
        if part.columns and part.columns <= beside.ids:
            filters.append(part)
            continue
        key = _key_of(part, beside.ids, bounded)
        if key is None:
            text = "an outer or semi join has more conditions than equal columns"
            return Merging(text, part.span)
        keys.append(key)
    if _repeats([key.right for key in keys], ()) or _repeats([k.left for k in keys], classes):
        return Merging("two columns are compared with the same column", beside.span)
    return EdgeJoin(_EDGES[beside.kind], tuple(keys), tuple(filters))


def _key_of(
    part: e.Expr, other: frozenset[AttributeId], bounded: Collection[AttributeId]
) -> Equality | None:
    result = equality_of(part, bounded)
    if result is None:
        return None
    if result.left.columns & other:
        result = result.turned()
    above, below = result.sides
    is_between = above.columns and not above.columns & other and below.columns
    if not is_between or not below.columns <= other:
        return None
    return result


def _repeats(exprs: Sequence[e.Expr], classes: Sequence[KeyClass]) -> bool:
    return any(
        is_same(expr, other) or any(result.has(expr) and result.has(other) for result in classes)
        for index, expr in enumerate(exprs)
        for other in exprs[:index]
    )


def is_null_with(expr: e.Expr, padded: Collection[AttributeId]) -> bool:
    """Whether the expression is certainly NULL where all these columns are."""
    below = [is_null_with(part, padded) for part in expr.expressions]
    match expr:
        case e.ColumnRef():
            return expr.id in padded
        case e.Literal():
            return expr.value is None
        case e.Compare(op=e.CompareOp.NULL_SAFE_EQUAL):
            return False
        case e.Arithmetic() | e.Compare() | e.Negate() | e.Not() | e.Cast() | e.Like():
            return any(below)
        case e.And() | e.Or() | e.Coalesce():
            return all(below)
        case e.Case():
            # A condition that is NULL takes no branch.
            branches = map(or_, below[:-1:2], below[1::2])
            return all(branches) and below[-1]
        case _:
            return False


# What may be computed before the joins though the query computes it afterwards: what cannot fail,
# except by overflow of `+`, `-`, `*` and of casts between numbers, which is so rare that a clear
# failure is better than no tree for every product. Division by a possible 0 and text read as
# numbers fail on ordinary data, so they wait for the joins.

_OF_TIMES_NAMES = """
    year quarter month day dayofmonth dayofweek dayofyear weekofyear weekday hour minute second
    last_day
"""
_OF_TEXT_NAMES = """
    substring substr left right upper ucase lower lcase length trim ltrim rtrim concat startswith
    endswith contains
"""
_OF_TIMES = frozenset(_OF_TIMES_NAMES.split())
_OF_TEXT = frozenset(_OF_TEXT_NAMES.split())
_SUM_LIKE = frozenset({e.ArithmeticOp.ADD, e.ArithmeticOp.SUBTRACT, e.ArithmeticOp.MULTIPLY})


def late_part(exprs: Iterable[e.Expr]) -> e.Expr | None:
    """A part that must not be computed before the joins; None if there is none."""
    return next((part for expr in exprs for part in expr.walk() if not _is_early(part)), None)


def _is_early(part: e.Expr) -> bool:
    match part:
        case e.Arithmetic():
            return part.op in _SUM_LIKE or not part_can_fail(part) or _is_number(part.right)
        case e.Negate():
            return True
        case e.Cast():
            source = type_of(part.operand)
            is_between_numbers = source is not None and source.is_numeric and part.type.is_numeric
            return is_between_numbers or not part_can_fail(part)
        case e.Call():
            return _is_total(part)
        case _:
            return not part_can_fail(part)


def _is_number(divisor: e.Expr) -> bool:
    """Whether it is a constant other than 0."""
    while isinstance(divisor, e.Cast):
        divisor = divisor.operand
    return isinstance(divisor, e.Literal) and divisor.value not in (None, 0)


def _is_total(call: e.Call) -> bool:
    types = [type_of(argument) for argument in call.arguments]
    if call.name in _OF_TIMES:
        return all(result is not None and result.kind in TEMPORAL for result in types)
    if call.name not in _OF_TEXT:
        return False
    return all(
        result is not None and (result.kind is Kind.STRING or isinstance(argument, e.Literal))
        for result, argument in zip(types, call.arguments, strict=True)
    )


# The node with a sketched access, and whether its tuples determine the range: they do iff they have
# the partition column's value of every row they stand for, and each of these contains a row of the
# access, so its side of a join is not padded, grouped or only tested.

_LEFT = frozenset({p.JoinKind.SEMI, p.JoinKind.ANTI, p.JoinKind.LEFT})


def partition_column(node: ShapeNode, access: AccessId, column: ColumnName) -> int | None:
    """The position of the partition column in what the node keeps; None if rows are counted."""
    scan = None if node.rows is None else _plain_scan(node.rows, access)
    if scan is None:
        return None
    ids = {a.id for a in scan.attributes if a.name.lower() == column.lower()}
    places = (
        index
        for index, expr in enumerate(node.kept)
        if isinstance(expr, e.ColumnRef) and expr.id in ids
    )
    return next(places, None)


def _plain_scan(plan: p.Plan, access: AccessId) -> p.Scan | None:
    """The scan of the access, if each row of the plan contains exactly one row of it."""
    match plan:
        case p.Scan():
            return plan if plan.access == access else None
        case p.Select() | p.Sort():
            return _plain_scan(plan.child, access)
        case p.Join(kind=p.JoinKind.INNER):
            return _plain_scan(plan.left, access) or _plain_scan(plan.right, access)
        case p.Join() if plan.kind in _LEFT:
            return _plain_scan(plan.left, access)
        case _:
            return None
