"""Parts of a plan built as join trees in place of their joins and groupings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct

from impctl.compile.aggregates import Calls, read_calls
from impctl.compile.flows import (
    Column,
    Flow,
    check,
    known_type,
    known_type_of,
    refuse_approximate,
    typed,
)
from impctl.compile.jointree.decompose import Block, outputs_above
from impctl.compile.jointree.graph import CircleRows, NoTree, ShapeNode, TreeShape, partition_column
from impctl.data.schema import LONG
from impctl.engine.accumulators import AggregateColumn, Spread
from impctl.engine.extremes import FirstValue
from impctl.engine.jointree.cyclic import Circle, Probe, Probed
from impctl.engine.jointree.enumerate import EnumeratedRows, JoinedRows, JoinedRowTags, Shown
from impctl.engine.jointree.spec import Access, JoinTree, Link, TreeNode, TypedColumns
from impctl.engine.jointree.tree import Live, Tree
from impctl.engine.linear import ProjectOperator as ProjectNode
from impctl.expr.nodes import Cast, ColumnRef, Expr, conjuncts
from impctl.plan.nodes import ComputedColumn, Plan, Scan, Select

if TYPE_CHECKING:
    from impctl.compile.builder import CircuitBuilder
    from impctl.sketch.sketch import RangePartition
    from impctl.types import AccessId, AttributeId

# A circle of relations as one operator that looks rows up: the joined rows with the requested
# columns and the ranges of all its relations. Relations over one table with the same conditions and
# ranges share one store.

_Source = tuple[object, ...]


class _Relation(Struct, frozen=True):
    """A relation's rows and kept columns. Relations with the same `source` share their `forms`, in
    terms of `names`, the table's columns."""

    flow: Flow
    source: _Source
    forms: tuple[Expr, ...]
    names: Mapping[AttributeId, Expr]
    keys: tuple[tuple[int, Expr], ...]  # The form of the column of each class


def build_circle(
    builder: CircuitBuilder,
    name: str,
    circle: CircleRows,
    requested: Collection[AttributeId],
    rows: Plan,
) -> Flow:
    """The joined rows with the requested columns; `rows` is their plan."""
    relations = [
        _relation(builder, index, plan, circle, frozenset(requested))
        for index, plan in enumerate(circle.plans)
    ]
    stores = list(dict.fromkeys(relation.source for relation in relations))
    flows, inputs, columns_back = [], [], []
    for index, relation in enumerate(relations):
        # Relations of one store keep the same columns, in the same order.
        forms_of_store = (other.forms for other in relations if other.source == relation.source)
        forms = list(dict.fromkeys(chain.from_iterable(forms_of_store)))
        exprs = [form.substitute(relation.names) for form in forms]
        columns = tuple(
            (f"{name}/{index}.{number}", known_type_of(expr, rows.span))
            for number, expr in enumerate(exprs)
        )
        outputs = [(column, expr) for (column, _), expr in zip(columns, exprs, strict=True)]
        flow = builder.project(relation.flow, outputs, columns, rows)
        refuse_approximate(flow, "looking up", rows.span)
        flows.append(flow)
        classes = tuple((class_, forms.index(form)) for class_, form in relation.keys)
        inputs.append(Probed(columns, classes, len(flow.accesses), stores.index(relation.source)))
        columns_back += [
            (expr.id, ColumnRef(*column))
            for expr, column in zip(exprs, columns, strict=True)
            if isinstance(expr, ColumnRef) and expr.id in requested
        ]
    kept = tuple(ref.id for _, ref in columns_back)
    probe = Probe(name, Circle(tuple(inputs), circle.null_safe, kept))
    columns_kept: tuple[Column, ...] = tuple((ref.id, ref.type) for _, ref in columns_back)
    accesses = tuple(access for flow in flows for access in flow.accesses)
    result = Flow(builder.put(probe, *flows), columns_kept, accesses)
    named: tuple[Column, ...] = tuple((column_id, ref.type) for column_id, ref in columns_back)
    return builder.project(result, list(columns_back), named, rows)


