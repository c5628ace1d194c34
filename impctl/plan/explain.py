"""A plan as a tree of lines for people.

Law: one line per operator, in plan order; no colour, no input or output.
Out of scope: printing (`cli`), what impctl would do with the plan (`app.explain`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from typing import assert_never

from impctl.errors import count_text
from impctl.expr.nodes import Expr, Span, columns_of
from impctl.plan.nodes import (
    Aggregate,
    Attribute,
    ComputedColumn,
    Distinct,
    Explode,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetOperation,
    Sort,
    TopK,
    Window,
    WindowCall,
    Witness,
    attributes_of,
    inputs_of,
    nodes_of,
)
from impctl.plan.one_row import OneRow
from impctl.plan.render_expr import Names, call_text, expr_text, order_text
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class PlanLine:
    """One operator: its name, what it does, its place in the SQL text, and what is below."""

    operator: str
    detail: str
    span: Span | None
    children: tuple[PlanLine, ...]


def describe(root: Plan, notes: Mapping[int, str] | None = None) -> PlanLine:
    """The tree of lines; `notes` adds a remark to nodes, by their position in `nodes_of(root)`."""
    names = {
        attribute.id: attribute.name for node in nodes_of(root) for attribute in attributes_of(node)
    }
    return _described(root, notes or {}, count(), names)


def _described(
    plan: Plan, notes: Mapping[int, str], positions: Iterator[int], names: Names
) -> PlanLine:
    operator, detail = _words(plan, names)
    note = notes.get(next(positions))
    if note is not None:
        detail = f"{detail} [{note}]" if detail else f"[{note}]"
    children = tuple(_described(child, notes, positions, names) for child in inputs_of(plan))
    return PlanLine(operator, detail, plan.span, children)


def _words(plan: Plan, names: Names) -> tuple[str, str]:
    match plan:
        case Scan() | OneRow() | Recursive() | Fixpoint():
            return _relation(plan)
        case Select():
            return "select", expr_text(plan.predicate, _told_apart(plan.predicate, names))
        case Project():
            return "project", ", ".join(_output(output, names) for output in plan.outputs)
        case Join():
            return "join", _join(plan, names)
        case Aggregate():
            return "aggregate", _aggregate(plan, names)
        case Distinct():
            return "distinct", ""
        case SetOperation():
            return plan.kind.value, "all" if plan.all else ""
        case Sort():
            return "sort", f"by {order_text(plan.order, names)}"
        case TopK():
            return "top-k", _top_k(plan, names)
        case Witness():
            by = ", ".join(expr_text(part, names) for part in plan.partition_by)
            orders = " or ".join(order_text(order, names) for order in plan.orders)
            return "witness", f"first by {orders}" + (f" per {by}" if by else "")
        case Explode():
            made = ", ".join(attribute.name for attribute in plan.made)
            call = f"{plan.function}({expr_text(plan.array, names)}) AS {made}"
            return "lateral view", f"outer {call}" if plan.outer else call
        case Window():
            return "window", ", ".join(_window(call, names) for call in plan.calls)
        case _:
            assert_never(plan)


def _listed(attributes: tuple[Attribute, ...]) -> str:
    return ", ".join(attribute.name for attribute in attributes) or "no columns"


def _relation(plan: Scan | OneRow | Recursive | Fixpoint) -> tuple[str, str]:
    columns = _listed(plan.attributes)
    if isinstance(plan, Scan):
        return "scan", f"{plan.table} as {plan.access}: {columns}"
    if isinstance(plan, OneRow):
        return "one row", "of no table"
    if isinstance(plan, Recursive):
        return "recursive", f"{plan.fixpoint}: {columns}"
    kept = "all" if not plan.is_set else "each row once" if plan.best is None else _best(plan)
    most = "" if plan.levels is None else f", at most {count_text(plan.levels, 'level')}"
    return "fixpoint", f"{plan.id}, {kept}{most}: {columns}"


def _best(plan: Fixpoint) -> str:
    """`least c by x, y`: the rows that stay."""
    assert plan.best is not None
    names = [attribute.name for attribute in plan.attributes]
    values = [
        f"{'greatest' if value.greatest else 'least'} {names[value.place]}"
        for value in plan.best.values
    ]
    by = ", ".join(names[place] for place in plan.best.keys)
    return " or ".join(values) + (f" by {by}" if by else "")


def _output(output: ComputedColumn, names: Names) -> str:
    text = expr_text(output.expr, names)
    return text if text == output.attribute.name else f"{text} AS {output.attribute.name}"


def _told_apart(expr: Expr, names: Names) -> Names:
    """Names for the columns of an expression, identities where two share a name."""
    read = columns_of(expr)
    shared = Counter(names[identity].lower() for identity in read)
    return {
        identity: identity if shared[names[identity].lower()] > 1 else names[identity]
        for identity in read
    }


def _join(plan: Join, names: Names) -> str:
    kind = "null-aware anti" if plan.null_aware else plan.kind.value
    if plan.condition is None:
        return "cross" if plan.kind is JoinKind.INNER else kind
    return f"{kind} on {expr_text(plan.condition, _told_apart(plan.condition, names))}"


def _aggregate(plan: Aggregate, names: Names) -> str:
    calls = []
    for output in plan.aggregates:
        text = call_text(output.call, names)
        name = output.attribute.name
        calls.append(text if text == name else f"{text} AS {name}")
    keys = ", ".join(_output(output, names) for output in plan.keys)
    by = f"by {keys}" if keys else "all rows"
    if plan.grouping_sets is not None:
        named = [output.attribute.name for output in plan.keys]
        sets = ", ".join(
            "(" + ", ".join(named[position] for position in chosen) + ")"
            for chosen in plan.grouping_sets
        )
        by = f"by {keys} in sets {sets}"
    return f"{by}: {', '.join(calls)}" if calls else by


def _top_k(plan: TopK, names: Names) -> str:
    if plan.rank is not None:
        return f"{_window(plan.rank, names)} at most {plan.count}"
    rows = "all" if plan.count is None else str(plan.count)
    by = f" by {order_text(plan.order, names)}" if plan.order else ""
    return f"{rows}{by}" + (f", skipping {plan.offset}" if plan.offset else "")


def _window(call: WindowCall, names: Names) -> str:
    inside = ", ".join(expr_text(argument, names) for argument in call.arguments)
    over = []
    if call.partition_by:
        over.append(
            "partition by " + ", ".join(expr_text(part, names) for part in call.partition_by)
        )
    if call.order:
        over.append("order by " + order_text(call.order, names))
    if call.frame is not None:
        over.append(call.frame.lower())
    return f"{call.function}({inside}) over ({' '.join(over)}) AS {call.attribute.name}"
