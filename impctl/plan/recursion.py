"""Properties of fixpoints: how steps read their rows, and which rows are enough."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import TEMPORAL, Kind, SqlType
from impctl.expr.nodes import (
    And,
    Arithmetic,
    ArithmeticOp,
    Call,
    Cast,
    ColumnRef,
    Compare,
    CompareOp,
    Expr,
    columns_of,
    conjuncts,
)
from impctl.expr.types import type_of
from impctl.plan.lineage import IsLeaf, LeafWay, NotFollowedError, ways_of
from impctl.plan.nodes import (
    Aggregate,
    Attribute,
    BestOnly,
    BestValue,
    Distinct,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetKind,
    SetOperation,
    Sort,
    Window,
    attributes_of,
    inputs_of,
    map_inputs,
    nodes_of,
)
from impctl.types import AccessId, AttributeId, FixpointId

# What the plan of a fixpoint says of its rows: how steps read them, which columns stay. Law: a
# column is stable if every row that a step derives has in it the very value of the rows it is
# derived from; so all rows of a derivation have it. A step is linear if no row of it is derived
# from two. Where it cannot be told, a column is not stable and a step not linear.

_MOST_WAYS = 64
"""Limit on ways through the UNIONs of a step; beyond it nothing is known."""

_ONE_OF_THEM = frozenset({"min", "max"})
"""Functions whose value is that of one row."""

_Origin = tuple[AttributeId, int]
"""A leaf, by its first column, and the position of one of its columns."""


class _StepWay(Struct, frozen=True):
    """One way through the UNIONs of a step: the leaves read, and what equals their columns."""

    leaves: tuple[AttributeId, ...]
    origins: Mapping[AttributeId, frozenset[_Origin]]


def is_linear(fixpoint: Fixpoint) -> bool:
    """Whether every row of the step is derived from at most one row of the fixpoint."""
    ways = _ways(fixpoint.step, fixpoint.id)
    return ways is not None and all(len(way.leaves) <= 1 for way in ways)


def is_derived_from_one_row(fixpoint: Fixpoint) -> bool:
    """Whether every row of the step is derived from exactly one row of the fixpoint."""
    ways = _ways(fixpoint.step, fixpoint.id)
    return bool(ways) and all(len(way.leaves) == 1 for way in ways or ())


def stable_columns(fixpoint: Fixpoint) -> frozenset[AttributeId]:
    """Ids of the fixpoint's columns that no step changes. A step with rows not derived from the
    fixpoint's own has no stable columns."""
    ways = _ways(fixpoint.step, fixpoint.id)
    if not ways or not all(way.leaves for way in ways):
        return frozenset()
    heads = attributes_of(fixpoint.step)
    return frozenset(
        attribute.id
        for place, (attribute, head) in enumerate(zip(fixpoint.attributes, heads, strict=True))
        if all(
            {(leaf, place) for leaf in way.leaves} <= way.origins.get(head.id, frozenset())
            for way in ways
        )
    )


def keyed_rows(
    root: Plan, key_columns: Mapping[int, Mapping[AccessId, AttributeId]]
) -> dict[AttributeId, tuple[AccessId, ...]]:
    """For each column that a fixpoint is keyed on, the accesses below that are sketched on it.
    `key_columns` are those of the plan's verdict, by node position."""
    nodes = tuple(nodes_of(root))
    return {
        column: tuple(keys)
        for position, keys in key_columns.items()
        if isinstance(nodes[position], Fixpoint)
        for column in set(keys.values())
    }


def leaves_in(plan: Plan, fixpoint: FixpointId) -> tuple[Recursive, ...]:
    """Leaves of the plan that read the fixpoint with this id, left to right."""
    leaves = (node for node in nodes_of(plan) if isinstance(node, Recursive))
    return tuple(leaf for leaf in leaves if leaf.fixpoint == fixpoint)


def reads_fixpoint(plan: Plan, fixpoint: FixpointId) -> bool:
    return bool(leaves_in(plan, fixpoint))


