"""Fixpoints: when the rows derived over the sketches are those derived over the tables.

Law: a fixpoint is a barrier: the sketches hold a derivation of every row, so every row is derived
over them, too. None more is, if steps only add rows where they read more (as all that are read do)
and what they join with is no other row over part of a table: whatever base and step give stands,
value for value, among what they give over the tables. Then the node is EXACT, and so is anything
above it. That is judged by the rules for any plan, with the rows derived so far as contained ones.
Out of scope: keeping the derivations (`engine`), reading steps (`plan.sql.recursive`).
"""

from __future__ import annotations

from impctl.plan.nodes import Attribute, Fixpoint, Plan, Recursive, attributes_of
from impctl.plan.safety.direction import Columns
from impctl.plan.safety.facts import NOTHING, KnownSigns, Signs
from impctl.plan.safety.relation import Relation
from impctl.plan.safety.status import NodeState, Status, equal_columns, refused
from impctl.plan.safety.wording import difference


def recursion(node: Recursive | Fixpoint, inputs: list[NodeState]) -> NodeState:
    """The state of a fixpoint over those of its base and step, or of its rows inside the step."""
    if isinstance(node, Recursive):
        signs: KnownSigns = {attribute.id: NOTHING for attribute in node.attributes}
        return NodeState(Status.CONTAINED, equal_columns(node.attributes, signs))
    base, step = inputs
    sketched = base.sketched | step.sketched
    ties = base.ties if base.ties is not None else step.ties
    if sketched:
        if ties is not None:
            return refused(f"{ties.reason}, so what the recursion derives is not fixed", ties.span)
        for side, state in ((node.base, base), (node.step, step)):
            refusal = _inexact(node, side, state)
            if refusal is not None:
                return refusal
    every = frozenset(attribute.id for attribute in node.attributes)
    return NodeState(
        Status.EXACT,
        equal_columns(node.attributes, _signs(node, base, step)),
        sketched=sketched,
        identifiers=frozenset({every}) if node.is_set else frozenset(),
        ties=ties,
    )


def _inexact(node: Fixpoint, side: Plan, state: NodeState) -> NodeState | None:
    """Refusal where rows of a side may be other ones over part of the tables."""
    if state.is_whole:
        return None
    for own, attribute in zip(node.attributes, attributes_of(side), strict=True):
        relation = state.columns.relations.get(attribute.id, Relation.UNKNOWN)
        if relation is not Relation.EQUAL:
            text = f"WITH RECURSIVE derives rows by `{own.name}`, which {difference(relation)}"
            return refused(text, side.span if side.span is not None else node.span)
    return None


def _signs(node: Fixpoint, base: NodeState, step: NodeState) -> KnownSigns:
    """What is known of a column in both parts."""
    return {
        own.id: _sign(base.columns, here).meet(_sign(step.columns, there))
        for own, here, there in zip(
            node.attributes, attributes_of(node.base), attributes_of(node.step), strict=True
        )
    }


def _sign(columns: Columns, attribute: Attribute) -> Signs:
    return columns.signs.get(attribute.id, NOTHING)
