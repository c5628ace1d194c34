"""Properties of fixpoints: how steps read their rows, and which rows are enough."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import TEMPORAL, Kind, SqlType
from impctl.expr import nodes as e
from impctl.expr.types import type_of
from impctl.plan import nodes as p
from impctl.plan.lineage import IsLeaf, LeafPath, NotFollowedError, paths_of
from impctl.types import AccessId, AttributeId, FixpointId


def is_linear(fixpoint: p.Fixpoint) -> bool:
    """Whether every row of the step is derived from at most one row of the fixpoint."""
    paths = _paths(fixpoint)
    return bool(paths) and all(len(path.leaves) <= 1 for path in paths)


def is_derived_from_one_row(fixpoint: p.Fixpoint) -> bool:
    """Whether every row of the step is derived from exactly one row of the fixpoint."""
    paths = _paths(fixpoint)
    return bool(paths) and all(len(path.leaves) == 1 for path in paths)


def stable_columns(fixpoint: p.Fixpoint) -> frozenset[AttributeId]:
    """Ids of the fixpoint's columns that no step changes: every derived row has the value of the
    rows that it is derived from. None for a step with rows that derive from no row of the
    fixpoint."""
    paths = _paths(fixpoint)
    if not paths or not all(path.leaves for path in paths):
        return frozenset()
    heads = fixpoint.step.attributes
    return frozenset(
        attribute.id
        for position, (attribute, head) in enumerate(zip(fixpoint.attributes, heads, strict=True))
        if all(path.is_kept(head, position) for path in paths)
    )


def keyed_rows(
    root: p.Plan, key_columns: Mapping[int, Mapping[AccessId, AttributeId]]
) -> dict[AttributeId, tuple[AccessId, ...]]:
    """For each column that a fixpoint is keyed on, the accesses below that are sketched on it.
    `key_columns` are those of the plan's verdict, by node position."""
    nodes = tuple(root.walk())
    return {
        column: tuple(keys)
        for position, keys in key_columns.items()
        if isinstance(nodes[position], p.Fixpoint)
        for column in set(keys.values())
    }


def leaves_in(plan: p.Plan, fixpoint: FixpointId) -> tuple[p.Recursive, ...]:
    """Leaves of the plan that read the fixpoint with this id, left to right."""
    nodes = plan.walk()
    return tuple(n for n in nodes if isinstance(n, p.Recursive) and n.fixpoint == fixpoint)


def reads_fixpoint(plan: p.Plan, fixpoint: FixpointId) -> bool:
    return bool(leaves_in(plan, fixpoint))


def _paths(fixpoint: p.Fixpoint) -> list[LeafPath]:
    """All paths through the step; none if there are too many or one cannot be followed."""
    try:
        return paths_of(
            fixpoint.step, lambda n: isinstance(n, p.Recursive) and n.fixpoint == fixpoint.id
        )
    except NotFollowedError:
        return []


def approximate_columns(plan: p.Plan) -> frozenset[AttributeId]:
    """Columns that may come from sums of doubles, which may differ between runs."""
    below = frozenset[AttributeId]().union(*(approximate_columns(side) for side in plan.inputs))
    match plan:
        case p.Project():
            outputs = ((out.attribute.id, out.expr.columns) for out in plan.outputs)
            return frozenset(name for name, read in outputs if read & below)
        case p.Aggregate():
            keys = (out.attribute.id for out in plan.keys if out.expr.columns & below)
            calls = ((out.attribute, out.call.function, out.call.arguments)
                     for out in plan.aggregates)  # fmt: skip
            return frozenset((*keys, *_summed(calls, below)))
        case p.Window():
            calls = ((call.attribute, call.function, call.arguments) for call in plan.calls)
            return below | frozenset(_summed(calls, below))
        case p.SetOperation() | p.Fixpoint():
            sides = [side.attributes for side in plan.inputs]
            rows = zip(plan.attributes, *sides, strict=True)
            return frozenset(
                output.id for output, *inputs in rows if {column.id for column in inputs} & below
            )
        case _:
            return below


