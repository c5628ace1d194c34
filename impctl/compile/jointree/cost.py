"""What a step and the state cost as an index join and as a tree, and which of them is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import astuple

from impctl.compile.flows import row_bytes
from impctl.compile.joins import chain_of
from impctl.compile.jointree.decompose import all_of
from impctl.compile.jointree.graph import ShapeNode, TreeShape
from impctl.compile.jointree.shape import planned_blocks
from impctl.costs import INDEX_JOIN, JOIN_TREE
from impctl.data.schema import SqlType
from impctl.engine.jointree.spec import NO_SLOTS, Edge, TreeMode
from impctl.errors import ImpctlError
from impctl.expr.evaluate import find_condition_blocker
from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr, conjuncts
from impctl.plan.explain import expr_text, shortened
from impctl.plan.nodes import Join, JoinKind, Plan, Project, Scan, Select, Sort
from impctl.tables.sample import KeyColumns, KeyCounts
from impctl.types import AccessId, AttributeId, ColumnName, TableName

# Sides of joins as unchanged columns of one table, else None, with the conditions on the table's
# own rows. Only conditions above the scan that read its columns alone and that the engine can
# evaluate are counted, not what follows from joins. An estimate chooses between two correct ways,
# so this is enough.


class KeySide(Struct, frozen=True):
    """The columns of one table that a join looks its rows up by."""

    table: TableName
    columns: KeyColumns


class FanOuts(Protocol):
    def met(self, changed: KeySide, other: KeySide) -> float:
        """Rows, or tuples if these are counted, of the other side that a changed row joins."""
        ...

    def counts(self, side: KeySide) -> KeyCounts: ...


def _alone(fan_outs: FanOuts, side: KeySide) -> float:
    """Roughly the share of rows that have a unique key: keys per row."""
    counts = fan_outs.counts(side)
    return min(counts.keys / max(counts.rows, 1), 1.0)


def key_side(
    rows: Plan, key: Sequence[Expr], null_safe: Sequence[bool], tuples: Sequence[Expr] = ()
) -> KeySide | None:
    """The table's columns that form the key; None if they are of several tables or computed. With
    `tuples` it counts combinations of these, if the table has them all; else rows. Without a key,
    the first table's side; None if there is no table."""
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
    projected = _projected_exprs(rows)
    maybe_origins = [_origin(rows, expr, projected) for expr in exprs]
    origins = [origin for origin in maybe_origins if origin is not None]
    if len(origins) < len(maybe_origins) or len({scan.access for scan, _, _ in origins}) > 1:
        return None
    scans = [origins[0][0]] if origins else rows.scans
    if not scans:
        # A SELECT without FROM reads no table.
        return None
    return scans[0], tuple((name, kind) for _, name, kind in origins)


_Exprs = dict[AttributeId, Expr]  # What projections of a plan compute columns from


def _projected_exprs(rows: Plan) -> _Exprs:
    result: _Exprs = {}
    for node in rows.walk():
        if isinstance(node, Project):
            result |= {output.attribute.id: output.expr for output in node.outputs}
    return result


def _origin(rows: Plan, expr: Expr, exprs: _Exprs) -> tuple[Scan, ColumnName, SqlType] | None:
    """The scan that a column comes from unchanged, its name there and its type."""
    while isinstance(expr, ColumnRef) and expr.id in exprs:
        expr = exprs[expr.id]
    for scan in rows.scans:
        for attribute in scan.attributes:
            if isinstance(expr, ColumnRef) and expr.id == attribute.id and attribute.type:
                return scan, attribute.name, attribute.type
    return None


def condition_on(rows: Plan, scan: Scan) -> Expr | None:
    """What selections say of a scan's own rows, its columns by their names in the table."""
    exprs = _projected_exprs(rows)
    names: dict[AttributeId, Expr] = {
        attribute.id: ColumnRef(attribute.name, attribute.type, attribute.nullable)
        for attribute in scan.attributes
        if attribute.type is not None
    }
    parts = dict.fromkeys(
        part.substitute(names)
        for part in _selecting(rows, exprs)
        if part.columns and part.columns <= names.keys() and find_condition_blocker(part) is None
    )
    return all_of(list(parts))


