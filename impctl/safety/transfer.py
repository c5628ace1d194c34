"""The state of every plan node, from the states of its inputs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import Kind
from impctl.expr.nodes import Call, ColumnRef, Compare, CompareOp, Expr
from impctl.expr.types import type_of
from impctl.plan import nodes as p
from impctl.plan.functions import TIE_DEPENDENT, VOLATILE
from impctl.plan.lineage import is_sketched_for_answer
from impctl.plan.properties import is_whole
from impctl.plan.recursion import leaves_of, table_of
from impctl.safety.direction import (
    Columns,
    Keys,
    Refusal,
    Relation,
    SafetyState,
    Sketched,
    Status,
    Wording,
    condition_name,
    difference,
    direction,
    equal_columns,
    find_objection,
    objection_text,
    refused,
    with_equalities,
)
from impctl.safety.facts import (
    NOTHING,
    Fact,
    FactKind,
    FactSource,
    KnownSigns,
    Signs,
    learn,
    may_be_nan,
    number_of,
    signs_of,
    signs_of_scan,
)

if TYPE_CHECKING:
    from impctl.types import AccessId, AttributeId, ColumnName


# Joins and set operations. Law: pairs of contained rows are contained if the condition is
# preserved. An input must be EXACT if a missing row of it would add rows to the output (outer
# joins, anti joins, EXCEPT). An input whose rows depend on a choice among ties is not combined with
# a sketched one, because capture and use may choose differently. Each branch of a union has its own
# sketches, so a union is never KEYED.


def join(node: p.Join, left: SafetyState, right: SafetyState, wording: Wording) -> SafetyState:
    clash = _clash_of_ties(left, right)
    if clash is not None:
        return clash
    match node.kind:
        case p.JoinKind.INNER:
            return _inner(node, left, right, wording)
        case p.JoinKind.SEMI:
            return _semi(node, left, right, wording)
        case p.JoinKind.ANTI:
            return _preserved_side(node, left, right, "NOT EXISTS or NOT IN", wording)
        case p.JoinKind.LEFT:
            return _preserved_side(node, left, right, "LEFT JOIN", wording)
        case p.JoinKind.RIGHT:
            return _preserved_side(node, right, left, "RIGHT JOIN", wording)
        case p.JoinKind.FULL:
            return _full(node, left, right)


def _clash_of_ties(left: SafetyState, right: SafetyState) -> SafetyState | None:
    for chosen, other in ((left, right), (right, left)):
        if chosen.ties is not None and other.sketched:
            return refused(
                f"{chosen.ties.reason}, so the rows that the rest of the query needs are not fixed",
                chosen.ties.span,
            )
    return None


def _joined(node: p.Join, left: Columns, right: Columns) -> Columns:
    """Both sides' columns, and what the condition says about them where it is true."""

    def compute() -> Columns:
        signs: KnownSigns = {**left.signs, **right.signs}
        learned = signs if node.condition is None else learn(node.condition, signs)
        return Columns({**left.relations, **right.relations}, learned)

    return left.once(compute, node, right)


def _merged(left: SafetyState, right: SafetyState, columns: Columns) -> SafetyState:
    """Both sides' rows side by side; the caller decides the status."""
    return SafetyState(
        Status.EXACT,
        columns,
        sketched=left.sketched | right.sketched,
        keys={**_live_keys(left), **_live_keys(right)},
        identifiers=frozenset(a | b for a in left.identifiers for b in right.identifiers),
        ties=left.ties if left.ties is not None else right.ties,
        causes={**left.causes, **right.causes},
    )


def _live_keys(state: SafetyState) -> Keys:
    return state.keys if state.status is Status.KEYED else {}


def _inner(node: p.Join, left: SafetyState, right: SafetyState, wording: Wording) -> SafetyState:
    both = _merged(left, right, _joined(node, left.columns, right.columns))
    if left.is_whole and right.is_whole:
        status = Status.KEYED if both.keys else Status.EXACT
        return with_equalities(replace(both, status=status), node.condition)
    objection = _unpreserved(node.condition, both, wording)
    return objection if objection is not None else replace(both, status=Status.CONTAINED, keys={})


def _unpreserved(condition: Expr | None, both: SafetyState, wording: Wording) -> SafetyState | None:
    if condition is None:
        return None
    objection = find_objection(condition, both.columns)
    if objection is None:
        return None
    return refused(objection_text("The join", objection, both.causes, wording), objection.atom.span)


def _semi(node: p.Join, left: SafetyState, right: SafetyState, wording: Wording) -> SafetyState:
    joined = _joined(node, left.columns, right.columns)
    plain = {**left.columns.signs, **right.columns.signs}
    both = _merged(left, right, Columns(joined.relations, plain))
    columns = Columns(left.columns.relations, joined.signs)
    result = replace(left, columns=columns, sketched=both.sketched, ties=both.ties)
    if left.is_whole and right.status is Status.EXACT:
        result = with_equalities(result, node.condition)
        outputs = frozenset(left.columns.relations)
        return replace(
            result, keys={access: keys & outputs for access, keys in result.keys.items()}
        )
    objection = _unpreserved(node.condition, both, wording)
    return objection if objection is not None else replace(result, status=Status.CONTAINED, keys={})


