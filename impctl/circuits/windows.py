"""Window aggregates over whole partitions: the rows beside the groups they are of.

Law: f(x) OVER (PARTITION BY p) of R is R joined with (SELECT p, f(x) FROM R GROUP BY p) on p, NULL
being equal to NULL. A row has the fragments of all rows of its partition, as a capture finds them;
they come with the group, so the row's own, which are among them, are left out. Calls of other
partitions are put beside one after the other. A step costs the changed rows and, where a
partition's value changes, the rows of that partition; every row is kept.
Out of scope: ranks with a limit (`circuits.first_rows`), frames and order, which Spark recaptures.
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.circuits.flows import BlockedError, Flow, typed
from impctl.circuits.joins import beside_groups
from impctl.circuits.plumbing import Plumbing
from impctl.expr.nodes import ColumnRef, Expr, columns_of
from impctl.expr.types import type_of
from impctl.plan.functions import AGGREGATES
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateOutput,
    Attribute,
    ComputedColumn,
    Project,
    Window,
    WindowCall,
    attributes_of,
)
from impctl.plan.rules.split_averages import split_averages
from impctl.plan.whole_windows import is_whole


def build_window(builder: Plumbing, node: Window) -> Flow:
    """The operators of window aggregates; BlockedError for other window functions."""
    for call in node.calls:
        _check(call, node)
    rows = builder.build(node.child, must_be_sure=True)
    for partition_by in dict.fromkeys(call.partition_by for call in node.calls):
        calls = [call for call in node.calls if call.partition_by == partition_by]
        rows = _with_groups(builder, node, rows, _grouping(builder, node, partition_by, calls))
    return rows


def _check(call: WindowCall, node: Window) -> None:
    """BlockedError where the rows of a partition need not all have one value."""
    name, span = call.function.upper(), call.span or node.span
    if call.function not in AGGREGATES:
        raise BlockedError(f"{name} without a limit on it is not maintained by the engine", span)
    if not is_whole(call):
        raise BlockedError(f"{name} over part of a window's partition is left to Spark", span)


def _grouping(
    builder: Plumbing, node: Window, partition_by: tuple[Expr, ...], calls: Sequence[WindowCall]
) -> Aggregate:
    """The grouping by what the rows of a partition have in common."""
    name = builder.name("window")
    keys = tuple(
        ComputedColumn(Attribute(f"{name}/key{place}", f"key{place}", type_of(expr)), expr)
        for place, expr in enumerate(partition_by)
    )
    results = tuple(
        AggregateOutput(
            call.attribute, AggregateCall(call.function, call.arguments, span=call.span)
        )
        for call in calls
    )
    return Aggregate(node.child, keys, results, span=node.span)


def _with_groups(builder: Plumbing, node: Window, rows: Flow, grouping: Aggregate) -> Flow:
    """The rows, each with what the grouping gives for its group."""
    keys = grouping.keys
    used = frozenset().union(*(columns_of(key.expr) for key in keys))
    rows = builder.sure(rows, used)
    groups = _groups(builder, grouping, rows)
    alone = builder.union([rows], rows.columns, ())
    pairs = [(key.expr, key.attribute.ref()) for key in keys]
    found = beside_groups(builder, node, alone, groups, pairs)
    results = tuple(output.attribute for output in grouping.aggregates)
    columns = (*rows.columns, *typed(results, node.span))
    outputs = [(name, ColumnRef(name, kind)) for name, kind in columns]
    return builder.project(found, outputs, columns, node)


def _groups(builder: Plumbing, grouping: Aggregate, rows: Flow) -> Flow:
    """The groups, averages made of sums and counts."""
    split = split_averages(grouping)
    if not isinstance(split, Project):
        return builder.grouped(grouping, rows, must_be_sure=True)
    assert isinstance(split.child, Aggregate), "averages are split above the grouping"
    below = builder.grouped(split.child, rows, must_be_sure=True)
    outputs = [(output.attribute.id, output.expr) for output in split.outputs]
    return builder.project(below, outputs, typed(attributes_of(split), split.span), split)