def _relation(
    builder: CircuitBuilder,
    index: int,
    plan: Plan,
    circle: CircleRows,
    requested: frozenset[AttributeId],
) -> _Relation:
    flow = builder.build(plan, must_be_sure=True)
    forms: dict[AttributeId, Expr] = {}
    names: dict[AttributeId, Expr] = {}
    source: _Source = (index,)
    scan = plan
    predicates: list[Expr] = []
    while isinstance(scan, Select):
        predicates += conjuncts(scan.predicate)
        scan = scan.child
    if isinstance(scan, Scan):
        for attribute in scan.attributes:
            kind = known_type(attribute.type, scan.span)
            forms[attribute.id] = ColumnRef(f"column {attribute.name}", kind)
            names[f"column {attribute.name}"] = ColumnRef(attribute.id, kind)
        conditions = frozenset(part.substitute(forms) for part in predicates)
        source = (scan.table, frozenset(names), conditions, builder.sketched.get(scan.access))
    exprs: list[Expr] = [expr for _, expr in circle.keys[index]]
    kinds = {a.id: known_type(a.type, plan.span) for a in plan.attributes}
    exprs += [ColumnRef(name, kinds[name]) for name in sorted(requested & kinds.keys())]
    expr_forms = tuple(expr.substitute(forms) for expr in exprs)
    keys = tuple((class_, expr.substitute(forms)) for class_, expr in circle.keys[index])
    return _Relation(flow, source, expr_forms, names, keys)


# Blocks of a plan built as join trees, in place of their joins and groupings. A block's flow
# carries the ranges that its joins would have, and no columns, since no operator above reads one. A
# tree's groups replace the plan's grouping, with a hidden column that passes through all operators
# that decide; on the way down, the survivors tell which groups count. A block without a tree is
# built as usual. For an answer, the groups or joined rows replace their plan nodes without ranges,
# and the rest of the plan is built on them; the ranges go beside. A plan that only outputs joined
# rows builds no more.


class PlannedBlock(Struct, frozen=True):
    """One branch of a plan, its block, and its shape or the reason why it has none."""

    branch: Plan
    block: Block | None
    shape: TreeShape | NoTree


def build_blocks(builder: CircuitBuilder, blocks: Sequence[PlannedBlock]) -> Flow:
    """Build the sum of all branches' ranges. BlockedError for what the engine does not maintain."""
    flows = []
    for block in blocks:
        if isinstance(block.shape, NoTree) or block.block is None:
            flows.append(builder.build(block.branch, must_be_sure=False))
        else:
            flows.append(_built(builder, block.block, block.shape))
    if len(flows) == 1:
        return flows[0]
    return builder.union(flows, (), tuple(a for flow in flows for a in flow.accesses))


def plant_blocks(builder: CircuitBuilder, blocks: Sequence[PlannedBlock]) -> list[Flow]:
    """Plant the rows of all blocks with trees, for the plan to be built on, without ranges. Returns
    the flows with the ranges."""
    return [
        _built(builder, block.block, block.shape)
        for block in blocks
        if isinstance(block.shape, TreeShape) and block.block is not None
    ]


def _built(builder: CircuitBuilder, block: Block, shape: TreeShape) -> Flow:
    """The ranges of a block. What decides on its groups, if anything, is planted."""
    calls = None if shape.aggregate is None else read_calls(shape.aggregate)
    grown = _grown(builder, shape, calls)
    if shape.joined is not None:
        return _with_rows(builder, block, shape.joined, grown)
    operator = Tree(grown.tree)
    tree = Flow(builder.put(operator, *grown.inputs), (), ())
    if calls is None:
        return Flow(builder.put(Live(operator), tree, tree), (), grown.accesses)
    assert block.decided is not None
    builder.planted[id(block.replaced)] = _groups(builder, tree, operator, shape, calls)
    survivors = builder.build(block.decided, must_be_sure=False)
    builder.planted[id(block.decided)] = survivors
    survivors = builder.taking_part.get(id(block.decided), survivors)
    return Flow(builder.put(Live(operator), survivors, tree), (), grown.accesses)


