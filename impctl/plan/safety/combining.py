"""Joins and set operations: what two inputs' states give.

Law: pairs of contained rows are contained if the condition is preserved; whatever a row's absence
would let through (outer joins, anti joins, EXCEPT) must be EXACT. A side whose rows depend on a
choice among ties is not combined with a sketched one: capture and use may choose differently. The
branches of a union have sketches of their own, so a union is never KEYED.
Out of scope: DISTINCT forms of set operations end in `plan.safety.transfer`.
"""

from __future__ import annotations

from dataclasses import replace

from impctl.expr.nodes import Expr
from impctl.plan.nodes import Attribute, Join, JoinKind, Plan, SetKind, SetOperation, attributes_of
from impctl.plan.safety.direction import Columns
from impctl.plan.safety.facts import NOTHING, KnownSigns, Signs
from impctl.plan.safety.preserved import find_objection
from impctl.plan.safety.relation import Relation
from impctl.plan.safety.signs import learn
from impctl.plan.safety.status import Keys, NodeState, Status, refused, with_equalities
from impctl.plan.safety.wording import Wording, objection_text
from impctl.types import AccessId, AttributeId


def join(node: Join, left: NodeState, right: NodeState, wording: Wording) -> NodeState:
    """The state of a join of any kind."""
    clash = _clash_of_ties(left, right)
    if clash is not None:
        return clash
    match node.kind:
        case JoinKind.INNER:
            return _inner(node, left, right, wording)
        case JoinKind.SEMI:
            return _semi(node, left, right, wording)
        case JoinKind.ANTI:
            return _kept_side(node, left, right, "NOT EXISTS or NOT IN", wording)
        case JoinKind.LEFT:
            return _kept_side(node, left, right, "LEFT JOIN", wording)
        case JoinKind.RIGHT:
            return _kept_side(node, right, left, "RIGHT JOIN", wording)
        case JoinKind.FULL:
            return _full(node, left, right)


def _clash_of_ties(left: NodeState, right: NodeState) -> NodeState | None:
    for chosen, other in ((left, right), (right, left)):
        if chosen.ties is not None and other.sketched:
            return refused(
                f"{chosen.ties.reason}, so the rows that the rest of the query needs are not fixed",
                chosen.ties.span,
            )
    return None


def _joined(node: Join, left: Columns, right: Columns) -> Columns:
    """Both sides' columns, and what the condition says of them where it is true."""

    def made() -> Columns:
        signs: KnownSigns = {**left.signs, **right.signs}
        learned = signs if node.condition is None else learn(node.condition, signs)
        return Columns({**left.relations, **right.relations}, learned)

    return left.once(made, node, right)


def _merged(left: NodeState, right: NodeState, columns: Columns) -> NodeState:
    """Both sides' rows side by side, status still open."""
    return NodeState(
        Status.EXACT,
        columns,
        sketched=left.sketched | right.sketched,
        keys={**_live_keys(left), **_live_keys(right)},
        identifiers=frozenset(a | b for a in left.identifiers for b in right.identifiers),
        ties=left.ties if left.ties is not None else right.ties,
        causes={**left.causes, **right.causes},
    )


def _live_keys(state: NodeState) -> Keys:
    return state.keys if state.status is Status.KEYED else {}


def _inner(node: Join, left: NodeState, right: NodeState, wording: Wording) -> NodeState:
    both = _merged(left, right, _joined(node, left.columns, right.columns))
    if left.is_whole and right.is_whole:
        status = Status.KEYED if both.keys else Status.EXACT
        return with_equalities(replace(both, status=status), node.condition)
    objection = _unpreserved(node.condition, both, wording)
    return objection if objection is not None else replace(both, status=Status.CONTAINED, keys={})


def _unpreserved(condition: Expr | None, both: NodeState, wording: Wording) -> NodeState | None:
    if condition is None:
        return None
    objection = find_objection(condition, both.columns)
    if objection is None:
        return None
    return refused(objection_text("The join", objection, both.causes, wording), objection.atom.span)


def _semi(node: Join, left: NodeState, right: NodeState, wording: Wording) -> NodeState:
    joined = _joined(node, left.columns, right.columns)
    plain = {**left.columns.signs, **right.columns.signs}
    both = _merged(left, right, Columns(joined.relations, plain))
    columns = Columns(left.columns.relations, joined.signs)
    result = replace(left, columns=columns, sketched=both.sketched, ties=both.ties)
    if left.is_whole and right.status is Status.EXACT:
        return _with_left_equalities(result, left, node.condition)
    objection = _unpreserved(node.condition, both, wording)
    return objection if objection is not None else replace(result, status=Status.CONTAINED, keys={})


def _with_left_equalities(result: NodeState, left: NodeState, condition: Expr | None) -> NodeState:
    grown = with_equalities(result, condition)
    own = frozenset(left.columns.relations)
    return replace(grown, keys={access: keys & own for access, keys in grown.keys.items()})