def _ways(plan: Plan, fixpoint: FixpointId) -> list[_StepWay] | None:
    """All ways through the plan; None where there are too many, or one is not followed."""
    if not reads_fixpoint(plan, fixpoint):
        return [_StepWay((), {})]
    match plan:
        case Recursive():
            leaf = plan.attributes[0].id
            columns = enumerate(plan.attributes)
            return [_StepWay((leaf,), {a.id: frozenset({(leaf, at)}) for at, a in columns})]
        case Sort() | Distinct():
            return _ways(plan.child, fixpoint)
        case Select():
            below = _ways(plan.child, fixpoint)
            return below and [_equated(way, plan.predicate) for way in below]
        case Project():
            below = _ways(plan.child, fixpoint)
            return below and [_projected(way, plan) for way in below]
        case Join():
            return _joined(plan, fixpoint)
        case SetOperation(kind=SetKind.UNION):
            return _either(plan, fixpoint)
    return None


def _projected(way: _StepWay, plan: Project) -> _StepWay:
    return replace(
        way,
        origins={
            output.attribute.id: way.origins[output.expr.id]
            for output in plan.outputs
            if isinstance(output.expr, ColumnRef) and output.expr.id in way.origins
        },
    )


def _joined(plan: Join, fixpoint: FixpointId) -> list[_StepWay] | None:
    left, right = (_ways(side, fixpoint) for side in (plan.left, plan.right))
    if left is None or right is None or len(left) * len(right) > _MOST_WAYS:
        return None
    result = [
        _StepWay((*first.leaves, *second.leaves), {**first.origins, **second.origins})
        for first in left
        for second in right
    ]
    if plan.kind is not JoinKind.INNER or plan.condition is None:
        return result
    return [_equated(way, plan.condition) for way in result]


def _either(plan: SetOperation, fixpoint: FixpointId) -> list[_StepWay] | None:
    result: list[_StepWay] = []
    for side in inputs_of(plan):
        ways = _ways(side, fixpoint)
        if ways is None or len(result) + len(ways) > _MOST_WAYS:
            return None
        pairs = list(zip(plan.attributes, attributes_of(side), strict=True))
        for way in ways:
            origins = {
                output.id: way.origins[source.id]
                for output, source in pairs
                if source.id in way.origins and source.type == output.type
            }
            result.append(_StepWay(way.leaves, origins))
    return result


def _equated(way: _StepWay, predicate: Expr) -> _StepWay:
    """The way with the condition's equalities; skips values that are equal but not identical."""
    pairs = [pair for part in conjuncts(predicate) for pair in _equal_columns(part)]
    origins = dict(way.origins)
    for _ in pairs:
        for one, other in pairs:
            both = origins.get(one, frozenset()) | origins.get(other, frozenset())
            origins[one] = origins[other] = both
    return replace(way, origins=origins)


def _equal_columns(part: Expr) -> Iterator[tuple[AttributeId, AttributeId]]:
    match part:
        case Compare(
            CompareOp.EQUAL | CompareOp.NULL_SAFE_EQUAL, ColumnRef() as one, ColumnRef() as other
        ) if one.type == other.type and _has_identical_equals(one):
            yield one.id, other.id


def _has_identical_equals(ref: ColumnRef) -> bool:
    """Whether equal values of its type are identical, unlike 0.0 and -0.0."""
    return not ref.type.is_fractional and ref.type.kind is not Kind.OTHER


def approximate_columns(plan: Plan) -> frozenset[AttributeId]:
    """Columns that may come from sums of doubles, which may differ between runs."""
    below = frozenset[AttributeId]().union(*(approximate_columns(side) for side in inputs_of(plan)))
    match plan:
        case Project():
            made = ((out.attribute.id, columns_of(out.expr)) for out in plan.outputs)
            return frozenset(name for name, read in made if read & below)
        case Aggregate():
            keys = (out.attribute.id for out in plan.keys if columns_of(out.expr) & below)
            calls = ((out.attribute, out.call.function, out.call.arguments)
                     for out in plan.aggregates)  # fmt: skip
            return frozenset((*keys, *_summed(calls, below)))
        case Window():
            calls = ((call.attribute, call.function, call.arguments) for call in plan.calls)
            return below | frozenset(_summed(calls, below))
        case SetOperation() | Fixpoint():
            sides = [attributes_of(side) for side in inputs_of(plan)]
            rows = zip(plan.attributes, *sides, strict=True)
            return frozenset(
                output.id for output, *inputs in rows if {column.id for column in inputs} & below
            )
        case _:
            return below


