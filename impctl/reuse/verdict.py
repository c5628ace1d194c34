"""Whether the sketch of one query serves another: plans aligned and compared node by node."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.expr.nodes import ColumnRef, Expr, Span
from impctl.plan import nodes as p
from impctl.plan.fingerprint import fingerprint, is_same, template
from impctl.plan.functions import ORDER_DEPENDENT
from impctl.reuse.implication import Difference, changed_columns, find_gap
from impctl.rules.optimize import core_of
from impctl.safety.direction import (
    Columns,
    Relation,
    SafetyState,
    Status,
    Wording,
    condition_name,
    direction,
)
from impctl.safety.judge import PlanJudge, check_safety, verdict_of_core
from impctl.safety.transfer import branch, relation_of
from impctl.types import AccessId, AttributeId, ColumnName, FixpointId

if TYPE_CHECKING:
    from impctl.safety.facts import Fact, KnownSigns


_OTHER = "the queries differ in more than the constants in their conditions"
_OTHER_RECURSION = "the constants inside WITH RECURSIVE differ, which changes what it derives"

Names = Mapping[AttributeId, AttributeId]


def aligned(plan: p.Plan, model: p.Plan) -> p.Plan | None:
    """The plan with the column and access ids of `model`, so that nodes can be compared. None if
    the plans differ in operators, tables, or numbers of columns, so that they are no instances of
    one template."""
    names: dict[AttributeId, AttributeId] = {}
    nodes, models = list(plan.walk()), list(model.walk())
    if len(nodes) != len(models):
        return None
    for node, other in zip(nodes, models, strict=True):
        if not _is_alike(node, other):
            return None
        if len(node.added) != len(other.added):
            return None
        for left, right in zip(node.added, other.added, strict=True):
            names[left.id] = right.id
    fixpoints = _fixpoints_between(nodes, models)
    if fixpoints is None:
        return None
    return _Renaming(names, accesses_between(plan, model), fixpoints).plan(plan)


def accesses_between(plan: p.Plan, model: p.Plan) -> dict[AccessId, AccessId]:
    """For aligned plans, the access of `model` for each access of `plan`."""
    pairs = zip(plan.scans, model.scans, strict=True)
    return {scan.access: other.access for scan, other in pairs}


def _fixpoints_between(
    nodes: Sequence[p.Plan], models: Sequence[p.Plan]
) -> dict[FixpointId, FixpointId] | None:
    """The model's fixpoint for each fixpoint; None if they do not match one to one."""
    pairs: dict[FixpointId, FixpointId] = {}
    for node, other in zip(nodes, models, strict=True):
        match node, other:
            case p.Recursive(), p.Recursive():
                fixpoint, model_fixpoint = node.fixpoint, other.fixpoint
            case p.Fixpoint(), p.Fixpoint():
                fixpoint, model_fixpoint = node.id, other.id
            case _:
                continue
        if pairs.setdefault(fixpoint, model_fixpoint) != model_fixpoint:
            return None
    return pairs if len(set(pairs.values())) == len(pairs) else None


def _is_alike(node: p.Plan, other: p.Plan) -> bool:
    if type(node) is not type(other) or len(node.inputs) != len(other.inputs):
        return False
    if isinstance(node, p.Scan) and isinstance(other, p.Scan):
        names = [attribute.name.lower() for attribute in node.attributes]
        return node.table.lower() == other.table.lower() and names == [
            attribute.name.lower() for attribute in other.attributes
        ]
    return True


class _Renaming(Struct, frozen=True):
    names: Names
    accesses: Mapping[AccessId, AccessId]
    fixpoints: Mapping[FixpointId, FixpointId]

    def plan(self, node: p.Plan) -> p.Plan:
        below = node.map_inputs(self.plan)
        result = below.map_added(self._attribute).map(lambda expr: expr.transform(self._column))
        match result:
            case p.Scan():
                return replace(result, access=self.accesses[result.access])
            case p.Recursive():
                return replace(result, fixpoint=self.fixpoints[result.fixpoint])
            case p.Fixpoint():
                return replace(result, id=self.fixpoints[result.id])
            case _:
                return result

    def _attribute(self, attribute: p.Attribute) -> p.Attribute:
        return replace(attribute, id=self.names[attribute.id])

    def _column(self, part: Expr) -> Expr | None:
        if not isinstance(part, ColumnRef):
            return None
        return replace(part, id=self.names.get(part.id, part.id))


