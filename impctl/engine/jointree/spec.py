"""The description of a join tree: nodes, edges, kept columns and outputs.

A *node* is one flow of rows (a *bag*). Its *kept* columns are those it shares with other nodes and,
at the root, the group columns; a *tuple* is a different combination of their values. Its *key* is
the kept columns that its parent has too; at the root the group columns. Law: a tree is a frozen
description without sizes, so the same plan always has the same state. Columns that two nodes share
are kept by all nodes between them (running intersection), which makes children independent given a
tuple; the builder of a tree ensures this.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from impctl.data.schema import SqlType
from impctl.engine.accumulators import AggregateColumn, Count, ExactSum, parts_of
from impctl.engine.extremes import Extreme, FirstValue, has_rank
from impctl.errors import InvariantError, UnsupportedError
from impctl.types import AttributeId

if TYPE_CHECKING:
    from impctl.sketch.sketch import RangePartition

TypedColumns = tuple[tuple[AttributeId, SqlType], ...]


class Edge(StrEnum):
    """How a node uses a child: which of its tuples find the partners they need there."""

    INNER = "inner"  # Every partner counts
    SEMI = "semi"  # One partner is enough, and counts once (EXISTS, IN)
    ANTI = "anti"  # There must be no partner (NOT EXISTS)
    LEFT = "left"  # As inner where there are partners, else once with NULL (LEFT OUTER)


class TreeMode(StrEnum):
    RING = "ring"  # Counts and sums, because an operator above decides by them (HAVING, top-k)
    BITS = "bits"  # Only existence: nothing decides, and no column is computed


class Link(Struct, frozen=True):
    """A child of a node: its position in `JoinTree.nodes`, the kind of edge, and the key. `columns`
    are kept columns of the parent, place by place equal to the child's `key`. Integral types may
    differ from the child's, other types are the same."""

    child: int
    edge: Edge
    columns: tuple[AttributeId, ...]


class Access(Struct, frozen=True):
    """A sketched access of a node: the i-th one is the i-th tag of the node's batches. `position`
    is its place among all accesses of the tree, in the order of the output's tags. With `by`, a
    kept column and its ranges, the tuple determines the range and nothing is counted: only where
    every row of a tuple carries exactly the range of that column's value."""

    position: int
    by: tuple[AttributeId, RangePartition] | None = None


class TreeNode(Struct, frozen=True):
    """One bag of the tree. `input` is the operator input of its rows.

    None is a virtual root: it has no rows, every combination of its kept columns exists once, and
    all of them are the key of each child and the group columns. `null_safe[i]` says that NULL
    equals NULL in the i-th column of `key`; it has no meaning at a root (NULL is a group).
    `arguments` are columns of the input that calls of `JoinTree.columns` read; each argument
    belongs to one node. `bitwise` are kept columns that are doubles in the input and are kept as
    their bits (LONG), so that 0.0 and -0.0 are two.
    """

    name: str
    input: int | None
    kept: TypedColumns
    key: tuple[AttributeId, ...]
    null_safe: tuple[bool, ...] = ()
    links: tuple[Link, ...] = ()
    arguments: TypedColumns = ()
    accesses: tuple[Access, ...] = ()
    bitwise: frozenset[AttributeId] = frozenset()

    @property
    def kept_names(self) -> tuple[AttributeId, ...]:
        return tuple(name for name, _ in self.kept)

    @property
    def is_virtual(self) -> bool:
        return self.input is None

    @property
    def key_types(self) -> tuple[SqlType, ...]:
        kinds = dict(self.kept)
        return tuple(kinds[name] for name in self.key)

    @property
    def is_key_all(self) -> bool:
        return set(self.key) == set(self.kept_names)


class JoinTree(Struct, frozen=True):
    """A whole tree; `nodes` has children before parents, the root last.

    `columns` are the outputs per group as for `Aggregate`, beside the group columns under the
    root's names; empty in bits mode. `accesses` is the number of sketched accesses of all nodes.
    `name` begins the names of all state. `once` are arguments of which every value of a group
    counts once (DISTINCT), each with the root's column: they belong to no node's `arguments`.
    `ordered` are those of every `FirstValue`, in the same way; they are among a node's `arguments`
    where another call reads them too.
    """

    name: str
    nodes: tuple[TreeNode, ...]
    mode: TreeMode
    columns: tuple[AggregateColumn, ...] = ()
    accesses: int = 0
    once: tuple[tuple[AttributeId, AttributeId], ...] = ()
    ordered: tuple[tuple[AttributeId, AttributeId], ...] = ()

    @property
    def root(self) -> TreeNode:
        return self.nodes[-1]

    @property
    def inputs(self) -> int:
        return sum(not node.is_virtual for node in self.nodes)

    @property
    def group(self) -> AttributeId:
        """The hidden output column with a group's number (LONG); it identifies the surviving groups
        for the way down."""
        return f"{self.name}/group"


def checked(tree: JoinTree) -> JoinTree:
    """The tree, validated. InvariantError for what is no tree at all, UnsupportedError for a call
    that a tree cannot compute."""
    for problem in _problems(tree):
        raise InvariantError(f"`{tree.name}` is not a valid join tree: {problem}")
    for part in parts_of(tree.columns):
        if isinstance(part, Extreme) and part.size is not None:
            raise UnsupportedError(
                "A join tree cannot maintain a bounded MIN or MAX",
                hint="use `join: index`",
                code="no_join_tree",
            )
    return tree