def _preserved_side(
    node: p.Join, preserved: SafetyState, other: SafetyState, name: str, wording: Wording
) -> SafetyState:
    """LEFT, RIGHT and anti joins: `other` must be EXACT, since its missing rows add output rows."""
    if other.status is not Status.EXACT:
        return refused(
            f"{name} keeps rows without a match, and a sketch could hide a match", node.span
        )
    if not preserved.is_whole and node.condition is not None:
        everything = {**preserved.columns.relations, **other.columns.relations}
        if not Columns(everything, {}).are_equal(node.condition):
            return refused(
                f"{name} matches on `{wording.text(node.condition)}`, whose value over some rows "
                "can differ from its value over all of them",
                node.condition.span if node.condition.span is not None else node.span,
            )
    if node.kind is p.JoinKind.ANTI:
        ties = preserved.ties if preserved.ties is not None else other.ties
        return replace(preserved, sketched=preserved.sketched | other.sketched, ties=ties)
    relations = {**preserved.columns.relations, **other.columns.relations}
    signs = {**preserved.columns.signs, **_padded(other)}
    both = _merged(preserved, other, Columns(relations, signs))
    return replace(both, status=preserved.status)


def _padded(side: SafetyState) -> dict[AttributeId | Expr, Signs]:
    """Facts of a side padded with NULL: those of columns, not those of expressions over them."""
    known = side.columns.signs.items()
    return {key: signs.or_null() for key, signs in known if isinstance(key, str)}


def _full(node: p.Join, left: SafetyState, right: SafetyState) -> SafetyState:
    if left.status is not Status.EXACT or right.status is not Status.EXACT:
        return refused(
            "FULL JOIN keeps rows without a match, and a sketch could hide a match", node.span
        )
    relations = {**left.columns.relations, **right.columns.relations}
    return _merged(left, right, Columns(relations, {**_padded(left), **_padded(right)}))


def combine(node: p.SetOperation, left: SafetyState, right: SafetyState) -> SafetyState:
    """The state of UNION, EXCEPT or INTERSECT, before duplicates are removed."""
    clash = _clash_of_ties(left, right)
    if clash is not None:
        return clash
    sides = (branch(node, node.left, left), branch(node, node.right, right))
    match node.kind:
        case p.SetKind.UNION:
            return _union(*sides)
        case p.SetKind.EXCEPT:
            return _except(node, *sides)
        case p.SetKind.INTERSECT:
            return _intersect(node, *sides)


def branch(node: p.SetOperation, side: p.Plan, state: SafetyState) -> SafetyState:
    """The state of a branch under the outputs' ids; values may be cast to the common type."""
    pairs = tuple(zip(node.attributes, side.attributes, strict=True))
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


def _of_branch(pairs: tuple[tuple[p.Attribute, p.Attribute], ...], columns: Columns) -> Columns:
    relations: dict[AttributeId, Relation] = {}
    signs: dict[AttributeId | Expr, Signs] = {}
    for output, source in pairs:
        relation = columns.relations.get(source.id, Relation.UNKNOWN)
        is_kept = relation is Relation.EQUAL or _is_monotone(source, output)
        relations[output.id] = relation if is_kept else Relation.UNKNOWN
        known = columns.signs.get(source.id, NOTHING)
        signs[output.id] = known if source.type == output.type else Signs(not_null=False)
    return Columns(relations, signs)


def _is_monotone(source: p.Attribute, output: p.Attribute) -> bool:
    if source.type is None or output.type is None:
        return False
    return source.type == output.type or (source.type.is_numeric and output.type.is_numeric)


def _union(left: SafetyState, right: SafetyState) -> SafetyState:
    are_exact = left.status is Status.EXACT and right.status is Status.EXACT
    relations = {
        column: relation.meet(right.columns.relations[column])
        for column, relation in left.columns.relations.items()
    }
    signs: dict[AttributeId | Expr, Signs] = {
        column: known.meet(right.columns.signs.get(column, NOTHING))
        for column, known in left.columns.signs.items()
    }
    return SafetyState(
        Status.EXACT if are_exact else Status.CONTAINED,
        Columns(relations, signs),
        sketched=left.sketched | right.sketched,
        ties=left.ties if left.ties is not None else right.ties,
        causes={**left.causes, **right.causes},
    )


def _except(node: p.SetOperation, left: SafetyState, right: SafetyState) -> SafetyState:
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


