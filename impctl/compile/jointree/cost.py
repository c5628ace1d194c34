"""What a step and the state cost as an index join and as a tree, and which of them is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct

from impctl.compile.flows import row_bytes
from impctl.compile.joins import chain_of
from impctl.compile.jointree.decompose import all_of
from impctl.compile.jointree.graph import ShapeNode, TreeShape
from impctl.compile.jointree.shape import planned_blocks
from impctl.data.schema import SqlType
from impctl.engine.jointree.spec import NO_SLOTS, Edge, TreeMode
from impctl.errors import ImpctlError
from impctl.expr.evaluate import find_condition_blocker
from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr, columns_of, conjuncts, substitute
from impctl.plan.explain import expr_text, shortened
from impctl.plan.nodes import (
    Join,
    JoinKind,
    Plan,
    Project,
    Scan,
    Select,
    Sort,
    attributes_of,
    nodes_of,
    scans_of,
)
from impctl.tables.sample import KeyColumns
from impctl.types import AccessId, AttributeId, ColumnName, TableName

if TYPE_CHECKING:
    from impctl.compile.jointree.build import PlannedBlock


# Sides of joins as key columns of tables, with the conditions on the tables' own rows. Law: a
# side is columns of one table as they are, or it is not known (None). Of the conditions on a
# side's rows those are counted that stand above its scan, read columns of it alone, and are none
# that the engine leaves to Spark; what follows from a join is not. Both hold for any plan of a
# side, since an estimate chooses between two right ways.


class KeySide(Struct, frozen=True):
    """The columns of one table that a join looks its rows up by."""

    table: TableName
    columns: KeyColumns


class SideSize(Struct, frozen=True):
    """Size of a side after its condition: a `share` of the table's rows, the number of distinct
    `keys`, and `tuples` where a side counts these, else rows with a key."""

    rows: float
    share: float
    keys: float
    tuples: float


class FanOuts(Protocol):
    def met(self, changed: KeySide, other: KeySide) -> float:
        """Rows, or tuples if these are counted, of the other side that a changed row joins."""
        ...

    def alone(self, side: KeySide) -> float:
        """Roughly the share of rows that have a unique key: keys per row."""
        ...

    def size(self, side: KeySide) -> SideSize: ...


def key_side(
    rows: Plan, key: Sequence[Expr], null_safe: Sequence[bool], tuples: Sequence[Expr] = ()
) -> KeySide | None:
    """The table's columns that form the key; None if they are of several tables or computed. With
    `tuples` it counts combinations of these, if the table has them all; else rows. Without a key it
    is the first table's; None if there is no table."""
    result = _columns(rows, key)
    if result is None:
        return None
    scan, columns = result
    kept = _columns(rows, tuples) if tuples else None
    counted = kept[1] if kept is not None and kept[0].access == scan.access else None
    where = condition_on(rows, scan)
    return KeySide(scan.table, KeyColumns(columns, tuple(null_safe), counted, where))


_Columns = tuple[tuple[ColumnName, SqlType], ...]


def _columns(rows: Plan, exprs: Sequence[Expr]) -> tuple[Scan, _Columns] | None:
    """The one access of all these columns, with them; of no columns, the first access."""
    made = _made(rows)
    result = [_origin(rows, expr, made) for expr in exprs]
    known = [one for one in result if one is not None]
    if len(known) < len(result) or len({scan.access for scan, _, _ in known}) > 1:
        return None
    scans = [known[0][0]] if known else scans_of(rows)
    if not scans:
        # A SELECT without FROM reads no table.
        return None
    return scans[0], tuple((name, kind) for _, name, kind in known)


_Made = dict[AttributeId, Expr]  # What projections of a plan compute columns from


def _made(rows: Plan) -> _Made:
    result: _Made = {}
    for node in nodes_of(rows):
        if isinstance(node, Project):
            result |= {one.attribute.id: one.expr for one in node.outputs}
    return result