def _summed(
    calls: Iterable[tuple[Attribute, str, tuple[Expr, ...]]], below: frozenset[AttributeId]
) -> Iterator[AttributeId]:
    for attribute, function, arguments in calls:
        is_summed = attribute.type is None or attribute.type.is_fractional
        is_read = any(columns_of(argument) & below for argument in arguments)
        if is_read or (is_summed and function not in _ONE_OF_THEM):
            yield attribute.id


# Fixpoints taken for tables: plans that read the rows derived as any other rows. Law: over a
# table that holds the rows of a fixpoint, the plan with that table in the fixpoint's place yields
# what it did. The step over the same table yields a row for every derivation whose rows are in
# the fixpoint; so what of the tables base and step use, over it, is all that derives its rows.
# Where the best rows alone are kept, what derives other ones is left out (`deriving`). Columns of
# such a table are called by their places, since those of a WITH entry may share a name.


def table_of(node: Fixpoint | Recursive) -> Scan:
    """An access of a table with the rows, under the node's attributes."""
    name = node.id if isinstance(node, Fixpoint) else node.fixpoint
    columns = tuple(
        replace(attribute, name=column)
        for attribute, column in zip(node.attributes, column_names(node), strict=True)
    )
    return Scan(f"rows of {node.attributes[0].id}", name, columns, span=node.span)


def column_names(node: Fixpoint | Recursive) -> list[str]:
    """Column names of such a table."""
    return [f"column{place}" for place in range(len(node.attributes))]


def outer_fixpoints(plan: Plan) -> Iterator[Fixpoint]:
    """The fixpoints of a plan that are in no other one."""
    if isinstance(plan, Fixpoint):
        yield plan
        return
    for child in inputs_of(plan):
        yield from outer_fixpoints(child)


def is_recursive(plan: Plan) -> bool:
    return next(outer_fixpoints(plan), None) is not None


def with_fixpoint_tables(plan: Plan) -> Plan:
    """The plan with tables instead of its outer fixpoints."""
    if isinstance(plan, Fixpoint):
        return table_of(plan)
    return map_inputs(plan, with_fixpoint_tables)


def leaves_of(fixpoint: Fixpoint) -> tuple[Recursive, ...]:
    """Leaves of the step that read the fixpoint."""
    return leaves_in(fixpoint.step, fixpoint.id)


def step_over_table(fixpoint: Fixpoint) -> Plan:
    """The step with tables instead of its own rows."""
    return _over_table(fixpoint.step, fixpoint)


def _over_table(plan: Plan, fixpoint: Fixpoint) -> Plan:
    if isinstance(plan, Recursive) and plan.fixpoint == fixpoint.id:
        return table_of(plan)
    return map_inputs(plan, lambda child: _over_table(child, fixpoint))


def base_and_step(fixpoint: Fixpoint) -> tuple[Plan, Plan]:
    """The base, and the step over the table: both derive rows of the fixpoint."""
    step = step_over_table(fixpoint)
    if fixpoint.best is None:
        return fixpoint.base, step
    return of_rows(fixpoint.base, fixpoint), of_rows(step, fixpoint)


def of_rows(plan: Plan, fixpoint: Fixpoint) -> Plan:
    """The plan's rows that are in the table of the fixpoint's rows."""
    table = table_of(fixpoint)
    pairs = zip(attributes_of(plan), table.attributes, strict=True)
    same = tuple(
        Compare(CompareOp.NULL_SAFE_EQUAL, left.ref(), right.ref()) for left, right in pairs
    )
    return Join(JoinKind.SEMI, plan, table, same[0] if len(same) == 1 else And(same))


