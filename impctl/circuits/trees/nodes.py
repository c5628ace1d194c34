"""Bags that hang on a root, with the trees that hang on them, as nodes in order.

Law: children stand before parents, the root last. A node keeps one column of each class that it
shares with another bag, the columns that its edges compare, at the root the columns asked for, and
those of joined rows that are shown; columns of one class are one, but for doubles that are shown.
Out of scope: which tree it is (`circuits.trees.growing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from impctl.circuits.trees.bags import Bags
from impctl.circuits.trees.circles import circle_of
from impctl.circuits.trees.classes import KeyClass, is_same
from impctl.circuits.trees.rooted import Bag, Rooted
from impctl.circuits.trees.rows import rows_of
from impctl.circuits.trees.shape import Merging, ShapeNode
from impctl.circuits.trees.taken_apart import Calls, Shown, TakenApart
from impctl.expr.nodes import ColumnRef, Expr
from impctl.plan.nodes import scans_of
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Branch:
    """A tree with its root last. `columns` are the places in what the root keeps of the columns
    asked for, `calls` the arguments of calls in terms of the nodes they are of, `merged` why
    relations were merged; `one_by_one` are the places in what the root keeps of arguments whose
    values are told one by one, by their calls, where it has them."""

    nodes: tuple[ShapeNode, ...]
    columns: tuple[int, ...]
    calls: Calls
    merged: tuple[Merging, ...] = ()
    one_by_one: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layout:
    """Acyclic bags on their root, and the branches of the edges by the places of their joins.

    With a `virtual` root, whose classes these are, it is the tree's first bag, before all others.
    """

    joins: TakenApart
    bags: Bags
    virtual: Bag | None
    tree: Rooted
    branches: Mapping[int, Branch]

    @property
    def sets(self) -> tuple[Bag, ...]:
        """The classes per bag of the tree, as places in `joins.classes`."""
        own = self.bags.classes(self.joins.classes)
        return own if self.virtual is None else (self.virtual, *own)

    def members_of(self, at: int) -> frozenset[int]:
        """The relations of a bag of the tree; none of a virtual root."""
        if self.virtual is None:
            return self.bags.members[at]
        return self.bags.members[at - 1] if at else frozenset()

    def place_of(self, relation: int) -> int:
        """The bag of the tree that has the relation."""
        return self.bags.place_of(relation) + (self.virtual is not None)

    def hanging_on(self, at: int) -> list[int]:
        """The joins beside whose edges hang on this bag."""
        return [one for one in self.branches if self.place_of(min(self.joins.host_of(one))) == at]


def nodes_of_layout(layout: Layout) -> Branch:
    """The nodes of the bags and of all branches."""
    nodes = _Nodes(layout)
    nodes.visit(layout.tree.root)
    calls = dict(layout.joins.asked.arguments)
    for branch in layout.branches.values():
        calls.update(branch.calls)
    return Branch(tuple(nodes.nodes), nodes.columns, calls, layout.bags.reasons, nodes.one_by_one)


class _Nodes:
    """The nodes so far."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.nodes: list[ShapeNode] = []
        self.columns: tuple[int, ...] = ()
        self.one_by_one: dict[int, tuple[int, ...]] = {}
        sets = layout.sets
        self._shared = {
            one for bag in sets for one in bag if sum(one in other for other in sets) > 1
        }

    def visit(self, bag: int) -> tuple[int, Kept]:
        """Everything below a bag and the bag; its place, and what it keeps."""
        layout = self.layout
        kept = Kept(layout.joins.classes)
        shared = sorted(layout.sets[bag] & self._shared)
        for one in shared:
            kept.place_of(self._member(one, bag))
        hung: list[tuple[int, tuple[int, ...]]] = []
        for child in _children(layout.tree, bag):
            place, below = self.visit(child)
            both = sorted(layout.sets[bag] & layout.sets[child])
            key = tuple(below.place_of(self._member(one, child)) for one in both)
            self.nodes[place] = replace(self.nodes[place], key=key, null_safe=self._safe(both))
            hung.append((place, tuple(shared.index(one) for one in both)))
        hung.extend(self._branch(one, kept) for one in layout.hanging_on(bag))
        key = ()
        if bag == layout.tree.root:
            asked = layout.joins.asked.columns
            self.columns = tuple(kept.place_of(column) for column in asked)
            key = tuple(dict.fromkeys(self.columns))
            self.one_by_one = self._one_by_one(bag, kept)
        shown = kept.shown(layout.joins.shown_by(layout.members_of(bag)))
        at = len(self.nodes)
        for place, above in hung:
            self.nodes[place] = replace(self.nodes[place], parent=at, parent_key=above)
        self.nodes.append(replace(self._node(bag, tuple(kept.exprs), key), shown=shown))
        return at, kept

    def _one_by_one(self, bag: int, kept: Kept) -> dict[int, tuple[int, ...]]:
        """The places of arguments whose values are told one by one, of calls that the root has."""
        joins, members = self.layout.joins, self.layout.members_of(bag)
        result = {}
        for call, parts in joins.asked.told_one_by_one.items() if members else ():
            own = [self._own(part, members) for part in parts]
            if all(part is not None for part in own):
                result[call] = tuple(kept.place_of(part) for part in own if part is not None)
        return result

    def _own(self, expr: Expr, members: frozenset[int]) -> Expr | None:
        """The column, or one that is equal, if these relations have one."""
        joins = self.layout.joins
        if joins.relations.owners_of(expr) <= members:
            return expr
        one = next((one for one in joins.classes if one.has(expr)), None)
        equal = () if one is None else one.members_in(members)
        return equal[0] if equal else None

    def _node(self, bag: int, kept: tuple[Expr, ...], key: tuple[int, ...]) -> ShapeNode:
        layout = self.layout
        members = layout.members_of(bag)
        if not members:
            return ShapeNode((), None, kept, key)
        rows = rows_of(members, layout.joins, is_first=0 in members)
        circle = circle_of(members, layout.joins, is_first=0 in members)
        accesses = tuple(scan.access for scan in scans_of(rows))
        arguments = self._arguments(bag)
        return ShapeNode(accesses, rows, kept, key, arguments=arguments, circle=circle)

    def _arguments(self, bag: int) -> tuple[int, ...]:
        """The calls whose arguments are of this bag; constants are of the first relation's."""
        joins = self.layout.joins
        elsewhere = {at for one in self.layout.branches for at in joins.calls_of_edge(one)}
        elsewhere |= joins.asked.one_by_one
        result = []
        for at, parts in joins.asked.arguments.items():
            owners = frozenset().union(*(joins.relations.owners_of(part) for part in parts))
            if parts and at not in elsewhere and self.layout.place_of(min(owners or {0})) == bag:
                result.append(at)
        return tuple(result)

    def _branch(self, beside: int, kept: Kept) -> tuple[int, tuple[int, ...]]:
        """The nodes of an edge's other side; the place of its root, and the places of its key."""
        edge = self.layout.joins.edges[beside]
        branch = self.layout.branches[beside]
        start = len(self.nodes)
        self.nodes.extend(
            replace(node, parent=None if node.parent is None else node.parent + start)
            for node in branch.nodes
        )
        root = replace(
            self.nodes[-1],
            edge=edge.edge,
            key=branch.columns,
            null_safe=tuple(key.null_safe for key in edge.keys),
        )
        self.nodes[-1] = root
        return len(self.nodes) - 1, tuple(kept.place_of(key.above) for key in edge.keys)

    def _member(self, one: int, bag: int) -> Expr:
        """The column that the bag has of a class; a virtual root has that of the group."""
        result = self.layout.joins.classes[one]
        members = result.members_in(self.layout.members_of(bag))
        asked = [column for column in self.layout.joins.asked.columns if result.has(column)]
        return members[0] if members else asked[0]

    def _safe(self, classes: Sequence[int]) -> tuple[bool, ...]:
        return tuple(self.layout.joins.classes[one].null_safe for one in classes)


class Kept:
    """The columns that a node keeps, each class once."""

    def __init__(self, classes: Sequence[KeyClass]) -> None:
        self._classes = classes
        self.exprs: list[Expr] = []

    def place_of(self, expr: Expr) -> int:
        """The place of the column, or of one that is equal; it is put there where there is none."""
        for at, other in enumerate(self.exprs):
            if is_same(expr, other):
                return at
            if any(result.has(expr) and result.has(other) for result in self._classes):
                return at
        return self.put(expr)

    def put(self, expr: Expr) -> int:
        """The place of the column, which is kept once more if it is there."""
        self.exprs.append(expr)
        return len(self.exprs) - 1

    def shown(self, asked: Shown) -> tuple[tuple[ColumnRef, int], ...]:
        """The places of columns whose very values are asked for."""
        result = []
        for ref, expr in asked:
            # What doubles are joined by does not tell 0.0 from -0.0.
            place = self.put(expr) if ref.type.is_fractional else self.place_of(expr)
            result.append((ref, place))
        return tuple(result)


def _children(tree: Rooted, bag: int) -> list[int]:
    return [at for at, parent in enumerate(tree.parents) if parent == bag]
