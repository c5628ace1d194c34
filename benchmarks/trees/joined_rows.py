"""How many rows an index join would write down, counted without writing one.

Law: of each prefix of the joins, in the order in which the index joins them, the rows are counted
exactly, by a join tree of its own that keeps nothing but counts; where a prefix has no tree, as one
that closes a circle, it has no more rows than the one before has partners, and is left out. A count
beyond 62 bits is told as that. Out of scope: what is made of it (`measures.tree_cost`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.trees.streams import Tables
from benchmarks.trees.ways import Followed
from impctl.compile.compile import compile_plan
from impctl.compile.flows import BlockedError
from impctl.compile.joins import chain_of
from impctl.compile.jointree.graph import NoTree
from impctl.compile.jointree.shape import planned_blocks
from impctl.data.schema import LONG
from impctl.errors import NotExactError
from impctl.expr.nodes import And, Compare, CompareOp, Expr, Literal
from impctl.plan import nodes as p
from impctl.sketch.sketch import RangePartition
from impctl.types import AccessId

MOST = 1 << 62
"""What cannot be counted any more counts as this."""

_COUNT = p.Attribute("impctl/joined", "joined", LONG, nullable=False)


def joined_rows(
    core: p.Plan, partitions: Mapping[AccessId, RangePartition], tables: Tables
) -> int | None:
    """Rows of all prefixes together, at most `MOST`; None where none can be counted."""
    counts = [
        count
        for block in planned_blocks(core)
        if block.block is not None
        for prefix in _prefixes(block.block.joins)
        if (count := _counted(prefix, partitions, tables)) is not None
    ]
    return min(sum(counts), MOST) if counts else None


def _prefixes(joins: p.Plan) -> Iterator[p.Plan]:
    """The first two relations joined, the first three, and so on to all of them."""
    node = joins
    while isinstance(node, p.Select | p.Project | p.Sort):
        node = node.child
    if not isinstance(node, p.Join) or node.kind is not p.JoinKind.INNER:
        return
    chain = chain_of(node)
    first, *others = chain.relations
    result, ids, left = first.plan, first.ids, list(chain.conditions)
    for one in others:
        ids |= one.ids
        own = [part for part in left if part.columns <= ids]
        left = [part for part in left if not part.columns <= ids]
        result = p.Join(p.JoinKind.INNER, result, one.plan, _all_of(own))
        yield result


def _all_of(conditions: list[Expr]) -> Expr | None:
    if len(conditions) < 2:
        return conditions[0] if conditions else None
    return And(tuple(conditions))


def _counted(
    joins: p.Plan, partitions: Mapping[AccessId, RangePartition], tables: Tables
) -> int | None:
    counts = p.AggregateOutput(_COUNT, p.AggregateCall("count"))
    counted = p.Aggregate(joins, (), (counts,))
    root = p.Select(counted, Compare(CompareOp.GREATER, _COUNT.ref(), Literal(0, LONG)))
    accesses = {scan.access for scan in joins.scans}
    sketched = {access: result for access, result in partitions.items() if access in accesses}
    try:
        compiled = compile_plan(root, sketched, {}, barriers=(), has_trees=True)
        if any(isinstance(shape, NoTree) for shape in compiled.shapes):
            return None
        session = Followed(compiled, tables).session
    except BlockedError:
        return None
    except NotExactError:
        return MOST
    # The one operator that has the count's column is the tree.
    outputs = (one.output().columns for one in session.circuit if one.can_output)
    (count,) = (columns[_COUNT.id] for columns in outputs if _COUNT.id in columns)
    return int(count.values[0])
