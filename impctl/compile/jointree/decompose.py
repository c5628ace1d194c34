"""A join graph decomposed into a tree of bags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import add

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.compile.jointree.graph import (
    CircleRows,
    EdgeJoin,
    Equality,
    KeyClass,
    Merging,
    NoTree,
    OuterOrSemiJoin,
    Reason,
    Relations,
    ShapeNode,
    bounded_columns,
    classes_of,
    edge_of,
    equality_of,
    height_of,
    is_null_with,
    is_same,
    late_part,
    relations_of,
)
from impctl.engine.jointree.spec import Edge
from impctl.expr.nodes import And, ColumnRef, Compare, CompareOp, Expr, Span
from impctl.plan import nodes as p
from impctl.plan.explain import Names, expr_text
from impctl.types import AttributeId

# Joins decomposed into classes, edges and bags. A condition is an equality of a class, or is over
# one bag; a join beside is an edge on one bag, or inside one; a call's arguments and a group
# expression are over one bag, or over the other side of one left edge. Cycles and group columns
# come later.

Calls = Mapping[int, tuple[Expr, ...]]
"""Per call of a grouping, by position, the expressions it reads of one row."""

Shown = tuple[tuple[ColumnRef, Expr], ...]
"""Columns of joined rows, each in terms of the relations below."""


class RequestedRows(Struct, frozen=True):
    """What is requested of joined rows: columns that one bag must have, arguments of calls, and
    columns that any bag may have. `one_by_one` are the calls that need single values of columns
    that the root has: DISTINCT and ordered ones."""

    columns: tuple[Expr, ...] = ()
    arguments: Calls = field(default_factory=dict)
    shown: Shown = ()
    one_by_one: frozenset[int] = frozenset()

    def of(self, relations: Relations) -> RequestedRows:
        """The same in terms of the relations' own columns."""
        arguments = {
            call: tuple(map(relations.resolved, parts)) for call, parts in self.arguments.items()
        }
        shown = tuple((ref, relations.resolved(expr)) for ref, expr in self.shown)
        columns = tuple(map(relations.resolved, self.columns))
        return RequestedRows(columns, arguments, shown, self.one_by_one)

    @property
    def single_values(self) -> Calls:
        """The arguments of each call in `one_by_one`."""
        return {call: self.arguments[call] for call in sorted(self.one_by_one)}


class JoinGraph(Struct, frozen=True):
    """`conditions` are those that are no equality of a class, `inside` the positions of joins
    beside that belong to a bag's rows, and why they are no edge; `edges` has the others.
    `requested` is in terms of the relations."""

    relations: Relations
    requested: RequestedRows
    classes: tuple[KeyClass, ...]
    conditions: tuple[Expr, ...]
    edges: Mapping[int, EdgeJoin]
    inside: Mapping[int, Merging]
    equal_at: Span | None  # The place of the first equality between relations
    bounded: frozenset[AttributeId]
    bags: Bags

    @property
    def count(self) -> int:
        """The number of relations; larger numbers are what joins beside add."""
        return len(self.relations.plans)

    def joins_inside(self, bag: Collection[int]) -> list[OuterOrSemiJoin]:
        """The joins beside that belong to the rows of this bag."""
        relations = self.relations
        return [relations.beside[i] for i in self.inside if relations.host_of(i) <= frozenset(bag)]

    def calls_of_edge(self, beside: int) -> Calls:
        """The calls whose arguments are of the other side of a left edge."""
        padded = self.relations.beside[beside].padded
        return {
            call: parts
            for call, parts in self.requested.arguments.items()
            if any(part.columns & padded for part in parts)
        }

    def shown_by(self, relations: frozenset[int]) -> Shown:
        """The columns shown of these relations, or of what these joins beside add."""
        owners_of = self.relations.owners_of
        return tuple(column for column in self.requested.shown if owners_of(column[1]) & relations)


def decompose(plan: p.Plan, requested: RequestedRows) -> JoinGraph:
    relations = relations_of(plan)
    requested = requested.of(relations)
    sides = (*relations.plans, *(join.other for join in relations.beside))
    bounded = frozenset().union(*(bounded_columns(side) for side in sides))
    equalities, conditions = _split_conditions(relations, bounded)
    classes = classes_of(equalities)
    edges: dict[int, EdgeJoin] = {}
    inside: dict[int, Merging] = {}
    for index, beside in enumerate(relations.beside):
        above = _columns_read_above(index, beside, relations, requested)
        edge = edge_of(beside, classes, bounded, above)
        if isinstance(edge, EdgeJoin):
            edges[index] = edge
        else:
            inside[index] = edge
    bags = _bags(plan, relations, conditions, edges, inside)
    bags = _with_reads(bags, relations, requested, edges)
    return JoinGraph(
        relations,
        requested,
        classes,
        conditions,
        edges,
        inside,
        equalities[0][0].span if equalities else None,
        bounded,
        bags,
    )


