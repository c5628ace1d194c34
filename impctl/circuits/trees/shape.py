"""The shape of a join tree as frozen values, or why a plan has none.

Law: a shape follows from the plan and from how many rows of each table change, and says all that
its operators are built from: the rows of each node as a plan, what each keeps, how it hangs on its
parent. Nodes stand children before parents, the root last. Shared by several columns of a node are
never: of those that are made equal one is kept.
Out of scope: how shapes are found (`circuits.trees.shaping`), the operators' own description, which
has names and types in place of expressions (`engine.jointree.spec`).
"""

from __future__ import annotations

from enum import StrEnum

from impctl.engine.jointree.spec import Edge, Mode
from impctl.expr.nodes import ColumnRef, Expr, Span
from impctl.plan.nodes import Aggregate, ComputedColumn, Plan
from impctl.types import AccessId, AttributeId
from impctl.values import dataclass


class Reason(StrEnum):
    """Why a plan has no tree."""

    ONE_TABLE = "one_table"
    """Nothing is joined."""
    ONE_BAG = "one_bag"
    """All relations end up in one bag, so there would be no edge."""
    NOT_AT_THE_TOP = "not_at_the_top"
    """Something between the joins and the result needs to know which rows are in which group."""
    CALL = "call"
    """An aggregate that cannot be told from sums per key."""
    MAY_FAIL = "may_fail"
    """An expression that may fail on rows without partners, which only a tree computes it on."""
    UNSURE = "unsure"
    """An expression reads a sum of doubles, which is known within a bound only."""


@dataclass(frozen=True, slots=True)
class NoTree:
    """The reason, in words too, and the place in the SQL that stands in the way."""

    reason: Reason
    text: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class CircleRows:
    """Relations that equal columns join in a circle, and nothing else does.

    `keys` are per relation the classes that it is in, ascending, and its column of each;
    `null_safe` says of each class where NULL equals NULL.
    """

    plans: tuple[Plan, ...]
    keys: tuple[tuple[tuple[int, Expr], ...], ...]
    null_safe: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class ShapeNode:
    """One bag of the tree.

    `rows` is the plan whose rows are the bag's; None for a virtual root, whose rows are all
    combinations of what it keeps. `kept` are expressions over these rows (of a virtual root: over
    those of its children), each another column. `key` are places in `kept`, place by place equal to
    the places `parent_key` in the parent's; `null_safe` says where NULL equals NULL. The root has
    no parent: its `key` are the group columns. `arguments` are the columns of calls that are of
    this bag, as places in the calls of `TreeShape.aggregate`; `shown` are the columns of joined
    rows that are of this bag, each with its place in `kept`. With a `circle`, of which these are
    the rows, the bag is probed.
    """

    accesses: tuple[AccessId, ...]
    rows: Plan | None
    kept: tuple[Expr, ...]
    key: tuple[int, ...]
    null_safe: tuple[bool, ...] = ()
    parent: int | None = None
    parent_key: tuple[int, ...] = ()
    edge: Edge = Edge.INNER
    arguments: tuple[int, ...] = ()
    shown: tuple[tuple[ColumnRef, int], ...] = ()
    circle: CircleRows | None = None

    @property
    def is_virtual(self) -> bool:
        return self.rows is None


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A tree for a block of a plan.

    In ring mode `aggregate` is the block's grouping, its expressions over the rows of the nodes;
    `groups[i]` is the place in the root's `kept` that the i-th grouping column has its value from.
    It may be another integral type there: values of groups that have rows fit. `top` is what stands
    where the tree's groups come in: the plan's own grouping. In bits mode nothing is grouped.
    `joined` are the columns of the joined rows that are asked for, in terms of those shown; None
    where only whose rows take part is.
    """

    nodes: tuple[ShapeNode, ...]
    mode: Mode
    aggregate: Aggregate | None = None
    groups: tuple[int, ...] = ()
    top: Aggregate | None = None
    joined: tuple[ComputedColumn, ...] | None = None

    @property
    def root(self) -> ShapeNode:
        return self.nodes[-1]

    @property
    def height(self) -> int:
        """The most edges between the root and a node."""
        return max(self.depth_of(at) for at in range(len(self.nodes)))

    def depth_of(self, at: int) -> int:
        """Edges between the root and the node."""
        depth, parent = 0, self.nodes[at].parent
        while parent is not None:
            depth, parent = depth + 1, self.nodes[parent].parent
        return depth

    def children_of(self, at: int) -> tuple[int, ...]:
        """The nodes that hang on this one, in order."""
        return tuple(i for i, node in enumerate(self.nodes) if node.parent == at)


@dataclass(frozen=True, slots=True)
class Merging:
    """Why relations are one bag: in words, and the place in the SQL."""

    text: str
    span: Span | None


Values = dict[AttributeId, Expr]
"""What columns are in terms of others."""