def _summed(
    calls: Iterable[tuple[p.Attribute, str, tuple[e.Expr, ...]]], below: frozenset[AttributeId]
) -> Iterator[AttributeId]:
    for attribute, function, arguments in calls:
        is_summed = attribute.type is None or attribute.type.is_fractional
        is_read = any(argument.columns & below for argument in arguments)
        if is_read or (is_summed and function not in ("min", "max")):
            yield attribute.id


# Fixpoints as tables. Law: over a table with the rows of a fixpoint, the plan that reads the table
# instead of the fixpoint yields the same rows. The step over the table yields a row for every
# derivation from rows of the fixpoint; so the lineage of base and step over the table is all that
# derives its rows. If only the best rows are kept, `base_and_step` omits derivations of others.
# Columns of the table are named by position, since those of a WITH entry may share a name.


def table_of(node: p.Fixpoint | p.Recursive) -> p.Scan:
    """An access of a table with the fixpoint's rows, with the node's attributes."""
    name = node.id if isinstance(node, p.Fixpoint) else node.fixpoint
    columns = tuple(
        replace(attribute, name=column)
        for attribute, column in zip(node.attributes, column_names(node), strict=True)
    )
    return p.Scan(f"rows of {node.attributes[0].id}", name, columns, span=node.span)


def column_names(node: p.Fixpoint | p.Recursive) -> list[str]:
    return [f"column{position}" for position in range(len(node.attributes))]


def outer_fixpoints(plan: p.Plan) -> Iterator[p.Fixpoint]:
    """The fixpoints of a plan that are not inside another."""
    if isinstance(plan, p.Fixpoint):
        yield plan
        return
    for child in plan.inputs:
        yield from outer_fixpoints(child)


def is_recursive(plan: p.Plan) -> bool:
    return next(outer_fixpoints(plan), None) is not None


def with_fixpoint_tables(plan: p.Plan) -> p.Plan:
    """The plan with tables instead of its outer fixpoints."""
    return table_of(plan) if isinstance(plan, p.Fixpoint) else plan.map_inputs(with_fixpoint_tables)


def leaves_of(fixpoint: p.Fixpoint) -> tuple[p.Recursive, ...]:
    return leaves_in(fixpoint.step, fixpoint.id)


def step_over_table(fixpoint: p.Fixpoint) -> p.Plan:
    """The step with tables instead of leaves that read the fixpoint."""

    def over_table(plan: p.Plan) -> p.Plan:
        if isinstance(plan, p.Recursive) and plan.fixpoint == fixpoint.id:
            return table_of(plan)
        return plan.map_inputs(over_table)

    return over_table(fixpoint.step)


def base_and_step(fixpoint: p.Fixpoint) -> tuple[p.Plan, p.Plan]:
    """The base, and the step over the table: both derive rows of the fixpoint."""
    step = step_over_table(fixpoint)
    if fixpoint.best is None:
        return fixpoint.base, step
    return of_rows(fixpoint.base, fixpoint), of_rows(step, fixpoint)


def of_rows(plan: p.Plan, fixpoint: p.Fixpoint) -> p.Plan:
    """The plan's rows that are in the table of the fixpoint's rows."""
    table = table_of(fixpoint)
    pairs = zip(plan.attributes, table.attributes, strict=True)
    equalities = [
        e.Compare(e.CompareOp.NULL_SAFE_EQUAL, left.ref(), right.ref()) for left, right in pairs
    ]
    return p.Join(p.JoinKind.SEMI, plan, table, e.conjunction(equalities))


