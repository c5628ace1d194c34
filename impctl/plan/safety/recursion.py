"""Fixpoints: when the rows derived over the sketches are those derived over the tables.

Law: a fixpoint is a barrier: the sketches hold a derivation of every row, so every row is derived
over them, too. None more is, if steps only add rows where they read more (as all that are read do)
and what they join with is no other row over part of a table: whatever base and step give stands,
value for value, among what they give over the tables. Then the node is EXACT, and so is anything
above it. That is judged by the rules for any plan, with the rows derived so far as contained ones.
If it is to be sketched for the answer alone, some rows may be missing of which the answer does not
stem: CONTAINED, all columns EQUAL, as the rows of a table are that is sketched on no column of it.
Or it is KEYED on a column that no step changes: base and step, with the rows derived so far as ones
KEYED on it, give the rows of the keys that are in the sketch and no others, if one sketch is that
of all sketched accesses below. Then so do all rounds.
Out of scope: which of the two it is (`plan.safety.barriers`), keeping the derivations (`engine`),
reading steps (`plan.sql.recursive`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from impctl.plan.answer_lineage import is_open
from impctl.plan.fixpoint_tables import leaves_of, table_of
from impctl.plan.nodes import Attribute, Fixpoint, Plan, Recursive, attributes_of, scans_of
from impctl.plan.safety.direction import Columns
from impctl.plan.safety.facts import NOTHING, Fact, FactKind, FactSource, KnownSigns, Signs
from impctl.plan.safety.relation import Relation
from impctl.plan.safety.status import NodeState, Status, equal_columns, refused
from impctl.plan.safety.wording import difference
from impctl.types import AccessId, AttributeId, ColumnName


def leaf(node: Recursive, key: int | None = None) -> NodeState:
    """The state of a fixpoint's own rows inside its step; KEYED on the column at `key`."""
    signs: KnownSigns = {attribute.id: NOTHING for attribute in node.attributes}
    columns = equal_columns(node.attributes, signs)
    if key is None:
        return NodeState(Status.CONTAINED, columns)
    # A leaf has a key of its own: rows derived from two have the same one only by a condition.
    keys = {table_of(node).access: frozenset({node.attributes[key].id})}
    return NodeState(Status.KEYED, columns, keys=keys)


def recursion(node: Recursive | Fixpoint, inputs: list[NodeState]) -> NodeState:
    """The state of a fixpoint over those of its base and step, or of its rows inside the step."""
    if isinstance(node, Recursive):
        return leaf(node)
    base, step = inputs
    sketched = base.sketched | step.sketched
    ties = base.ties if base.ties is not None else step.ties
    if sketched:
        if ties is not None:
            return refused(
                f"{ties.reason}, so the rows that the recursion derives are not fixed", ties.span
            )
        for side, state in ((node.base, base), (node.step, step)):
            refusal = _inexact(node, side, state)
            if refusal is not None:
                return refusal
    return NodeState(
        Status.CONTAINED if sketched and is_open(node) else Status.EXACT,
        equal_columns(node.attributes, _signs(node, base, step)),
        sketched=sketched,
        identifiers=_identifiers(node),
        ties=ties,
    )


def key_candidates(
    node: Fixpoint, base: NodeState, sketched: Mapping[AccessId, ColumnName]
) -> Iterator[int]:
    """The places of the columns that the base is KEYED on for all that is sketched below it.

    None where sketches below are of several tables or columns: each has ranges of its own then.
    """
    own = [scan for scan in scans_of(node) if scan.access in sketched]
    if len({(scan.table, sketched[scan.access].lower()) for scan in own}) != 1:
        return
    name = sketched[own[0].access].lower()
    kinds = {a.type for scan in own for a in scan.attributes if a.name.lower() == name}
    # The rows of a base that nothing is sketched of are there whatever the sketch holds.
    if base.status is not Status.KEYED or base.keys.keys() != base.sketched:
        return
    for place, (attribute, made) in enumerate(
        zip(node.attributes, attributes_of(node.base), strict=True)
    ):
        if kinds == {attribute.type} == {made.type} and _is_key(made, base):
            yield place


def keyed_fixpoint(
    node: Fixpoint, place: int, base: NodeState, step: NodeState
) -> NodeState | None:
    """The state of a fixpoint KEYED on one of the candidates; None where its step is not.

    `step` is judged with the leaves KEYED on that column.
    """
    leaves = {table_of(one).access for one in leaves_of(node)}
    made, attribute = attributes_of(node.step)[place], node.attributes[place]
    is_keyed = (
        # Rows of other keys beat some of this one where groups are not within keys.
        (node.best is None or place in node.best.keys)
        and base.ties is None
        and step.ties is None
        and step.status is Status.KEYED
        and step.keys.keys() == step.sketched | leaves
        and made.type == attribute.type
        and _is_key(made, step)
    )
    if not is_keyed:
        return None
    sketched = base.sketched | step.sketched
    return NodeState(
        Status.KEYED,
        equal_columns(node.attributes, _signs(node, base, step)),
        sketched=sketched,
        keys=dict.fromkeys(sorted(sketched), frozenset({attribute.id})),
        identifiers=_identifiers(node),
    )


def facts_of_rows(node: Fixpoint, state: NodeState) -> Iterator[Fact]:
    """What is known of a fixpoint's columns, as facts of the table that has its rows."""
    for attribute in table_of(node).attributes:
        signs = state.columns.signs.get(attribute.id, NOTHING)
        told = {
            FactKind.NONNEGATIVE: signs.nonnegative,
            FactKind.NONPOSITIVE: signs.nonpositive,
            FactKind.NAN_FREE: signs.nan_free,
            FactKind.NOT_NULL: signs.not_null,
        }
        for kind, is_so in told.items():
            if is_so:
                yield Fact(node.id, attribute.name, kind, FactSource.PREDICATE)


def _identifiers(node: Fixpoint) -> frozenset[frozenset[AttributeId]]:
    """All columns tell the rows of a set apart."""
    every = frozenset(attribute.id for attribute in node.attributes)
    return frozenset({every}) if node.is_set else frozenset()


def _is_key(attribute: Attribute, state: NodeState) -> bool:
    """Whether the column equals the keys of all accesses."""
    return all(attribute.id in columns for columns in state.keys.values())


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