def _intersect(node: p.SetOperation, left: SafetyState, right: SafetyState) -> SafetyState:
    ties = left.ties if left.ties is not None else right.ties
    result = replace(left, sketched=left.sketched | right.sketched, ties=ties)
    if left.is_whole and right.status is Status.EXACT:
        return result
    if not (left.is_equal and right.is_equal):
        return refused(
            "INTERSECT compares values that can differ when some rows are missing", node.span
        )
    return replace(result, status=Status.CONTAINED, keys={})


# Aggregates. Law: groups are complete if the query groups by the partition attribute. Groups over a
# contained input are contained if every grouping expression is EQUAL; an aggregate is then AT_MOST
# or AT_LEAST only as `relation_of` allows. Sums need a known sign, because skipped rows may have
# either. Sums of doubles are compared as if exact: Spark's own result depends on the order of rows
# with or without a sketch.

LARGEST = frozenset({"max", "bool_or", "any", "some"})
SMALLEST = frozenset({"min", "bool_and", "every"})
_NONNEGATIVE = frozenset(
    {"count", "count_if", "approx_count_distinct", "stddev", "stddev_samp", "stddev_pop",
     "std", "variance", "var_samp", "var_pop"}
)  # fmt: skip


def group(node: p.Aggregate, child: SafetyState, wording: Wording) -> SafetyState:
    ties = child.ties if child.ties is not None else _order_dependence(node, wording)

    def compute() -> Columns:
        return equal_columns(node.attributes, _signs_of_outputs(node, child.columns.signs))

    base = SafetyState(
        Status.EXACT,
        child.columns.once(compute, node),
        sketched=child.sketched,
        identifiers=_identifiers(node),
        ties=ties,
    )
    if child.status is Status.EXACT:
        return base
    keys = grouped_keys(node, child)
    if child.status is Status.KEYED and len(keys) == len(child.keys):
        return replace(base, status=Status.KEYED, keys=keys)
    return _contained_groups(node, child, base, wording)


def grouped_keys(node: p.Aggregate, child: SafetyState) -> Keys:
    """Per access of a KEYED child, the grouping outputs that equal its partition attribute."""
    if child.status is not Status.KEYED:
        return {}
    result: dict[AccessId, frozenset[AttributeId]] = {}
    for access, columns in child.keys.items():
        outputs = frozenset(
            key.attribute.id
            for key in node.common_keys
            if isinstance(key.expr, ColumnRef) and key.expr.id in columns
        )
        if outputs:
            result[access] = outputs
    return result


def _identifiers(node: p.Aggregate) -> frozenset[frozenset[AttributeId]]:
    if node.grouping_sets is not None:
        return frozenset()
    return frozenset({frozenset(key.attribute.id for key in node.keys)})


def _order_dependence(node: p.Aggregate, wording: Wording) -> Refusal | None:
    """The first aggregate whose result depends on ties; a judged plan only outputs the results of
    other order-dependent functions."""
    for output in node.aggregates:
        if output.call.function in TIE_DEPENDENT:
            text = wording.call(output)
            return Refusal(f"`{text}` depends on the order of rows", output.call.span)
    return None


def _contained_groups(
    node: p.Aggregate, child: SafetyState, base: SafetyState, wording: Wording
) -> SafetyState:
    relations: dict[AttributeId, Relation] = {}
    causes: dict[AttributeId, str] = {}
    for key in node.keys:
        if not child.columns.are_equal(key.expr):
            text = wording.text(key.expr)
            return refused(
                f"GROUP BY uses `{text}`, whose value over some rows can differ from its value "
                "over all of them",
                key.expr.span if key.expr.span is not None else node.span,
            )
        relations[key.attribute.id] = Relation.EQUAL
    for output in node.aggregates:
        relation, cause = relation_of(output.call, child.columns, wording)
        relations[output.attribute.id] = relation
        if cause:
            causes[output.attribute.id] = cause
    columns = Columns(relations, base.columns.signs)
    return replace(base, status=Status.CONTAINED, columns=columns, causes=causes)


def relation_of(call: p.AggregateCall, columns: Columns, wording: Wording) -> tuple[Relation, str]:
    """How the aggregate over part of a group compares with it over the whole; why if unknown."""
    if call.condition is not None:
        if not columns.are_equal(call.condition):
            return Relation.UNKNOWN, f"its FILTER reads `{wording.text(call.condition)}`"
        columns = Columns(columns.relations, learn(call.condition, columns.signs))
    if call.distinct and not all(columns.are_equal(x) for x in call.arguments):
        return Relation.UNKNOWN, "it counts distinct values that may differ"
    match call.function, call.arguments:
        case "count", arguments:
            unsure = any(direction(x, columns) is Relation.UNKNOWN for x in arguments)
            return (Relation.UNKNOWN if unsure else Relation.AT_MOST), ""
        case (("grouping" | "grouping_id"), _):
            # Depends on the grouping set of the row only.
            return Relation.EQUAL, ""
        case "count_if", (argument,):
            equal = columns.are_equal(argument)
            return (Relation.AT_MOST if equal else Relation.UNKNOWN), ""
        case "sum", (argument,):
            return _of_sum(argument, columns, wording)
        case name, (argument,) if name in LARGEST:
            return _of_extreme(argument, columns, Relation.AT_MOST), ""
        case name, (argument,) if name in SMALLEST:
            return _of_extreme(argument, columns, Relation.AT_LEAST), ""
        case _:
            return Relation.UNKNOWN, ""


