"""Which columns of accesses must find their values in columns of others, since rows join on them.

Law: of an access whose column is tied to another's, every row may be left out whose value (NULL
included) is in no row of the other access that the plan sees: the plan yields the same bag. For a
predicate on one side's column that is true of all values that the other side has can be put above
that side of an equality join, unless the side keeps rows without partners; from there it goes down
as any predicate does (`rules.pushdown`), which is what is done here with a stand-in.
Several ties hold together: each is a predicate that drops no row with a partner.

Law: every row of the plan with a value there comes of rows of the access with the very value in
that column, and of all such that it would come of without others. Selections, projections, sorts,
DISTINCT and the keys of groupings are looked through, inner joins, and of other joins the side
whose rows each go their own way: an outer join pads rows of the other one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeAlias

from impctl.expr.nodes import ColumnRef, Compare, CompareOp, InList, Literal, conjuncts
from impctl.plan.nodes import (
    Aggregate,
    Attribute,
    ComputedColumn,
    Distinct,
    Explode,
    Join,
    JoinKind,
    Plan,
    Project,
    Scan,
    Select,
    Sort,
    TopK,
    Window,
    attributes_of,
    inputs_of,
    nodes_of,
    scans_of,
    with_inputs,
)
from impctl.plan.properties import scan_conditions
from impctl.rules.pushdown import push_selections
from impctl.types import AccessId, AttributeId
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class ScanColumn:
    """A column of one access."""

    access: AccessId
    attribute: Attribute


@dataclass(frozen=True, slots=True)
class Tied:
    """Rows of `column` are needed for values only that `to` has."""

    column: ScanColumn
    to: ScanColumn


Origins: TypeAlias = Mapping[AttributeId, frozenset[ScanColumn]]
"""Per attribute that a plan yields: columns that have all its values, NULL left aside."""

_NARROWS_LEFT = frozenset({JoinKind.INNER, JoinKind.RIGHT, JoinKind.SEMI})
_NARROWS_RIGHT = frozenset({JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI})
"""Kinds that put out no row of a side that has no partner on the other."""


def tied_columns(root: Plan) -> tuple[Tied, ...]:
    """All ties between accesses of the plan."""
    if not any(isinstance(node, Join) for node in nodes_of(root)):
        return ()
    result = _Marking({}, [])
    marked = push_selections(result.of(root)[0])
    ties: dict[Tied, None] = {}
    accesses = {scan.access: scan for scan in scans_of(root)}
    for access, conditions in scan_conditions(marked).items():
        own = {attribute.id: attribute for attribute in accesses[access].attributes}
        for condition in conditions:
            if not isinstance(condition, InList) or not isinstance(condition.operand, ColumnRef):
                continue
            sources = result.sources.get(id(condition.options[0]), frozenset())
            column = ScanColumn(access, own[condition.operand.id]) if sources else None
            if column is not None:
                ties |= dict.fromkeys(
                    Tied(column, other) for other in sources if other.access != access
                )
    return tuple(sorted(ties, key=lambda tied: (tied.column.access, tied.to.access)))


@dataclass(frozen=True, slots=True)
class _Marking:
    """Puts stand-ins above sides of joins; each is known by the very literal in it."""

    sources: dict[int, frozenset[ScanColumn]]
    kept: list[Literal]
    """Keeps the literals, so that no other object comes to have the identity of one."""

    def of(self, plan: Plan) -> tuple[Plan, Origins]:
        """The plan with stand-ins, and where its values are from."""
        below = [self.of(child) for child in inputs_of(plan)]
        origins = [result for _, result in below]
        marked = with_inputs(plan, tuple(child for child, _ in below)) if below else plan
        match marked:
            case Scan():
                return marked, {
                    a.id: frozenset({ScanColumn(marked.access, a)}) for a in marked.attributes
                }
            case Select() | Sort() | TopK() | Distinct() | Window() | Explode():
                return marked, origins[0]
            case Project():
                return marked, _renamed(marked.outputs, origins[0])
            case Aggregate():
                return marked, _renamed(marked.keys, origins[0])
            case Join():
                return self._joined(marked, *origins)
        return marked, {}

    def _joined(self, join: Join, left: Origins, right: Origins) -> tuple[Plan, Origins]:
        both = dict(left) if join.kind in (JoinKind.SEMI, JoinKind.ANTI) else {**left, **right}
        if join.null_aware or join.condition is None:
            return join, both
        sides = {**dict.fromkeys(left, True), **dict.fromkeys(right, False)}
        for part in conjuncts(join.condition):
            match part:
                case Compare(CompareOp.EQUAL, ColumnRef() as one, ColumnRef() as other):
                    pass
                case _:
                    continue
            if one.type != other.type or sides.get(one.id) is sides.get(other.id):
                continue
            mine, theirs = (one, other) if sides.get(one.id) else (other, one)
            if join.kind in _NARROWS_LEFT and theirs.id in right:
                join = replace(join, left=self._marked(join.left, mine, right[theirs.id]))
            if join.kind in _NARROWS_RIGHT and mine.id in left:
                join = replace(join, right=self._marked(join.right, theirs, left[mine.id]))
        return join, both

    def _marked(self, side: Plan, ref: ColumnRef, sources: frozenset[ScanColumn]) -> Plan:
        literal = Literal(len(self.kept), ref.type)
        self.kept.append(literal)
        self.sources[id(literal)] = sources
        return Select(side, InList(ref, (literal,)))


def _renamed(outputs: tuple[ComputedColumn, ...], below: Origins) -> Origins:
    """Of outputs that are columns of the input, under their new names."""
    return {
        output.attribute.id: below[output.expr.id]
        for output in outputs
        if isinstance(output.expr, ColumnRef) and output.expr.id in below
    }


_BY_LEFT = frozenset({JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI})
_BY_RIGHT = frozenset({JoinKind.INNER, JoinKind.RIGHT})


def column_behind(plan: Plan, wanted: AttributeId) -> ScanColumn | None:
    """The column behind an attribute that the plan yields; None where it is another value."""
    match plan:
        case Scan():
            own = (a for a in plan.attributes if a.id == wanted)
            return next((ScanColumn(plan.access, attribute) for attribute in own), None)
        case Select() | Sort() | Distinct():
            return column_behind(plan.child, wanted)
        case Project():
            for output in plan.outputs:
                if output.attribute.id == wanted and isinstance(output.expr, ColumnRef):
                    return column_behind(plan.child, output.expr.id)
        case Aggregate(grouping_sets=None):
            for key in plan.keys:
                if key.attribute.id == wanted and isinstance(key.expr, ColumnRef):
                    return column_behind(plan.child, key.expr.id)
        case Join():
            sides = [
                side
                for side, kinds in ((plan.left, _BY_LEFT), (plan.right, _BY_RIGHT))
                if plan.kind in kinds and wanted in {a.id for a in attributes_of(side)}
            ]
            return column_behind(sides[0], wanted) if len(sides) == 1 else None
    return None


def is_narrowed(plan: Plan, keys: Collection[AttributeId]) -> bool:
    """Whether a read by values of these attributes need not read all of every access."""
    return any(column_behind(plan, key) is not None for key in keys)