def _split_conditions(
    relations: Relations, bounded: frozenset[AttributeId]
) -> tuple[list[tuple[Equality, tuple[int, int]]], tuple[Expr, ...]]:
    """The equalities between two relations, with these, and all other conditions."""
    equalities = []
    others = []
    for condition in relations.conditions:
        equality = equality_of(condition, bounded)
        owners = [] if equality is None else [relations.owners_of(s) for s in equality.sides]
        match [tuple(side) for side in owners]:
            case [(left,), (right,)] if equality is not None and left != right:
                equalities.append((equality, (left, right)))
            case _:
                others.append(condition)
    return equalities, tuple(others)


def _columns_read_above(
    index: int, beside: OuterOrSemiJoin, relations: Relations, requested: RequestedRows
) -> frozenset[AttributeId]:
    """Columns of the padded side that are read where padding matters."""
    others = (join for position, join in enumerate(relations.beside) if position != index)
    exprs = [
        *relations.conditions,
        *requested.columns,
        *(part for other in others for part in other.parts),
    ]
    for parts in requested.arguments.values():
        is_own = all(part.columns <= beside.padded for part in parts)
        if not is_own or not all(is_null_with(part, beside.padded) for part in parts):
            exprs.extend(parts)
    return frozenset().union(*(expr.columns for expr in exprs))


def _bags(
    plan: p.Plan,
    relations: Relations,
    conditions: Sequence[Expr],
    edges: Mapping[int, EdgeJoin],
    inside: Mapping[int, Merging],
) -> Bags:
    count = len(relations.plans)
    single = [frozenset({index}) for index in (*range(count), *(count + index for index in inside))]
    padding = {count + index for index in inside if not relations.beside[index].padded}
    bags = Bags(tuple(bag for bag in single if not bag & padding))
    sides = (plan, *relations.plans, *(join.other for join in relations.beside))
    names: Names = {a.id: a.name for side in sides for a in side.attributes}
    for condition in conditions:
        shown = f"`{expr_text(condition, names)}`"
        text = f"{shown} is a join condition other than equality of the same type"
        bags = bags.merged(relations.owners_of(condition), Merging(text, condition.span))
    for index, reason in inside.items():
        bags = bags.merged({*relations.host_of(index), count + index}, reason)
    for index, edge in edges.items():
        text = "columns of several tables are compared with the same other side"
        reason = Merging(text, relations.beside[index].span)
        bags = bags.merged(relations.host_of(index), reason) if edge.keys else bags
    return bags


def _with_reads(
    bags: Bags, relations: Relations, requested: RequestedRows, edges: Mapping[int, EdgeJoin]
) -> Bags:
    """Merge bags that one argument or group expression reads."""
    count = len(relations.plans)
    below = {count + edge for edge in edges}
    for exprs, reader in _read_together(requested):
        read = frozenset().union(*(relations.owners_of(expr) for expr in exprs)) - below
        span = next((expr.span for expr in exprs if expr.span is not None), None)
        bags = bags.merged(read, Merging(f"{reader} reads several tables", span))
    return bags


def _read_together(requested: RequestedRows) -> Iterator[tuple[tuple[Expr, ...], str]]:
    for column in requested.columns:
        yield (column,), "a GROUP BY column"
    for call, parts in requested.arguments.items():
        if call in requested.one_by_one:
            # Another relation may have an equal column.
            yield from (((part,), "an aggregate") for part in parts)
        else:
            yield parts, "an aggregate"


# Any merging of relations into bags is right, since a bag is joined or probed. Required merges, in
# this order: relations read together by a condition or other join beyond equality, by an argument
# or group expression, cyclic cores, and the bags between those with group columns.

Relation = int


class Bags(Struct, frozen=True):
    """Sets of relations by their first ones, and why any of them were merged, in order."""

    members: tuple[frozenset[Relation], ...]
    reasons: tuple[Merging, ...] = ()

    def merged(self, relations: Collection[Relation], reason: Merging) -> Bags:
        """With the bags of these relations as one; unchanged if they are one already."""
        touched = [bag for bag in self.members if bag & frozenset(relations)]
        if len(touched) < 2:
            return self
        others = [bag for bag in self.members if bag not in touched]
        bags = [*others, frozenset().union(*touched)]
        return Bags(tuple(sorted(bags, key=min)), (*self.reasons, reason))

    def place_of(self, relation: Relation) -> int:
        return next(index for index, bag in enumerate(self.members) if relation in bag)

    def classes(self, classes: Sequence[KeyClass]) -> tuple[Bag, ...]:
        """Per bag the numbers of the classes it has a column of."""
        return tuple(
            frozenset(index for index, key_class in enumerate(classes) if key_class.relations & bag)
            for bag in self.members
        )

    def relations_of(self, positions: Iterable[int]) -> frozenset[Relation]:
        return frozenset().union(*(self.members[position] for position in positions))


def without_cores(bags: Bags, classes: Sequence[KeyClass], span: Span | None) -> Bags:
    """Merge cyclic cores until none is left; `span` is the place of an equality."""
    reason = Merging("equality conditions join tables in a cycle", span)
    while cores := cyclic_cores(bags.classes(classes)):
        before = bags
        for core in cores:
            bags = bags.merged(before.relations_of(core), reason)
    return bags