class Mismatch(Struct, frozen=True):
    """Why the captured rows need not contain the requested ones, with the spans in both texts."""

    reason: str
    requested: Span | None = None
    captured: Span | None = None

    def text(self, requested_sql: str, captured_sql: str) -> str:
        """The reason, with both texts if they are known."""
        captured = Wording(captured_sql, {}).slice(self.captured)
        requested = Wording(requested_sql, {}).slice(self.requested)
        if not captured:
            return self.reason
        now = f", but the query says `{requested}`" if requested else ""
        return f"{self.reason} `{captured}`{now}"


# Shared fixpoints. Law: if a fixpoint is a barrier of the captured plan, its sketches contain
# derivations of all its rows. So an equal fixpoint (same base, step, constants and columns) has the
# same rows over these sketches as over the tables, and so has any query that reads no other rows by
# a sketch. A KEYED fixpoint is no barrier: only some of its rows are there.


def has_similar_recursion(requested: p.Plan, captured: p.Plan) -> bool:
    """Whether some fixpoints of both differ at most in constants of conditions."""
    templates = {template(node) for _, node in _fixpoints(requested)}
    return bool(templates) and any(template(node) in templates for _, node in _fixpoints(captured))


def shared_fixpoint_accesses(
    requested: p.Plan, captured: p.Plan, barriers: Collection[int]
) -> Mapping[AccessId, AccessId]:
    """Per access of the requested plan below a fixpoint that equals one of the captured plan's
    `barriers` (positions in `walk()`), the corresponding access of the captured plan."""
    shared: dict[str, p.Fixpoint] = {}
    for position, node in _fixpoints(captured):
        if position in barriers:
            shared.setdefault(fingerprint(node), node)
    result: dict[AccessId, AccessId] = {}
    for node, other in _equal_fixpoints(requested, shared):
        # Outer fixpoints come first, and have all accesses of inner ones.
        for scan, model in zip(node.scans, other.scans, strict=True):
            result.setdefault(scan.access, model.access)
    return _without_others(requested, result, shared)


def _equal_fixpoints(
    plan: p.Plan, shared: Mapping[str, p.Fixpoint]
) -> Iterator[tuple[p.Fixpoint, p.Fixpoint]]:
    for _, node in _fixpoints(plan):
        other = shared.get(fingerprint(node))
        if other is not None:
            yield node, other


def _without_others(
    plan: p.Plan, result: Mapping[AccessId, AccessId], shared: Mapping[str, p.Fixpoint]
) -> dict[AccessId, AccessId]:
    """The result without accesses that the plan also has outside of these fixpoints."""
    inside = {id(scan) for node, _ in _equal_fixpoints(plan, shared) for scan in node.scans}
    outside = {scan.access for scan in plan.scans if id(scan) not in inside}
    return {access: other for access, other in result.items() if access not in outside}


def _fixpoints(plan: p.Plan) -> Iterator[tuple[int, p.Fixpoint]]:
    """The fixpoints with their positions, except those that read rows of an outer fixpoint."""
    for position, node in enumerate(plan.walk()):
        if isinstance(node, p.Fixpoint):
            inside = {part.id for part in node.walk() if isinstance(part, p.Fixpoint)}
            read = {part.fixpoint for part in node.walk() if isinstance(part, p.Recursive)}
            if read <= inside:
                yield position, node


_WORDLESS = Wording("", {})

_EQUAL_RESULTS: frozenset[AttributeId] = frozenset()

_Judged = tuple[Difference, dict[AttributeId, Relation]]


class _Mismatched(Exception):
    def __init__(self, reason: str, requested: Span | None = None, captured: Span | None = None):
        super().__init__(reason)
        self.mismatch = Mismatch(reason, requested, captured)