def _origin(rows: Plan, expr: Expr, made: _Made) -> tuple[Scan, ColumnName, SqlType] | None:
    """The scan that a column comes from unchanged, its name there and its type."""
    while isinstance(expr, ColumnRef) and expr.id in made:
        expr = made[expr.id]
    for scan in scans_of(rows):
        for attribute in scan.attributes:
            if isinstance(expr, ColumnRef) and expr.id == attribute.id and attribute.type:
                return scan, attribute.name, attribute.type
    return None


def condition_on(rows: Plan, scan: Scan) -> Expr | None:
    """What selections say of a scan's own rows, its columns by their names in the table."""
    made = _made(rows)
    names: dict[AttributeId, Expr] = {
        one.id: ColumnRef(one.name, one.type, one.nullable)
        for one in scan.attributes
        if one.type is not None
    }
    parts = dict.fromkeys(
        substitute(part, names)
        for part in _selecting(rows, made)
        if columns_of(part)
        and columns_of(part) <= names.keys()
        and find_condition_blocker(part) is None
    )
    return all_of(list(parts))


def _selecting(rows: Plan, made: _Made) -> Iterator[Expr]:
    """The conditions of selections in terms of scans, the lowest first: it may guard others."""
    for node in reversed(tuple(nodes_of(rows))):
        if isinstance(node, Select):
            for part in conjuncts(node.predicate):
                # As often as projections lie above each other.
                while columns_of(part) & made.keys():
                    part = substitute(part, made)
                yield part


# What an index join writes down for a changed row, and what it keeps. Law: relations are joined
# in the order in which the circuit joins them; each step but the last keeps what it joined, for
# the next one to look up. Rows are products of fan-outs, as if keys were independent. What is not
# known is None, never a guess.

_EQUALITIES = (CompareOp.EQUAL, CompareOp.NULL_SAFE_EQUAL)


class JoinedAccess(Struct, frozen=True):
    """The cost of one changed row of an access. Conditions keep a `share` of the rows. A row passes
    `joins` joins; all but the last write `kept` rows, which are looked up later; the last writes
    `last` rows."""

    scan: Scan
    share: float
    joins: int
    kept: float
    last: float


class IndexCost(Struct, frozen=True):
    """The cost per access, and the bytes of all kept rows."""

    accesses: tuple[JoinedAccess, ...]
    bytes: float


def index_cost(joins: Plan, mode: TreeMode, fan_outs: FanOuts) -> IndexCost | None:
    """The cost of a block's joins; None if a key is computed, or a join is not inner. Where groups
    decide (`mode`) they keep the ranges of their rows too."""
    while isinstance(joins, Select | Project | Sort):
        joins = joins.child
    if not isinstance(joins, Join) or joins.kind is not JoinKind.INNER:
        return None
    chain = _Chain.of(joins, fan_outs)
    joined_accesses: list[JoinedAccess] = []
    held = 0.0
    for at, plan in enumerate(chain.plans):
        size = chain.size(at)
        steps = [chain.met(at, last) for last in range(max(at, 1), len(chain.plans))]
        known = [one for one in steps if one is not None]
        if size is None or len(known) < len(steps):
            return None
        rows, share = size
        *kept, last = (share * one for one in known)
        joined_accesses += [
            JoinedAccess(scan, share, len(known), sum(kept), last) for scan in scans_of(plan)
        ]
        held += rows * (_row_bytes([plan]) + (PAIR_BYTES if mode is TreeMode.RING else 0))
        if at == 0:
            held += sum(
                rows * one * _row_bytes(chain.plans[: last + 1])
                for last, one in enumerate(known[:-1], 1)
            )
    return IndexCost(tuple(joined_accesses), held)


def _row_bytes(plans: Sequence[Plan]) -> int:
    """Bytes of a joined row of these relations, as if each was sketched once."""
    columns = [(one.id, one.type) for plan in plans for one in attributes_of(plan)]
    return row_bytes([(name, kind) for name, kind in columns if kind is not None], len(plans))


class _Arc(Struct, frozen=True):
    ends: tuple[int, int]
    columns: tuple[Expr, Expr]
    null_safe: bool