# When a fixpoint may keep the best rows of each group alone, and the answer stays as it is. Law:
# it may where (1) its rows are read through MIN and MAX of some of its columns, the *values*, or
# joined back to these by equality; (2) a step makes of a value v only v + e, or, where the least
# counts, the greater of v and e (where the greatest counts, the lesser), and no other column of
# it; (3) no condition reads a value, unless there is only one and it is bounded on the side of
# the worse ones; (4) groups are told by all columns that anything of this reads, e included. Then
# what a worse row derives a better one of its group derives, no worse, with the same rows of
# tables: so where the rows without the rule have an end, the best of each group are the same, and
# where they go on and on, as costs along a circle do, the best are those that all rounds come to.
# Whether e is above zero decides on nothing but the end: along a circle below zero there is none,
# nor are there bounds to paths of one cost along a circle of cost zero. The lesser of v and e,
# where the least counts, would be better than v: along a circle the row that v came from would be
# beaten by what came of it, and nothing be left for it to stand on. What ties: v + e is as much
# better as v is, so all rows that are best stay, whatever else is in them (a path); the greater
# of v and e is not, so there nothing else may be in them. Numbers that are rounded may do either,
# so doubles are not added. NULL is no value: greatest(NULL, e) is e, so there rows with NULL
# stay, too.

_FUNCTIONS = {"min": False, "max": True}
_NARROW_DIGITS = 18
_BELOW = (CompareOp.LESS, CompareOp.LESS_EQUAL)
_ABOVE = (CompareOp.GREATER, CompareOp.GREATER_EQUAL)


class NotBestOnlyError(Exception):
    """Why all rows of a fixpoint count, in words."""


class RequiredRows(Struct, frozen=True):
    """Rows required of a fixpoint: the best of these values, in groups by at least these columns.
    `has_bounds` where conditions above bound the value."""

    keys: frozenset[int]
    values: tuple[BestValue, ...]
    has_bounds: bool = False


def best_of_groups(plan: Aggregate, fixpoint: Fixpoint) -> BestOnly:
    """Rows of a fixpoint that this grouping needs; NotBestOnlyError where it needs all."""
    if plan.grouping_sets is not None:
        raise NotBestOnlyError("the query groups them by several sets of columns")
    ways = _followed(plan.child, lambda node: node is fixpoint)
    keys: set[int] = set()
    values: dict[BestValue, None] = {}
    for output in plan.aggregates:
        call = output.call
        if call.function not in _FUNCTIONS or call.condition is not None:
            what = "FILTER" if call.condition is not None else call.function.upper()
            raise NotBestOnlyError(f"{what} needs all of them")
        for way in (way for way in ways if way.leaf is not None):
            result = _value_read(way, way.over(call.arguments[0]))
            if result is not None:
                value, read = result
                values[BestValue(value, _FUNCTIONS[call.function])] = None
                keys |= read
    wanted = tuple(values)
    has_bounds = False
    for way in (way for way in ways if way.leaf is not None):
        keys |= _places(way, (way.over(key.expr) for key in plan.keys))
        read, is_bounding = _read_by_conditions(way, wanted)
        keys, has_bounds = keys | read, has_bounds or is_bounding
    return best_only(fixpoint, RequiredRows(frozenset(keys), wanted, has_bounds))


def _value_read(way: LeafWay, expr: Expr) -> tuple[int, set[int]] | None:
    """Position of the value that MIN or MAX reads, and of what else it reads."""
    read = sorted(_places(way, (expr,)))
    if not read:
        return None
    assert way.leaf is not None
    for place in read:
        grown = _grown(expr, way.leaf[place].id)
        if grown is None:
            continue
        if grown.compared:
            # NULL is no best value, yet greatest(NULL, e) is e.
            raise NotBestOnlyError("GREATEST and LEAST turn NULL into a value")
        return place, _places(way, grown.others)
    raise NotBestOnlyError("MIN or MAX reads a value computed from them")


