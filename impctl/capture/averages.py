"""Averages of decimals for Spark: what `split_averages` took apart, put together again.

Law: the plan yields the same rows in the same columns, and no average of decimals is left for SQL
to divide: Spark's own AVG keeps digits that a quotient of its sum and count loses, and sums short
decimals as doubles. A plan in which one is left is refused.
Out of scope: averages of other numbers, whose quotient is AVG's own (`capture.render_expr`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from impctl.data.schema import Kind
from impctl.errors import QueryError
from impctl.expr.nodes import ColumnRef, Expr, Mean, transform, walk
from impctl.plan.nodes import (
    Aggregate,
    AggregateOutput,
    Attribute,
    ComputedColumn,
    Join,
    JoinKind,
    Plan,
    Project,
    Select,
    attributes_of,
    expressions_of,
    inputs_of,
    with_inputs,
)
from impctl.rules.prune import prune_columns


def whole_averages(root: Plan) -> Plan:
    """The plan with AVG for every average of decimals; raises QueryError where one is left."""
    whole = _whole(root)
    if whole is root:
        return root
    # Sums and counts that only averages read would cost, and the pass is a baseline.
    return prune_columns(whole)


def _whole(plan: Plan) -> Plan:
    inputs = inputs_of(plan)
    rebuilt = tuple(_whole(child) for child in inputs)
    if any(new is not old for new, old in zip(rebuilt, inputs, strict=True)):
        plan = with_inputs(plan, rebuilt)
    wanted = dict.fromkeys(_means(plan))
    if not wanted:
        return plan
    if not isinstance(plan, Project | Select):
        raise _unsupported()
    child, result = plan.child, {}
    for mean in wanted:
        child, average = _averaged(child, mean)
        result[mean] = average

    def swap(expr: Expr) -> Expr | None:
        return result.get(expr) if isinstance(expr, Mean) else None

    if isinstance(plan, Project):
        outputs = tuple(replace(out, expr=transform(out.expr, swap)) for out in plan.outputs)
        return replace(plan, child=child, outputs=outputs)
    kept = tuple(ComputedColumn(attribute, attribute.ref()) for attribute in attributes_of(plan))
    return Project(replace(plan, child=child, predicate=transform(plan.predicate, swap)), kept)


def _means(plan: Plan) -> Iterator[Mean]:
    """Averages of decimals in the node's own expressions."""
    for expr in expressions_of(plan):
        for part in walk(expr):
            if isinstance(part, Mean) and part.type.kind is Kind.DECIMAL:
                yield part


def _averaged(plan: Plan, mean: Mean) -> tuple[Plan, ColumnRef]:
    """The plan with the average as one more column, and that column."""
    total, count = mean.total, mean.count
    if not (isinstance(total, ColumnRef) and isinstance(count, ColumnRef)):
        raise _unsupported()
    match plan:
        case Aggregate():
            return _with_average(plan, mean, total, count)
        case Select():
            child, average = _averaged(plan.child, mean)
            return replace(plan, child=child), average
        case Project():
            exprs = {output.attribute.id: output.expr for output in plan.outputs}
            inner = replace(mean, total=exprs[total.id], count=exprs[count.id])
            child, average = _averaged(plan.child, inner)
            if average.id not in exprs:
                passed = ComputedColumn(Attribute(average.id, "average", mean.type), average)
                plan = replace(plan, child=child, outputs=(*plan.outputs, passed))
            return plan, average
        case Join():
            return _averaged_side(plan, mean, total)
        case _:
            raise _unsupported()


def _averaged_side(plan: Join, mean: Mean, total: ColumnRef) -> tuple[Plan, ColumnRef]:
    is_left = any(attribute.id == total.id for attribute in attributes_of(plan.left))
    if is_left:
        side, average = _averaged(plan.left, mean)
        return replace(plan, left=side), average
    if plan.kind in (JoinKind.SEMI, JoinKind.ANTI):
        raise _unsupported()
    side, average = _averaged(plan.right, mean)
    return replace(plan, right=side), average


def _with_average(
    plan: Aggregate, mean: Mean, total: ColumnRef, count: ColumnRef
) -> tuple[Plan, ColumnRef]:
    calls = {output.attribute.id: output.call for output in plan.aggregates}
    summed, counted = calls.get(total.id), calls.get(count.id)
    if summed is None or counted is None or replace(summed, function="count") != counted:
        raise _unsupported()
    column = Attribute(f"{total.id}/whole", "average", mean.type)
    if column.id not in calls:
        whole = AggregateOutput(column, replace(summed, function="avg"))
        plan = replace(plan, aggregates=(*plan.aggregates, whole))
    return plan, column.ref()


def _unsupported() -> QueryError:
    return QueryError(
        "An average of decimals is in a place where Spark cannot capture it",
        code="capture_unsupported",
        hint="use AVG of `CAST(... AS DOUBLE)`, or compute the average in a separate query",
    )