def _of_sum(argument: Expr, columns: Columns, wording: Wording) -> tuple[Relation, str]:
    relation, signs = direction(argument, columns), signs_of(argument, columns.signs)
    if signs.nonnegative and relation in (Relation.EQUAL, Relation.AT_MOST):
        return Relation.AT_MOST, ""
    if signs.nonpositive and relation in (Relation.EQUAL, Relation.AT_LEAST):
        return Relation.AT_LEAST, ""
    if signs.nonnegative or signs.nonpositive:
        return Relation.UNKNOWN, ""
    return Relation.UNKNOWN, f"it is not known that `{wording.text(argument)}` is never negative"


def _of_extreme(argument: Expr, columns: Columns, expected: Relation) -> Relation:
    relation, result = direction(argument, columns), type_of(argument)
    if result is None or result.kind is Kind.OTHER:
        return Relation.UNKNOWN
    return expected if relation in (Relation.EQUAL, expected) else Relation.UNKNOWN


def _signs_of_outputs(node: p.Aggregate, known: KnownSigns) -> dict[AttributeId | Expr, Signs]:
    result: dict[AttributeId | Expr, Signs] = {}
    for key in node.keys:
        signs = signs_of(key.expr, known)
        result[key.attribute.id] = signs if node.grouping_sets is None else signs.or_null()
    for output in node.aggregates:
        never_empty = bool(node.keys) and node.grouping_sets is None
        result[output.attribute.id] = _signs_of_call(
            output.call, output.attribute, known, never_empty=never_empty
        )
    return result


def _signs_of_call(
    call: p.AggregateCall, attribute: p.Attribute, known: KnownSigns, *, never_empty: bool
) -> Signs:
    if call.function in ("count", "count_if"):
        return Signs(nonnegative=True, nan_free=True, not_null=True)
    if call.function in _NONNEGATIVE:
        return Signs(nonnegative=True)
    if call.function not in ("sum", "avg", "mean", "min", "max") or len(call.arguments) != 1:
        return NOTHING
    if call.condition is not None:
        known = learn(call.condition, known)
    argument = signs_of(call.arguments[0], known)
    is_extreme = call.function in ("min", "max")
    clean = not may_be_nan(attribute.type, NOTHING) or _stays_clean(call.function, argument)
    return Signs(
        nonnegative=argument.nonnegative,
        nonpositive=argument.nonpositive,
        nan_free=clean,
        not_null=argument.not_null and never_empty and call.condition is None,
        least=argument.least if is_extreme else None,
        most=argument.most if is_extreme else None,
    )


def _stays_clean(function: str, argument: Signs) -> bool:
    """Whether NaN-free doubles give a NaN-free result: a sum of both infinities is NaN."""
    if function in ("min", "max"):
        return argument.nan_free
    return argument.nan_free and (argument.nonnegative or argument.nonpositive)


# Top-k and windows. Law: a row that is not among the first k (ties included) over the tables must
# not overtake them over the sketches. So each ORDER BY term is EQUAL, or can only move toward the
# end, NULLs included. Then the lineage of all first rows, ties included, makes the node EXACT (a
# barrier). Ties that no ORDER BY term breaks are a choice, recorded in `ties`.

_RANKS = frozenset({"rank", "dense_rank"})
_TIE_FREE = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist"})


def first_rows(
    node: p.TopK, child: SafetyState, wording: Wording, *, as_barrier: bool = False
) -> SafetyState:
    """The state of ORDER BY ... LIMIT, or of the first ranks per partition. Ranks within the keys
    of a KEYED child stay KEYED, unless all first rows must be kept."""
    ties = child.ties if child.ties is not None else _ties(node, child)
    result = replace(child, columns=_with_rank(child.columns, node.rank), ties=ties)
    if child.status is Status.EXACT:
        return result
    if not node.order:
        return refused("LIMIT without ORDER BY has no fixed result", node.span)
    if node.count is None:
        return refused(
            "OFFSET without LIMIT keeps the last rows, which may not be in the sketch", node.span
        )
    if node.rank is not None:
        is_keyed = child.status is Status.KEYED and _is_partitioned(node.rank, child)
        if is_keyed and not as_barrier:
            return result
        loose = next(
            (expr for expr in node.partition_by if not child.columns.are_equal(expr)), None
        )
        if loose is not None:
            text = f"`{node.rank.function}` is partitioned by `{wording.text(loose)}`, which"
            return refused(f"{text} can differ over part of a group", loose.span or node.span)
    objection = order_objection(node.order, child, wording)
    if objection is not None:
        refusal = objection.refusal
        if refusal is not None and refusal.span is None:
            return replace(objection, refusal=replace(refusal, span=node.span))
        return objection
    relations = dict.fromkeys(result.columns.relations, Relation.EQUAL)
    columns = Columns(relations, result.columns.signs)
    return replace(result, status=Status.EXACT, keys={}, columns=columns)