def best_only(fixpoint: Fixpoint, wanted: RequiredRows) -> BestOnly:
    """Rows that must stay, as far as the fixpoint decides; NotBestOnlyError where all must."""
    if not fixpoint.is_set:
        raise NotBestOnlyError("UNION ALL counts every derivation")
    if not wanted.values:
        raise NotBestOnlyError("MIN or MAX reads none of their columns")
    followed = _followed(
        fixpoint.step,
        lambda node: isinstance(node, Recursive) and node.fixpoint == fixpoint.id,
    )
    ways = [way for way in followed if way.leaf is not None]
    heads = attributes_of(fixpoint.step)
    growths: list[_ValueGrowth] = []
    keys = set(wanted.keys)
    for value in wanted.values:
        own = fixpoint.attributes[value.place]
        for side in (attributes_of(fixpoint.base), heads):
            if side[value.place].type != own.type:
                raise NotBestOnlyError(f"`{own.name}` is cast")
        for way in ways:
            grown = _growth(way, value, own, way.expr(heads[value.place]))
            growths.append(grown)
            keys |= _places(way, grown.others)
    has_bounds = wanted.has_bounds
    for way in ways:
        read, is_bounding = _read_by_conditions(way, wanted.values)
        keys, has_bounds = keys | read, has_bounds or is_bounding
    keys = _closed(keys, ways, heads)
    _refuse(fixpoint, wanted, keys, ways, has_bounds=has_bounds)
    is_weak = any(grown.compared for grown in growths)
    if is_weak and any(grown.is_added for grown in growths):
        raise NotBestOnlyError(
            "the recursion both adds to their values and compares them with GREATEST or LEAST"
        )
    if is_weak and len(keys) + 1 < len(heads):
        raise NotBestOnlyError("of the rows that tie by GREATEST or LEAST, one would be missing")
    return BestOnly(tuple(sorted(keys)), wanted.values, keeps_null=is_weak)


def _closed(keys: set[int], ways: Sequence[LeafWay], heads: Sequence[Attribute]) -> set[int]:
    """These columns and, transitively, those that steps compute them from."""
    while True:
        read = [_places(way, (way.expr(heads[key]) for key in keys)) for way in ways]
        more = keys.union(*read)
        if more == keys:
            return keys
        keys = more


def _refuse(
    fixpoint: Fixpoint,
    wanted: RequiredRows,
    keys: set[int],
    ways: Sequence[LeafWay],
    *,
    has_bounds: bool,
) -> None:
    """NotBestOnlyError where a value decides on more than itself."""
    values = {value.place for value in wanted.values}
    if keys & values:
        names = ", ".join(f"`{fixpoint.attributes[place].name}`" for place in sorted(keys & values))
        raise NotBestOnlyError(f"conditions or other columns read {names}")
    if has_bounds and len(wanted.values) > 1:
        raise NotBestOnlyError("a condition on one value also affects the other")
    heads = attributes_of(fixpoint.step)
    for place, head in enumerate(heads):
        if place in values or place in keys:
            continue
        for way in ways:
            if _places(way, (way.expr(head),)) & values:
                name = fixpoint.attributes[place].name
                raise NotBestOnlyError(f"`{name}` is computed from a value that MIN or MAX reads")


def _followed(plan: Plan, is_leaf: IsLeaf) -> list[LeafWay]:
    try:
        return ways_of(plan, is_leaf)
    except NotFollowedError as error:
        raise NotBestOnlyError(str(error)) from None


def _places(way: LeafWay, exprs: Iterable[Expr]) -> set[int]:
    """Positions of the leaf's columns that these expressions read."""
    if way.leaf is None:
        return set()
    place = {attribute.id: index for index, attribute in enumerate(way.leaf)}
    return {place[name] for expr in exprs for name in columns_of(expr) if name in place}


class _ValueGrowth(Struct, frozen=True):
    """A value with what is added to it, or compared with it by a function."""

    others: tuple[Expr, ...] = ()
    compared: frozenset[str] = frozenset()
    is_added: bool = False


