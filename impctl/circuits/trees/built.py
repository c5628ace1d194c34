"""Join trees as operators: rows of each node, the way up, what decides, the way down.

Law: the operators follow from the shape alone, and what comes out are the fragments that a circuit
of joins would count. What decides on groups (conditions, a LIMIT, a rank) is built as it is over
any grouping; beside the columns of a group its number goes along, hidden, to the way down.
A plan without a tree is refused by name (`NoTreeError`), but what joins nothing is built as ever.
Out of scope: which trees there are (`circuits.trees.shaping`), what they compute (`engine.trees`).
"""

from __future__ import annotations

from collections.abc import Mapping

from impctl.aliases import AccessId, AttributeId
from impctl.circuits.calls import Calls, read_calls
from impctl.circuits.flows import Column, Flow, check, known_type, typed
from impctl.circuits.plumbing import Plumbing
from impctl.circuits.trees.blocks import branches_of, undecided
from impctl.circuits.trees.ranges import told_by
from impctl.circuits.trees.shape import BuiltTree, NoTree, Reason, ShapeNode, TreeShape
from impctl.circuits.trees.shaping import tree_shapes
from impctl.data.schema import LONG
from impctl.engine.operators.live import Live
from impctl.engine.operators.project import Project as ProjectOperator
from impctl.engine.operators.tree import Tree
from impctl.engine.trees.spec import Access, JoinTree, Link, Node
from impctl.errors import ImpctlError, UnsupportedError
from impctl.expr.nodes import Cast, ColumnRef, Expr, Span, columns_of
from impctl.expr.types import type_of
from impctl.plan.nodes import Aggregate, Plan, attributes_of
from impctl.sketch.partition import RangePartition


def _calls_of(aggregate: Aggregate) -> Calls:
    """The calls as a tree keeps them: all values of extremes, nothing counted once."""
    calls = read_calls(aggregate)
    if calls.distinct:
        raise NoTreeError("COUNT and SUM of DISTINCT are not kept by trees yet", aggregate.span)
    return calls


class NoTreeError(ImpctlError):
    """A tree was asked for and there is none; carries the reason and the place in the SQL.

    Never leaves the room as it is: `way` tells it to who asked.
    """

    def __init__(self, text: str, span: Span | None) -> None:
        super().__init__(text, code="no_join_tree")
        self.span = span


def build_trees(
    builder: Plumbing,
    root: Plan,
    sketched: Mapping[AccessId, RangePartition],
    wanted: tuple[AccessId, ...],
) -> Flow | None:
    """The fragments of the plan's sketches, told by trees; None where nothing is joined.

    NoTreeError where something is, and has no tree.
    """
    branches, shapes = branches_of(root), tree_shapes(root)
    alone = [isinstance(s, NoTree) and s.reason is Reason.ONE_TABLE for s in shapes]
    if all(alone):
        return None
    flows = []
    for branch, shape, is_alone in zip(branches, shapes, alone, strict=True):
        if is_alone:
            flows.append(builder.build(branch, must_be_sure=False))
        elif isinstance(shape, NoTree):
            raise NoTreeError(shape.text, shape.span)
        else:
            flows.append(_Building(builder, sketched, shape).flow(branch))
    return flows[0] if len(flows) == 1 else builder.union(flows, (), wanted)


