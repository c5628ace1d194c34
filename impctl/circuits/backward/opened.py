"""Fixpoints that are sketched for the answer alone: their rows followed up, and back down again.

Law: rows of such a fixpoint carry their numbers as if these were fragments of one more access. What
of it arrives at the root, or at a barrier, are the rows that the answer stems from; from these the
fixpoint's derivations are followed back to all rows that take part in them, and the fragments of
these derivations go to the root on a branch of their own. The outer ones come first: what they use
of an inner one is among what arrives.
Out of scope: numbers and derivations (`engine.fixpoint`), following them (`engine.operators`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.circuits.flows import Column, Flow
from impctl.circuits.plumbing import Opened, Plumbing
from impctl.data.schema import LONG
from impctl.engine.fixpoint.absorption import BODY, HEAD
from impctl.engine.fixpoint.fixpoint import Fixpoint, Numbering
from impctl.engine.fixpoint.lineage import ROW, Backward, Lineage, UsedRows
from impctl.plan.nodes import Plan
from impctl.types import AccessId, AttributeId


def numbering_of(name: str, leaves: int) -> Numbering:
    """The names of columns of a fixpoint of this name, whose step reads it so often in one way."""
    return Numbering(f"{name}/number", tuple(f"{name}/body{at}" for at in range(leaves)))


def number_columns(names: Sequence[AttributeId]) -> tuple[Column, ...]:
    """Columns with numbers of rows."""
    return tuple((name, LONG) for name in names)


def opened(
    builder: Plumbing,
    node: Plan,
    operator: Fixpoint,
    rows: Flow,
    name: str,
    accesses: tuple[AccessId, ...],
) -> Flow:
    """The rows of a fixpoint with their numbers; the accesses below it wait for `follow_back`."""
    numbers = f"rows of {name}"
    builder.opened.append(Opened(node, name, numbers, operator, rows, accesses))
    return Flow(rows.at, rows.columns, (numbers,))


def follow_back(builder: Plumbing, root: Flow) -> dict[int, Plan]:
    """The branches with the fragments of all fixpoints' rows that what arrives stems from; the
    fixpoint that each operator put for that serves, by the operator's identity (`id`)."""
    served: dict[int, Plan] = {}
    while builder.opened:
        one = builder.opened.pop()
        arriving = [flow for flow in (root, *builder.barriers) if one.numbers in flow.accesses]
        if not arriving:
            continue
        used = UsedRows(f"{one.name}.used")
        met = builder.union(arriving, (), (one.numbers,))
        answer = Flow(builder.put(used, met), ((ROW, LONG),), ())
        columns = number_columns((HEAD, BODY))
        told = Flow(builder.put(Lineage(one.operator), one.rows), columns, one.accesses)
        backward = Backward(f"{one.name}.back", len(one.accesses))
        rows = Flow(builder.put(backward, answer, told), ((ROW, LONG),), ())
        builder.barriers.append(Flow(builder.put(Lineage(backward), rows), (), one.accesses))
        served |= {id(used): one.node, id(backward): one.node}
    return served