def _selecting(rows: Plan, exprs: _Exprs) -> Iterator[Expr]:
    """The conditions of selections in terms of scans, the lowest first: it may guard others."""
    for node in reversed(tuple(rows.walk())):
        if isinstance(node, Select):
            for part in conjuncts(node.predicate):
                # As often as projections lie above each other.
                while part.columns & exprs.keys():
                    part = part.substitute(exprs)
                yield part


# Rows that an index join writes and keeps for a changed row. Relations are joined in the circuit's
# order; each step but the last keeps its output for the next one to look up. Rows are products of
# fan-outs, as if keys were independent. Unknown values are None, never guessed.

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
    """The cost of a block's joins; None if a key is computed, or a join is not inner. In ring mode,
    groups keep the ranges of their rows too."""
    while isinstance(joins, Select | Project | Sort):
        joins = joins.child
    if not isinstance(joins, Join) or joins.kind is not JoinKind.INNER:
        return None
    chain = _Chain.of(joins, fan_outs)
    joined_accesses: list[JoinedAccess] = []
    size_in_bytes = 0.0
    for index, plan in enumerate(chain.plans):
        size = chain.size(index)
        steps = [chain.met(index, last) for last in range(max(index, 1), len(chain.plans))]
        fan_outs_met = [step for step in steps if step is not None]
        if size is None or len(fan_outs_met) < len(steps):
            return None
        rows, share = size
        *kept, last = (share * rows_met for rows_met in fan_outs_met)
        joined_accesses += [
            JoinedAccess(scan, share, len(fan_outs_met), sum(kept), last) for scan in plan.scans
        ]
        size_in_bytes += rows * (_row_bytes([plan]) + (PAIR_BYTES if mode is TreeMode.RING else 0))
        if index == 0:
            size_in_bytes += sum(
                rows * fan_out * _row_bytes(chain.plans[: last + 1])
                for last, fan_out in enumerate(fan_outs_met[:-1], 1)
            )
    return IndexCost(tuple(joined_accesses), size_in_bytes)


def _row_bytes(plans: Sequence[Plan]) -> int:
    """Bytes of a joined row of these relations, as if each was sketched once."""
    columns = [(a.id, a.type) for plan in plans for a in plan.attributes if a.type is not None]
    return row_bytes(columns, len(plans))


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
        owner = {
            name: index for index, relation in enumerate(chain.relations) for name in relation.ids
        }
        arcs = []
        for part in chain.conditions:
            match part:
                case Compare(op, ColumnRef() as left, ColumnRef() as right) if op in _EQUALITIES:
                    ends = (owner[left.id], owner[right.id])
                    arcs.append(_Arc(ends, (left, right), op is CompareOp.NULL_SAFE_EQUAL))
        return cls(tuple(relation.plan for relation in chain.relations), tuple(arcs), fan_outs)

    def between(self, left: int, right: int) -> list[_Arc]:
        return [arc for arc in self.arcs if {left, right} == set(arc.ends)]

    def side(self, index: int, other: int) -> KeySide | None:
        arcs = self.between(index, other)
        exprs = [arc.columns[arc.ends.index(index)] for arc in arcs]
        return key_side(self.plans[index], exprs, [arc.null_safe for arc in arcs])

    def size(self, index: int) -> tuple[float, float] | None:
        """Rows of a relation that its conditions keep, and their share of all rows."""
        side = self.side(index, next(o for _, o in self._join_order(index, len(self.plans) - 1)))
        if side is None:
            return None
        counts = self.fan_outs.counts(side)
        return counts.rows, counts.share

    def met(self, start: int, last: int) -> float | None:
        """How many rows one counted row yields, joined with all relations up to the last one."""
        product = 1.0
        for left, right in self._join_order(start, last):
            sides = (self.side(left, right), self.side(right, left))
            if sides[0] is None or sides[1] is None:
                return None
            product *= self.fan_outs.met(sides[0], sides[1])
        return product

    def _join_order(self, start: int, last: int) -> list[tuple[int, int]]:
        """The order of joins until all relations up to the last one are reached."""
        reached, order = [start], list[tuple[int, int]]()
        remaining = [index for index in range(last + 1) if index != start]
        while remaining:
            connected = (
                (left, right)
                for left in reached
                for right in remaining
                if self.between(left, right)
            )
            # What no equality connects is met as a whole.
            left, right = next(connected, (reached[0], remaining[0]))
            order.append((left, right))
            reached.append(right)
            remaining.remove(right)
        return order


