"""Small join trees written by hand, with whole numbers for columns and fragments given per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from impctl.data.schema import LONG
from impctl.data.vector import from_arrow
from impctl.engine.accumulators import AggregateColumn, Count, ExactSum
from impctl.engine.batch import Batch
from impctl.engine.circuit import Circuit
from impctl.engine.jointree.spec import Access, Edge, JoinTree, Link, Mode, Node
from impctl.engine.jointree.tree import Live, Tree
from impctl.engine.linear import Merge, Select
from impctl.engine.operator import Operator
from impctl.engine.tags import RowTags
from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr, Literal
from tests.support.circuits import Rooted

FRAGMENTS = 64
X = "x"
N, SUM = "n", "sum"

Values = tuple[int | None, ...]
Rows = Sequence[tuple[Values, int, int]]
"""Values of the node's kept columns and its argument, the fragment, the weight."""


def node(
    place: int,
    name: str,
    kept: str,
    key: str,
    links: Sequence[tuple[int, Edge, str]] = (),
    *,
    argument: bool = False,
    safe: bool = False,
) -> Node:
    """The node at `place`, which reads that input and has that access; letters name columns."""

    def named(letters: str) -> tuple[str, ...]:
        return tuple(f"{name}.{letter}" for letter in letters)

    return Node(
        name,
        place,
        tuple((column, LONG) for column in named(kept)),
        named(key),
        (safe,) * len(key),
        tuple(Link(child, edge, named(letters)) for child, edge, letters in links),
        ((X, LONG),) if argument else (),
        (Access(place),),
    )


@dataclass
class Grown:
    """A tree with what decides over it, and counts of what steps did."""

    nodes: Sequence[Node]
    rooted: Rooted
    name: str

    def step(self, **rows: Rows) -> tuple[int, int, int]:
        """One change of the nodes called so; how much was touched, flipped and told."""
        before = self._numbers()
        batches: list[Batch | None] = [None] * sum(not node.is_virtual for node in self.nodes)
        for node in self.nodes:
            if node.input is not None and node.name in rows:
                batches[node.input] = batch_of(node, rows[node.name])
        self.rooted.step(*batches)
        after = self._numbers()
        return (after[0] - before[0], after[1] - before[1], after[2] - before[2])

    def _numbers(self) -> list[int]:
        counters = self.rooted.circuit.counters()
        return [counters[f"{self.name}.{name}"] for name in ("touched", "flips", "pairs")]

    def sketch(self, name: str) -> set[int]:
        """Fragments of one node's rows in the result."""
        (access,) = next(node.accesses for node in self.nodes if node.name == name)
        return set(self.rooted.merge.members(access.position).nonzero()[0].tolist())

    @property
    def sketches(self) -> dict[str, set[int]]:
        return {node.name: self.sketch(node.name) for node in self.nodes if node.accesses}


def batch_of(node: Node, rows: Rows) -> Batch:
    """Signed rows of a node as a batch."""
    names = [*node.kept_names, *(name for name, _ in node.arguments)]
    lists = list(zip(*(values for values, _, _ in rows), strict=True)) or [() for _ in names]
    columns = {
        name: from_arrow(pa.array(values, pa.int64()), LONG)
        for name, values in zip(names, lists, strict=True)
    }
    fragments = np.array([fragment for _, fragment, _ in rows], dtype=np.int32)
    weights = np.array([weight for _, _, weight in rows], dtype=np.int64)
    return Batch(columns, weights, (RowTags(fragments),) if node.accesses else ())


def grown(nodes: Sequence[Node], having: Expr | None = None, *, bits: bool = False) -> Grown:
    """The tree of these nodes, children first, below a HAVING."""
    count = Count(X, 0)
    has_sum = any(node.arguments for node in nodes)
    columns = [AggregateColumn(N, LONG, None, None)]
    if has_sum:
        columns.append(AggregateColumn(SUM, LONG, ExactSum(X, 0, LONG), count))
    mode = Mode.BITS if bits else Mode.RING
    accesses = sum(len(node.accesses) for node in nodes)
    spec = JoinTree("tree0", tuple(nodes), mode, () if bits else tuple(columns), accesses)
    tree = Tree(spec)
    operators: list[Operator] = [tree]
    wires: list[tuple[int, ...]] = [tuple(-1 - at for at in range(spec.inputs))]
    if having is not None:
        operators.append(Select(having, must_be_sure=False))
        wires.append((0,))
    circuit = Circuit([*operators, Live(tree)], [*wires, (len(operators) - 1, 0)])
    rooted = Rooted(circuit, Merge([FRAGMENTS] * accesses))
    first = circuit.start()
    if first is not None:
        rooted.merge.step(first)
    return Grown(nodes, rooted, spec.name)


def compared(column: str, op: CompareOp, bound: int) -> Compare:
    """`column op bound`."""
    return Compare(op, ColumnRef(column, LONG), Literal(bound, LONG))


ANY = compared(N, CompareOp.GREATER, 0)


def pair(edge: Edge = Edge.INNER, *, having: Expr = ANY, safe: bool = False) -> Grown:
    """s below r, r has the groups; SUM over s where it is seen."""
    is_seen = edge not in (Edge.SEMI, Edge.ANTI)
    nodes = [
        node(0, "s", "a", "a", argument=is_seen, safe=safe),
        node(1, "r", "ag", "g", [(0, edge, "a")], argument=not is_seen),
    ]
    return grown(nodes, having)
