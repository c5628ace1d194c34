"""Rewrites a plan into the form that can be maintained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import DOUBLE, LONG, Kind, SqlType
from impctl.expr import nodes as e
from impctl.expr.types import average_type, sum_type, type_of
from impctl.plan import nodes as p
from impctl.plan.fingerprint import fingerprint
from impctl.plan.functions import VOLATILE
from impctl.plan.lineage import LeafPath, NotFollowedError, paths_of
from impctl.plan.recursion import NotBestOnlyError, best_of_groups, best_only, outer_fixpoints
from impctl.safety.transfer import rank_bound
from impctl.types import AttributeId


def single_rows(root: p.Plan) -> p.Plan:
    """Remove LIMIT, ORDER BY and DISTINCT over at most one row, which do not change it."""
    plan = root.map_inputs(single_rows)
    match plan:
        case p.Sort() | p.Distinct() if has_one_row_at_most(plan.child):
            return plan.child
        case p.TopK(rank=None, offset=0, count=count) if has_one_row_at_most(plan.child):
            return plan if count == 0 else plan.child
        case _:
            return plan


def has_one_row_at_most(plan: p.Plan) -> bool:
    """Whether the plan never has more than one row, by its form."""
    match plan:
        case p.Aggregate():
            return not plan.keys and plan.grouping_sets is None
        case p.TopK(rank=None, count=(0 | 1)):
            return True
        case p.Select() | p.Project() | p.Distinct() | p.Sort() | p.TopK() | p.Window():
            return has_one_row_at_most(plan.child)
        case p.Join(kind=p.JoinKind.SEMI | p.JoinKind.ANTI):
            return has_one_row_at_most(plan.left)
        case p.Join(kind=p.JoinKind.INNER | p.JoinKind.LEFT | p.JoinKind.RIGHT):
            return has_one_row_at_most(plan.left) and has_one_row_at_most(plan.right)
        case p.SetOperation(kind=p.SetKind.EXCEPT | p.SetKind.INTERSECT):
            return has_one_row_at_most(plan.left)
        case p.OneRow():
            return True
        case (
            p.Scan()
            | p.Join()
            | p.SetOperation()
            | p.Witness()
            | p.Explode()
            | p.Recursive()
            | p.Fixpoint()
        ):
            return False
        case _:
            assert_never(plan)


_RANKING = frozenset({"row_number", "rank", "dense_rank"})


def rank_limits(root: p.Plan) -> p.Plan:
    """Turn every filter on a rank (`rank_bound`) directly above a window with just one row_number,
    rank or dense_rank into a TopK with that rank. The rest of the predicate stays above it."""
    plan = root.map_inputs(rank_limits)
    if isinstance(plan, p.Select) and isinstance(plan.child, p.Window):
        return _limited(plan, plan.child)
    return plan


def _limited(plan: p.Select, window: p.Window) -> p.Plan:
    call = window.calls[0]
    if len(window.calls) != 1 or call.function not in _RANKING or call.frame is not None:
        return plan
    if not any(key.expr.columns for key in call.order):
        return plan
    if any(isinstance(part, e.Call) and part.name in VOLATILE for part in plan.predicate.walk()):
        return plan
    parts = e.conjuncts(plan.predicate)
    bounds = [rank_bound(part, call.attribute.id) for part in parts]
    counts = [bound.count for bound in bounds if bound is not None]
    if not counts:
        return plan
    top = p.TopK(window.child, call.order, min(counts), rank=call, span=plan.span)
    pairs = zip(parts, bounds, strict=True)
    rest = tuple(part for part, bound in pairs if bound is None or not bound.is_all)
    if not rest:
        return top
    return replace(plan, child=top, predicate=e.conjunction(rest))


def split_averages(root: p.Plan) -> p.Plan:
    """Split every AVG over numbers into a sum and a count, which can be maintained.

    Integers and floats are summed as doubles, decimals as decimals, and `Mean` divides as AVG does.
    AVG(DISTINCT ...) and arguments of unknown type stay. Columns above keep their identities;
    those of the aggregate below get new ones."""
    root = root.map_inputs(split_averages)
    if isinstance(root, p.Aggregate) and any(_is_splittable(item.call) for item in root.aggregates):
        return _split(root)
    return root


def _is_splittable(call: p.AggregateCall) -> bool:
    is_plain = call.function == "avg" and not call.distinct and len(call.arguments) == 1
    return is_plain and _mean_type(call) is not None


def _split(plan: p.Aggregate) -> p.Plan:
    keys = tuple(replace(key, attribute=_below(key.attribute)) for key in plan.keys)
    calls: list[p.AggregateOutput] = []
    outputs = [
        p.ComputedColumn(old.attribute, new.attribute.ref())
        for old, new in zip(plan.keys, keys, strict=True)
    ]
    for item in plan.aggregates:
        if not _is_splittable(item.call):
            _shared(calls, item.call, item.attribute)
    for item in plan.aggregates:
        if _is_splittable(item.call):
            total, count = _sum_and_count(item, calls)
            kind = _mean_type(item.call) or item.attribute.type or DOUBLE
            expr: e.Expr = e.Mean(total, count, kind, span=item.call.span)
        else:
            expr = _shared(calls, item.call, item.attribute)
        outputs.append(p.ComputedColumn(item.attribute, expr))
    aggregate = replace(plan, keys=keys, aggregates=tuple(calls))
    return p.Project(aggregate, tuple(outputs), span=plan.span)


def _mean_type(call: p.AggregateCall) -> SqlType | None:
    argument = type_of(call.arguments[0])
    return None if argument is None else average_type(argument)


def _sum_and_count(
    item: p.AggregateOutput, calls: list[p.AggregateOutput]
) -> tuple[e.Expr, e.Expr]:
    argument = item.call.arguments[0]
    kind = type_of(argument)
    summed = argument
    if kind is not None and kind.kind is not Kind.DECIMAL and kind != DOUBLE:
        summed = e.Cast(argument, DOUBLE, span=argument.span)
    summed_type = type_of(summed)
    total = p.Attribute(
        f"{item.attribute.id}/sum",
        f"sum of {item.attribute.name}",
        None if summed_type is None else sum_type(summed_type),
    )
    count = p.Attribute(
        f"{item.attribute.id}/count", f"count of {item.attribute.name}", LONG, False
    )
    return (
        _shared(calls, replace(item.call, function="sum", arguments=(summed,)), total),
        _shared(calls, replace(item.call, function="count"), count),
    )


def _shared(
    calls: list[p.AggregateOutput], call: p.AggregateCall, attribute: p.Attribute
) -> e.Expr:
    """The result of the call, which is added unless there is an equal one."""
    for known in calls:
        if known.call == call:
            return known.attribute.ref(call.span)
    added = p.AggregateOutput(_below(attribute), call)
    calls.append(added)
    return added.attribute.ref(call.span)


def _below(attribute: p.Attribute) -> p.Attribute:
    """The attribute under a new id, for use below the projection."""
    return replace(attribute, id=f"split.{attribute.id}")


_BestByFixpoint = dict[AttributeId, p.BestOnly]
"""Rows that a fixpoint must keep, by its first column."""


def best_fixpoints(root: p.Plan) -> p.Plan:
    """Let fixpoints keep only the best rows where nothing else is read (`plan.recursion`): MIN or
    MAX over their rows read the best, and so does a join of their rows back to these values on
    equality of group and value."""
    if next(outer_fixpoints(root), None) is None:
        return root
    result: _BestByFixpoint = {}
    _collect(root, (), result)

    def with_best(plan: p.Plan) -> p.Plan:
        changed = plan.map_inputs(with_best)
        if isinstance(changed, p.Fixpoint) and changed.best is None:
            return replace(changed, best=result.get(changed.attributes[0].id))
        return changed

    return with_best(root) if result else root


def _collect(plan: p.Plan, above: tuple[e.Expr, ...], result: _BestByFixpoint) -> None:
    """Collect the rows that must stay below this node; `above` are conditions on its rows."""
    below: tuple[e.Expr, ...] = ()
    match plan:
        case p.Select():
            below = (*above, *e.conjuncts(plan.predicate))
        case p.Aggregate():
            for fixpoint in outer_fixpoints(plan.child):
                try:
                    result[fixpoint.attributes[0].id] = best_of_groups(plan, fixpoint)
                except NotBestOnlyError:
                    continue
        case p.Join(kind=p.JoinKind.INNER | p.JoinKind.SEMI):
            on = () if plan.condition is None else e.conjuncts(plan.condition)
            _collect_joined(plan, (*above, *on), result)
    for child in plan.inputs:
        _collect(child, below, result)


def _collect_joined(plan: p.Join, on: Sequence[e.Expr], result: _BestByFixpoint) -> None:
    """Collect fixpoints of one side that are joined back to the best values on the other."""
    sides = [(plan.left, plan.right)]
    sides += [(plan.right, plan.left)] if plan.kind is p.JoinKind.INNER else []
    for rows, best in sides:
        values = _values_of(best)
        if values is None:
            continue
        for fixpoint in outer_fixpoints(rows):
            if fixpoint.id != values.fixpoint.id or fixpoint.best is not None:
                continue
            if fingerprint(fixpoint) != fingerprint(values.fixpoint):
                continue
            value = _required(rows, fixpoint, values, on)
            if value is None:
                continue
            try:
                only = best_only(fixpoint, values.positions, (value,))
                result[fixpoint.attributes[0].id] = only
            except NotBestOnlyError:
                continue


class _BestValues(Struct, frozen=True):
    """Best values of a fixpoint by groups: per output column the position of a group column, or the
    value. `positions` are those of all group columns."""

    fixpoint: p.Fixpoint
    keys: dict[AttributeId, int]
    positions: frozenset[int]
    values: dict[AttributeId, p.BestValue]


def _values_of(plan: p.Plan) -> _BestValues | None:
    """The best values over all rows of a fixpoint, if the plan outputs nothing else."""
    names: list[p.Project] = []
    while isinstance(plan, p.Project | p.Sort | p.Distinct):
        names += [plan] if isinstance(plan, p.Project) else []
        plan = plan.child
    if not isinstance(plan, p.Aggregate) or plan.grouping_sets is not None:
        return None
    below = plan.child
    inner: list[p.Project] = []
    while isinstance(below, p.Project | p.Sort):
        inner += [below] if isinstance(below, p.Project) else []
        below = below.child
    if not isinstance(below, p.Fixpoint) or below.best is not None:
        return None
    columns = {attribute.id: position for position, attribute in enumerate(below.attributes)}
    for project in reversed(inner):
        columns = p.renamed(project.outputs, columns)
    keys = {key.attribute.id: columns.get(_name(key.expr)) for key in plan.keys}
    values = {}
    for output in plan.aggregates:
        call = output.call
        if call.function in ("min", "max") and call.condition is None:
            position = columns.get(_name(call.arguments[0]))
            if position is not None:
                values[output.attribute.id] = p.BestValue(position, call.function == "max")
    if None in keys.values():
        return None
    key_positions = {name: position for name, position in keys.items() if position is not None}
    every = frozenset(key_positions.values())
    for project in reversed(names):
        key_positions = p.renamed(project.outputs, key_positions)
        values = p.renamed(project.outputs, values)
    return _BestValues(below, key_positions, every, values)


def _name(expr: e.Expr) -> AttributeId:
    return expr.id if isinstance(expr, e.ColumnRef) else ""


def _required(
    rows: p.Plan, fixpoint: p.Fixpoint, values: _BestValues, on: Sequence[e.Expr]
) -> p.BestValue | None:
    """The value by which rows are required, if the conditions match rows with the best value of
    their group."""
    try:
        paths = paths_of(rows, lambda node: node is fixpoint)
    except NotFollowedError:
        return None
    if len(paths) != 1 or paths[0].obstacle:
        return None
    met, best = set(), []
    for condition in on:
        for position, name, is_null_safe in _pairs(paths[0], condition):
            if values.keys.get(name) == position:
                met.add(position)
            value = values.values.get(name)
            if value is not None and value.place == position and not is_null_safe:
                best.append(value)
    return best[0] if best and met == values.positions else None


def _pairs(path: LeafPath, condition: e.Expr) -> Iterator[tuple[int, AttributeId, bool]]:
    """Position of a leaf column and the column it equals."""
    if not isinstance(condition, e.Compare) or path.leaf is None:
        return
    if condition.op not in (e.CompareOp.EQUAL, e.CompareOp.NULL_SAFE_EQUAL):
        return
    positions = {attribute.id: position for position, attribute in enumerate(path.leaf)}
    for left, right in ((condition.left, condition.right), (condition.right, condition.left)):
        position = positions.get(_name(path.over(left)))
        if position is not None and isinstance(right, e.ColumnRef):
            yield position, right.id, condition.op is e.CompareOp.NULL_SAFE_EQUAL