def _growth(way: LeafWay, value: BestValue, own: Attribute, expr: Expr) -> _ValueGrowth:
    assert way.leaf is not None
    if own.type is None or not _has_order(own.type):
        raise NotBestOnlyError(f"`{own.name}` is of type {own.type or 'unknown'}")
    grown = _grown(expr, way.leaf[value.place].id)
    if grown is None:
        raise NotBestOnlyError(f"a step computes `{own.name}` by more than adding to it")
    if grown.is_added and own.type.is_fractional:
        raise NotBestOnlyError(f"`{own.name}` has type {own.type}, and its sums are rounded")
    if not grown.compared <= {"least" if value.greatest else "greatest"}:
        raise NotBestOnlyError(
            f"in a cycle, a derived row could replace the `{own.name}` it was derived from"
        )
    return grown


def _has_order(kind: SqlType) -> bool:
    """Whether the engine holds its values in 64 bits (`engine.extremes`)."""
    if kind.kind is Kind.DECIMAL:
        return kind.precision <= _NARROW_DIGITS
    return kind.is_numeric or kind.kind in TEMPORAL or kind.kind is Kind.BOOLEAN


def _grown(expr: Expr, own: AttributeId) -> _ValueGrowth | None:
    """How the expression grows with that column; None where unknown."""
    match expr:
        case ColumnRef(id=name):
            return _ValueGrowth() if name == own else None
        case Cast(operand=below, type=kind) if _is_exact(below, kind):
            return _grown(below, own)
        case Arithmetic() if _is_rounded(expr):
            return None
        case Arithmetic(op=ArithmeticOp.ADD, left=left, right=right):
            if own not in columns_of(left):
                left, right = right, left
            return _with(_grown(left, own), (right,), own, is_added=True)
        case Arithmetic(op=ArithmeticOp.SUBTRACT, left=left, right=right):
            return _with(_grown(left, own), (right,), own, is_added=True)
        case Call(name=("greatest" | "least") as name, arguments=parts):
            of_own = [part for part in parts if own in columns_of(part)]
            if len(of_own) != 1:
                return None
            others = tuple(part for part in parts if part is not of_own[0])
            return _with(_grown(of_own[0], own), others, own, compared=name)
    return None


def _with(
    grown: _ValueGrowth | None,
    others: tuple[Expr, ...],
    own: AttributeId,
    *,
    is_added: bool = False,
    compared: str = "",
) -> _ValueGrowth | None:
    if grown is None or any(own in columns_of(other) for other in others):
        return None
    functions = grown.compared | {compared} if compared else grown.compared
    return _ValueGrowth((*grown.others, *others), functions, grown.is_added or is_added)


def _is_exact(below: Expr, kind: SqlType) -> bool:
    """Whether the cast keeps the value, unless it fails."""
    result = type_of(below)
    if result is None:
        return False
    if kind.kind is Kind.DECIMAL:
        return result.is_integral or (result.kind is Kind.DECIMAL and result.scale <= kind.scale)
    return result.is_integral and kind.is_integral


def _is_rounded(expr: Arithmetic) -> bool:
    result = type_of(expr)
    parts = [type_of(part) for part in (expr.left, expr.right)]
    if result is None or None in parts:
        return True
    return result.scale < max(part.scale for part in parts if part is not None)


def _read_by_conditions(way: LeafWay, values: Sequence[BestValue]) -> tuple[set[int], bool]:
    """Positions that conditions read besides bounds of the values, and whether there are bounds."""
    read, has_bounds = _places(way, way.matches), False
    for condition in way.conditions:
        rest = _bound(way, condition, values)
        has_bounds |= rest is not None
        read |= _places(way, (condition,)) if rest is None else rest
    return read, has_bounds


def _bound(way: LeafWay, condition: Expr, values: Sequence[BestValue]) -> set[int] | None:
    """What else a condition reads that bounds a value on its worse side; None for another
    condition."""
    if not isinstance(condition, Compare) or way.leaf is None:
        return None
    for value in values:
        own = way.leaf[value.place]
        if own.type is not None and own.type.is_fractional:
            continue
        worse, mirrored = (_ABOVE, _BELOW) if value.greatest else (_BELOW, _ABOVE)
        sides = (
            (condition.left, condition.right, worse),
            (condition.right, condition.left, mirrored),
        )
        for side, other, allowed in sides:
            grown = _grown(side, own.id)
            if grown is None or grown.compared or condition.op not in allowed:
                continue
            if own.id not in columns_of(other):
                return _places(way, (*grown.others, other))
    return None