def with_all_columns(
    bags: Bags, classes: Sequence[KeyClass], holders: Sequence[frozenset[int]], reason: Merging
) -> Bags:
    """Merge acyclic bags until one has all wanted columns; `holders[i]` are the bags with the i-th
    one. The bag with most of them is merged with those on the way to the nearest holder of each
    other one."""
    start = max(range(len(bags.members)), key=lambda bag: (sum(bag in h for h in holders), -bag))
    tree = rooted_at(start, bags.classes(classes))
    path = {start}
    for holder in holders:
        if not holder & path:
            nearest = min(holder, key=lambda bag: (tree.depths[bag], bag))
            path |= set(tree.path_to_root(nearest))
    return bags.merged(bags.relations_of(path), reason)


# A bag is a circle, which is probed instead of joined in turn, if all its conditions are equalities
# of classes, and these are cyclic. Its rows are the combinations of its relations' rows that are
# equal in each class. Bags with other conditions or joins are joined as usual.

_FEWEST = 3


def circle_of(bag: Collection[int], joins: JoinGraph) -> CircleRows | None:
    """The circle that a bag is; None if it is none."""
    members = sorted(bag)
    if len(members) < _FEWEST or max(members) >= joins.count or joins.bounded:
        return None
    if joins.joins_inside(bag):
        return None
    conditions = conditions_in(bag, joins)
    classes = [c for c in joins.classes if len(c.relations & set(members)) > 1]
    sets = [
        frozenset(index for index, c in enumerate(classes) if relation in c.relations)
        for relation in members
    ]
    is_cyclic = bool(without_ears(sets)) and len(_connected(dict(enumerate(sets)))) == 1
    if any(len(read) > 1 for _, read in conditions) or not is_cyclic:
        return None
    keys = tuple(
        tuple(
            (index, next(iter(key_class.members_in({relation}))))
            for index, key_class in enumerate(classes)
            if relation in key_class.relations
        )
        for relation in members
    )
    plans = []
    for relation in members:
        predicates = [condition for condition, read in conditions if read == {relation}]
        predicates += _equalities({relation}, joins.classes)
        plans.append(selected(joins.relations.plans[relation], predicates))
    return CircleRows(tuple(plans), keys, tuple(key_class.null_safe for key_class in classes))


# Cyclic cores of bags. Merging each core makes the bags acyclic or leaves fewer cores, so
# repetition ends. An *ear*, whose shared classes all lie in one other bag, is on no cycle and is
# removed, repeatedly; of the rest, bags that stay connected without any one bag, and without any
# one class, are a core (if all such parts are single bags there is an ear).


def cyclic_cores(bags: Sequence[Bag]) -> tuple[frozenset[int], ...]:
    """The bags of each core, by position; none if all bags are acyclic. Cores may overlap."""
    rest = {bag: bags[bag] for bag in without_ears(bags)}
    parts = chain.from_iterable(map(_uncut, _connected(rest)))
    return tuple(frozenset(part) for part in parts if len(part) > 1)


def _uncut(bags: Mapping[int, Bag]) -> Iterator[Mapping[int, Bag]]:
    """The largest parts of connected bags that no bag and no class cuts."""
    for bag in bags:
        parts = _connected({other: bags[other] for other in bags if other != bag})
        if len(parts) > 1:
            for part in parts:
                yield from _uncut({**part, bag: bags[bag]})
            return
    for class_ in frozenset().union(*bags.values()):
        parts = _connected({bag: classes - {class_} for bag, classes in bags.items()})
        if len(parts) > 1:
            for part in parts:
                yield from _uncut({bag: bags[bag] for bag in part})
            return
    yield bags


def _connected(bags: Mapping[int, Bag]) -> list[dict[int, Bag]]:
    """The bags by connection: those that share a class, directly or over others."""
    parts: list[dict[int, Bag]] = []
    for bag, classes in bags.items():
        joined, apart = {bag: classes}, []
        for part in parts:
            if any(classes & other for other in part.values()):
                joined |= part
            else:
                apart.append(part)
        parts = [*apart, joined]
    return parts


def without_ears(bags: Sequence[Bag]) -> tuple[int, ...]:
    """The bags that remain when every ear is removed; none of acyclic ones."""

    def is_ear(bag: int) -> bool:
        others = [bags[other] for other in left if other != bag]
        shared = bags[bag] & frozenset().union(*others)
        return not others or any(shared <= other for other in others)

    left = list(range(len(bags)))
    while (ear := next(filter(is_ear, left), None)) is not None:
        left.remove(ear)
    return tuple(left)


# Bags on a root with *running intersection*: what two bags share lies on all bags between them. A
# spanning tree has it iff its weight, the sum of the classes each bag shares with its parent, is
# the greatest possible: the classes of all bags less the different ones. Prim's algorithm from any
# root finds the greatest weight, so it finds such a tree iff the bags are acyclic. Ties go to the
# parent nearest to the root, then to the order in the SQL. Bags that share nothing are joined with
# weight 0.

