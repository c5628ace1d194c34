"""Join trees as operators: rows of each node, the way up, what decides, the way down.

Law: the operators follow from the shape alone, and what comes out are the fragments that a circuit
of joins would count. What decides on groups (conditions, a LIMIT, a rank) is built as it is over
any grouping; beside the columns of a group its number goes along, hidden, to the way down.
A plan without a tree is refused by name (`NoTreeError`), but one that joins nothing is built as
ever.
Out of scope: which trees there are (`circuits.trees.shaping`), what they compute (`engine.trees`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from impctl.aliases import AccessId, AttributeId
from impctl.circuits.calls import Calls, read_calls
from impctl.circuits.flows import Column, Flow, check, known_type, typed
from impctl.circuits.plumbing import Plumbing
from impctl.circuits.trees.shape import NoTree, Reason, ShapeNode, TreeShape
from impctl.circuits.trees.shaping import tree_shapes
from impctl.data.schema import LONG
from impctl.engine.operators.live import Live
from impctl.engine.operators.tree import Tree
from impctl.engine.trees.spec import Access, JoinTree, Link, Mode, Node
from impctl.errors import ImpctlError
from impctl.expr.nodes import Cast, ColumnRef, Expr, Span, columns_of
from impctl.expr.types import type_of
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Plan,
    Project,
    Scan,
    Select,
    Sort,
    attributes_of,
)
from impctl.sketch.partition import RangePartition
from impctl.values import dataclass


class NoTreeError(ImpctlError):
    """A tree was asked for and there is none; carries the reason and the place in the SQL.

    Never leaves the product as it is: `app` tells it at its place.
    """

    def __init__(self, text: str, span: Span | None) -> None:
        super().__init__(text, code="no_join_tree")
        self.span = span


class TreeBuilder(Protocol):
    """What the operators of a tree are put together by."""

    given: dict[int, Flow]
    trees: list[TreeShape]
    sketched: Mapping[AccessId, RangePartition]


@dataclass(frozen=True, slots=True)
class _Rows:
    """A node's rows: their flow, cut down to what the tree reads of them, and the scan that they
    come from where it is only one."""

    flow: Flow
    scan: Scan | None


def build_trees(builder: Plumbing, root: Plan, wanted: tuple[AccessId, ...]) -> Flow | None:
    """The fragments of the plan's sketches, told by trees; None where nothing is joined.

    NoTreeError where something is, and has no tree.
    """
    shapes = tree_shapes(root)
    found: list[TreeShape] = []
    for shape in shapes:
        if isinstance(shape, NoTree):
            if len(shapes) == 1 and shape.reason is Reason.ONE_TABLE:
                return None
            raise NoTreeError(shape.text, shape.span)
        found.append(shape)
    flows = [_built(builder, root, shape) for shape in found]
    return flows[0] if len(flows) == 1 else builder.union(flows, (), wanted)