def _kept_side(
    node: Join, kept: NodeState, other: NodeState, name: str, wording: Wording
) -> NodeState:
    """LEFT, RIGHT and anti joins: `other` must be EXACT, for its missing rows let rows through."""
    if other.status is not Status.EXACT:
        return refused(
            f"{name} keeps rows without a match, and a sketch could hide a match", node.span
        )
    if not kept.is_whole and node.condition is not None:
        everything = {**kept.columns.relations, **other.columns.relations}
        if not Columns(everything, {}).are_equal(node.condition):
            return refused(
                f"{name} matches on `{wording.text(node.condition)}`, whose value over some rows "
                "can differ from its value over all of them",
                node.condition.span if node.condition.span is not None else node.span,
            )
    if node.kind is JoinKind.ANTI:
        ties = kept.ties if kept.ties is not None else other.ties
        return replace(kept, sketched=kept.sketched | other.sketched, ties=ties)
    padded = {key: signs.or_null() for key, signs in other.columns.signs.items()}
    relations = {**kept.columns.relations, **other.columns.relations}
    signs = {**kept.columns.signs, **_columns_only(padded)}
    both = _merged(kept, other, Columns(relations, signs))
    return replace(both, status=kept.status)


def _columns_only(signs: KnownSigns) -> dict[AttributeId | Expr, Signs]:
    """Facts of columns: facts of whole expressions do not survive NULL padding."""
    return {key: result for key, result in signs.items() if isinstance(key, str)}


def _full(node: Join, left: NodeState, right: NodeState) -> NodeState:
    if left.status is not Status.EXACT or right.status is not Status.EXACT:
        return refused(
            "FULL JOIN keeps rows without a match, and a sketch could hide a match", node.span
        )
    signs = {
        key: result.or_null()
        for side in (left, right)
        for key, result in _columns_only(side.columns.signs).items()
    }
    relations = {**left.columns.relations, **right.columns.relations}
    return _merged(left, right, Columns(relations, signs))


def combine(node: SetOperation, left: NodeState, right: NodeState) -> NodeState:
    """The state of UNION, EXCEPT or INTERSECT, before duplicates are removed."""
    clash = _clash_of_ties(left, right)
    if clash is not None:
        return clash
    sides = (branch(node, node.left, left), branch(node, node.right, right))
    match node.kind:
        case SetKind.UNION:
            return _union(*sides)
        case SetKind.EXCEPT:
            return _except(node, *sides)
        case SetKind.INTERSECT:
            return _intersect(node, *sides)


def branch(node: SetOperation, side: Plan, state: NodeState) -> NodeState:
    """A branch with the outputs' identities; casts to the common type may happen on the way."""
    pairs = tuple(zip(node.attributes, attributes_of(side), strict=True))
    outputs = {output.id: source.id for output, source in pairs}
    keys: dict[AccessId, frozenset[AttributeId]] = dict.fromkeys(state.keys, frozenset())
    for output, source in pairs:
        for access, columns in state.keys.items():
            if source.id in columns and source.type == output.type:
                keys[access] = keys[access] | {output.id}
    status = state.status
    if status is Status.KEYED and not all(keys.values()):
        status = Status.CONTAINED
    return replace(
        state,
        status=status,
        columns=state.columns.once(lambda: _of_branch(pairs, state.columns), node, side),
        keys=keys if status is Status.KEYED else {},
        identifiers=frozenset(),
        causes={out: state.causes[src] for out, src in outputs.items() if src in state.causes},
    )


def _of_branch(pairs: tuple[tuple[Attribute, Attribute], ...], columns: Columns) -> Columns:
    relations: dict[AttributeId, Relation] = {}
    signs: dict[AttributeId | Expr, Signs] = {}
    for output, source in pairs:
        relation = columns.relations.get(source.id, Relation.UNKNOWN)
        relations[output.id] = relation if _is_monotone(source, output) else _only_equal(relation)
        known = columns.signs.get(source.id, NOTHING)
        signs[output.id] = known if source.type == output.type else Signs(not_null=False)
    return Columns(relations, signs)


def _is_monotone(source: Attribute, output: Attribute) -> bool:
    if source.type is None or output.type is None:
        return False
    return source.type == output.type or (source.type.is_numeric and output.type.is_numeric)


def _only_equal(relation: Relation) -> Relation:
    return relation if relation is Relation.EQUAL else Relation.UNKNOWN


def _union(left: NodeState, right: NodeState) -> NodeState:
    whole = left.status is Status.EXACT and right.status is Status.EXACT
    relations = {
        column: relation.meet(right.columns.relations[column])
        for column, relation in left.columns.relations.items()
    }
    signs: dict[AttributeId | Expr, Signs] = {
        column: known.meet(right.columns.signs.get(column, NOTHING))
        for column, known in left.columns.signs.items()
    }
    return NodeState(
        Status.EXACT if whole else Status.CONTAINED,
        Columns(relations, signs),
        sketched=left.sketched | right.sketched,
        ties=left.ties if left.ties is not None else right.ties,
        causes={**left.causes, **right.causes},
    )


def _except(node: SetOperation, left: NodeState, right: NodeState) -> NodeState:
    if right.status is not Status.EXACT:
        return refused(
            "EXCEPT keeps rows that are not on its right side, and a sketch could hide rows there",
            node.span,
        )
    if not left.is_whole and not left.is_equal:
        return refused(
            "EXCEPT compares values that can differ when some rows are missing", node.span
        )
    ties = left.ties if left.ties is not None else right.ties
    return replace(left, sketched=left.sketched | right.sketched, ties=ties)


def _intersect(node: SetOperation, left: NodeState, right: NodeState) -> NodeState:
    ties = left.ties if left.ties is not None else right.ties
    result = replace(left, sketched=left.sketched | right.sketched, ties=ties)
    if left.is_whole and right.status is Status.EXACT:
        return result
    if not (left.is_equal and right.is_equal):
        return refused(
            "INTERSECT compares values that can differ when some rows are missing", node.span
        )
    return replace(result, status=Status.CONTAINED, keys={})