Bag = frozenset[int]  # The numbers of the classes that the bag has a column of


class Rooted(Struct, frozen=True):
    """Per bag its parent (None: the root) and its distance from the root."""

    parents: tuple[int | None, ...]
    depths: tuple[int, ...]

    @property
    def root(self) -> int:
        return self.parents.index(None)

    def path_to_root(self, bag: int) -> tuple[int, ...]:
        """The bag, its parent and so on, up to the root."""
        result = [bag]
        while (parent := self.parents[result[-1]]) is not None:
            result.append(parent)
        return tuple(result)


def rooted_at(root: int, bags: Sequence[Bag], *, is_virtual: bool = False) -> Rooted:
    """The maximum weight tree, grown from this bag. A root that `is_virtual` has only bags with all
    its classes as children: at least one has."""
    parents: list[int | None] = [None] * len(bags)
    depths = [0] * len(bags)
    hung = [root]
    while len(hung) < len(bags):
        ranked = (
            (-len(bags[parent] & bags[bag]), depths[parent], bag, parent)
            for parent in hung
            for bag in range(len(bags))
            if bag not in hung
            and not (is_virtual and parent == root and not bags[root] <= bags[bag])
        )
        _, depth, bag, parent = min(ranked)
        parents[bag], depths[bag] = parent, depth + 1
        hung.append(bag)
    return Rooted(tuple(parents), tuple(depths))


def best_rooted(
    roots: Sequence[int], bags: Sequence[Bag], branch_heights: Sequence[int] = ()
) -> Rooted:
    """The tree of least height from these roots, including the branches on its bags; then the order
    in the SQL decides."""
    trees = {root: rooted_at(root, bags) for root in roots}
    heights = branch_heights or (0,) * len(bags)
    return trees[min(roots, key=lambda root: (max(map(add, trees[root].depths, heights)), root))]


# The tree of decomposed joins. The bags on the root are acyclic. If two bags have all requested
# columns, the root is virtual: a node of these columns alone, with only such bags as children; else
# it is the bag that has them. The other side of an edge is a tree of its own, whose root has the
# compared columns, or one node if it can have no tree.


def objection_to(joins: JoinGraph) -> NoTree | None:
    """Why more than one node cannot give what is requested; None if it can."""
    arguments = [part for parts in joins.requested.arguments.values() for part in parts]
    read = [*joins.requested.columns, *arguments]
    for expr in read:
        if expr.columns & joins.bounded:
            text = "a sum of doubles is used for grouping or summed again"
            return NoTree(Reason.UNSURE, text, expr.span)
    for ref, expr in joins.requested.shown:
        if expr.columns & joins.bounded:
            return NoTree(Reason.UNSURE, "a sum of doubles is a column of joined rows", ref.span)
    late = late_part([*joins.relations.late, *read])
    if late is not None:
        text = "an expression may fail on rows that the joins drop"
        return NoTree(Reason.MAY_FAIL, text, late.span)
    return None


def grown(joins: JoinGraph, *, may_be_virtual: bool) -> SubTree:
    """The tree; of one node if all relations end up in one bag."""
    branches = {edge: _other_side(joins, edge) for edge in joins.edges}
    # A virtual root keeps no individual values.
    may_be_virtual = may_be_virtual and not joins.requested.one_by_one
    bags, virtual, holders = _settled(joins, may_be_virtual=may_be_virtual)
    sets = bags.classes(joins.classes)
    if virtual is not None:
        tree = rooted_at(0, (virtual, *sets), is_virtual=True)
    else:
        roots = [index for index in range(len(sets)) if all(index in holder for holder in holders)]
        read = [expr for parts in joins.requested.single_values.values() for expr in parts]
        having = [_holders(joins, bags, expr) for expr in read]
        roots = [root for root in roots if all(root in result for result in having)] or roots
        tree = best_rooted(roots, sets, _branch_heights(joins, bags, branches))
    return _Nodes(joins, bags, virtual, tree, branches).tree()


def _settled(
    joins: JoinGraph, *, may_be_virtual: bool
) -> tuple[Bags, Bag | None, list[frozenset[int]]]:
    """Acyclic bags, a virtual root if there is one, else per column the bags that have it. One bag
    then has all of them."""
    bags = without_cores(joins.bags, joins.classes, joins.equal_at)
    virtual = _virtual(joins, bags) if may_be_virtual else None
    holders = [_holders(joins, bags, column) for column in joins.requested.columns]
    if virtual is None and holders and not frozenset.intersection(*holders):
        span = joins.requested.columns[0].span
        reason = Merging("the GROUP BY columns come from several tables", span)
        bags = with_all_columns(bags, joins.classes, holders, reason)
        bags = without_cores(bags, joins.classes, joins.equal_at)
        virtual = _virtual(joins, bags) if may_be_virtual else None
        holders = [_holders(joins, bags, column) for column in joins.requested.columns]
    return bags, virtual, holders