def _with_rank(columns: Columns, rank: p.WindowCall | None) -> Columns:
    if rank is None:
        return columns
    added = equal_columns((rank.attribute,), {rank.attribute.id: NOTHING})
    return Columns({**columns.relations, **added.relations}, {**columns.signs, **added.signs})


def _ties(node: p.TopK, child: SafetyState) -> Refusal | None:
    if node.rank is not None and node.rank.function in _TIE_FREE:
        return None
    terms = (*node.partition_by, *(key.expr for key in node.order))
    columns = frozenset(expr.id for expr in terms if isinstance(expr, ColumnRef))
    every = frozenset(child.columns.relations)
    if any(columns >= result for result in (*child.identifiers, every)):
        return None
    if node.rank is not None:
        return Refusal(
            f"`{node.rank.function}` is not deterministic, because its ORDER BY has ties",
            node.rank.span,
        )
    return Refusal(
        "ORDER BY has ties at the LIMIT and either of the tied rows may be returned", node.span
    )


def order_objection(
    order: tuple[p.SortKey, ...], child: SafetyState, wording: Wording
) -> SafetyState | None:
    """Refusal for the first ORDER BY term by which a row could overtake others, or None."""
    for key in order:
        relation = direction(key.expr, child.columns)
        if relation is Relation.EQUAL:
            continue
        text = wording.text(key.expr)
        sinking = Relation.AT_MOST if key.descending else Relation.AT_LEAST
        if relation is not sinking or not _has_own_order(key.expr):
            return refused(
                f"ORDER BY ranks by `{text}`, which {difference(relation)}", key.expr.span
            )
        if key.nulls_first and not signs_of(key.expr, child.columns.signs).not_null:
            return refused(
                f"ORDER BY puts NULLs first, and `{text}` can be NULL over part of a group but not "
                "over all of it",
                key.expr.span,
            )
    return None


def _has_own_order(expr: Expr) -> bool:
    result = type_of(expr)
    return result is not None and result.kind is not Kind.OTHER


def window(node: p.Window, child: SafetyState, wording: Wording) -> SafetyState:
    """The rows of a window's partition must be kept or dropped together."""
    columns = child.columns
    added = tuple(call.attribute for call in node.calls)
    signs: KnownSigns = {**columns.signs, **{attribute.id: NOTHING for attribute in added}}
    relations = {**columns.relations, **equal_columns(added, {}).relations}
    ties = child.ties if child.ties is not None else _window_ties(node, child)
    result = replace(child, columns=Columns(relations, signs), ties=ties)
    if child.status is Status.EXACT:
        return result
    for call in node.calls:
        if child.status is not Status.KEYED or not _is_partitioned(call, child):
            text = wording.slice(call.span) or call.function
            return refused(
                f"the sketch would give window function `{text}` incomplete partitions",
                call.span if call.span is not None else node.span,
            )
    return result


def _is_partitioned(call: p.WindowCall, child: SafetyState) -> bool:
    columns = {expr.id for expr in call.partition_by if isinstance(expr, ColumnRef)}
    return all(columns & keys for keys in child.keys.values())


def _window_ties(node: p.Window, child: SafetyState) -> Refusal | None:
    for call in node.calls:
        terms = (*call.partition_by, *(key.expr for key in call.order))
        columns = frozenset(expr.id for expr in terms if isinstance(expr, ColumnRef))
        peers = call.frame is None or not call.frame.lower().lstrip().startswith("rows")
        aggregate = call.function in ("count", "sum", "min", "max", "avg") and (
            peers or is_whole(call)
        )
        if call.function in _TIE_FREE or aggregate:
            continue
        if not any(columns >= result for result in child.identifiers):
            return Refusal(
                f"`{call.function}` is not deterministic, because its ORDER BY has ties", call.span
            )
    return None


def first_rows_per_partition(
    predicate: Expr, below: p.Window, child: SafetyState, wording: Wording
) -> SafetyState | None:
    """The state of `rank <= k` directly above the window, at the root; None for another shape.
    Sound because all rows of rank k and better are in the result, so their lineage is in the
    sketch, and no other row can overtake them. For `row_number` all columns must be EQUAL, because
    either of two tied rows may come first."""
    if len(below.calls) != 1 or child.status is Status.EXACT:
        return None
    call = below.calls[0]
    bound = rank_bound(predicate, call.attribute.id)
    if bound is None or not bound.is_all:
        return None
    plain = call.function == "row_number" and child.is_equal
    if not call.order or not (plain or call.function in _RANKS):
        return None
    if not all(child.columns.are_equal(expr) for expr in call.partition_by):
        return None
    objection = order_objection(call.order, child, wording)
    if objection is not None:
        return objection
    relations = dict.fromkeys((*child.columns.relations, call.attribute.id), Relation.EQUAL)
    signs = {**child.columns.signs, call.attribute.id: NOTHING}
    ties = child.ties if child.ties is not None else _window_ties(below, child)
    return replace(
        child, status=Status.EXACT, keys={}, columns=Columns(relations, signs), ties=ties
    )