# Tuples of a tree that a changed row touches: its own, and above it the mean number that its key
# reaches. Where only crossing zero is passed on (bits, semi and anti edges), a change does so as
# often as its key has no other row. As often it makes tuples live or dead, and on the way down
# those of other nodes that nothing else needs, whose ranges are then sent. Unknown values are None,
# never guessed.

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
    """The cost of a block's tree; None if a key is computed, or if a node has several relations,
    whose joining or probing has another cost."""
    result: list[TouchingAccess] = []
    tuples: list[float] = []
    size_in_bytes = 0.0
    for index, node in enumerate(shape.nodes):
        if len(node.accesses) > 1:
            return None
        side = _own_side(shape, index)
        if side is None:
            return None
        counts = fan_outs.counts(side)
        tuples.append(counts.keys if side.columns.counted is None else counts.together)
        size_in_bytes += tuples[-1] * _tuple_bytes(shape, index)
        if node.rows is None:
            continue
        touched = _touched(shape, index, counts.share, fan_outs)
        if touched is None:
            return None
        result += [TouchingAccess(scan, counts.share, *touched) for scan in node.rows.scans]
        size_in_bytes += counts.rows * PAIR_BYTES
    return TreeCost(tuple(result), tuple(tuples), shape.mode, size_in_bytes)


def _own_side(shape: TreeShape, index: int) -> KeySide | None:
    """The side that identifies a node's tuples: a child's key, else the parent's; a virtual root's:
    a child's."""
    node = shape.nodes[index]
    children = [shape.nodes[child] for child in shape.children_of(index)]
    if node.rows is None:
        return _lower(children[0])
    return _upper(node, children[0]) if children else _lower(node)


def _lower(node: ShapeNode) -> KeySide | None:
    assert node.rows is not None
    return key_side(node.rows, [node.kept[position] for position in node.key], node.null_safe)


def _upper(node: ShapeNode, child: ShapeNode) -> KeySide | None:
    """The key by which a node joins a child, its tuples counted."""
    assert node.rows is not None
    exprs = [node.kept[position] for position in child.parent_key]
    return key_side(node.rows, exprs, child.null_safe, tuples=node.kept)


def _touched(
    shape: TreeShape, index: int, share: float, fan_outs: FanOuts
) -> tuple[tuple[tuple[int, float], ...], float] | None:
    """The tuples of a node and its ancestors that a changed row touches; the rows woken below."""
    reached = flipped = share
    result, woken = [(index, reached)], _woken(shape, index, flipped, fan_outs, None)
    below = shape.nodes[index]
    while below.parent is not None:
        parent = below.parent
        side = _lower(below)
        above = shape.nodes[parent]
        upper = None if above.rows is None else _upper(above, below)
        if side is None or (upper is None and above.rows is not None):
            return None
        alone = _alone(fan_outs, side)
        met = 1.0 if upper is None else fan_outs.met(side, upper)
        is_crossing = shape.mode is TreeMode.BITS or below.edge in NO_SLOTS
        reached *= (alone if is_crossing else 1.0) * met
        flipped *= alone * met
        result.append((parent, reached))
        woken += _woken(shape, parent, flipped, fan_outs, below)
        below = above
    return tuple(result), woken


def _woken(
    shape: TreeShape, index: int, flipped: float, fan_outs: FanOuts, origin: ShapeNode | None
) -> float:
    """Rows below a node that start or stop counting with so many of its rows, except those of the
    child where the change comes from; none if unknown."""
    node, result = shape.nodes[index], 0.0
    for child_index in shape.children_of(index):
        child = shape.nodes[child_index]
        asking, lower = _asking(node, child, origin), _lower(child)
        if child is origin or child.edge is Edge.ANTI or asking is None or lower is None:
            continue
        # No other row looks up a group of a virtual root.
        keys = flipped * (1.0 if node.rows is None else _alone(fan_outs, asking))
        rows = keys * fan_outs.met(asking, lower)
        result += rows + _woken(shape, child_index, rows, fan_outs, None)
    return result


def _asking(node: ShapeNode, child: ShapeNode, origin: ShapeNode | None) -> KeySide | None:
    """The key by which a node looks up a child's rows; of a virtual root, the origin's."""
    if node.rows is None:
        return None if origin is None else _lower(origin)
    return key_side(node.rows, [node.kept[i] for i in child.parent_key], child.null_safe)