def _virtual(joins: JoinGraph, bags: Bags) -> Bag | None:
    """The classes of the requested columns, if at least two bags have all of them."""
    result = [_class_of(joins, column) for column in joins.requested.columns]
    classes = frozenset(class_ for class_ in result if class_ is not None)
    if not classes or None in result:
        return None
    return classes if sum(classes <= bag for bag in bags.classes(joins.classes)) > 1 else None


def _class_of(joins: JoinGraph, column: Expr) -> int | None:
    classes = enumerate(joins.classes)
    return next((index for index, key_class in classes if key_class.has(column)), None)


def _holders(joins: JoinGraph, bags: Bags, column: Expr) -> frozenset[int]:
    """The bags that have the column, or an equal one; a constant is everywhere."""
    owners = joins.relations.owners_of(column)
    if not owners:
        return frozenset(range(len(bags.members)))
    result = _class_of(joins, column)
    if result is not None:
        owners |= joins.classes[result].relations
    members = frozenset().union(*bags.members)
    # No bag has what an edge's other side has.
    return frozenset(bags.place_of(owner) for owner in owners & members)


def _other_side(joins: JoinGraph, index: int) -> SubTree:
    edge = joins.edges[index]
    other = joins.relations.beside[index].other
    # How often a partner is there does not matter to these edges.
    while edge.edge is not Edge.LEFT and isinstance(other, p.Distinct | p.Sort):
        other = other.child
    rows = selected(other, edge.filters)
    shown = tuple((ref, ref) for ref, _ in joins.shown_by(frozenset({joins.count + index})))
    requested = RequestedRows(
        tuple(key.right for key in edge.keys), joins.calls_of_edge(index), shown
    )
    below = decompose(rows, requested)
    # What is computed of a padded row need not be NULL, as a column of it is.
    are_columns = all(isinstance(expr, ColumnRef) for _, expr in below.requested.shown)
    if are_columns and objection_to(below) is None:
        result = grown(below, may_be_virtual=False)
        if len(set(result.columns)) == len(result.columns):
            return result
    return _one_node(rows, requested)


def _one_node(rows: p.Plan, requested: RequestedRows) -> SubTree:
    every = tuple(range(len(requested.columns)))
    accesses = tuple(scan.access for scan in rows.scans)
    arguments = tuple(call for call, parts in requested.arguments.items() if parts)
    kept = KeptColumns(())
    for column in requested.columns:
        kept.put(column)
    shown = kept.shown(requested.shown)
    node = ShapeNode(accesses, rows, tuple(kept.exprs), every, arguments=arguments, shown=shown)
    return SubTree((node,), every, requested.arguments)


def _branch_heights(joins: JoinGraph, bags: Bags, branches: Mapping[int, SubTree]) -> Sequence[int]:
    """Per bag how far below it its branches reach; 0 without one."""
    heights = [0] * len(bags.members)
    for index, branch in branches.items():
        bag = bags.place_of(min(joins.relations.host_of(index)))
        heights[bag] = max(heights[bag], 1 + height_of(branch.nodes))
    return heights


# The bags and branches as nodes, children before parents, the root last. A node keeps one column of
# each class that it shares with another bag, the columns that its edges compare, shown columns of
# joined rows, and at the root the requested columns. Columns of one class are kept once, except
# shown doubles.


class SubTree(Struct, frozen=True):
    """A tree with its root last. `columns` are the positions of the requested columns in what the
    root keeps, `calls` the arguments of calls by node, `merged` why relations were merged;
    `one_by_one` has, by call, the positions in what the root keeps of the arguments of
    `RequestedRows.one_by_one`."""

    nodes: tuple[ShapeNode, ...]
    columns: tuple[int, ...]
    calls: Calls
    merged: tuple[Merging, ...] = ()
    one_by_one: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