class _Pair(Struct, frozen=True):
    """What is known about a pair of nodes that differ in constants, over any one database: the rows
    of the requested plan map one to one to rows of the captured plan whose lineage contains theirs,
    with columns related as `columns` says. If `difference` is not None, common rows are identical,
    and these columns alone identify rows that only the captured plan has; the empty set means equal
    results."""

    difference: Difference
    columns: Columns


def find_mismatch(requested: p.Plan, captured: p.Plan, facts: Collection[Fact]) -> Mismatch | None:
    """The first reason why the captured provenance need not contain the requested one; the plans
    are `aligned`."""
    walker = _Walker(
        PlanJudge(requested, _WORDLESS).of({}, facts).states,
        PlanJudge(captured, _WORDLESS).of({}, facts).states,
    )
    try:
        walker.visit(requested, captured, is_last=True)
    except _Mismatched as error:
        return error.mismatch
    return None


class _Walker(Struct):
    """Walks both plans side by side, counting positions in `walk()`, where the states are."""

    _requested: Sequence[SafetyState]
    _captured: Sequence[SafetyState]
    _position: int = 0

    def visit(self, requested: p.Plan, captured: p.Plan, *, is_last: bool) -> _Pair:
        """`is_last`: nothing above drops or combines rows."""
        position = self._position
        self._position += 1
        below = is_last and isinstance(requested, p.Project | p.Sort)
        children = zip(requested.inputs, captured.inputs, strict=True)
        inputs = [self.visit(left, right, is_last=below) for left, right in children]
        is_loose = self._requested[position].ties is not None
        if isinstance(requested, p.TopK) and not is_last and is_loose:
            raise _Mismatched(
                "which of the rows tied at a LIMIT inside the query are kept is not fixed"
            )
        difference, relations = _judged(requested, captured, inputs, is_loose)
        if difference is not None:
            relations = dict.fromkeys(relations, Relation.EQUAL)
        return _Pair(difference, Columns(relations, self._signs(position)))

    def _signs(self, position: int) -> KnownSigns:
        """Facts that are true of the rows of both plans."""
        requested, captured = (s[position].columns.signs for s in (self._requested, self._captured))
        return {
            key: signs.meet(captured[key]) for key, signs in requested.items() if key in captured
        }


def _judged(requested: p.Plan, captured: p.Plan, inputs: list[_Pair], is_loose: bool) -> _Judged:
    """Apply the rule of the node; `is_loose`: its rows depend on a choice among ties."""
    match requested, captured:
        case (p.Scan(), p.Scan()) | (p.Recursive(), p.Recursive()) | (p.OneRow(), p.OneRow()):
            return _EQUAL_RESULTS, _all_equal(captured)
        case p.Fixpoint(), p.Fixpoint():
            _require_same((requested.is_set, requested.best), (captured.is_set, captured.best))
            return _fixpoint(captured, inputs)
        case p.Select(), p.Select():
            return _select(requested, captured, inputs[0])
        case p.Project(), p.Project():
            return _project(requested, captured, inputs[0])
        case p.Join(), p.Join():
            return _join(requested, captured, *inputs)
        case p.Aggregate(), p.Aggregate():
            return _aggregate(requested, captured, inputs[0])
        case p.Distinct(), p.Distinct():
            _require_equal(inputs[0], "DISTINCT")
            return inputs[0].difference, _all_equal(captured)
        case p.SetOperation(), p.SetOperation():
            return _combine(requested, captured, *inputs)
        case p.Explode(), p.Explode():
            return _explode(requested, captured, inputs[0])
        case p.Sort(), p.Sort():
            return inputs[0].difference, dict(inputs[0].columns.relations)
        case p.TopK(), p.TopK():
            return _top(requested, captured, inputs[0])
        case p.Window(), p.Window():
            return _window(requested, captured, inputs[0], is_loose)
    raise _Mismatched(_OTHER)


def _require_same(requested: object, captured: object) -> None:
    if requested != captured:
        raise _Mismatched(_OTHER)