class _Chain(Struct, frozen=True):
    """Relations in join order, and the equalities between them."""

    plans: tuple[Plan, ...]
    arcs: tuple[_Arc, ...]
    fan_outs: FanOuts

    @classmethod
    def of(cls, joins: Join, fan_outs: FanOuts) -> _Chain:
        chain = chain_of(joins)
        owner = {name: at for at, one in enumerate(chain.relations) for name in one.ids}
        arcs = []
        for part in chain.conditions:
            match part:
                case Compare(op, ColumnRef() as one, ColumnRef() as other) if op in _EQUALITIES:
                    ends = (owner[one.id], owner[other.id])
                    arcs.append(_Arc(ends, (one, other), op is CompareOp.NULL_SAFE_EQUAL))
        return cls(tuple(one.plan for one in chain.relations), tuple(arcs), fan_outs)

    def between(self, one: int, other: int) -> list[_Arc]:
        return [arc for arc in self.arcs if {one, other} == set(arc.ends)]

    def side(self, at: int, other: int) -> KeySide | None:
        arcs = self.between(at, other)
        exprs = [arc.columns[arc.ends.index(at)] for arc in arcs]
        return key_side(self.plans[at], exprs, [arc.null_safe for arc in arcs])

    def size(self, at: int) -> tuple[float, float] | None:
        """Rows of a relation that its conditions keep, and their share of all rows."""
        side = self.side(at, next(other for _, other in self._way(at, len(self.plans) - 1)))
        if side is None:
            return None
        result = self.fan_outs.size(side)
        return result.rows, result.share

    def met(self, start: int, last: int) -> float | None:
        """How many rows one counted row yields, joined with all relations up to the last one."""
        product = 1.0
        for one, other in self._way(start, last):
            sides = (self.side(one, other), self.side(other, one))
            if sides[0] is None or sides[1] is None:
                return None
            product *= self.fan_outs.met(sides[0], sides[1])
        return product

    def _way(self, start: int, last: int) -> list[tuple[int, int]]:
        """The order of joins until all relations up to the last one are reached."""
        reached, way = [start], list[tuple[int, int]]()
        left = [at for at in range(last + 1) if at != start]
        while left:
            connected = (
                (one, other) for one in reached for other in left if self.between(one, other)
            )
            # What no equality connects is met as a whole.
            one, other = next(connected, (reached[0], left[0]))
            way.append((one, other))
            reached.append(other)
            left.remove(other)
        return way


# Which tuples of a tree a changed row touches, and what its nodes keep. Law: on the way up a row
# touches its own tuple, and above it the tuples that its key reaches, in the mean. Where only
# crossing zero goes on (bits, semi and anti edges), a change does so as often as its key has no
# other row. As often it makes tuples live, or takes that from them, and on the way down those of
# other nodes that nobody else wants: the ranges of their rows are told. What is not known is
# None, never a guess.

PAIR_BYTES = 24  # Bytes of a range beside a tuple or a group
_TUPLE, _VALUE, _SLOT = 24, 8, 16  # Bytes of a tuple, of each kept column and of each sum


class TouchingAccess(Struct, frozen=True):
    """The tuples that one changed row of an access touches, by node, its own node first. Conditions
    keep a `share` of the access's rows. On the way down `woken` rows of other nodes start or stop
    counting."""

    scan: Scan
    share: float
    reached: tuple[tuple[int, float], ...]
    woken: float


class TreeCost(Struct, frozen=True):
    """The cost per access, the number of `tuples` per node, and the bytes of them all."""

    accesses: tuple[TouchingAccess, ...]
    tuples: tuple[float, ...]
    mode: TreeMode
    bytes: float