# When a fixpoint may keep only the best rows of each group without changing the answer. Law:
# (1) Its rows are read only through MIN and MAX of some of its columns, the *values*, or are joined
#     back to these by equality.
# (2) A step computes from a value v only v + e or, if the least is best, greatest(v, e) (if the
#     greatest is best, least(v, e)), and no other column.
# (3) No condition reads a value, except that a single value may be bounded on its worse side.
# (4) The groups are by all columns that anything here reads, including e.
# Then whatever a worse row derives, a better row of its group derives no worse with the same rows
# of tables. So if the recursion ends without the rule, the best rows of each group are the same; if
# it does not, as with costs along a cycle, they are those that all rounds converge to. The sign of
# e only decides whether the recursion ends: it does not along a cycle of negative cost, or if rows
# contain paths along a cycle of cost zero.
# If the least is best, least(v, e) could be better than v: along a cycle a derived row would
# replace the row that it was derived from.
# Ties: v + e is better by as much as v is, so all best rows stay, whatever else they contain (such
# as a path). greatest(v, e) may tie for different v, so there rows contain nothing else. Rounded
# numbers can do either, so doubles are not added.
# NULL is no value, but greatest(NULL, e) is e, so there rows with NULL stay too.

_FUNCTIONS = {"min": False, "max": True}
_NARROW_DIGITS = 18
_BELOW = (e.CompareOp.LESS, e.CompareOp.LESS_EQUAL)
_ABOVE = (e.CompareOp.GREATER, e.CompareOp.GREATER_EQUAL)


class NotBestOnlyError(Exception):
    """Why all rows of a fixpoint count, in words."""


def best_of_groups(plan: p.Aggregate, fixpoint: p.Fixpoint) -> p.BestOnly:
    """Rows of a fixpoint that this grouping needs; NotBestOnlyError if it needs all."""
    if plan.grouping_sets is not None:
        raise NotBestOnlyError("the query groups them by several sets of columns")
    paths = _followed(plan.child, lambda node: node is fixpoint)
    keys: set[int] = set()
    values: dict[p.BestValue, None] = {}
    for output in plan.aggregates:
        call = output.call
        if call.function not in _FUNCTIONS or call.condition is not None:
            name = "FILTER" if call.condition is not None else call.function.upper()
            raise NotBestOnlyError(f"{name} needs all of them")
        for path in paths:
            result = _value_read(path, path.over(call.arguments[0]))
            if result is not None:
                value, read = result
                values[p.BestValue(value, _FUNCTIONS[call.function])] = None
                keys |= read
    best_values = tuple(values)
    has_bounds = False
    for path in paths:
        keys |= _positions(path, (path.over(key.expr) for key in plan.keys))
        read, is_bounding = _read_by_conditions(path, best_values)
        keys, has_bounds = keys | read, has_bounds or is_bounding
    return best_only(fixpoint, keys, best_values, has_bounds=has_bounds)


def _value_read(path: LeafPath, expr: e.Expr) -> tuple[int, set[int]] | None:
    """Position of the value that MIN or MAX reads, and positions of what else it reads."""
    read = sorted(_positions(path, (expr,)))
    if not read:
        return None
    assert path.leaf is not None
    for position in read:
        grown = _grown(expr, path.leaf[position].id)
        if grown is None:
            continue
        if grown.compared:
            raise NotBestOnlyError("GREATEST and LEAST turn NULL into a value")
        return position, _positions(path, grown.others)
    raise NotBestOnlyError("MIN or MAX reads a value computed from them")