def _fixpoint(captured: p.Fixpoint, inputs: list[_Pair]) -> _Judged:
    if any(pair.difference != _EQUAL_RESULTS for pair in inputs):
        raise _Mismatched(_OTHER_RECURSION)
    return _EQUAL_RESULTS, _all_equal(captured)


def _all_equal(node: p.Plan) -> dict[AttributeId, Relation]:
    return {attribute.id: Relation.EQUAL for attribute in node.attributes}


def _select(requested: p.Select, captured: p.Select, child: _Pair) -> _Judged:
    _require_implied(
        requested.predicate, captured.predicate, child.columns, condition_name(captured)
    )
    changed = changed_columns(requested.predicate, captured.predicate)
    return _union(child.difference, changed), dict(child.columns.relations)


def _require_implied(requested: Expr, captured: Expr, columns: Columns, name: str) -> None:
    gap = find_gap(requested, captured, columns)
    if gap is None:
        return
    if is_same(requested, captured):
        raise _Mismatched(
            f"the constants below {name} differ, which changes the values that it compares in",
            None,
            gap.span,
        )
    raise _Mismatched(
        f"{name} does not imply the condition the sketch was captured for:",
        requested.span,
        gap.span,
    )


def _project(requested: p.Project, captured: p.Project, child: _Pair) -> _Judged:
    _require_alike(
        [output.expr for output in requested.outputs], [output.expr for output in captured.outputs]
    )
    relations = {
        output.attribute.id: direction(output.expr, child.columns) for output in captured.outputs
    }
    return _mapped(child.difference, _renamed(captured.outputs)), relations


def _explode(requested: p.Explode, captured: p.Explode, child: _Pair) -> _Judged:
    _require_alike([requested.array], [captured.array])
    _require_same((requested.function, requested.outer), (captured.function, captured.outer))
    if direction(requested.array, child.columns) is not Relation.EQUAL:
        raise _Mismatched("LATERAL VIEW may expand other values")
    added = {attribute.id: Relation.EQUAL for attribute in captured.made}
    return child.difference, {**child.columns.relations, **added}


def _renamed(outputs: Sequence[p.ComputedColumn]) -> dict[AttributeId, AttributeId]:
    """Input columns that are output unchanged, and their new ids."""
    return {o.expr.id: o.attribute.id for o in outputs if isinstance(o.expr, ColumnRef)}


def _mapped(difference: Difference, renamed: dict[AttributeId, AttributeId]) -> Difference:
    if difference is None or not difference <= renamed.keys():
        return None
    return frozenset(renamed[column] for column in difference)


def _require_alike(requested: Sequence[Expr | None], captured: Sequence[Expr | None]) -> None:
    _require_same(len(requested), len(captured))
    for left, right in zip(requested, captured, strict=True):
        if not is_same(left, right):
            raise _Mismatched(
                "outside of conditions, nothing may differ:",
                None if left is None else left.span,
                None if right is None else right.span,
            )


def _require_equal(child: _Pair, name: str) -> None:
    if any(relation is not Relation.EQUAL for relation in child.columns.relations.values()):
        raise _Mismatched(f"the constants differ, which changes the values that {name} compares")


def _join(requested: p.Join, captured: p.Join, left: _Pair, right: _Pair) -> _Judged:
    _require_same((requested.kind, requested.null_aware), (captured.kind, captured.null_aware))
    relations = {**left.columns.relations, **right.columns.relations}
    signs: KnownSigns = {**left.columns.signs, **right.columns.signs}
    both = Columns(relations, signs)
    unchanged = is_same(requested.condition, captured.condition)
    match captured.kind:
        case p.JoinKind.INNER | p.JoinKind.SEMI:
            if requested.condition is not None and captured.condition is not None:
                _require_implied(requested.condition, captured.condition, both, "the join")
            elif captured.condition is not None:
                raise _Mismatched(_OTHER)
            if captured.kind is p.JoinKind.INNER:
                changed = changed_columns(requested.condition, captured.condition)
                return _union(left.difference, right.difference, changed), relations
            plain = unchanged and right.difference == _EQUAL_RESULTS
            return (left.difference if plain else None), dict(left.columns.relations)
        case p.JoinKind.LEFT | p.JoinKind.ANTI:
            _require_kept(captured, unchanged, right, both)
            preserved = left
        case p.JoinKind.RIGHT:
            _require_kept(captured, unchanged, left, both)
            preserved = right
        case p.JoinKind.FULL:
            _require_kept(captured, unchanged, left, both)
            _require_kept(captured, unchanged, right, both)
            preserved = left
        case _:
            assert_never(captured.kind)
    columns = captured.ids
    return preserved.difference, {
        column: rel for column, rel in relations.items() if column in columns
    }