def _with_rows(
    builder: CircuitBuilder, block: Block, joined: Sequence[ComputedColumn], grown: _BuiltTree
) -> Flow:
    operator = JoinedRows(grown.tree, grown.shown)
    columns_kept = tuple((column.name, column.kind) for column in grown.shown)
    rows = Flow(builder.put(operator, *grown.inputs), columns_kept, ())
    outputs = [(column.attribute.id, column.expr) for column in joined]
    columns = typed((column.attribute for column in joined), block.joins.span)
    builder.planted[id(block.joins)] = builder.project(rows, outputs, columns, block.joins)
    return Flow(builder.put(JoinedRowTags(operator), rows), (), grown.accesses)


def rows_from_tree(
    builder: CircuitBuilder, blocks: Sequence[PlannedBlock]
) -> tuple[EnumeratedRows, Flow] | None:
    """The rows of a plan that its one tree joins, and their ranges; None if an operator above keeps
    rows."""
    if len(blocks) != 1:
        return None
    (block,) = blocks
    shape = block.shape
    if isinstance(shape, NoTree) or shape.joined is None or block.block is None:
        return None
    outputs = outputs_above(block.branch, block.block.joins, shape.joined)
    if outputs is None:
        return None
    for _, expr in outputs:
        check(expr, block.branch.span)
    columns = typed(block.branch.attributes, block.branch.span)
    grown = _grown(builder, shape, None)
    operator = EnumeratedRows(grown.tree, grown.shown, ProjectNode(outputs), columns)
    rows = Flow(builder.put(operator, *grown.inputs), (), ())
    return operator, Flow(builder.put(JoinedRowTags(operator), rows), (), grown.accesses)


class _BuiltTree(Struct, frozen=True):
    """The engine's tree of a shape, the flows of its inputs, and the accesses of all of them."""

    tree: JoinTree
    inputs: tuple[Flow, ...]
    accesses: tuple[AccessId, ...]
    shown: tuple[Shown, ...]


def _grown(builder: CircuitBuilder, shape: TreeShape, calls: Calls | None) -> _BuiltTree:
    name = builder.name("tree")
    nodes: list[TreeNode] = []
    inputs: list[Flow] = []
    accesses: list[AccessId] = []
    for index, arguments in enumerate(_arguments(shape, calls)):
        node, own_name = shape.nodes[index], f"{name}/{index}"
        flow, kept, own_arguments = _prepared(builder, own_name, node, arguments, shape)
        links = tuple(
            Link(
                child,
                shape.nodes[child].edge,
                tuple(kept[i][0] for i in shape.nodes[child].parent_key),
            )
            for child in shape.children_of(index)
        )
        own_accesses = () if flow is None else flow.accesses
        nodes.append(
            TreeNode(
                own_name,
                None if flow is None else len(inputs),
                kept,
                tuple(kept[i][0] for i in node.key),
                node.null_safe,
                links,
                own_arguments,
                tuple(
                    Access(position, _by(node, access, builder.sketched[access], kept))
                    for position, access in enumerate(own_accesses, len(accesses))
                ),
                bitwise=frozenset(kept[i][0] for ref, i in node.shown if ref.type.is_fractional),
            )
        )
        inputs += () if flow is None else (flow,)
        accesses += own_accesses
    columns = () if calls is None else calls.columns
    once = () if calls is None else _kept(calls, calls.distinct, shape, nodes[-1])
    ordered = () if calls is None else _kept(calls, calls.first_types, shape, nodes[-1])
    tree = JoinTree(name, tuple(nodes), shape.mode, columns, len(accesses), once, ordered)
    shown = tuple(
        Shown(ref.id, known_type(ref.type, ref.span), index, nodes[index].kept_names[kept_index])
        for index, node in enumerate(shape.nodes)
        for ref, kept_index in node.shown
    )
    return _BuiltTree(tree, tuple(inputs), tuple(accesses), shown)


def _kept(
    calls: Calls, requested: Collection[AttributeId], shape: TreeShape, root: TreeNode
) -> tuple[tuple[AttributeId, AttributeId], ...]:
    """The requested arguments, each with the column that the root keeps it as."""
    return tuple(
        (name, root.kept_names[shape.root.kept.index(expr)])
        for name, expr in calls.arguments
        if name in requested
    )