class _Nodes:
    """The nodes of acyclic bags on their root, and of the branches of the edges by join position. A
    `virtual` root, given by its classes, is the tree's first bag."""

    def __init__(
        self,
        joins: JoinGraph,
        bags: Bags,
        virtual: Bag | None,
        tree: Rooted,
        branches: Mapping[int, SubTree],
    ) -> None:
        self._joins, self._bags, self._tree, self._branches = joins, bags, tree, branches
        # Per bag of the tree its relations, none of a virtual root, and its classes.
        self._members, self._sets = bags.members, bags.classes(joins.classes)
        if virtual is not None:
            self._members, self._sets = (frozenset(), *self._members), (virtual, *self._sets)
        self._nodes: list[ShapeNode] = []
        self._columns: tuple[int, ...] = ()
        self._single_values: dict[int, tuple[int, ...]] = {}
        counts = Counter(chain.from_iterable(self._sets))
        self._shared = {class_ for class_, count in counts.items() if count > 1}

    def tree(self) -> SubTree:
        self._visit(self._tree.root)
        calls = dict(self._joins.requested.arguments)
        for branch in self._branches.values():
            calls.update(branch.calls)
        nodes = tuple(self._nodes)
        return SubTree(nodes, self._columns, calls, self._bags.reasons, self._single_values)

    def _place_of(self, relation: int) -> int:
        return next(bag for bag, members in enumerate(self._members) if relation in members)

    def _visit(self, bag: int) -> tuple[int, KeptColumns]:
        """Visit a bag after everything below it; return its position and what it keeps."""
        joins = self._joins
        kept = KeptColumns(joins.classes)
        shared = sorted(self._sets[bag] & self._shared)
        for class_ in shared:
            kept.place_of(self._member(class_, bag))
        hung: list[tuple[int, tuple[int, ...]]] = []
        for child in (index for index, parent in enumerate(self._tree.parents) if parent == bag):
            position, below = self._visit(child)
            shared_classes = sorted(self._sets[bag] & self._sets[child])
            key = tuple(below.place_of(self._member(class_, child)) for class_ in shared_classes)
            null_safe = tuple(joins.classes[class_].null_safe for class_ in shared_classes)
            self._nodes[position] = replace(self._nodes[position], key=key, null_safe=null_safe)
            hung.append((position, tuple(shared.index(class_) for class_ in shared_classes)))
        hung.extend(
            self._branch(beside, kept)
            for beside in self._branches
            if self._place_of(min(joins.relations.host_of(beside))) == bag
        )
        key = ()
        if bag == self._tree.root:
            self._columns = tuple(kept.place_of(column) for column in joins.requested.columns)
            key = tuple(dict.fromkeys(self._columns))
            self._single_values = self._one_by_one(bag, kept)
        shown = kept.shown(joins.shown_by(self._members[bag]))
        index = len(self._nodes)
        for position, above in hung:
            self._nodes[position] = replace(self._nodes[position], parent=index, parent_key=above)
        self._nodes.append(replace(self._node(bag, tuple(kept.exprs), key), shown=shown))
        return index, kept

    def _one_by_one(self, bag: int, kept: KeptColumns) -> dict[int, tuple[int, ...]]:
        """The positions of arguments of `RequestedRows.one_by_one`, for calls that the root has."""
        members, result = self._members[bag], {}
        for call, parts in self._joins.requested.single_values.items() if members else ():
            columns = [self._own(part, members) for part in parts]
            if all(part is not None for part in columns):
                result[call] = tuple(kept.place_of(part) for part in columns if part is not None)
        return result

    def _own(self, expr: Expr, members: frozenset[int]) -> Expr | None:
        """The column, or an equal one, if these relations have one."""
        if self._joins.relations.owners_of(expr) <= members:
            return expr
        class_ = _class_of(self._joins, expr)
        equal = () if class_ is None else self._joins.classes[class_].members_in(members)
        return equal[0] if equal else None

    def _node(self, bag: int, kept: tuple[Expr, ...], key: tuple[int, ...]) -> ShapeNode:
        members = self._members[bag]
        if not members:
            return ShapeNode((), None, kept, key)
        rows, circle = rows_of(members, self._joins), circle_of(members, self._joins)
        accesses = tuple(scan.access for scan in rows.scans)
        arguments = self._arguments(bag)
        return ShapeNode(accesses, rows, kept, key, arguments=arguments, circle=circle)

    def _arguments(self, bag: int) -> tuple[int, ...]:
        """The calls whose arguments are of this bag; constants belong to the first relation."""
        joins = self._joins
        elsewhere = {call for edge in self._branches for call in joins.calls_of_edge(edge)}
        elsewhere |= joins.requested.one_by_one
        result = []
        for call, parts in joins.requested.arguments.items():
            owners = frozenset().union(*(joins.relations.owners_of(part) for part in parts))
            if parts and call not in elsewhere and self._place_of(min(owners or {0})) == bag:
                result.append(call)
        return tuple(result)

    def _branch(self, beside: int, kept: KeptColumns) -> tuple[int, tuple[int, ...]]:
        """The nodes of an edge's other side; the position of its root, and those of its key."""
        edge = self._joins.edges[beside]
        branch = self._branches[beside]
        start = len(self._nodes)
        self._nodes.extend(
            replace(node, parent=None if node.parent is None else node.parent + start)
            for node in branch.nodes
        )
        null_safe = tuple(key.null_safe for key in edge.keys)
        root = replace(self._nodes[-1], edge=edge.edge, key=branch.columns, null_safe=null_safe)
        self._nodes[-1] = root
        return len(self._nodes) - 1, tuple(kept.place_of(key.left) for key in edge.keys)

    def _member(self, class_: int, bag: int) -> Expr:
        """The column that the bag has of a class; a virtual root has that of the group."""
        key_class = self._joins.classes[class_]
        members = key_class.members_in(self._members[bag])
        requested = [column for column in self._joins.requested.columns if key_class.has(column)]
        return members[0] if members else requested[0]