def best_only(
    fixpoint: p.Fixpoint,
    keys: Collection[int],
    values: tuple[p.BestValue, ...],
    *,
    has_bounds: bool = False,
) -> p.BestOnly:
    """The rows that the fixpoint must keep, the best by these values in groups by at least these
    columns; NotBestOnlyError if all. `has_bounds`: conditions above bound the value."""
    if not fixpoint.is_set:
        raise NotBestOnlyError("UNION ALL counts every derivation")
    if not values:
        raise NotBestOnlyError("MIN or MAX reads none of their columns")
    paths = _followed(
        fixpoint.step, lambda node: isinstance(node, p.Recursive) and node.fixpoint == fixpoint.id
    )
    heads = fixpoint.step.attributes
    growths: list[_ValueGrowth] = []
    keys = set(keys)
    for value in values:
        column = fixpoint.attributes[value.place]
        for side in (fixpoint.base.attributes, heads):
            if side[value.place].type != column.type:
                raise NotBestOnlyError(f"`{column.name}` is cast")
        for path in paths:
            grown = _growth(path, value, column, path.expr(heads[value.place]))
            growths.append(grown)
            keys |= _positions(path, grown.others)
    for path in paths:
        read, is_bounding = _read_by_conditions(path, values)
        keys, has_bounds = keys | read, has_bounds or is_bounding
    keys = _closed(keys, paths, heads)
    _refuse(fixpoint, values, keys, paths, has_bounds=has_bounds)
    is_weak = any(grown.compared for grown in growths)
    if is_weak and any(grown.is_added for grown in growths):
        raise NotBestOnlyError(
            "the recursion both adds to their values and compares them with GREATEST or LEAST"
        )
    if is_weak and len(keys) + 1 < len(heads):
        raise NotBestOnlyError("of the rows that tie by GREATEST or LEAST, one would be missing")
    return p.BestOnly(tuple(sorted(keys)), values, keeps_null=is_weak)


def _closed(keys: set[int], paths: Sequence[LeafPath], heads: Sequence[p.Attribute]) -> set[int]:
    """These columns and, transitively, those that steps compute them from."""
    while True:
        read = [_positions(path, (path.expr(heads[key]) for key in keys)) for path in paths]
        more = keys.union(*read)
        if more == keys:
            return keys
        keys = more


def _refuse(
    fixpoint: p.Fixpoint,
    best_values: Sequence[p.BestValue],
    keys: set[int],
    paths: Sequence[LeafPath],
    *,
    has_bounds: bool,
) -> None:
    """NotBestOnlyError if something other than the value itself depends on it."""
    values = {value.place for value in best_values}
    if keys & values:
        names = ", ".join(
            f"`{fixpoint.attributes[position].name}`" for position in sorted(keys & values)
        )
        raise NotBestOnlyError(f"conditions or other columns read {names}")
    if has_bounds and len(best_values) > 1:
        raise NotBestOnlyError("a condition on one value also affects the other")
    heads = fixpoint.step.attributes
    for position, head in enumerate(heads):
        if position in values or position in keys:
            continue
        for path in paths:
            if _positions(path, (path.expr(head),)) & values:
                name = fixpoint.attributes[position].name
                raise NotBestOnlyError(f"`{name}` is computed from a value that MIN or MAX reads")


def _followed(plan: p.Plan, is_leaf: IsLeaf) -> list[LeafPath]:
    """The paths that read rows of the leaf, one each."""
    try:
        paths = [path for path in paths_of(plan, is_leaf) if path.leaves]
    except NotFollowedError as error:
        raise NotBestOnlyError(str(error)) from None
    obstacle = next((path.obstacle for path in paths if path.obstacle), None)
    if obstacle is not None:
        raise NotBestOnlyError(obstacle)
    return paths


def _positions(path: LeafPath, exprs: Iterable[e.Expr]) -> set[int]:
    """Positions of the leaf's columns that these expressions read."""
    if path.leaf is None:
        return set()
    positions = {attribute.id: index for index, attribute in enumerate(path.leaf)}
    return {positions[name] for expr in exprs for name in expr.columns if name in positions}


class _ValueGrowth(Struct, frozen=True):
    """How an expression grows with a value: the other operands, the functions that compare it with
    them, and whether any is added."""

    others: tuple[e.Expr, ...] = ()
    compared: frozenset[str] = frozenset()
    is_added: bool = False


