"""A tree grown from joins that are taken apart: its root, and the trees that hang on its bags.

Law: the bags are acyclic when they hang on the root, so what two nodes share lies on all nodes
between them. Where two bags have all columns asked for together, the root is virtual: a node of
these alone, on which only bags hang that have all of them; else it is the bag that has them. The
other side of an edge is a tree of its own, whose root has the columns that are compared; one node
where it cannot be one.
Out of scope: whether the plan may have a tree at all (`circuits.trees.shaping`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.circuits.trees.bags import Bags, with_all_columns, without_cores
from impctl.circuits.trees.early import late_part
from impctl.circuits.trees.nodes import Branch, Kept, Layout, nodes_of_layout
from impctl.circuits.trees.rooted import Bag, Hung, best_rooted, rooted_at
from impctl.circuits.trees.rows import selected
from impctl.circuits.trees.shape import Merging, NoTree, Reason, ShapeNode
from impctl.circuits.trees.taken_apart import Asked, TakenApart, taken_apart
from impctl.engine.jointree.spec import Edge
from impctl.expr.nodes import ColumnRef, Expr, columns_of
from impctl.plan.nodes import Distinct, Plan, Sort, scans_of
from impctl.types import TableName

Changed = Mapping[TableName, int]
"""How many rows of each table change; 0 of a table that is not named."""


def objection_to(joins: TakenApart) -> NoTree | None:
    """Why more than one node cannot tell what is asked; None if it can."""
    arguments = [part for parts in joins.asked.arguments.values() for part in parts]
    read = [*joins.asked.columns, *arguments]
    for expr in read:
        if columns_of(expr) & joins.bounded:
            return NoTree(
                Reason.UNSURE, "a sum of doubles is used for grouping or summed again", expr.span
            )
    for ref, expr in joins.asked.shown:
        if columns_of(expr) & joins.bounded:
            return NoTree(Reason.UNSURE, "a sum of doubles is a column of joined rows", ref.span)
    late = late_part([*joins.relations.late, *read])
    if late is not None:
        text = "an expression may fail on rows that the joins drop"
        return NoTree(Reason.MAY_FAIL, text, late.span)
    return None


def grown(joins: TakenApart, changed: Changed, *, may_be_virtual: bool) -> Branch:
    """The tree; of one node where all relations end up in one bag."""
    branches = {at: _other_side(joins, at, changed) for at in joins.edges}
    # A virtual root has no values that could be told one by one.
    may_be_virtual = may_be_virtual and not joins.asked.one_by_one
    bags, virtual, holders = _settled(joins, may_be_virtual=may_be_virtual)
    changes = [_changes(joins, bag, changed) for bag in bags.members]
    sets = bags.classes(joins.classes)
    if virtual is not None:
        tree = rooted_at(0, (virtual, *sets), (0, *changes), is_virtual=True)
    else:
        roots = [at for at in range(len(sets)) if all(at in holder for holder in holders)]
        read = [expr for parts in joins.asked.told_one_by_one.values() for expr in parts]
        having = [_holders(joins, bags, expr) for expr in read]
        roots = [at for at in roots if all(at in result for result in having)] or roots
        tree = best_rooted(roots, sets, changes, _hung(joins, bags, branches, changed))
    return nodes_of_layout(Layout(joins, bags, virtual, tree, branches))


def _settled(
    joins: TakenApart, *, may_be_virtual: bool
) -> tuple[Bags, Bag | None, list[frozenset[int]]]:
    """Acyclic bags, a virtual root if there is one, else per column the bags that have it.

    One bag then has all of them.
    """
    bags = without_cores(joins.bags, joins.classes, joins.equal_at)
    virtual = _virtual(joins, bags) if may_be_virtual else None
    holders = [_holders(joins, bags, column) for column in joins.asked.columns]
    if virtual is None and holders and not frozenset.intersection(*holders):
        span = joins.asked.columns[0].span
        reason = Merging("the GROUP BY columns come from several tables", span)
        bags = with_all_columns(bags, joins.classes, holders, reason)
        bags = without_cores(bags, joins.classes, joins.equal_at)
        virtual = _virtual(joins, bags) if may_be_virtual else None
        holders = [_holders(joins, bags, column) for column in joins.asked.columns]
    return bags, virtual, holders


def _virtual(joins: TakenApart, bags: Bags) -> Bag | None:
    """The classes of the columns asked for, where at least two bags have all of them."""
    result = [_class_of(joins, column) for column in joins.asked.columns]
    classes = frozenset(one for one in result if one is not None)
    if not classes or None in result:
        return None
    return classes if sum(classes <= bag for bag in bags.classes(joins.classes)) > 1 else None


def _class_of(joins: TakenApart, column: Expr) -> int | None:
    return next((at for at, one in enumerate(joins.classes) if one.has(column)), None)


def _holders(joins: TakenApart, bags: Bags, column: Expr) -> frozenset[int]:
    """The bags that have the column, or one that is equal; a constant is everywhere."""
    owners = joins.relations.owners_of(column)
    if not owners:
        return frozenset(range(len(bags.members)))
    result = _class_of(joins, column)
    if result is not None:
        owners |= joins.classes[result].relations
    held = frozenset().union(*bags.members)
    # No bag has what an edge's other side has.
    return frozenset(bags.place_of(owner) for owner in owners & held)


def _other_side(joins: TakenApart, at: int, changed: Changed) -> Branch:
    """The tree of an edge's other side."""
    edge = joins.edges[at]
    other = joins.relations.beside[at].other
    # How often a partner is there does not matter to these edges.
    while edge.edge is not Edge.LEFT and isinstance(other, Distinct | Sort):
        other = other.child
    rows = selected(other, edge.own)
    shown = tuple((ref, ref) for ref, _ in joins.shown_by(frozenset({joins.count + at})))
    asked = Asked(tuple(key.below for key in edge.keys), joins.calls_of_edge(at), shown)
    below = taken_apart(rows, asked)
    # What is computed of a padded row need not be NULL, as a column of it is.
    are_columns = all(isinstance(expr, ColumnRef) for _, expr in below.asked.shown)
    if are_columns and objection_to(below) is None:
        result = grown(below, changed, may_be_virtual=False)
        if len(set(result.columns)) == len(result.columns):
            return result
    return _one_node(rows, asked)