class KeptColumns:
    """The columns that a node keeps, each class once."""

    def __init__(self, classes: Sequence[KeyClass]) -> None:
        self._classes = classes
        self.exprs: list[Expr] = []

    def place_of(self, expr: Expr) -> int:
        """The position of the column, or of an equal one; added if missing."""
        for index, other in enumerate(self.exprs):
            if is_same(expr, other):
                return index
            if any(result.has(expr) and result.has(other) for result in self._classes):
                return index
        return self.put(expr)

    def put(self, expr: Expr) -> int:
        """The position of the column, which is added even if it is there."""
        self.exprs.append(expr)
        return len(self.exprs) - 1

    def shown(self, requested: Shown) -> tuple[tuple[ColumnRef, int], ...]:
        """The positions of columns whose very values are requested."""
        result = []
        for ref, expr in requested:
            # Join keys of doubles do not distinguish 0.0 from -0.0.
            position = self.put(expr) if ref.type.is_fractional else self.place_of(expr)
            result.append((ref, position))
        return tuple(result)


# The columns that a plan reads of its joins, from these to its root, in terms of the relations' own
# columns.


def joined_columns(root: p.Plan, joins: p.Plan) -> tuple[p.ComputedColumn, ...]:
    """The join columns that the plan above reads, in terms of the relations' own."""
    column_ids, relations = _read_above(root, joins), relations_of(joins)
    return tuple(
        p.ComputedColumn(attribute, relations.resolved(attribute.ref()))
        for attribute in joins.attributes
        if attribute.id in column_ids
    )


def shown_columns(joined: Sequence[p.ComputedColumn]) -> Shown:
    """The relations' columns that these are computed from, each once."""
    refs = {
        part.id: part
        for column in joined
        for part in column.expr.walk()
        if isinstance(part, ColumnRef)
    }
    return tuple((ref, ref) for ref in refs.values())


def outputs_above(
    root: p.Plan, joins: p.Plan, joined: Sequence[p.ComputedColumn]
) -> tuple[tuple[AttributeId, Expr], ...] | None:
    """The plan's columns in terms of the relations' own; None if not only columns are above the
    joins."""
    exprs: dict[AttributeId, Expr] = {a.id: a.ref() for a in root.attributes}
    node = root
    while node is not joins:
        if not isinstance(node, p.Project | p.Sort):
            return None
        if isinstance(node, p.Project):
            outputs = {output.attribute.id: output.expr for output in node.outputs}
            exprs = {name: expr.substitute(outputs) for name, expr in exprs.items()}
        node = node.child
    joined_exprs = {column.attribute.id: column.expr for column in joined}
    return tuple((name, expr.substitute(joined_exprs)) for name, expr in exprs.items())


def _read_above(root: p.Plan, joins: p.Plan) -> frozenset[AttributeId]:
    columns = root.ids
    node = root
    while node is not joins:
        read = frozenset().union(*(expr.columns for expr in node.expressions))
        match node:
            case p.Project() | p.Aggregate():
                columns = read
            case p.Distinct():
                # It compares all columns, whichever of them are used above.
                columns = node.ids
            case _:
                columns |= read
        (node,) = node.inputs
    return columns


# The rows of a bag as a plan: the combinations of its relations' rows that meet all conditions over
# them alone, equalities of classes included; other joins inside it are on top.


def rows_of(bag: Collection[int], joins: JoinGraph) -> p.Plan:
    """The plan of a bag; conditions that read no column go to that of the first relation."""
    relations, count = joins.relations, joins.count
    members = [relation for relation in sorted(bag) if relation < count]
    conditions = conditions_in(bag, joins)
    for condition in _equalities(bag, joins.classes):
        conditions.append((condition, relations.owners_of(condition)))
    plans = [
        selected(
            relations.plans[relation],
            [condition for condition, read in conditions if read == {relation}],
        )
        for relation in members
    ]
    joined: p.Plan = reduce(lambda left, right: p.Join(p.JoinKind.INNER, left, right, None), plans)
    if len(members) > 1:
        assert isinstance(joined, p.Join)
        between = [part for part, read in conditions if len(read) > 1 and max(read) < count]
        joined = p.Join(p.JoinKind.INNER, joined.left, joined.right, all_of(between))
    for beside in joins.joins_inside(bag):
        on, null_aware = all_of(beside.parts), beside.null_aware
        joined = p.Join(beside.kind, joined, beside.other, on, null_aware, span=beside.span)
    return selected(joined, [condition for condition, read in conditions if max(read) >= count])


def conditions_in(bag: Collection[int], joins: JoinGraph) -> list[tuple[Expr, frozenset[int]]]:
    """The conditions over this bag's relations alone, without equalities of a class; with these."""
    # What reads no column is met by the first relation's rows.
    read = [(part, joins.relations.owners_of(part) or {0}) for part in joins.conditions]
    return [(part, frozenset(owners)) for part, owners in read if owners <= frozenset(bag)]


def selected(plan: p.Plan, conditions: Sequence[Expr]) -> p.Plan:
    """The plan's rows for which all conditions are true."""
    predicate = all_of(conditions)
    return plan if predicate is None else p.Select(plan, predicate, span=predicate.span)