def _growth(path: LeafPath, value: p.BestValue, column: p.Attribute, expr: e.Expr) -> _ValueGrowth:
    assert path.leaf is not None
    if column.type is None or not _has_order(column.type):
        raise NotBestOnlyError(f"`{column.name}` is of type {column.type or 'unknown'}")
    grown = _grown(expr, path.leaf[value.place].id)
    if grown is None:
        raise NotBestOnlyError(f"a step computes `{column.name}` by more than adding to it")
    if grown.is_added and column.type.is_fractional:
        raise NotBestOnlyError(f"`{column.name}` has type {column.type}, and its sums are rounded")
    if not grown.compared <= {"least" if value.greatest else "greatest"}:
        raise NotBestOnlyError(
            f"in a cycle, a derived row could replace the `{column.name}` it was derived from"
        )
    return grown


def _has_order(kind: SqlType) -> bool:
    """Whether the engine represents its values in 64 bits (`engine.extremes`)."""
    if kind.kind is Kind.DECIMAL:
        return kind.precision <= _NARROW_DIGITS
    return kind.is_numeric or kind.kind in TEMPORAL or kind.kind is Kind.BOOLEAN


def _grown(expr: e.Expr, column: AttributeId) -> _ValueGrowth | None:
    """How the expression grows with the column; None if unknown."""
    match expr:
        case e.ColumnRef(id=name):
            return _ValueGrowth() if name == column else None
        case e.Cast(operand=below, type=kind) if _is_exact(below, kind):
            return _grown(below, column)
        case e.Arithmetic() if _is_rounded(expr):
            return None
        case e.Arithmetic(op=e.ArithmeticOp.ADD, left=left, right=right):
            if column not in left.columns:
                left, right = right, left
            return _with(_grown(left, column), (right,), column, is_added=True)
        case e.Arithmetic(op=e.ArithmeticOp.SUBTRACT, left=left, right=right):
            return _with(_grown(left, column), (right,), column, is_added=True)
        case e.Call(name=("greatest" | "least") as name, arguments=parts):
            matches = [part for part in parts if column in part.columns]
            if len(matches) != 1:
                return None
            others = tuple(part for part in parts if part is not matches[0])
            return _with(_grown(matches[0], column), others, column, compared=name)
    return None


def _with(
    grown: _ValueGrowth | None,
    operands: tuple[e.Expr, ...],
    column: AttributeId,
    *,
    is_added: bool = False,
    compared: str = "",
) -> _ValueGrowth | None:
    if grown is None or any(column in other.columns for other in operands):
        return None
    functions = grown.compared | {compared} if compared else grown.compared
    return _ValueGrowth((*grown.others, *operands), functions, grown.is_added or is_added)


def _is_exact(below: e.Expr, kind: SqlType) -> bool:
    """Whether the cast keeps the value, unless it fails."""
    source = type_of(below)
    if source is None:
        return False
    if kind.kind is Kind.DECIMAL:
        return source.is_integral or (source.kind is Kind.DECIMAL and source.scale <= kind.scale)
    return source.is_integral and kind.is_integral


def _is_rounded(expr: e.Arithmetic) -> bool:
    result = type_of(expr)
    parts = [type_of(part) for part in (expr.left, expr.right)]
    if result is None or None in parts:
        return True
    return result.scale < max(part.scale for part in parts if part is not None)


def _read_by_conditions(path: LeafPath, values: Sequence[p.BestValue]) -> tuple[set[int], bool]:
    """Positions that conditions read besides bounds of the values, and whether there are bounds."""
    read, has_bounds = _positions(path, path.matches), False
    for condition in path.conditions:
        rest = _bound(path, condition, values)
        has_bounds |= rest is not None
        read |= _positions(path, (condition,)) if rest is None else rest
    return read, has_bounds