def tree_cost(shape: TreeShape, fan_outs: FanOuts) -> TreeCost | None:
    """The cost of a block's tree; None if a key is computed, or a node has several relations, which
    are joined or probed in it at a cost of their own."""
    result: list[TouchingAccess] = []
    tuples: list[float] = []
    held = 0.0
    for at, node in enumerate(shape.nodes):
        if len(node.accesses) > 1:
            return None
        side = _own_side(shape, at)
        if side is None:
            return None
        size = fan_outs.size(side)
        tuples.append(size.keys if side.columns.counted is None else size.tuples)
        held += tuples[-1] * _tuple_bytes(shape, at)
        if node.rows is None:
            continue
        touched = _touched(shape, at, size.share, fan_outs)
        if touched is None:
            return None
        result += [TouchingAccess(scan, size.share, *touched) for scan in scans_of(node.rows)]
        held += size.rows * PAIR_BYTES
    return TreeCost(tuple(result), tuple(tuples), shape.mode, held)


def _own_side(shape: TreeShape, at: int) -> KeySide | None:
    """The side that identifies a node's tuples: a child's key, else the parent's; a virtual root's:
    a child's."""
    node = shape.nodes[at]
    children = [shape.nodes[place] for place in shape.children_of(at)]
    if node.rows is None:
        return _lower(children[0])
    return _upper(node, children[0]) if children else _lower(node)


def _lower(node: ShapeNode) -> KeySide | None:
    assert node.rows is not None
    return key_side(node.rows, [node.kept[place] for place in node.key], node.null_safe)


def _upper(node: ShapeNode, child: ShapeNode) -> KeySide | None:
    """The key by which a node joins a child, its tuples counted."""
    assert node.rows is not None
    exprs = [node.kept[place] for place in child.parent_key]
    return key_side(node.rows, exprs, child.null_safe, tuples=node.kept)


def _touched(
    shape: TreeShape, at: int, share: float, fan_outs: FanOuts
) -> tuple[tuple[tuple[int, float], ...], float] | None:
    """The tuples of a node and its ancestors that a changed row touches; the rows woken below."""
    reached = flipped = share
    result, woken = [(at, reached)], _woken(shape, at, flipped, fan_outs, None)
    for below, place in _upwards(shape, at):
        side = _lower(below)
        above = shape.nodes[place]
        upper = None if above.rows is None else _upper(above, below)
        if side is None or (upper is None and above.rows is not None):
            return None
        alone = fan_outs.alone(side)
        met = 1.0 if upper is None else fan_outs.met(side, upper)
        is_crossing = shape.mode is TreeMode.BITS or below.edge in NO_SLOTS
        reached *= (alone if is_crossing else 1.0) * met
        flipped *= alone * met
        result.append((place, reached))
        woken += _woken(shape, place, flipped, fan_outs, below)
    return tuple(result), woken


def _woken(
    shape: TreeShape, at: int, flipped: float, fan_outs: FanOuts, origin: ShapeNode | None
) -> float:
    """Rows below a node that start or stop counting with so many of its rows, except those of the
    child where the change comes from; none if unknown."""
    node, result = shape.nodes[at], 0.0
    for place in shape.children_of(at):
        child = shape.nodes[place]
        asking, lower = _asking(node, child, origin), _lower(child)
        if child is origin or child.edge is Edge.ANTI or asking is None or lower is None:
            continue
        # No other row looks up a group of a virtual root.
        keys = flipped * (1.0 if node.rows is None else fan_outs.alone(asking))
        rows = keys * fan_outs.met(asking, lower)
        result += rows + _woken(shape, place, rows, fan_outs, None)
    return result


def _asking(node: ShapeNode, child: ShapeNode, origin: ShapeNode | None) -> KeySide | None:
    """The key by which a node looks up a child's rows; of a virtual root, the origin's."""
    if node.rows is None:
        return None if origin is None else _lower(origin)
    return key_side(node.rows, [node.kept[place] for place in child.parent_key], child.null_safe)


def _upwards(shape: TreeShape, at: int) -> Iterator[tuple[ShapeNode, int]]:
    while True:
        node = shape.nodes[at]
        if node.parent is None:
            return
        yield node, node.parent
        at = node.parent


def _tuple_bytes(shape: TreeShape, at: int) -> int:
    """Bytes of a tuple in all places: by itself, and in the index of each child."""
    node = shape.nodes[at]
    own = _TUPLE + _VALUE * len(node.kept) + _SLOT * len(node.arguments)
    return own * (1 + len(shape.children_of(at)))


