"""A query's sketch asked anew of DuckDB: by semi joins up and down the join tree, never joining.

Law: the text follows from the tree's shape. Each node keeps the rows that find partners below
(up), then those that a row above wants (down); where a condition decides on groups, the root keeps
the rows of groups that pass, which DuckDB finds by the query itself. What is left of an access has
exactly the ranges of its sketch; nobody believes that, they are compared. Rows lie in DuckDB's own
tables, in memory, so that reading them costs it as little as it can.
Out of scope: UNION, LIMIT, and plans without a tree, each told by its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from sqlglot import exp, parse_one

from benchmarks.trees.streams import Tables
from impctl.compile.jointree.build import PlannedBlock
from impctl.compile.jointree.graph import NoTree, ShapeNode, TreeShape
from impctl.compile.jointree.shape import planned_blocks
from impctl.data.vector import from_arrow
from impctl.engine.jointree.spec import Edge
from impctl.measure.duckdb import ParquetSql
from impctl.plan.nodes import Attribute, ComputedColumn, Plan, Project, Scan, Select
from impctl.sketch.sketch import RangePartition, RangeSet
from impctl.spark.expressions import DIALECT
from impctl.spark.render import Renderer
from impctl.tables.snapshot import to_arrow_type
from impctl.types import AccessId

if TYPE_CHECKING:
    from sqlglot.expressions import Expr as Sql

_TARGET = "duckdb"
_HELD = "held_"
"""Before a table's name while DuckDB copies its rows."""


class NoSemiJoinsError(Exception):
    """There is no such text; the message is the reason."""


class SketchQuestion(Struct, frozen=True):
    """Statements that leave a table per node, and per access the SELECT of its values there.

    `has_groups` says that they ask for groups that pass a condition, by the query itself.
    """

    statements: tuple[str, ...]
    selects: Mapping[AccessId, str]
    partitions: Mapping[AccessId, RangePartition]
    has_groups: bool

    def asked(self, connection: ParquetSql) -> Mapping[AccessId, RangeSet]:
        """The sketches of the rows that `put_rows` left; SqlFailed where DuckDB cannot."""
        for statement in self.statements:
            connection.change(statement)
        result = {}
        for access, select in self.selects.items():
            partition = self.partitions[access]
            answer = connection.run(select).column(0).combine_chunks()
            values = from_arrow(to_arrow_type(answer, partition.type), partition.type)
            ids = np.unique(partition.range_ids_of(values)).tolist()
            result[access] = RangeSet.of(ids, partition.size)
        return result


def put_rows(connection: ParquetSql, tables: Tables) -> None:
    """Rows of these tables in DuckDB's own ones, in place of any before."""
    for name, rows in tables.items():
        connection.put(f"{_HELD}{name}", rows)
        copied = exp.select("*").from_(exp.to_table(f"{_HELD}{name}"))
        connection.change(_created(name, copied))


def sketch_question(core: Plan, partitions: Mapping[AccessId, RangePartition]) -> SketchQuestion:
    """The question for a plan without its output columns; NoSemiJoinsError where there is none."""
    blocks = planned_blocks(core)
    if len(blocks) != 1:
        raise NoSemiJoinsError("the query is a UNION")
    (block,) = blocks
    if isinstance(block.shape, NoTree):
        raise NoSemiJoinsError(block.shape.text)
    scans = {scan.access: scan for scan in core.walk() if isinstance(scan, Scan)}
    renderer = Renderer({access: scan.table for access, scan in scans.items()})
    writer = _Writer(block.shape, partitions, renderer)
    survivors = _survivors(block, renderer)
    statements = (*writer.up(), *writer.down(survivors))
    return SketchQuestion(statements, writer.selects(), partitions, survivors is not None)


def _survivors(block: PlannedBlock, renderer: Renderer) -> tuple[exp.Select, list[str]] | None:
    """The groups that pass, and what their columns are called; None where nothing decides."""
    shape = block.shape
    assert isinstance(shape, TreeShape)
    if shape.top is None:
        return None
    assert block.block is not None
    decided = block.block.decided
    if not isinstance(decided, Select):
        raise NoSemiJoinsError("a LIMIT decides, and DuckDB does not keep its ties")
    present = {attribute.id for attribute in decided.attributes}
    keys = [key.attribute.id for key in shape.top.keys]
    if not present.issuperset(keys):
        raise NoSemiJoinsError("a group's columns are not among those of its condition")
    return _translated(renderer.select(decided)), [renderer.name(key) for key in keys]