# What there is to say of the fixpoints of a plan: what stays, what could be narrowed, and how.
# Law: remarks decide nothing; each is true of the plan as it stands after the rules.

_PAYS = (
    "updating is faster than deriving all rows again if a run deletes up to about 10% or inserts "
    "up to about 33% of the rows read"
)
"""Measured with one source. A million random links: deleting 10 % took 152 ms, recomputing 187;
inserting 20 % 59 and 170, 40 % 203 and 140. A power law of 44,004 links: deleting 20 % took 6 ms,
recomputing 7; inserting 40 % 5 and 7."""


def recursion_notes(root: Plan, keyed: Collection[AttributeId] = ()) -> Mapping[int, str]:
    """Remarks by position in `nodes_of(root)`. `keyed` are the columns that fixpoints are keyed
    on."""
    result, all_kept = {}, _all_kept(root)
    for position, node in enumerate(nodes_of(root)):
        if isinstance(node, Fixpoint):
            own = _of_fixpoint(node, frozenset(keyed))
            result[position] = "; ".join((*own, *all_kept.get(position, ())))
        elif isinstance(node, Select) and isinstance(node.child, Fixpoint):
            result[position] = _of_filter(node, node.child)
    return {position: note for position, note in result.items() if note}


def _of_fixpoint(node: Fixpoint, keyed: frozenset[AttributeId]) -> Iterator[str]:
    keys = keyed & {attribute.id for attribute in node.attributes}
    if keys:
        yield (
            f"keyed on {_named(node, keys)}: its sketch has only the rows of keys that the rest of "
            "the query uses"
        )
    stable = stable_columns(node)
    if node.best is not None:
        stable &= {node.attributes[place].id for place in node.best.keys}
    if stable:
        yield (
            f"conditions on {_named(node, stable)} apply to its first part, because no step "
            "changes these columns"
        )
    if not is_linear(node):
        yield "a step reads it more than once, and all its rows each time"
    table = _whole_table(node.base)
    if table is not None and not keys:
        yield (
            f"its first part is every row of `{table}`, so the sketch of that part covers the "
            "whole table"
        )
    if node.is_set and node.best is None and not node.chooses and is_linear(node):
        yield _PAYS


def _all_kept(root: Plan) -> Mapping[int, tuple[str]]:
    """Why fixpoints below MIN or MAX keep all of their rows, by position."""
    nodes = list(nodes_of(root))
    place = {id(node): position for position, node in enumerate(nodes)}
    result = {}
    for node in nodes:
        calls = [output.call for output in node.aggregates] if isinstance(node, Aggregate) else []
        if not isinstance(node, Aggregate) or not any(c.function in _FUNCTIONS for c in calls):
            continue
        for fixpoint in outer_fixpoints(node.child):
            try:
                if fixpoint.best is None:
                    best_of_groups(node, fixpoint)
            except NotBestOnlyError as error:
                result[place[id(fixpoint)]] = (
                    f"keeps rows that MIN or MAX does not need: {error}",
                )
    return result


def _of_filter(node: Select, child: Fixpoint) -> str:
    """Why the condition is not applied inside, where another step would allow it."""
    own = frozenset(attribute.id for attribute in child.attributes)
    changing = columns_of(node.predicate) & (own - stable_columns(child))
    if not changing:
        return ""
    names = _named(child, changing)
    return (
        f"checked after all rows are derived; if the step kept {names} unchanged, it could be "
        "checked at the start"
    )


def _named(node: Fixpoint, columns: frozenset[AttributeId]) -> str:
    return ", ".join(f"`{a.name}`" for a in node.attributes if a.id in columns)


def _whole_table(base: Plan) -> str | None:
    """The table whose rows are exactly the base."""
    while isinstance(base, Project | Sort | Distinct):
        base = base.child
    return base.table if isinstance(base, Scan) else None