def _tuple_bytes(shape: TreeShape, index: int) -> int:
    """Bytes of a tuple in all places: by itself, and in the index of each child."""
    node = shape.nodes[index]
    tuple_bytes = _TUPLE + _VALUE * len(node.kept) + _SLOT * len(node.arguments)
    return tuple_bytes * (1 + len(shape.children_of(index)))


# Times of a step: processor time of the engine for `STEP_ROWS` changed rows of one table, averaged
# over tables weighted by their changes. Reading changes and committing cost the same both ways and
# are left out. A tuple that several rows touch counts once.

STEP_ROWS = 1_000  # Rows that a step is assumed to change


def index_ms(
    accesses: Sequence[JoinedAccess], tree: TreeCost, weights: Mapping[TableName, float]
) -> float:
    """Milliseconds of a step of the index join; `tree` says which groups change, if any count."""
    times = INDEX_JOIN[tree.mode]
    groups = {
        table: _touched_rows(tree, touching).get(len(tree.tuples) - 1, 0.0)
        for table, touching in _by_table(tree.accesses).items()
    }

    def micros(group: Sequence[JoinedAccess]) -> float:
        kept, last = sum(access.kept for access in group), sum(access.last for access in group)
        again = kept + last if len(group) > 1 else 0.0
        per_row = times.kept * kept + times.last * last + times.again * again
        fixed = times.step + times.join * sum(access.joins for access in group)
        changed = min(groups[group[0].scan.table], STEP_ROWS * last)
        return fixed + STEP_ROWS * per_row + times.group * changed

    return _mean(accesses, micros, weights) / 1000.0


def tree_ms(cost: TreeCost, weights: Mapping[TableName, float]) -> float:
    times = JOIN_TREE[cost.mode]

    def micros(group: Sequence[TouchingAccess]) -> float:
        fixed = times.step + times.node * len(cost.tuples)
        woken = STEP_ROWS * sum(access.woken for access in group)
        return (
            fixed + times.touched * sum(_touched_rows(cost, group).values()) + times.woken * woken
        )

    return _mean(cost.accesses, micros, weights) / 1000.0


def _touched_rows(cost: TreeCost, accesses: Sequence[TouchingAccess]) -> dict[int, float]:
    """The number of distinct tuples of each node that a step of a table touches."""
    drawn: dict[int, float] = {}
    for access in accesses:
        for node, tuples in access.reached:
            drawn[node] = drawn.get(node, 0.0) + STEP_ROWS * tuples
    return {
        node: cost.tuples[node] * -math.expm1(-many / cost.tuples[node])
        for node, many in drawn.items()
        if cost.tuples[node] > 0
    }


def rows_joined(accesses: Sequence[JoinedAccess], weights: Mapping[TableName, float]) -> float:
    """Rows that an index join writes for one changed row of a table, over all its accesses."""
    return _mean(
        accesses, lambda group: sum(access.kept + access.last for access in group), weights
    )


def tuples_touched(accesses: Sequence[TouchingAccess], weights: Mapping[TableName, float]) -> float:
    """Tuples that one changed row of a table touches by itself, over all its accesses."""
    return _mean(
        accesses,
        lambda group: sum(tuples for access in group for _, tuples in access.reached),
        weights,
    )


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
    total = sum(known[table] * cost(group) for table, group in tables.items())
    return total / sum(known.values())


def _by_table(accesses: Iterable[_Access]) -> dict[TableName, list[_Access]]:
    tables: dict[TableName, list[_Access]] = {}
    for access in accesses:
        tables.setdefault(access.scan.table, []).append(access)
    return tables


class CountedAccess(Struct, frozen=True):
    """Of an access only these rows were counted, a `share` of its table's."""

    access: AccessId
    condition: Expr
    share: float


class JoinEstimate(Struct, frozen=True):
    """Rows written (`joined`, over all steps) and tuples touched on the way up, per changed row,
    averaged over what changes; the processor time of a step of `STEP_ROWS` of them, and the bytes
    of state, both ways. `kept` are the accesses whose rows conditions restrict."""

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
    """Estimate a block's joins and their tree; None as of `tree_cost`. `changed` weighs the tables;
    if no change is known, all count alike."""
    tree = tree_cost(shape, fan_outs)
    index = None if tree is None else index_cost(joins, shape.mode, fan_outs)
    if tree is None or index is None:
        return None
    shares = {access.scan.access: access.share for access in tree.accesses}
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
    rows = map(astuple, estimates)
    return JoinEstimate(*(reduce(add, values) for values in zip(*rows, strict=True)))


