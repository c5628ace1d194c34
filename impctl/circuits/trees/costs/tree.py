"""Which tuples of a tree a changed row touches, and what its nodes keep.

Law: on the way up a row touches its own tuple, and above it the tuples that its key reaches, in the
mean. Where only crossing zero goes on (bits, semi and anti edges), a change does so as often as its
key has no other row. As often it makes tuples live, or takes that from them, and on the way down
those of other nodes that nobody else wants: the ranges of their rows are told. What is not known is
None, never a guess.
Out of scope: how long it takes (`circuits.trees.costs.times`), what a node of several relations
costs, which are joined or probed in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from impctl.circuits.trees.costs.sides import FanOuts, KeySide, key_side
from impctl.circuits.trees.shape import ShapeNode, TreeShape
from impctl.engine.jointree.spec import NO_SLOTS, Edge, Mode
from impctl.plan.nodes import Scan, scans_of
from impctl.values import dataclass

PAIR_BYTES = 24
"""Of a range beside a tuple or a group."""
_TUPLE, _VALUE, _SLOT = 24, 8, 16
"""Bytes of a tuple, of each column that it keeps and of each sum."""


@dataclass(frozen=True, slots=True)
class TouchingAccess:
    """What one changed row of an access touches: tuples by their node, its own one first.

    Conditions keep a `share` of the access's rows. On the way down so many rows of other nodes are
    `woken`: they come to count, or cease to.
    """

    scan: Scan
    share: float
    reached: tuple[tuple[int, float], ...]
    woken: float


@dataclass(frozen=True, slots=True)
class TreeCost:
    """What each access comes to, how many `tuples` the nodes have, and the bytes of them all."""

    accesses: tuple[TouchingAccess, ...]
    tuples: tuple[float, ...]
    mode: Mode
    bytes: float


def tree_cost(shape: TreeShape, fan_outs: FanOuts) -> TreeCost | None:
    """The cost of a block's tree; None where some key is computed, or a node has several relations,
    which are joined or probed in it at a cost of their own."""
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
    """The side by which a node's tuples are known: as a child meets it, else as it meets its
    parent; of a virtual root that of a child."""
    node = shape.nodes[at]
    children = [shape.nodes[place] for place in shape.children_of(at)]
    if node.rows is None:
        return _lower(children[0])
    return _upper(node, children[0]) if children else _lower(node)


def _lower(node: ShapeNode) -> KeySide | None:
    """The key by which a node meets its parent."""
    assert node.rows is not None
    return key_side(node.rows, [node.kept[place] for place in node.key], node.null_safe)


def _upper(node: ShapeNode, child: ShapeNode) -> KeySide | None:
    """The key by which a node meets a child, its tuples counted."""
    assert node.rows is not None
    exprs = [node.kept[place] for place in child.parent_key]
    return key_side(node.rows, exprs, child.null_safe, tuples=node.kept)


def _touched(
    shape: TreeShape, at: int, share: float, fan_outs: FanOuts
) -> tuple[tuple[tuple[int, float], ...], float] | None:
    """The tuples of a node and of those above it that a changed row of it touches; the rows that
    are woken below these."""
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
        is_crossing = shape.mode is Mode.BITS or below.edge in NO_SLOTS
        reached *= (alone if is_crossing else 1.0) * met
        flipped *= alone * met
        result.append((place, reached))
        woken += _woken(shape, place, flipped, fan_outs, below)
    return tuple(result), woken


def _woken(
    shape: TreeShape, at: int, flipped: float, fan_outs: FanOuts, origin: ShapeNode | None
) -> float:
    """Rows below a node that come to count with so many of its rows, or cease to, but for those of
    the child that this comes from; none where they are not known."""
    node, result = shape.nodes[at], 0.0
    for place in shape.children_of(at):
        child = shape.nodes[place]
        asking, lower = _asking(node, child, origin), _lower(child)
        if child is origin or child.edge is Edge.ANTI or asking is None or lower is None:
            continue
        # A group of a virtual root is wanted by nobody else.
        keys = flipped * (1.0 if node.rows is None else fan_outs.alone(asking))
        rows = keys * fan_outs.met(asking, lower)
        result += rows + _woken(shape, place, rows, fan_outs, None)
    return result


def _asking(node: ShapeNode, child: ShapeNode, origin: ShapeNode | None) -> KeySide | None:
    """The key by which rows of a node want a child's; of a virtual root, those it comes from."""
    if node.rows is None:
        return None if origin is None else _lower(origin)
    exprs = [node.kept[place] for place in child.parent_key]
    return key_side(node.rows, exprs, child.null_safe)


def _upwards(shape: TreeShape, at: int) -> Iterator[tuple[ShapeNode, int]]:
    """Each node on the way to the root, with the place of its parent."""
    while True:
        node = shape.nodes[at]
        if node.parent is None:
            return
        yield node, node.parent
        at = node.parent


def _tuple_bytes(shape: TreeShape, at: int) -> int:
    """Of a tuple wherever it lies: by itself, and once more in the index of each child."""
    node = shape.nodes[at]
    own = _TUPLE + _VALUE * len(node.kept) + _SLOT * len(node.arguments)
    return own * (1 + len(shape.children_of(at)))
