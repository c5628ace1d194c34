"""Which relations of inner joins are selected by scalars: by columns of relations with one row.

Law: of a relation that is rows of one table, selected and projected, those conditions that compare
it with scalars alone are asked of each of its rows as it comes, and again of the table's rows when
a scalar changes (`engine.scalars`). So none of its rows have to be kept, and
what is joined further is those that pass. The scalars themselves are joined where their columns
are read elsewhere, or carry fragments.
Out of scope: whether it is done (`circuits.strategy`), the operators (`circuits.joins`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from impctl.circuits.join_order import Joined, JoinInput, chain_of
from impctl.expr.nodes import Expr, columns_of, conjuncts
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetOperation,
    attributes_of,
    expressions_of,
    inputs_of,
)
from impctl.types import AttributeId
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class ScalarSelection:
    """A relation, the relations whose columns are its scalars, and the conditions on both."""

    relation: JoinInput
    scalars: tuple[JoinInput, ...]
    conditions: tuple[Expr, ...]


def scalar_selections(chain: Joined) -> Iterator[ScalarSelection]:
    """The relations that are selected by scalars; one that is joined with scalars alone by all
    conditions."""
    scalars = [one for one in chain.relations if is_scalar(one.plan)]
    known = frozenset[AttributeId]().union(*(one.ids for one in scalars))
    is_alone = len(scalars) == len(chain.relations) - 1
    for relation in chain.relations:
        if not _is_of_one_table(relation.plan):
            continue
        own = [
            part
            for part in chain.conditions
            if is_alone or _is_on_both(columns_of(part), relation.ids, known)
        ]
        read = frozenset[AttributeId]().union(*map(columns_of, own))
        used = tuple(one for one in scalars if one.ids & read)
        if used:
            yield ScalarSelection(relation, used, tuple(own))


def selected_chain(select: Select) -> Joined | None:
    """A relation joined with scalars alone, under all conditions; None for another plan.

    Conditions that can fail stay above a join, since it drops rows. One row drops none, so such
    conditions see the same rows if they are asked last of the relation's.
    """
    if not isinstance(select.child, Join) or select.child.kind is not JoinKind.INNER:
        return None
    chain = chain_of(select.child)
    scalars = [one for one in chain.relations if is_scalar(one.plan)]
    if len(scalars) != len(chain.relations) - 1:
        return None
    return replace(chain, conditions=(*chain.conditions, *conjuncts(select.predicate)))


def is_scalar(plan: Plan) -> bool:
    """Whether these are columns of a row that is one at most, whatever is too close to call: of
    first rows there are several where their order is."""
    while isinstance(plan, Select | Project):
        plan = plan.child
    return isinstance(plan, Aggregate) and not plan.keys and plan.grouping_sets is None


def is_read_beside(root: Plan | None, scalar: JoinInput, conditions: Collection[Expr]) -> bool:
    """Whether some column of the scalar is read in a plan elsewhere than in these conditions, or is
    among its columns."""
    return root is None or not scalar.ids.isdisjoint(
        {*_ids_of(root), *_read(root, scalar.plan, conditions)}
    )


def _read(plan: Plan, without: Plan, conditions: Collection[Expr]) -> Iterator[AttributeId]:
    """The columns that are read in a plan, but not in this part of it."""
    if plan is without:
        return
    is_asking = isinstance(plan, Join | Select)
    for expr in expressions_of(plan):
        for part in conjuncts(expr):
            if not (is_asking and part in conditions):
                yield from columns_of(part)
    for below in inputs_of(plan):
        if isinstance(plan, Distinct | SetOperation | Fixpoint | Recursive):
            yield from _ids_of(below)
        yield from _read(below, without, conditions)


def _ids_of(plan: Plan) -> frozenset[AttributeId]:
    return frozenset(attribute.id for attribute in attributes_of(plan))


def _is_on_both(
    read: frozenset[AttributeId], own: frozenset[AttributeId], known: frozenset[AttributeId]
) -> bool:
    return read <= known | own and not read.isdisjoint(known) and not read.isdisjoint(own)


def _is_of_one_table(plan: Plan) -> bool:
    while isinstance(plan, Select | Project):
        plan = plan.child
    return isinstance(plan, Scan)