def _problems(tree: JoinTree) -> Iterator[str]:
    children = [link.child for node in tree.nodes for link in node.links]
    if sorted(children) != list(range(len(tree.nodes) - 1)):
        yield "every node but the root is the child of one other"
    inputs = sorted(node.input for node in tree.nodes if node.input is not None)
    if inputs != list(range(len(inputs))):
        yield "every input belongs to one node"
    if len({node.name for node in tree.nodes}) != len(tree.nodes):
        yield "two nodes have one name"
    positions = sorted(access.position for node in tree.nodes for access in node.accesses)
    if positions != list(range(tree.accesses)):
        yield "every access belongs to one node"
    if any(node.is_virtual for node in tree.nodes[:-1]):
        yield "only a root is virtual"
    for index, node in enumerate(tree.nodes):
        yield from _problems_of_node(tree, index, node)
    yield from _problems_of_calls(tree)


def _problems_of_node(tree: JoinTree, index: int, node: TreeNode) -> Iterator[str]:
    names = set(node.kept_names)
    if not set(node.key) <= names or len(set(node.key)) != len(node.key):
        yield f"`{node.name}` does not keep its key"
    if node is not tree.root and len(node.null_safe) != len(node.key):
        yield f"`{node.name}` does not say what NULL is in its key"
    for link in node.links:
        if link.child >= index:
            yield f"`{node.name}` stands before its child"
        elif len(link.columns) != len(tree.nodes[link.child].key):
            yield f"`{node.name}` and `{tree.nodes[link.child].name}` have different keys"
        if not set(link.columns) <= names or len(set(link.columns)) != len(link.columns):
            yield f"`{node.name}` does not keep a key of its child"
        if node.is_virtual and set(link.columns) != names:
            yield "a child of a virtual root has all its columns"
    if node.is_virtual and not any(link.edge is Edge.INNER for link in node.links):
        yield "a virtual root has an inner edge"
    if node.is_virtual and (not node.is_key_all or node.accesses or node.arguments or not names):
        yield "a virtual root is nothing but its group columns"
    for access in node.accesses:
        if access.by is not None and access.by[0] not in names:
            yield f"`{node.name}` does not keep the column of its ranges"


def _problems_of_calls(tree: JoinTree) -> Iterator[str]:
    requested = {part.argument for part in parts_of(tree.columns)}
    known = [name for node in tree.nodes for name, _ in node.arguments]
    known += [name for name, _ in tree.once]
    if not requested - _ordered(tree) <= set(known) <= requested or len(known) != len(set(known)):
        yield "every argument belongs to one node"
    yield from _problems_of_once(tree)
    yield from _problems_of_ordered(tree)
    if tree.mode is TreeMode.BITS and tree.columns:
        yield "bits have no columns"
    hidden = {link.child for n in tree.nodes for link in n.links if link.edge in NO_SLOTS}
    for index in range(len(tree.nodes) - 1, -1, -1):
        node = tree.nodes[index]
        if index in hidden:
            hidden |= {link.child for link in node.links}
            if node.arguments:
                yield f"nothing of `{node.name}` is seen above it, but an argument is asked for"
    kinds = {name: kind for node in tree.nodes for name, kind in node.arguments}
    counted = {(p.argument, p.slot) for p in parts_of(tree.columns) if isinstance(p, Count)}
    for part in parts_of(tree.columns):
        if isinstance(part, Extreme):
            if part.argument in kinds and not has_rank(kinds[part.argument]):
                yield "an extreme has a rank"
            if (part.argument, part.slot) not in counted:
                yield "an extreme stands beside the count of its argument"


def _problems_of_once(tree: JoinTree) -> Iterator[str]:
    root, once = tree.root, dict(tree.once)
    if not set(once.values()) <= set(root.kept_names) - root.bitwise:
        yield "the root does not keep a column whose values count once"
    if once and root.is_virtual:
        yield "a virtual root has no values that count once"
    for part in parts_of(tree.columns):
        if part.argument in once and not isinstance(part, Count | ExactSum):
            yield "what counts once is counted or summed up exactly"


def _problems_of_ordered(tree: JoinTree) -> Iterator[str]:
    root, kinds = tree.root, dict(tree.root.kept)
    pairs = [(column.type, column.accumulator) for column in tree.columns]
    firsts = [(kind, part) for kind, part in pairs if isinstance(part, FirstValue)]
    if {name for _, one in firsts for name in (one.key, one.value)} != _ordered(tree):
        yield "the first values of a group are of columns that are ordered"
    if not {kept for _, kept in tree.ordered} <= set(root.kept_names) - root.bitwise:
        yield "the root does not keep a column that is ordered"
    if tree.ordered and root.is_virtual:
        yield "a virtual root has no values that are ordered"
    known = {name for node in tree.nodes for name, _ in node.arguments}
    for part in parts_of(tree.columns):
        if part.argument in _ordered(tree) - known and not isinstance(part, Count):
            yield "what is ordered alone is only counted"
    kept = dict(tree.ordered)
    for kind, first in firsts:
        value = kinds.get(kept.get(first.value, ""), kind)
        is_alike = value == kind or (value.is_integral and kind.is_integral)
        if value.is_fractional or not is_alike:
            yield "a first value is exactly what is kept"


def _ordered(tree: JoinTree) -> set[AttributeId]:
    return {name for name, _ in tree.ordered}


NO_SLOTS = frozenset({Edge.SEMI, Edge.ANTI})
"""Edges above which only the existence of a partner is seen."""