# How long a step takes by either way, from what changed rows come to. Law: processor time of the
# engine for a step of `STEP_ROWS` changed rows of one table, in the mean over the tables, weighed
# by how much they change; reading changes and committing cost both ways alike and are left out. A
# tuple that several rows of a step touch is touched once. The constants are measured
# (docs/decisions/0087), each the share of one thing that is done so often; on other machines they
# go up and down together, so that a choice by their ratios holds.

STEP_ROWS = 1_000  # Rows that a step is assumed to change


class IndexTimes(Struct, frozen=True):
    """Microseconds of an index join: per step; per join that an access's rows pass; per joined row
    kept for the next join; per row of the last join; per joined row of a table with several
    accesses, where those that cancel are removed; per group that changes."""

    step: float
    join: float
    kept: float
    last: float
    again: float
    group: float


class TreeTimes(Struct, frozen=True):
    """Microseconds of a tree: per step, per node, per distinct tuple touched on the way up, and per
    row woken on the way down."""

    step: float
    node: float
    touched: float
    woken: float


INDEX = {
    TreeMode.RING: IndexTimes(step=2800.0, join=0.0, kept=0.25, last=0.23, again=0.06, group=3.2),
    TreeMode.BITS: IndexTimes(step=1100.0, join=200.0, kept=0.28, last=0.05, again=0.27, group=0.0),
}
TREE = {
    TreeMode.RING: TreeTimes(step=4400.0, node=0.0, touched=1.8, woken=0.1),
    TreeMode.BITS: TreeTimes(step=2300.0, node=390.0, touched=0.75, woken=0.08),
}


def index_ms(
    accesses: Sequence[JoinedAccess], tree: TreeCost, weights: Mapping[TableName, float]
) -> float:
    """Milliseconds of a step of the index join; `tree` says which groups change, if any count."""
    times = INDEX[tree.mode]
    groups = _groups(tree)

    def micros(own: Sequence[JoinedAccess]) -> float:
        kept, last = sum(one.kept for one in own), sum(one.last for one in own)
        again = kept + last if len(own) > 1 else 0.0
        each = times.kept * kept + times.last * last + times.again * again
        fixed = times.step + times.join * sum(one.joins for one in own)
        changed = min(groups[own[0].scan.table], STEP_ROWS * last)
        return fixed + STEP_ROWS * each + times.group * changed

    return _mean(accesses, micros, weights) / 1000.0


def tree_ms(cost: TreeCost, weights: Mapping[TableName, float]) -> float:
    """Milliseconds of a step of the tree."""
    times = TREE[cost.mode]

    def micros(own: Sequence[TouchingAccess]) -> float:
        fixed = times.step + times.node * len(cost.tuples)
        woken = STEP_ROWS * sum(one.woken for one in own)
        return fixed + times.touched * sum(_touched_rows(cost, own).values()) + times.woken * woken

    return _mean(cost.accesses, micros, weights) / 1000.0


def _touched_rows(cost: TreeCost, own: Sequence[TouchingAccess]) -> dict[int, float]:
    """The number of distinct tuples of each node that a step of a table touches."""
    drawn: dict[int, float] = {}
    for one in own:
        for node, tuples in one.reached:
            drawn[node] = drawn.get(node, 0.0) + STEP_ROWS * tuples
    return {node: _different(many, cost.tuples[node]) for node, many in drawn.items()}


def _groups(cost: TreeCost) -> dict[TableName, float]:
    root = len(cost.tuples) - 1
    return {
        table: _touched_rows(cost, own).get(root, 0.0)
        for table, own in _by_table(cost.accesses).items()
    }


def rows_joined(accesses: Sequence[JoinedAccess], weights: Mapping[TableName, float]) -> float:
    """Rows that an index join writes for one changed row of a table, over all its accesses."""
    return _mean(accesses, lambda own: sum(one.kept + one.last for one in own), weights)