def _kept(shape: TreeShape, shares: Mapping[AccessId, float]) -> Iterator[CountedAccess]:
    for node in shape.nodes:
        for scan in () if node.rows is None else node.rows.scans:
            assert node.rows is not None
            condition = condition_on(node.rows, scan)
            if condition is not None:
                yield CountedAccess(scan.access, condition, shares[scan.access])


# Whether a plan's joins are maintained as trees. The sketches are the same, so a choice may be
# slow, never wrong. It is made at capture and stored with the state, which fits only that circuit.
# Trees are chosen if a step is expected to take less time, or about the same time with a far
# smaller state. If a cost is unknown, the index join stays. All blocks of a plan are trees, or
# none.

_NOT_ESTIMATED = "its fan-out is unknown: a key is computed, or a node has several tables"
ALIKE = 0.1  # Times that differ by less than this share of the index join's count as equal
LARGER = 1.5  # A state so many times larger decides where times are equal
_LONGEST = 80  # Characters of a condition shown in a reason


class TreeChoice(Struct, frozen=True):
    """The choice, the reason, and the estimate behind it if there is one."""

    is_tree: bool
    reason: str = "as captured"
    estimate: JoinEstimate | None = None

    def choose(self, core: Plan) -> TreeChoice:
        """Any plan has the choice that is made already."""
        return self


class TreeChooser(Protocol):
    def choose(self, core: Plan) -> TreeChoice:
        """The choice for a plan; trees where it has none are no choice at all."""
        ...


class TreesByFanOut(Struct, frozen=True):
    """Choose trees where changes would be joined many to many; `rows` weighs the changed tables."""

    fan_outs: FanOuts
    rows: Mapping[TableName, int]

    def choose(self, core: Plan) -> TreeChoice:
        try:
            maybe_estimates = [
                estimate(block.block.joins, block.shape, self.rows, self.fan_outs)
                for block in planned_blocks(core)
                if block.block is not None and isinstance(block.shape, TreeShape)
            ]
        except ImpctlError as error:
            return TreeChoice(False, f"its fan-out is unknown: {error.message}")
        if not maybe_estimates:
            return TreeChoice(False, "none of its joins can be a tree")
        estimates = [known for known in maybe_estimates if known is not None]
        if len(estimates) < len(maybe_estimates):
            return TreeChoice(False, _NOT_ESTIMATED)
        both = together(estimates)
        return TreeChoice(is_better_as_tree(both), _reason(both), both)


def is_better_as_tree(estimate: JoinEstimate) -> bool:
    """By times where these differ; else by state."""
    if estimate.tree_ms <= (1.0 - ALIKE) * estimate.index_ms:
        return True
    is_alike = estimate.tree_ms <= (1.0 + ALIKE) * estimate.index_ms
    return is_alike and estimate.index_bytes >= LARGER * estimate.tree_bytes


def _reason(cost: JoinEstimate) -> str:
    return (
        f"a changed row joins about {_about(cost.joined)} rows, and touches about "
        f"{_about(cost.touched)} rows in a tree. For {STEP_ROWS:,} changed rows, the estimate is "
        f"{_about(cost.index_ms)} ms with an index and {_about(cost.tree_ms)} ms with a tree. "
        f"The state has about {_megabytes(cost.index_bytes)} and {_megabytes(cost.tree_bytes)} MB"
        f"{_counted(cost.kept)}"
    )


def _counted(kept: Sequence[CountedAccess]) -> str:
    if not kept:
        return ""
    texts = []
    for counted in kept:
        condition = shortened(expr_text(counted.condition), _LONGEST)
        share = f"{100.0 * counted.share:.2g}%" if counted.share < 0.995 else "100%"
        texts.append(f"{counted.access.removesuffix('#1')} where {condition} ({share})")
    return f"; keys were counted only for these rows: {', '.join(texts)}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.2g}" if size < 1e7 else f"{round(size / 1e6):,}"


def _about(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if number < 10 else f"{round(number):,}"