def _require_kept(node: p.Join, unchanged: bool, other: _Pair, both: Columns) -> None:
    """Require that the side whose missing rows would add rows is the same in both queries."""
    name = node.kind.value.upper()
    if other.difference != _EQUAL_RESULTS:
        raise _Mismatched(
            f"the constants differ on the side of the {name} join that must be the same"
        )
    if not unchanged or not (node.condition is None or both.are_equal(node.condition)):
        raise _Mismatched(f"the constants differ, which changes what the {name} join matches on")


def _union(*differences: Difference) -> Difference:
    result = _EQUAL_RESULTS
    for difference in differences:
        if difference is None:
            return None
        result |= difference
    return result


def _aggregate(requested: p.Aggregate, captured: p.Aggregate, child: _Pair) -> _Judged:
    _require_alike([key.expr for key in requested.keys], [key.expr for key in captured.keys])
    _require_alike_calls(requested, captured)
    for key in captured.keys:
        if not child.columns.are_equal(key.expr):
            raise _Mismatched("the constants differ, which changes values used for grouping")
    relations = {key.attribute.id: Relation.EQUAL for key in captured.keys}
    loose: list[AttributeId] = []
    for output in captured.aggregates:
        relations[output.attribute.id] = relation_of(output.call, child.columns, _WORDLESS)[0]
        if output.call.function in ORDER_DEPENDENT:
            loose.append(output.attribute.id)
    difference = _mapped(child.difference, _renamed(captured.common_keys))
    if difference is not None and loose:
        # Groups are whole, but these calls may return different results on every run.
        relations = dict.fromkeys(relations, Relation.EQUAL)
        difference = None
    return difference, {**relations, **dict.fromkeys(loose, Relation.UNKNOWN)}


def _require_alike_calls(requested: p.Aggregate, captured: p.Aggregate) -> None:
    _require_same(requested.grouping_sets, captured.grouping_sets)
    _require_same(len(requested.aggregates), len(captured.aggregates))
    for output, captured_output in zip(requested.aggregates, captured.aggregates, strict=True):
        left, right = output.call, captured_output.call
        _require_same((left.function, left.distinct), (right.function, right.distinct))
        _require_alike([*left.arguments, left.condition], [*right.arguments, right.condition])


def _combine(
    requested: p.SetOperation, captured: p.SetOperation, left: _Pair, right: _Pair
) -> _Judged:
    _require_same((requested.kind, requested.all), (captured.kind, captured.all))
    sides = ((captured.left, left), (captured.right, right))
    left_relations, right_relations = (
        branch(captured, side, SafetyState(Status.CONTAINED, pair.columns)).columns.relations
        for side, pair in sides
    )
    equal = left.difference == right.difference == _EQUAL_RESULTS
    relations = dict(left_relations)
    is_bag_union = captured.kind is p.SetKind.UNION and captured.all
    if captured.kind is p.SetKind.UNION:
        relations = {
            column: relation.meet(right_relations[column])
            for column, relation in left_relations.items()
        }
    is_difference = captured.kind is p.SetKind.EXCEPT
    if is_difference and right.difference != _EQUAL_RESULTS:
        raise _Mismatched("the constants differ, which changes the rows that EXCEPT removes")
    compared = (left_relations,) if is_difference else (left_relations, right_relations)
    if not is_bag_union and any(
        relation is not Relation.EQUAL for side in compared for relation in side.values()
    ):
        raise _Mismatched(
            f"the constants differ, which changes the values that {captured.kind.upper()} compares"
        )
    return (_EQUAL_RESULTS if equal else None), relations