def tuples_touched(accesses: Sequence[TouchingAccess], weights: Mapping[TableName, float]) -> float:
    """Tuples that one changed row of a table touches by itself, over all its accesses."""
    return _mean(
        accesses, lambda own: sum(tuples for one in own for _, tuples in one.reached), weights
    )


def _different(drawn: float, tuples: float) -> float:
    """The expected number of distinct tuples when so many are drawn."""
    return tuples * -math.expm1(-drawn / tuples) if tuples > 0 else 0.0


_Access = TypeVar("_Access", JoinedAccess, TouchingAccess)


def _mean(
    accesses: Iterable[_Access],
    cost: Callable[[Sequence[_Access]], float],
    weights: Mapping[TableName, float],
) -> float:
    """The mean cost of a change, weighted by table; equal weights if none is known."""
    tables = _by_table(accesses)
    known = {table: weights.get(table, 0.0) for table in tables}
    if not any(known.values()):
        known = dict.fromkeys(tables, 1.0)
    total = sum(known[table] * cost(own) for table, own in tables.items())
    return total / sum(known.values())


def _by_table(accesses: Iterable[_Access]) -> dict[TableName, list[_Access]]:
    tables: dict[TableName, list[_Access]] = {}
    for one in accesses:
        tables.setdefault(one.scan.table, []).append(one)
    return tables


# What a changed row costs as an index join and as a tree, from the fan-outs of key columns.
# `joined` are the rows that the index join writes down for it, all its steps; `touched` the
# tuples that the tree looks at on the way up. Both are products of fan-outs over the rows that
# the tables' own conditions keep, as if keys were independent. Law: an estimate chooses between
# two right ways, so it may be wrong; what is not known is None, never a guess.


class CountedAccess(Struct, frozen=True):
    """Of an access only these rows were counted, a `share` of its table's."""

    access: AccessId
    condition: Expr
    share: float


class JoinEstimate(Struct, frozen=True):
    """Rows written and tuples touched per changed row, on average over what changes; the processor
    time of a step of `STEP_ROWS` of them, and the bytes of state, both ways. `kept` are the
    accesses whose rows conditions restrict."""

    joined: float
    touched: float
    index_ms: float = 0.0
    tree_ms: float = 0.0
    index_bytes: float = 0.0
    tree_bytes: float = 0.0
    kept: tuple[CountedAccess, ...] = ()


def estimate(
    joins: Plan, shape: TreeShape, changed: Mapping[TableName, int], fan_outs: FanOuts
) -> JoinEstimate | None:
    """Estimate a block's joins and their tree; None if a key is computed, or a node has several
    relations, which are joined or probed in it at a cost of their own. `changed` weighs the tables;
    if no change is known, all count alike."""
    tree = tree_cost(shape, fan_outs)
    index = None if tree is None else index_cost(joins, shape.mode, fan_outs)
    if tree is None or index is None:
        return None
    shares = {one.scan.access: one.share for one in tree.accesses}
    return JoinEstimate(
        joined=rows_joined(index.accesses, changed),
        touched=tuples_touched(tree.accesses, changed),
        index_ms=index_ms(index.accesses, tree, changed),
        tree_ms=tree_ms(tree, changed),
        index_bytes=index.bytes,
        tree_bytes=tree.bytes,
        kept=tuple(_kept(shape, shares)),
    )


def together(estimates: Sequence[JoinEstimate]) -> JoinEstimate:
    """The cost of several blocks maintained side by side."""
    return JoinEstimate(
        joined=sum(one.joined for one in estimates),
        touched=sum(one.touched for one in estimates),
        index_ms=sum(one.index_ms for one in estimates),
        tree_ms=sum(one.tree_ms for one in estimates),
        index_bytes=sum(one.index_bytes for one in estimates),
        tree_bytes=sum(one.tree_bytes for one in estimates),
        kept=tuple(kept for one in estimates for kept in one.kept),
    )


def _kept(shape: TreeShape, shares: Mapping[AccessId, float]) -> Iterator[CountedAccess]:
    for node in shape.nodes:
        for scan in () if node.rows is None else scans_of(node.rows):
            assert node.rows is not None
            condition = condition_on(node.rows, scan)
            if condition is not None:
                yield CountedAccess(scan.access, condition, shares[scan.access])