def _one_node(rows: Plan, asked: Asked) -> Branch:
    every = tuple(range(len(asked.columns)))
    accesses = tuple(scan.access for scan in scans_of(rows))
    arguments = tuple(at for at, parts in asked.arguments.items() if parts)
    kept = Kept(())
    for column in asked.columns:
        kept.put(column)
    shown = kept.shown(asked.shown)
    node = ShapeNode(accesses, rows, tuple(kept.exprs), every, arguments=arguments, shown=shown)
    return Branch((node,), every, asked.arguments)


def _changes(joins: TakenApart, bag: frozenset[int], changed: Changed) -> int:
    """How many rows of the bag's tables change."""
    plans = [joins.relations.plans[at] for at in bag if at < joins.count]
    plans += [joins.relations.beside[at].other for at in joins.inside if joins.host_of(at) <= bag]
    return sum(changed.get(scan.table, 0) for plan in plans for scan in scans_of(plan))


def _hung(
    joins: TakenApart, bags: Bags, branches: Mapping[int, Branch], changed: Changed
) -> Sequence[Hung]:
    """Per bag how far below it the nodes of its branches are, and how many of their rows change."""
    result: list[Hung] = [Hung() for _ in bags.members]
    for at, branch in branches.items():
        place = bags.place_of(min(joins.host_of(at)))
        depths = [_depth(branch.nodes, node) + 1 for node in range(len(branch.nodes))]
        changes = [
            0 if node.rows is None else sum(changed.get(s.table, 0) for s in scans_of(node.rows))
            for node in branch.nodes
        ]
        one = result[place]
        result[place] = Hung((*one.below, *depths), (*one.changed, *changes))
    return result


def _depth(nodes: Sequence[ShapeNode], at: int) -> int:
    parent = nodes[at].parent
    return 0 if parent is None else 1 + _depth(nodes, parent)