def _equalities(bag: Collection[int], classes: Sequence[KeyClass]) -> list[Expr]:
    result: list[Expr] = []
    for key_class in classes:
        op = CompareOp.NULL_SAFE_EQUAL if key_class.null_safe else CompareOp.EQUAL
        members = key_class.members_in(bag)
        result.extend(Compare(op, members[0], other) for other in members[1:])
    return result


def all_of(conditions: Sequence[Expr]) -> Expr | None:
    """The conjunction; None of nothing."""
    if len(conditions) > 1:
        return And(tuple(conditions))
    return conditions[0] if conditions else None


# Which part of a plan a tree may serve: a grouping over joins, or joins alone, at the top. Above
# the last condition or LIMIT no row is lost, whatever is grouped there (`compile.joins`), so
# nothing is computed (*bits* mode). Below a condition on groups there is one grouping and then the
# joins. The sketch of a UNION is that of its branches, each a block of its own in which no LIMIT is
# the last step. For an answer, a grouping or DISTINCT over the joins belongs to the block, so that
# its groups have their values.


class Block(Struct, frozen=True):
    """The grouping whose groups something decides on (None: nothing decides), and the joins.
    `decided` is the uppermost condition on groups or LIMIT: nothing above decides. `replaced` is
    the plan node whose rows the groups are: the grouping, or the DISTINCT that it is."""

    grouping: p.Aggregate | None
    joins: p.Plan
    decided: p.Plan | None = None
    replaced: p.Plan | None = None


def branches_of(root: p.Plan) -> tuple[p.Plan, ...]:
    """The branches of the UNIONs at the top, left to right; without one the plan itself."""
    below = _undecided(root)
    if isinstance(below, p.SetOperation) and below.kind is p.SetKind.UNION:
        return (*branches_of(below.left), *branches_of(below.right))
    return (root,)


def block_of(root: p.Plan, *, is_branch: bool = False) -> Block | NoTree:
    """The block of a plan without UNION at its top, or what prevents one."""
    below = _undecided(root)
    top = last_top(root)
    if top is not None and not is_branch:
        return _decided(top.child, top)
    if isinstance(below, p.TopK):
        return _no_block("a LIMIT or rank that is not the last step", below)
    if isinstance(below, p.Select) and isinstance(_ungrouped(below), p.Aggregate):
        return _decided(below, below)
    return Block(None, below)


def answered_blocks(root: p.Plan, *, is_branch: bool) -> Iterator[Block | NoTree]:
    """The blocks that may give the requested rows, the best first. If nothing decides, the groups
    of the lowest grouping come first, then the joined rows."""
    result = block_of(root, is_branch=is_branch)
    if isinstance(result, Block) and result.grouping is None:
        grouped = _lowest_grouping(root, result.joins)
        if grouped is not None:
            yield grouped
    yield result


def _lowest_grouping(root: p.Plan, joins: p.Plan) -> Block | None:
    """The lowest grouping or DISTINCT above the joins as a block whose groups all count."""
    result, node = None, root
    while node is not joins:
        assert isinstance(node, p.Project | p.Sort | p.Distinct | p.Aggregate), (
            "nothing decides above"
        )
        result = node if isinstance(node, p.Distinct | p.Aggregate) else result
        node = node.child
    if isinstance(result, p.Distinct):
        keys = p.ComputedColumn.unchanged(result.attributes)
        grouping = p.Aggregate(result.child, keys, (), span=result.span)
        return Block(grouping, result.child, result, result)
    if result is None or result.grouping_sets is not None:
        return None
    return Block(result, result.child, result, result)


def _undecided(root: p.Plan) -> p.Plan:
    """What is below everything that loses no row."""
    node = root
    while isinstance(node, p.Project | p.Sort | p.Distinct | p.Aggregate):
        node = node.child
    return node


def last_top(root: p.Plan) -> p.TopK | None:
    """The LIMIT that decides the query's rows, if nothing above it does."""
    node = root
    while isinstance(node, p.Project | p.Sort):
        node = node.child
    return node if isinstance(node, p.TopK) else None


def _ungrouped(node: p.Plan) -> p.Plan:
    while isinstance(node, p.Select | p.Project | p.Sort):
        node = node.child
    return node


def _decided(start: p.Plan, by: p.Plan) -> Block | NoTree:
    """The block below a condition on groups or a LIMIT."""
    node = _ungrouped(start)
    if not isinstance(node, p.Aggregate):
        if isinstance(by, p.TopK) and not isinstance(node, p.Distinct | p.TopK):
            return _no_block("a LIMIT or rank over rows that are not grouped", by)
        return _no_block("a step between the joins and the grouping", node)
    if node.grouping_sets is not None:
        return _no_block("a grouping by several sets of columns", node)
    return Block(node, node.child, by, node)


def _no_block(text: str, node: p.Plan) -> NoTree:
    return NoTree(Reason.NOT_AT_THE_TOP, text, node.span)