def _arguments(shape: TreeShape, calls: Calls | None) -> list[tuple[tuple[AttributeId, Expr], ...]]:
    """Per node the arguments that it computes, each by its first call's node."""
    result: list[dict[AttributeId, Expr]] = [{} for _ in shape.nodes]
    if calls is not None:
        exprs = dict(calls.arguments)
        # What counts once is kept, not summed up.
        placed = set(calls.distinct)
        for index, node in enumerate(shape.nodes):
            for call in node.arguments:
                for name in _read_by(calls.columns[call]):
                    if name not in placed:
                        result[index][name] = exprs[name]
                    placed.add(name)
    return [tuple(arguments.items()) for arguments in result]


def _read_by(column: AggregateColumn) -> tuple[AttributeId, ...]:
    part = column.accumulator
    parts = part.parts if isinstance(part, Spread) else (column.guard, part)
    names = (
        part.argument
        for part in parts
        if part is not None and not isinstance(part, FirstValue | Spread)
    )
    return tuple(dict.fromkeys(names))


def _prepared(
    builder: CircuitBuilder,
    name: str,
    node: ShapeNode,
    arguments: tuple[tuple[AttributeId, Expr], ...],
    shape: TreeShape,
) -> tuple[Flow | None, TypedColumns, TypedColumns]:
    """A node's rows as a flow with the columns it keeps and its arguments, by name and type."""
    span = None if shape.top is None else shape.top.span
    kept = [(f"{name}/{index}", expr) for index, expr in enumerate(node.kept)]
    types = [(column_id, known_type_of(expr, span)) for column_id, expr in (*kept, *arguments)]
    stored = list(types)
    for ref, index in node.shown:
        if ref.type.is_fractional:
            stored[index] = (stored[index][0], LONG)
    if node.rows is None:
        return None, tuple(stored), ()
    outputs = (*kept, *arguments)
    if node.circle is None:
        flow = builder.build(node.rows, must_be_sure=True)
    else:
        requested = frozenset().union(*(expr.columns for _, expr in outputs))
        circle = builder.name("probe")
        flow = build_circle(builder, circle, node.circle, requested, node.rows)
    flow = builder.project(flow, outputs, tuple(types), node.rows)
    refuse_approximate(flow, "looking up or adding up", node.rows.span)
    return flow, tuple(stored[: len(kept)]), tuple(stored[len(kept) :])


def _by(
    node: ShapeNode, access: AccessId, partition: RangePartition, kept: TypedColumns
) -> tuple[AttributeId, RangePartition] | None:
    """The kept column that gives the access's range, if there is one."""
    index = partition_column(node, access, partition.attribute)
    if index is None or kept[index][1] != partition.type:
        return None
    return kept[index][0], partition


def _groups(
    builder: CircuitBuilder, tree: Flow, operator: Tree, shape: TreeShape, calls: Calls
) -> Flow:
    """The tree's groups as rows of the plan's grouping, and their hidden numbers."""
    grouping = shape.aggregate
    assert grouping is not None
    columns = typed(grouping.attributes, grouping.span)
    root = operator.tree.root
    hidden: Column = (operator.tree.group, LONG)
    outputs: list[tuple[AttributeId, Expr]] = []
    for (name, kind), index in zip(columns, shape.groups, strict=False):
        column_id, root_kind = root.kept[index]
        ref = ColumnRef(column_id, root_kind)
        outputs.append((name, ref if root_kind == kind else Cast(ref, kind)))
    own_columns = columns[len(shape.groups) :]
    outputs.extend((name, ColumnRef(name, kind)) for name, kind in (*own_columns, hidden))
    key_columns = tuple(root.kept[index] for index in dict.fromkeys(shape.groups))
    flow = Flow(
        tree.wire, (*key_columns, *own_columns, hidden), (), calls.inexact, integral=calls.integral
    )
    result = builder.project(flow, outputs, (*columns, hidden), grouping)
    return Flow(
        result.wire, result.columns, (), calls.inexact, integral=calls.integral, carried=(hidden,)
    )