class RankBound(Struct, frozen=True):
    """A predicate that passes no rank beyond `count`; if `is_all`, every rank up to it."""

    count: int
    is_all: bool


def rank_bound(predicate: Expr, rank: AttributeId) -> RankBound | None:
    """The bound of `rank <= k`, `rank < k`, `rank = k`, or mirrored; None for anything else."""
    if not isinstance(predicate, Compare):
        return None
    left, right, op = predicate.left, predicate.right, predicate.op
    if isinstance(right, ColumnRef):
        left, right, op = right, left, op.mirrored
    if not isinstance(left, ColumnRef) or left.id != rank:
        return None
    number = number_of(right)
    if number is None:
        return None
    match op:
        case CompareOp.LESS_EQUAL:
            return RankBound(max(math.floor(number), 0), True)
        case CompareOp.LESS:
            return RankBound(max(math.ceil(number) - 1, 0), True)
        case CompareOp.EQUAL:
            count = max(int(number), 0) if number == int(number) else 0
            return RankBound(count, count <= 1)
        case _:
            return None


# Fixpoints have one of three states.
# EXACT (a barrier): the sketches contain a derivation of every row, so every row is derived over
# them. No others are if steps are monotone, as all supported ones are, and all that base and step
# give over the sketches is also, with equal values, what they give over the tables. That is judged
# by the rules for any plan, with the rows derived so far CONTAINED.
# CONTAINED, all columns EQUAL: sketched for the answer alone, so rows that the answer does not
# derive from may be missing.
# KEYED on a column that no step changes: base and step, with the rows derived so far KEYED on it,
# give exactly the rows of the keys in the sketch, if all sketched accesses below share it. By
# induction so do all rounds.


def leaf(node: p.Recursive, key: int | None = None) -> SafetyState:
    """The state of a fixpoint's rows inside its step; KEYED on the column at position `key`."""
    signs: KnownSigns = {attribute.id: NOTHING for attribute in node.attributes}
    columns = equal_columns(node.attributes, signs)
    if key is None:
        return SafetyState(Status.CONTAINED, columns)
    # Each leaf has its own key: rows derived from two leaves agree on it only by a condition.
    keys = {table_of(node).access: frozenset({node.attributes[key].id})}
    return SafetyState(Status.KEYED, columns, keys=keys)


def recursion(node: p.Recursive | p.Fixpoint, inputs: list[SafetyState]) -> SafetyState:
    """The state of a fixpoint that is not KEYED, or of its rows inside the step."""
    if isinstance(node, p.Recursive):
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
    return SafetyState(
        Status.CONTAINED if sketched and is_sketched_for_answer(node) else Status.EXACT,
        equal_columns(node.attributes, _signs(node, base, step)),
        sketched=sketched,
        identifiers=_step_identifiers(node),
        ties=ties,
    )


def key_candidates(node: p.Fixpoint, base: SafetyState, sketched: Sketched) -> Iterator[int]:
    """Positions of the columns that the base is KEYED on for all sketches below; none if these are
    of several tables or columns, with different ranges."""
    scans = [scan for scan in node.scans if scan.access in sketched]
    if len({(scan.table, sketched[scan.access].lower()) for scan in scans}) != 1:
        return
    name = sketched[scans[0].access].lower()
    kinds = {a.type for scan in scans for a in scan.attributes if a.name.lower() == name}
    # Rows of a base without a sketch do not depend on the sketch.
    if base.status is not Status.KEYED or base.keys.keys() != base.sketched:
        return
    for position, (attribute, source) in enumerate(
        zip(node.attributes, node.base.attributes, strict=True)
    ):
        if kinds == {attribute.type} == {source.type} and _is_key(source, base):
            yield position


def keyed_fixpoint(
    node: p.Fixpoint, position: int, base: SafetyState, step: SafetyState
) -> SafetyState | None:
    """The state of a fixpoint KEYED on a candidate; None if its step is not. `step` was judged with
    the leaves KEYED on that column."""
    leaves = {table_of(recursive).access for recursive in leaves_of(node)}
    source, attribute = node.step.attributes[position], node.attributes[position]
    is_keyed = (
        # Unless groups are within keys, rows of other keys replace rows of this one.
        (node.best is None or position in node.best.keys)
        and base.ties is None
        and step.ties is None
        and step.status is Status.KEYED
        and step.keys.keys() == step.sketched | leaves
        and source.type == attribute.type
        and _is_key(source, step)
    )
    if not is_keyed:
        return None
    sketched = base.sketched | step.sketched
    return SafetyState(
        Status.KEYED,
        equal_columns(node.attributes, _signs(node, base, step)),
        sketched=sketched,
        keys=dict.fromkeys(sorted(sketched), frozenset({attribute.id})),
        identifiers=_step_identifiers(node),
    )