class _Building:
    """One tree put into the circuit."""

    def __init__(
        self,
        builder: Plumbing,
        sketched: Mapping[AccessId, RangePartition],
        shape: TreeShape,
    ) -> None:
        self.builder = builder
        self.sketched = sketched
        self.shape = shape
        self.name = builder.name("tree")
        self.calls = None if shape.aggregate is None else _calls_of(shape.aggregate)
        self.accesses: list[AccessId] = []

    def flow(self, branch: Plan) -> Flow:
        """What the way down tells, a row per tuple and fragment."""
        flows: list[Flow] = []
        nodes: list[Node] = []
        for at, node in enumerate(self.shape.nodes):
            kept = self._kept(at, node)
            if node.rows is None:
                nodes.append(self._node(at, node, kept, None, (), ()))
                continue
            rows = self.builder.build(node.rows, must_be_sure=True)
            arguments = self._arguments(at, node)
            outputs = [*kept, *arguments]
            for _, expr in outputs:
                check(expr, node.rows.span)
            columns = tuple((name, known_type(type_of(e), e.span)) for name, e in outputs)
            place = self.builder.put(ProjectOperator(outputs), rows)
            accesses = self._accesses(node, kept, rows.accesses)
            nodes.append(self._node(at, node, kept, len(flows), columns[len(kept) :], accesses))
            flows.append(Flow(place, columns, rows.accesses))
        tree = self._operator(nodes)
        self.builder.trees.append(BuiltTree(self.shape, tree.tree))
        up = self.builder.put(tree, *flows)
        ran = Flow(up, (), ())
        survivors = ran if self.calls is None else self._decided(branch, up, tree.tree)
        down = self.builder.put(Live(tree), survivors, ran)
        return Flow(down, (), tuple(self.accesses))

    def _operator(self, nodes: list[Node]) -> Tree:
        columns = () if self.calls is None else self.calls.columns
        tree = JoinTree(self.name, tuple(nodes), self.shape.mode, columns, len(self.accesses))
        try:
            return Tree(tree)
        except UnsupportedError as refused:
            aggregate = self.shape.top
            span = None if aggregate is None else aggregate.span
            raise NoTreeError(refused.message, span) from refused

    # What a node keeps and reads

    def _kept(self, at: int, node: ShapeNode) -> list[tuple[AttributeId, Expr]]:
        """The columns that a node keeps, those of the root under the names of the group's."""
        names = [f"{self.name}/{at}/kept{place}" for place in range(len(node.kept))]
        if at == len(self.shape.nodes) - 1 and self.shape.aggregate is not None:
            for key, place in zip(self.shape.aggregate.keys, self.shape.groups, strict=True):
                names[place] = key.attribute.id
        return list(zip(names, node.kept, strict=True))

    def _names(self, at: int) -> list[AttributeId]:
        return [name for name, _ in self._kept(at, self.shape.nodes[at])]

    def _arguments(self, at: int, node: ShapeNode) -> list[tuple[AttributeId, Expr]]:
        """What calls read of the node's rows; what reads no column is of the node that says so."""
        if self.calls is None or self.shape.aggregate is None:
            return []
        assert node.rows is not None
        own = frozenset(attribute.id for attribute in attributes_of(node.rows))
        given = {
            argument
            for place in node.arguments
            for argument in self.shape.aggregate.aggregates[place].call.arguments
        }
        return [
            (name, expr)
            for name, expr in self.calls.arguments
            if (columns_of(expr) <= own if columns_of(expr) else expr in given)
        ]

    def _accesses(
        self,
        node: ShapeNode,
        kept: list[tuple[AttributeId, Expr]],
        accesses: tuple[AccessId, ...],
    ) -> tuple[Access, ...]:
        found = []
        for access in accesses:
            by = self._told_by(node, kept, access)
            found.append(Access(len(self.accesses), by))
            self.accesses.append(access)
        return tuple(found)

    def _told_by(
        self, node: ShapeNode, kept: list[tuple[AttributeId, Expr]], access: AccessId
    ) -> tuple[AttributeId, RangePartition] | None:
        """The kept column that tells a tuple's fragment of the access, if one does."""
        partition = self.sketched[access]
        place = told_by(node, access, partition.attribute)
        return None if place is None else (kept[place][0], partition)

    def _node(
        self,
        at: int,
        node: ShapeNode,
        kept: list[tuple[AttributeId, Expr]],
        number: int | None,
        arguments: tuple[Column, ...],
        accesses: tuple[Access, ...],
    ) -> Node:
        names = [name for name, _ in kept]
        links = []
        for child in self.shape.children_of(at):
            below = self.shape.nodes[child]
            links.append(Link(child, below.edge, tuple(names[p] for p in below.parent_key)))
        return Node(
            name=f"n{at}",
            input=number,
            kept=tuple((name, known_type(type_of(expr), expr.span)) for name, expr in kept),
            key=tuple(names[place] for place in node.key),
            null_safe=node.null_safe,
            links=tuple(links),
            arguments=arguments,
            accesses=accesses,
        )

    # What decides

    def _decided(self, branch: Plan, up: int, tree: JoinTree) -> Flow:
        """The rows of the groups that survive, with their numbers."""
        aggregate, top, calls = self.shape.aggregate, self.shape.top, self.calls
        assert aggregate is not None
        assert top is not None
        assert calls is not None
        kinds = dict(tree.root.kept)
        outputs = typed((output.attribute for output in aggregate.aggregates), top.span)
        columns = (*((name, kinds[name]) for name in tree.root.key), *outputs, (tree.group, LONG))
        found = Flow(up, columns, (), calls.inexact, whole=calls.whole)
        self.builder.hidden.add(tree.group)
        return self.builder.above(undecided(branch), top, self._as_grouped(found, aggregate, top))

    def _as_grouped(self, flow: Flow, aggregate: Aggregate, top: Aggregate) -> Flow:
        """The groups' rows under the names and types of the grouping: columns that are equal are
        kept once, and may be of another integral type."""
        names = self._names(len(self.shape.nodes) - 1)
        kinds = dict(flow.columns)
        outputs: list[tuple[AttributeId, Expr]] = []
        for key, place in zip(aggregate.keys, self.shape.groups, strict=True):
            kind = known_type(key.attribute.type, top.span)
            held: Expr = ColumnRef(names[place], kinds[names[place]])
            outputs.append((key.attribute.id, held if type_of(held) == kind else Cast(held, kind)))
        values = [output.attribute.id for output in aggregate.aggregates]
        outputs += [(name, ColumnRef(name, kinds[name])) for name in values]
        if all(isinstance(expr, ColumnRef) and expr.id == name for name, expr in outputs):
            return flow
        return self.builder.project(flow, outputs, typed(attributes_of(top), top.span), top)
