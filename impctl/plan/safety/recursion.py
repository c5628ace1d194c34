"""Fixpoints: when the rows derived over the sketches are those derived over the tables.

Law: a fixpoint is UNSAFE for now. Inside a step the rows derived so far are judged as contained
ones, each with its own values.
Out of scope: reading them (`plan.sql`), computing them (`engine`).
"""

from __future__ import annotations

from impctl.plan.nodes import Fixpoint, Recursive
from impctl.plan.safety.status import NodeState, Status, equal_columns, refused


def recursion(node: Recursive | Fixpoint, inputs: list[NodeState]) -> NodeState:
    """The state of a fixpoint over those of its base and step, or of its rows inside the step."""
    if isinstance(node, Recursive):
        return NodeState(Status.CONTAINED, equal_columns(node.attributes, {}))
    return refused("WITH RECURSIVE is not sketched yet", node.span)