def _top(requested: p.TopK, captured: p.TopK, child: _Pair) -> _Judged:
    _require_alike_order(requested.order, captured.order)
    _require_alike(requested.partition_by, captured.partition_by)
    ranks = [None if top.rank is None else top.rank.function for top in (requested, captured)]
    _require_same(ranks[0], ranks[1])
    if requested.offset != captured.offset:
        raise _Mismatched("OFFSET must be the same")
    if child.difference != _EQUAL_RESULTS:
        raise _Mismatched("the constants below LIMIT differ, so other rows may be among the first")
    if captured.count is not None and (requested.count is None or requested.count > captured.count):
        many = "all rows" if requested.count is None else f"{requested.count} rows"
        raise _Mismatched(
            f"LIMIT asks for {many}, but the sketch covers only {captured.count}", requested.span
        )
    is_same_count = requested.count == captured.count
    return (_EQUAL_RESULTS if is_same_count else None), _all_equal(captured)


def _require_alike_order(requested: Sequence[p.SortKey], captured: Sequence[p.SortKey]) -> None:
    _require_same(
        [(key.descending, key.nulls_first) for key in requested],
        [(key.descending, key.nulls_first) for key in captured],
    )
    _require_alike([key.expr for key in requested], [key.expr for key in captured])


def _window(requested: p.Window, captured: p.Window, child: _Pair, is_loose: bool) -> _Judged:
    for left, right in zip(requested.calls, captured.calls, strict=True):
        _require_same((left.function, left.frame), (right.function, right.frame))
        _require_alike(
            [*left.arguments, *left.partition_by], [*right.arguments, *right.partition_by]
        )
        _require_alike_order(left.order, right.order)
    added = {call.attribute.id: Relation.UNKNOWN for call in captured.calls}
    is_whole = child.difference is not None and all(
        child.difference <= {part.id for part in call.partition_by if isinstance(part, ColumnRef)}
        for call in captured.calls
    )
    if not is_whole or is_loose:
        return None, {**child.columns.relations, **added}
    return child.difference, {**child.columns.relations, **added}


# Law (Niu et al., provenance-based data skipping, section on reuse, extended to top-k, set
# operations and windows): `allowed` means that over any one database the provenance of the
# requested query is contained in that of the captured one, including barriers, and that sketches of
# these attributes are safe for the requested query; so its answer over the sketch is its answer
# over the tables. Safety is judged again, because it depends on constants (`WHERE v > 0` makes a
# sum monotone). Unsure is no. Output columns do not affect provenance, so the cores are compared.
# If queries have only a recursion in common, only sketches below it are used.

_SAME_RECURSION = "it holds all rows that the same recursion needs"
_NO_LONGER_SAFE = "the sketch is no longer safe for the query it was captured for"
_UNREAD = "the recursion that both queries share reads no table that has a sketch"
_KEYED = "its recursion is keyed, so the sketch holds only the rows that its own result needs"


class ReuseVerdict(Struct, frozen=True):
    """Whether the sketch may be used, and why (not); `span` is in the requested query. `accesses`:
    per access of the requested query that can use a sketch, the captured access with it."""

    allowed: bool
    reason: str
    span: Span | None = None
    accesses: Mapping[AccessId, AccessId] = field(default_factory=dict)


def check_reuse(
    requested: p.Query,
    captured: p.Query,
    sketched: Mapping[AccessId, ColumnName],
    facts: Collection[Fact],
) -> ReuseVerdict:
    """Judge using sketches of `sketched[access of captured]` for the requested query. `facts` must
    be true of the versions that the sketch represents and the query reads."""
    core, model = core_of(requested.root), core_of(captured.root)
    plan = aligned(core, model)
    is_alike = has_similar_recursion(core, model)
    result = ReuseVerdict(False, _OTHER_RECURSION if is_alike else _OTHER)
    if plan is not None:
        result = _of_one_template(requested, captured, core, model, plan, sketched, facts)
    if result.allowed or not is_alike:
        return result
    other = _of_one_recursion(requested, captured, core, model, sketched, facts)
    if other is None or not (other.allowed or plan is None):
        return result
    return other