# Whether the joins of a plan are maintained as trees, where they could be. Law: both ways find
# the same sketches, so a choice may be a bad one, never a wrong one. It is made once, at capture,
# and stored with the state, because a circuit is made for its state. By itself a plan's joins are
# trees where a step is expected to take less time so; where both take about as long, where the
# state of an index join would be far larger. What is not known leaves the index join. Of a plan
# with several blocks all or none are trees.

_NOT_ESTIMATED = "its fan-out is unknown: a key is computed, or a node has several tables"
ALIKE = 0.1  # Times that differ by less than this share of the index join's count as equal
LARGER = 1.5  # A state so many times larger decides where times are equal
_LONGEST = 80  # Characters of a condition shown in a reason


class TreeChoice(Struct, frozen=True):
    """The choice, the reason, and the estimate behind it if there is one. `blocks` are the plan's,
    if computed for the choice; building reuses them."""

    is_tree: bool
    reason: str
    estimate: JoinEstimate | None = None
    blocks: tuple[PlannedBlock, ...] = ()


class TreeChooser(Protocol):
    """Chooses for a plan of which some block has a tree."""

    def choose(self, core: Plan) -> TreeChoice:
        """The choice for a plan; trees where it has none are no choice at all."""
        ...


class TreesAsRecorded(Struct, frozen=True):
    is_tree: bool
    reason: str = "as captured"

    def choose(self, core: Plan) -> TreeChoice:
        return TreeChoice(self.is_tree, self.reason)


class TreesByFanOut(Struct, frozen=True):
    """Choose trees where changes would be joined many to many; `rows` weighs the changed tables."""

    fan_outs: FanOuts
    rows: Mapping[TableName, int]

    def choose(self, core: Plan) -> TreeChoice:
        try:
            blocks = planned_blocks(core, {})
            result = [
                estimate(one.block.joins, one.shape, self.rows, self.fan_outs)
                for one in blocks
                if one.block is not None and isinstance(one.shape, TreeShape)
            ]
        except ImpctlError as error:
            return TreeChoice(False, f"its fan-out is unknown: {error.message}")
        if not result:
            return TreeChoice(False, "none of its joins can be a tree")
        known = [one for one in result if one is not None]
        if len(known) < len(result):
            return TreeChoice(False, _NOT_ESTIMATED)
        both = together(known)
        return TreeChoice(is_better_as_tree(both), _told(both), both, blocks)


def is_better_as_tree(both: JoinEstimate) -> bool:
    """By times where these differ; else by state."""
    if both.tree_ms <= (1.0 - ALIKE) * both.index_ms:
        return True
    is_alike = both.tree_ms <= (1.0 + ALIKE) * both.index_ms
    return is_alike and both.index_bytes >= LARGER * both.tree_bytes


def _told(both: JoinEstimate) -> str:
    return (
        f"a changed row joins about {_about(both.joined)} rows, and touches about "
        f"{_about(both.touched)} rows in a tree. For {STEP_ROWS:,} changed rows, the estimate is "
        f"{_about(both.index_ms)} ms with an index and {_about(both.tree_ms)} ms with a tree. "
        f"The state has about {_megabytes(both.index_bytes)} and {_megabytes(both.tree_bytes)} MB"
        f"{_counted(both.kept)}"
    )


def _counted(kept: Sequence[CountedAccess]) -> str:
    if not kept:
        return ""
    said = [
        f"{one.access.removesuffix('#1')} where {shortened(expr_text(one.condition), _LONGEST)} "
        f"({_percent(one.share)})"
        for one in kept
    ]
    return f"; keys were counted only for these rows: {', '.join(said)}"


def _percent(share: float) -> str:
    return f"{100.0 * share:.2g}%" if share < 0.995 else "100%"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.2g}" if size < 1e7 else f"{round(size / 1e6):,}"


def _about(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if number < 10 else f"{round(number):,}"