def facts_of_rows(node: p.Fixpoint, state: SafetyState) -> Iterator[Fact]:
    """What is known about a fixpoint's columns, as facts of the table that has its rows."""
    for attribute in table_of(node).attributes:
        signs = _sign(state.columns, attribute)
        facts = {
            FactKind.NONNEGATIVE: signs.nonnegative,
            FactKind.NONPOSITIVE: signs.nonpositive,
            FactKind.NAN_FREE: signs.nan_free,
            FactKind.NOT_NULL: signs.not_null,
        }
        for kind, holds in facts.items():
            if holds:
                yield Fact(node.id, attribute.name, kind, FactSource.PREDICATE)


def _step_identifiers(node: p.Fixpoint) -> frozenset[frozenset[AttributeId]]:
    """All columns together identify the rows of a set."""
    every = frozenset(attribute.id for attribute in node.attributes)
    return frozenset({every}) if node.is_set else frozenset()


def _is_key(attribute: p.Attribute, state: SafetyState) -> bool:
    """Whether the column equals the keys of all accesses."""
    return all(attribute.id in columns for columns in state.keys.values())


def _inexact(node: p.Fixpoint, side: p.Plan, state: SafetyState) -> SafetyState | None:
    """Refusal where a side may have different rows over part of the tables."""
    if state.is_whole:
        return None
    for output, attribute in zip(node.attributes, side.attributes, strict=True):
        relation = state.columns.relations.get(attribute.id, Relation.UNKNOWN)
        if relation is not Relation.EQUAL:
            text = f"WITH RECURSIVE derives rows by `{output.name}`, which {difference(relation)}"
            return refused(text, side.span if side.span is not None else node.span)
    return None


def _signs(node: p.Fixpoint, base: SafetyState, step: SafetyState) -> KnownSigns:
    """What is known about each column in both base and step."""
    return {
        output.id: _sign(base.columns, in_base).meet(_sign(step.columns, in_step))
        for output, in_base, in_step in zip(
            node.attributes, node.base.attributes, node.step.attributes, strict=True
        )
    }


def _sign(columns: Columns, attribute: p.Attribute) -> Signs:
    return columns.signs.get(attribute.id, NOTHING)


# Law: a rule claims about its node only what `safety.direction` defines for the state; a node with
# an UNSAFE input is UNSAFE. Rules do not depend on the plan's shape, so a plan is judged alike
# before and after `rules`.


def state_of(
    node: p.Plan, inputs: list[SafetyState], wording: Wording, *, has_rank_barriers: bool = False
) -> SafetyState:
    """The state of a node without a `changing_state`, from its inputs' states. A scan is EXACT
    here; see `scan_state`. `has_rank_barriers`: first ranks are barriers even where they could stay
    KEYED."""
    unsafe = next((state for state in inputs if state.status is Status.UNSAFE), None)
    if unsafe is not None:
        return unsafe
    state = _state(node, inputs, wording, has_rank_barriers=has_rank_barriers)
    return _without_loose_ties(node, inputs, state)


def _state(
    node: p.Plan, inputs: list[SafetyState], wording: Wording, *, has_rank_barriers: bool
) -> SafetyState:
    match node:
        case p.Scan() | p.OneRow():
            return SafetyState(Status.EXACT, scan_columns(node, ()))
        case p.Select():
            return _select(node, inputs[0], wording)
        case p.Project():
            return project_state(node, inputs[0])
        case p.Join():
            return join(node, inputs[0], inputs[1], wording)
        case p.Aggregate():
            return group(node, inputs[0], wording)
        case p.Distinct():
            return _distinct(inputs[0], node)
        case p.SetOperation():
            combined = combine(node, inputs[0], inputs[1])
            if node.all or combined.status is Status.UNSAFE:
                return combined
            return _distinct(combined, node)
        case p.Recursive() | p.Fixpoint():
            return recursion(node, inputs)
        case p.Sort() | p.Witness():
            # No executed plan has a Witness; it marks the rows that a sketch is kept for.
            return inputs[0]
        case p.TopK():
            return first_rows(node, inputs[0], wording, as_barrier=has_rank_barriers)
        case p.Explode():
            return _explode(node, inputs[0])
        case p.Window():
            return window(node, inputs[0], wording)
        case _:
            assert_never(node)