def _bound(path: LeafPath, condition: e.Expr, values: Sequence[p.BestValue]) -> set[int] | None:
    """What else a condition reads if it bounds a value on its worse side; None if it does not."""
    if not isinstance(condition, e.Compare) or path.leaf is None:
        return None
    for value in values:
        column = path.leaf[value.place]
        if column.type is not None and column.type.is_fractional:
            continue
        worse, mirrored = (_ABOVE, _BELOW) if value.greatest else (_BELOW, _ABOVE)
        sides = (
            (condition.left, condition.right, worse),
            (condition.right, condition.left, mirrored),
        )
        for side, other, allowed in sides:
            grown = _grown(side, column.id)
            if grown is None or grown.compared or condition.op not in allowed:
                continue
            if column.id not in other.columns:
                return _positions(path, (*grown.others, other))
    return None


# Remarks on the fixpoints of a plan after the rules, for `explain`.

_PAYS = (
    "updating is faster than deriving all rows again if a run deletes up to about 10% or inserts "
    "up to about 33% of the rows read"
)
"""Measured from one source, updating and recomputing in ms. A million random links: deleting 10%
152 and 187; inserting 20% 59 and 170, 40% 203 and 140. A power law of 44,004 links: deleting 20% 6
and 7; inserting 40% 5 and 7."""


def recursion_notes(root: p.Plan, keyed: Collection[AttributeId] = ()) -> Mapping[int, str]:
    """Remarks by position in `root.walk()`. `keyed`: columns that fixpoints are keyed on."""
    result, all_kept = {}, _why_all_kept(root)
    for position, node in enumerate(root.walk()):
        if isinstance(node, p.Fixpoint):
            notes = _of_fixpoint(node, frozenset(keyed))
            result[position] = "; ".join((*notes, *all_kept.get(position, ())))
        elif isinstance(node, p.Select) and isinstance(node.child, p.Fixpoint):
            result[position] = _of_filter(node, node.child)
    return {position: note for position, note in result.items() if note}


def _of_fixpoint(node: p.Fixpoint, keyed: frozenset[AttributeId]) -> Iterator[str]:
    keys = keyed & {attribute.id for attribute in node.attributes}
    if keys:
        yield (
            f"keyed on {_named(node, keys)}: its sketch has only the rows of keys that the rest of "
            "the query uses"
        )
    stable = stable_columns(node)
    if node.best is not None:
        stable &= {node.attributes[position].id for position in node.best.keys}
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


def _why_all_kept(root: p.Plan) -> Mapping[int, tuple[str]]:
    """Why fixpoints below MIN or MAX keep all of their rows, by position."""
    nodes = list(root.walk())
    positions = {id(node): position for position, node in enumerate(nodes)}
    result = {}
    for node in nodes:
        calls = [output.call for output in node.aggregates] if isinstance(node, p.Aggregate) else []
        if not isinstance(node, p.Aggregate) or not any(c.function in _FUNCTIONS for c in calls):
            continue
        for fixpoint in outer_fixpoints(node.child):
            try:
                if fixpoint.best is None:
                    best_of_groups(node, fixpoint)
            except NotBestOnlyError as error:
                result[positions[id(fixpoint)]] = (
                    f"keeps rows that MIN or MAX does not need: {error}",
                )
    return result


def _of_filter(node: p.Select, child: p.Fixpoint) -> str:
    """Why the condition is not applied inside the fixpoint."""
    columns = frozenset(attribute.id for attribute in child.attributes)
    changing = node.predicate.columns & (columns - stable_columns(child))
    if not changing:
        return ""
    names = _named(child, changing)
    return (
        f"checked after all rows are derived; if the step kept {names} unchanged, it could be "
        "checked at the start"
    )


def _named(node: p.Fixpoint, columns: frozenset[AttributeId]) -> str:
    return ", ".join(f"`{a.name}`" for a in node.attributes if a.id in columns)


def _whole_table(base: p.Plan) -> str | None:
    """The table whose rows are exactly those of the base."""
    while isinstance(base, p.Project | p.Sort | p.Distinct):
        base = base.child
    return base.table if isinstance(base, p.Scan) else None