class _Writer(Struct, frozen=True):
    """Statements for the nodes of one tree: `up_i` has what is alive, `down_i` what is live."""

    shape: TreeShape
    partitions: Mapping[AccessId, RangePartition]
    renderer: Renderer

    def up(self) -> Iterator[str]:
        """Every node with those of its rows that find partners below."""
        for index, node in enumerate(self.shape.nodes):
            rows = exp.select("mine.*").from_(self._rows(index, node).subquery("mine"))
            for child in self.shape.children_of(index):
                below = self.shape.nodes[child]
                kind = {Edge.LEFT: "", Edge.ANTI: "left anti"}.get(below.edge, "left semi")
                if kind:
                    rows = rows.join(
                        exp.to_table(_up(child)),
                        on=self._met(child, "mine", _up(child)),
                        join_type=kind,
                    )
            yield _created(_up(index), rows)

    def down(self, survivors: tuple[exp.Select, list[str]] | None) -> Iterator[str]:
        """Every node, parents first, with those that are wanted."""
        last = len(self.shape.nodes) - 1
        for index in range(last, -1, -1):
            node = self.shape.nodes[index]
            if not self._is_wanted(index):
                continue
            rows = exp.select("mine.*").from_(exp.to_table(_up(index), alias="mine"))
            if node.parent is not None:
                above = _down(node.parent)
                on = self._met(index, above, "mine")
                rows = rows.join(exp.to_table(above), on=on, join_type="left semi")
            elif survivors is not None and survivors[1]:
                select, names = survivors
                pairs = zip(self.shape.groups, names, strict=True)
                on = exp.and_(
                    *(
                        _same(_kept("mine", position), _named("kept", name))
                        for position, name in pairs
                    )
                )
                rows = rows.join(select.subquery("kept"), on=on, join_type="left semi")
            elif survivors is not None:
                rows = rows.where(exp.Exists(this=survivors[0]))
            yield _created(_down(index), rows)

    def _is_wanted(self, index: int) -> bool:
        """Whether rows of the node are in a result: below NOT EXISTS none is."""
        parent = self.shape.nodes[index].parent
        if parent is None:
            return True
        return self.shape.nodes[index].edge is not Edge.ANTI and self._is_wanted(parent)

    def selects(self) -> dict[AccessId, str]:
        """What is left of each access."""
        result = {}
        for index, node in enumerate(self.shape.nodes):
            for access in node.accesses:
                if access in self.partitions:
                    position = node.accesses.index(access)
                    value = _named(_down(index), f"f{position}")
                    select = exp.select(value).distinct().from_(exp.to_table(_down(index)))
                    result[access] = select.sql(_TARGET)
        return result

    def _rows(self, index: int, node: ShapeNode) -> exp.Select:
        """The node's rows with what it keeps as k0, k1, .. and its accesses' values f0, f1, .."""
        if node.rows is None:
            return self._combined(index, node)
        ranges = {
            access: _range_column(access, self.partitions[access])
            for access in node.accesses
            if access in self.partitions
        }
        source = self.renderer.select(_with_ranges(node.rows, ranges)).subquery("own")
        columns = [
            exp.alias_(self.renderer.expr(expr), f"k{position}")
            for position, expr in enumerate(node.kept)
        ]
        columns += [
            exp.alias_(_named("own", self.renderer.name(result.id)), f"f{position}")
            for position, access in enumerate(node.accesses)
            if (result := ranges.get(access)) is not None
        ]
        listed = columns or [exp.alias_(exp.Literal.number(1), "nothing")]
        return _translated(exp.select(*listed).from_(source))

    def _combined(self, index: int, node: ShapeNode) -> exp.Select:
        """What a virtual root keeps, from the first child that has all of it."""
        for child in self.shape.children_of(index):
            below = self.shape.nodes[child]
            if set(below.parent_key) == set(range(len(node.kept))):
                pairs = zip(below.parent_key, below.key, strict=True)
                columns = [
                    exp.alias_(_kept(_up(child), column), f"k{position}")
                    for position, column in pairs
                ]
                return exp.select(*columns).distinct().from_(exp.to_table(_up(child)))
        raise NoSemiJoinsError("no relation has all group columns")

    def _met(self, child: int, above: str, below: str) -> Sql:
        """That a row of the parent has the key of one of the child."""
        node = self.shape.nodes[child]
        if not node.key:
            return exp.true()
        parts = [
            (_same if safe else _equal)(_kept(above, upper), _kept(below, lower))
            for upper, lower, safe in zip(node.parent_key, node.key, node.null_safe, strict=True)
        ]
        return exp.and_(*parts)


def _range_column(access: AccessId, partition: RangePartition) -> Attribute:
    return Attribute(f"impctl/range/{access}", partition.attribute, partition.type)


def _with_ranges(plan: Plan, ranges: Mapping[AccessId, Attribute]) -> Plan:
    """The plan with the sketched columns of its accesses among its own."""
    if isinstance(plan, Scan):
        added = ranges.get(plan.access)
        return plan if added is None else replace(plan, attributes=(*plan.attributes, added))
    below = plan.with_inputs(tuple(_with_ranges(one, ranges) for one in plan.inputs))
    if isinstance(below, Project):
        ids = {attribute.id for attribute in ranges.values()}
        more = [one for one in below.child.attributes if one.id in ids]
        outputs = (*below.outputs, *(ComputedColumn(one, one.ref()) for one in more))
        return replace(below, outputs=outputs)
    return below


def _translated(select: exp.Select) -> exp.Select:
    result = parse_one(select.sql(DIALECT), dialect=DIALECT)
    assert isinstance(result, exp.Select)
    return result


def _created(name: str, rows: exp.Select) -> str:
    table = exp.to_table(name)
    statement = exp.Create(this=table, kind="TABLE", expression=rows, replace=True)
    return statement.sql(_TARGET)


def _up(index: int) -> str:
    return f"up_{index}"


def _down(index: int) -> str:
    return f"down_{index}"


def _kept(table: str, position: int) -> exp.Column:
    return _named(table, f"k{position}")


def _named(table: str, name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), table=table)


def _equal(one: Sql, other: Sql) -> Sql:
    return exp.EQ(this=one, expression=other)


def _same(one: Sql, other: Sql) -> Sql:
    return exp.NullSafeEQ(this=one, expression=other)