def _without_loose_ties(node: p.Plan, inputs: list[SafetyState], state: SafetyState) -> SafetyState:
    """Refuse to combine rows chosen among ties if the other tied rows may not be in the sketch.
    Filtering row by row is sound: the choice at capture and another at use combine to an answer of
    the query. Grouping or joining mixes the two."""
    if isinstance(node, p.Scan | p.Select | p.Project | p.Sort) or state.status is Status.KEYED:
        return state
    for result in inputs:
        if result.ties is not None and result.status is not Status.EXACT:
            return refused(
                f"{result.ties.reason}, so the rows that the rest of the query needs are not fixed",
                result.ties.span,
            )
    return state


def changing_state(node: p.Plan) -> SafetyState | None:
    """The state of a node with a call whose value changes from run to run; None without one."""
    for expr in node.expressions:
        for part in expr.walk():
            if isinstance(part, Call) and part.name.lower() in VOLATILE:
                # `unix_timestamp(text)` only converts; without arguments it reads the clock.
                if part.name.lower() == "unix_timestamp" and part.arguments:
                    continue
                return refused(f"`{part.name}` returns a different value on every run", part.span)
    return None


def scan_columns(node: p.Scan | p.OneRow, facts: Collection[Fact]) -> Columns:
    """What these facts say about a table's columns in one access."""
    if isinstance(node, p.OneRow):
        return equal_columns((), {})
    return equal_columns(node.attributes, signs_of_scan(node, facts))


def scan_state(node: p.Scan, name: ColumnName | None, columns: Columns) -> SafetyState:
    """The state of an access that is sketched on the column `name`, or not sketched."""
    if name is None:
        return SafetyState(Status.EXACT, columns)
    # Column pruning may have dropped the attribute, and types that impctl does not know may treat
    # different values as equal (collations). The rows are still contained in the table.
    keys = frozenset(
        a.id
        for a in node.attributes
        if a.name.lower() == name.lower() and a.type is not None and a.type.kind is not Kind.OTHER
    )
    return SafetyState(
        Status.KEYED if keys else Status.CONTAINED,
        columns,
        sketched=frozenset({node.access}),
        keys={node.access: keys} if keys else {},
    )


def _select(node: p.Select, child: SafetyState, wording: Wording) -> SafetyState:
    known = child.columns
    columns = known.once(lambda: Columns(known.relations, learn(node.predicate, known.signs)), node)
    result = replace(child, columns=columns)
    if child.is_whole:
        return with_equalities(result, node.predicate)
    objection = find_objection(node.predicate, child.columns)
    if objection is None:
        return result
    text = objection_text(condition_name(node), objection, child.causes, wording)
    span = objection.atom.span if objection.atom.span is not None else node.span
    return refused(text, span)


def _explode(node: p.Explode, child: SafetyState) -> SafetyState:
    """Nothing identifies the resulting rows: an array may have an element twice."""
    if not child.is_whole and direction(node.array, child.columns) is not Relation.EQUAL:
        return refused(
            f"`{node.function}` expands a value that can differ over part of a group", node.span
        )
    outputs = {attribute.id: Relation.EQUAL for attribute in node.made}
    columns = Columns({**child.columns.relations, **outputs}, child.columns.signs)
    return replace(child, columns=columns, identifiers=frozenset())


def project_state(node: p.Project, child: SafetyState) -> SafetyState:
    causes: dict[AttributeId, str] = {}
    renamed: dict[AttributeId, frozenset[AttributeId]] = {}
    for output in node.outputs:
        output_id, expr = output.attribute.id, output.expr
        if isinstance(expr, ColumnRef):
            renamed[expr.id] = renamed.get(expr.id, frozenset()) | {output_id}
            if expr.id in child.causes:
                causes[output_id] = child.causes[expr.id]
    keys = {
        access: frozenset().union(*(renamed.get(column, frozenset()) for column in columns))
        for access, columns in child.keys.items()
    }
    status = child.status
    if status is Status.KEYED and not all(keys.values()):
        status, keys = Status.CONTAINED, {}
    identifiers = frozenset(
        frozenset(min(renamed[column]) for column in result)
        for result in child.identifiers
        if result <= renamed.keys()
    )
    return replace(
        child,
        status=status,
        columns=child.columns.once(lambda: _projected(node, child.columns), node),
        keys=keys,
        identifiers=identifiers,
        causes=causes,
    )


def _projected(node: p.Project, columns: Columns) -> Columns:
    relations: dict[AttributeId, Relation] = {}
    signs: dict[AttributeId | Expr, Signs] = {}
    for output in node.outputs:
        relations[output.attribute.id] = direction(output.expr, columns)
        signs[output.attribute.id] = signs_of(output.expr, columns.signs)
    return Columns(relations, signs)


def _distinct(child: SafetyState, node: p.Distinct | p.SetOperation) -> SafetyState:
    if not child.is_whole and not child.is_equal:
        return refused("DISTINCT compares values that can differ over part of a group", node.span)
    every = frozenset(child.columns.relations)
    return replace(child, identifiers=child.identifiers | {every})