def _of_one_template(
    requested: p.Query,
    captured: p.Query,
    core: p.Plan,
    model: p.Plan,
    plan: p.Plan,
    sketched: Mapping[AccessId, ColumnName],
    facts: Collection[Fact],
) -> ReuseVerdict:
    """Judge plans of one template; `plan` is the core with the ids of the captured core."""
    accesses = accesses_between(core, model)
    own_sketched = {own: sketched[other] for own, other in accesses.items() if other in sketched}
    safety = check_safety(requested, own_sketched, facts)
    if not safety.safe:
        reason = f"with these constants the sketch is not safe: {safety.reason}"
        return ReuseVerdict(False, reason, safety.span)
    before = check_safety(captured, sketched, facts)
    if not before.safe:
        return ReuseVerdict(False, f"{_NO_LONGER_SAFE}: {before.reason}")
    verdict = verdict_of_core(safety, requested, core, own_sketched)
    captured_verdict = verdict_of_core(before, captured, model, sketched)
    for core_verdict in (verdict, captured_verdict):
        if not core_verdict.safe:
            return ReuseVerdict(False, core_verdict.reason, core_verdict.span)
    if not set(verdict.barrier_positions) <= set(captured_verdict.barrier_positions):
        missing = set(verdict.barrier_positions) - set(captured_verdict.barrier_positions)
        nodes = [node for position, node in enumerate(model.walk()) if position in missing]
        is_recursion = any(isinstance(node, p.Fixpoint) for node in nodes)
        cause = "a recursion derives" if is_recursion else "a LIMIT of the query reads"
        return ReuseVerdict(False, f"the sketch does not have the rows that {cause}")
    if fingerprint(plan) == fingerprint(model):
        # Checked after barriers, which may depend on output columns.
        return ReuseVerdict(
            True, "it was captured for the same conditions and limits", None, accesses
        )
    shared = shared_fixpoint_accesses(core, model, captured_verdict.barrier_positions)
    if sketched and all(shared.get(access) == accesses[access] for access in own_sketched):
        return ReuseVerdict(True, _SAME_RECURSION, None, accesses)
    result = find_mismatch(plan, model, facts)
    if result is not None:
        return ReuseVerdict(False, result.text(requested.sql, captured.sql), result.requested)
    reason = "the query needs only rows that the sketch was captured for"
    return ReuseVerdict(True, reason, None, accesses)


def _of_one_recursion(
    requested: p.Query,
    captured: p.Query,
    core: p.Plan,
    model: p.Plan,
    sketched: Mapping[AccessId, ColumnName],
    facts: Collection[Fact],
) -> ReuseVerdict | None:
    """Judge using the sketches only below fixpoints that both queries have; None if there are none.
    Everything else is read in full."""
    before = check_safety(captured, sketched, facts)
    captured_verdict = verdict_of_core(before, captured, model, sketched) if before.safe else before
    if not captured_verdict.safe:
        return ReuseVerdict(False, f"{_NO_LONGER_SAFE}: {captured_verdict.reason}")
    shared = shared_fixpoint_accesses(core, model, captured_verdict.barrier_positions)
    accesses = {own: other for own, other in shared.items() if other in sketched}
    if not accesses:
        if not shared_fixpoint_accesses(core, model, range(len(list(model.walk())))):
            return None
        return ReuseVerdict(False, _KEYED if captured_verdict.has_keyed_fixpoints else _UNREAD)
    own_sketched = {own: sketched[other] for own, other in accesses.items()}
    # The sketches are those of barriers, even if the requested query could have KEYED fixpoints.
    safety = check_safety(requested, own_sketched, facts, has_keyed_fixpoints=False)
    verdict = verdict_of_core(safety, requested, core, own_sketched) if safety.safe else safety
    if not verdict.safe:
        return ReuseVerdict(
            False, f"for the recursion that both queries share: {verdict.reason}", verdict.span
        )
    left = any(other not in accesses.values() for other in sketched)
    rest = "; the other tables of the sketch are read in full" if left else ""
    return ReuseVerdict(True, f"{_SAME_RECURSION}{rest}", None, accesses)
