"""Windows: rows beside the groups they are of, and values by their place in the partition.

Law: f(x) OVER (PARTITION BY p) of R is R joined with (SELECT p, f(x) FROM R GROUP BY p) on p, NULL
being equal to NULL. A row has the fragments of all rows of its partition, as a capture finds them;
they come with the group, so the row's own, which are among them, are left out. Calls of other
partitions are put beside one after the other; such a row has the fragments too that rows of its
later partitions got by the earlier ones, which is its own where a sketch is safe. Ranks, LAG and
LEAD are put beside the rows before that (`engine.window`). A step costs the changed rows
and, where a partition's value changes, the rows of that partition; every row is kept.
Out of scope: ranks with a limit (`circuits.first_rows`), frames, which Spark recaptures.
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.circuits.flows import BlockedError, Flow, known_type_of, typed
from impctl.circuits.placed_rows import build_placed, check_placed
from impctl.circuits.plumbing import Plumbing
from impctl.engine.join import Join as JoinOperator
from impctl.engine.join import Side
from impctl.expr.nodes import ColumnRef, Expr
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
from impctl.plan.properties import is_whole
from impctl.rules.normalize import split_averages


def build_window(builder: Plumbing, node: Window) -> Flow:
    """The operators of a window; BlockedError for functions that are left to Spark."""
    for call in node.calls:
        _check(call, node)
    rows = builder.build(node.child, must_be_sure=True)
    for partition_by in dict.fromkeys(call.partition_by for call in node.calls):
        calls = [call for call in node.calls if call.partition_by == partition_by]
        whole = [call for call in calls if call.function in AGGREGATES]
        grouping = _grouping(builder, node, partition_by, whole)
        placed = [call for call in calls if call.function not in AGGREGATES]
        result = _beside(builder, node, rows, grouping, placed)
        results = (call.attribute for call in (*whole, *placed))
        columns = (*rows.columns, *typed(results, node.span))
        outputs = [(name, ColumnRef(name, kind)) for name, kind in columns]
        rows = builder.project(result, outputs, columns, node)
    return rows


def _check(call: WindowCall, node: Window) -> None:
    """BlockedError for a call that is neither of the whole partition nor of a row's place in it."""
    if call.function in AGGREGATES:
        if not is_whole(call):
            name, span = call.function.upper(), call.span or node.span
            raise BlockedError(
                f"the engine does not support {name} over part of a window's partition", span
            )
    else:
        check_placed(call, node.span)


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


def _beside(
    builder: Plumbing,
    node: Window,
    rows: Flow,
    grouping: Aggregate,
    placed: Sequence[WindowCall],
) -> Flow:
    """Each row with its group's columns and fragments; both are kept, as nothing else has them.

    Keys are exact: of one that is not, the grouping fails. Without fragments and functions there
    is nothing that a group would give.
    """
    name = builder.name("window")
    keys = grouping.keys
    ids = [k.expr.id if isinstance(k.expr, ColumnRef) else f"{name}/{k.attribute.id}" for k in keys]
    computed = [(own, key.expr) for own, key in zip(ids, keys, strict=True) if own not in rows.ids]
    types = [(own, known_type_of(expr, node.span)) for own, expr in computed]
    alone = builder.union([rows], rows.columns, ())
    if computed:
        alone = builder.project(alone, (*rows.refs(), *computed), (*rows.columns, *types), node)
    if placed:
        alone = build_placed(builder, node, alone, ids, placed)
        if not rows.accesses and not grouping.aggregates:
            return alone
    groups = _groups(builder, grouping, rows)
    whole = rows.whole | groups.whole
    alone, mine = builder.parted(alone)
    groups, theirs = builder.parted(groups)
    sides = (
        Side(alone.columns, tuple(ids), 0),
        Side(groups.columns, tuple(key.attribute.id for key in keys), len(groups.accesses)),
    )
    at = builder.put(JoinOperator(name, *sides, [True] * len(ids)), alone, groups)
    flow = Flow(at, (*alone.columns, *groups.columns), groups.accesses)
    return builder.rejoined(flow, {**mine, **theirs}, whole)


def _groups(builder: Plumbing, grouping: Aggregate, rows: Flow) -> Flow:
    """The groups, averages made of sums and counts."""
    split = split_averages(grouping)
    if not isinstance(split, Project):
        return builder.grouped(grouping, rows, must_be_sure=True)
    assert isinstance(split.child, Aggregate), "averages are split above the grouping"
    below = builder.grouped(split.child, rows, must_be_sure=True)
    outputs = [(output.attribute.id, output.expr) for output in split.outputs]
    return builder.project(below, outputs, typed(attributes_of(split), split.span), split)
