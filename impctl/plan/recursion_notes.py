"""What there is to say of the fixpoints of a plan: what stays, what could be narrowed, and how.

Law: remarks decide nothing; each is true of the plan as it stands after the rules.
Out of scope: the rules themselves (`plan.rules.push_selections`, `plan.rules.best_fixpoints`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from impctl.expr.nodes import columns_of
from impctl.plan.best_reads import NotBestOnlyError, best_of_groups
from impctl.plan.fixpoint_tables import outer_fixpoints
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Fixpoint,
    Plan,
    Project,
    Scan,
    Select,
    Sort,
    nodes_of,
)
from impctl.plan.recursion import is_linear, stable_columns
from impctl.types import AttributeId

_PAYS = (
    "updating is faster than deriving all rows again if a run deletes up to about 10% or inserts "
    "up to about 33% of the rows read"
)
"""Measured, one source: a million links at random, of which deletions of 10 % took 152 ms, all anew
187; insertions of 20 % 59 and 170, of 40 % 203 and 140. In a power law of 44,004, deletions of 20 %
took 6 ms, all anew 7; insertions of 40 % 5 and 7."""


def recursion_notes(root: Plan, keyed: Collection[AttributeId] = ()) -> Mapping[int, str]:
    """Remarks by the position of the node in `nodes_of(root)`.

    `keyed` are the columns that fixpoints are keyed on.
    """
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
        if not isinstance(node, Aggregate):
            continue
        if not any(one.call.function in ("min", "max") for one in node.aggregates):
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
    """Why the condition is not inside, where another step would let it in."""
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
    """The table that the base has all rows of."""
    while isinstance(base, Project | Sort | Distinct):
        base = base.child
    return base.table if isinstance(base, Scan) else None
