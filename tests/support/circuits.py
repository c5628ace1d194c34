"""Hand-built circuits for tests of the engine, one for every combination of operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from impctl.data.keys import normalise
from impctl.data.schema import DOUBLE, LONG, STRING, SqlType
from impctl.engine.accumulators import AggregateColumn, Count, ExactSum, FloatSum
from impctl.engine.aggregate import AggregateOperator
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.circuit import Circuit
from impctl.engine.extremes import Extreme
from impctl.engine.join import JoinOperator, Side
from impctl.engine.jointree.cyclic import Circle, Probe, Probed
from impctl.engine.jointree.enumerate import JoinedRows, JoinedRowTags, Shown
from impctl.engine.jointree.spec import Access, Edge, JoinTree, Link, TreeMode, TreeNode
from impctl.engine.jointree.tree import Live, Tree
from impctl.engine.linear import (
    Merge,
    ProjectOperator,
    SelectOperator,
    TableScan,
    Union,
    UnionBranch,
)
from impctl.engine.operator import Keeper, Operator
from impctl.engine.result_rows import KeptRows
from impctl.engine.trace import Arrangement, RowIndex
from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr, Literal
from impctl.sketch.sketch import RangePartition


class Indexed(Operator):
    """Adds all rows to an index that no other operator writes."""

    def __init__(self, index: RowIndex) -> None:
        self.index = index

    def step(self, batch: Batch) -> Batch:
        if len(batch):
            self.index.add(batch, self.index.codes_of(batch))
        return batch

    def arrangements(self) -> tuple[Keeper, ...]:
        return (self.index,)


class Partners(Operator):
    """Joins rows of the left input with partners in an index that is already updated.

    d(R join S) = dR join (S + dS) + R join dS.
    """

    def __init__(self, own: RowIndex, shared: RowIndex) -> None:
        self.own = own
        self.shared = shared

    def step(self, left: Batch | None, right: Batch | None) -> Batch | None:
        parts = []
        if right is not None and len(right):
            theirs, mine = _matches(right, self.shared, self.own)
            parts.append(_paired(mine, theirs))
        if left is not None and len(left):
            parts.append(_paired(*_matches(left, self.own, self.shared)))
            self.own.add(left, self.own.codes_of(left))
        return stacked_batches([part for part in parts if len(part)] or [empty_batch(2)])

    def arrangements(self) -> tuple[Keeper, ...]:
        return (self.own, self.shared)


def _matches(rows: Batch, like: RowIndex, index: RowIndex) -> tuple[Batch, Batch]:
    """The rows that have partners in the index, and their partners."""
    keys = [normalise(rows.columns[key]) for key in like.keys]
    result = index.find(like.codes_of(rows), keys)
    return rows.take(result.owners), result.rows


def _paired(left: Batch, right: Batch) -> Batch:
    columns = {**left.columns, **right.columns}
    return Batch(columns, left.weights * right.weights, (*left.tags, *right.tags))


Row = tuple[int | None, int | None, str | None, int | None, float | None]

COLUMNS = (("id", LONG), ("g", LONG), ("s", STRING), ("x", LONG), ("d", DOUBLE))
_ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("g", pa.int64()),
        ("s", pa.string()),
        ("x", pa.int64()),
        ("d", pa.float64()),
    ]
)
BY_ID = RangePartition("t", "id", LONG, (2, 4, 6))
BY_G = RangePartition("t", "g", LONG, (1, 2))


class Rooted(Struct, frozen=True):
    """A circuit with the merge on top."""

    circuit: Circuit
    merge: Merge

    def step(self, *sources: Batch | None) -> None:
        output = self.circuit.step(*sources)
        if output is not None:
            self.merge.step(output)

    def arrangements(self) -> tuple[Keeper, ...]:
        return (*self.circuit.arrangements(), *self.merge.arrangements())


def restarted(old: Rooted, fresh: Rooted) -> Rooted:
    """Restore the checkpoint of `old` in `fresh`, and return it."""
    runs = {keeper.name: list(keeper.changes().put) for keeper in old.arrangements()}
    for keeper in fresh.arrangements():
        keeper.load(runs[keeper.name])
    fresh.circuit.take_up(old.circuit.counters())
    fresh.merge.restore()
    return fresh


def scan_of(partition: RangePartition) -> TableScan:
    """A scan of all columns, tagged by one partition."""
    return TableScan([(f"t.{name}", name, kind) for name, kind in COLUMNS], [partition])


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Rows as an Arrow table."""
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in COLUMNS]
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, _ARROW, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_ARROW)


def ref(name: str) -> ColumnRef:
    """A column of t."""
    return ColumnRef(f"t.{name}", dict(COLUMNS)[name])


def more_than(expr: Expr, bound: int) -> Compare:
    """`expr > bound`."""
    return Compare(CompareOp.GREATER, expr, Literal(bound, LONG))


def _grouped(
    partition: RangePartition, keys: Sequence[str], *, keyed: bool, inner: int = 0
) -> tuple[TableScan, Rooted]:
    """The first `inner` operators are put in a nested circuit."""
    kinds = dict(COLUMNS)
    x, d = Count("arg.x", 0), Count("arg.d", 1)
    total, float_sum = ExactSum("arg.x", 0, LONG), FloatSum("arg.d", 1, False)
    aggregate = AggregateOperator(
        "aggregate0",
        [(f"k.{name}", kinds[name]) for name in keys],
        [
            AggregateColumn("n", LONG, None, None),
            AggregateColumn("sum_x", LONG, total, x),
            AggregateColumn("sum_d", DOUBLE, float_sum, d),
            AggregateColumn("count_d", LONG, d, None),
        ],
        accesses=1,
        is_keyed=keyed,
    )
    outputs = [(f"k.{name}", ref(name)) for name in keys]
    outputs += [("arg.x", ref("x")), ("arg.d", ref("d"))]
    operators: list[Operator] = [
        ProjectOperator(outputs),
        aggregate,
        SelectOperator(more_than(ColumnRef("sum_x", LONG), 3), must_be_sure=False),
        ProjectOperator([("n", ColumnRef("n", LONG))]),
    ]
    if inner:
        operators = [Circuit(operators[:inner]), *operators[inner:]]
    return scan_of(partition), Rooted(Circuit(operators), Merge([partition.size]))


def _nested() -> tuple[TableScan, Rooted]:
    inner = AggregateOperator(
        "aggregate0",
        [("k.g", LONG), ("k.s", STRING)],
        [AggregateColumn("n", LONG, None, None)],
        accesses=1,
        is_keyed=False,
    )
    outer_count = Count("arg.n", 0)
    outer = AggregateOperator(
        "aggregate1",
        [("k.g", LONG)],
        [AggregateColumn("sum_n", LONG, ExactSum("arg.n", 0, LONG), outer_count)],
        accesses=1,
        is_keyed=False,
    )
    operators = [
        ProjectOperator([("k.g", ref("g")), ("k.s", ref("s"))]),
        inner,
        SelectOperator(more_than(ColumnRef("n", LONG), 1), must_be_sure=True),
        ProjectOperator([("k.g", ColumnRef("k.g", LONG)), ("arg.n", ColumnRef("n", LONG))]),
        outer,
        SelectOperator(more_than(ColumnRef("sum_n", LONG), 2), must_be_sure=False),
    ]
    return scan_of(BY_ID), Rooted(Circuit(operators), Merge([BY_ID.size]))


def _plain() -> tuple[TableScan, Rooted]:
    select = SelectOperator(more_than(ref("x"), 0), must_be_sure=False)
    return scan_of(BY_ID), Rooted(Circuit([select]), Merge([BY_ID.size]))


def _renamed(name: str) -> ProjectOperator:
    return ProjectOperator([(f"{name}.{column}", ref(column)) for column, _ in COLUMNS])


def _columns(*names: str) -> tuple[tuple[str, SqlType], ...]:
    return tuple((f"{name}.{column}", kind) for name in names for column, kind in COLUMNS)


def _joined(*, nested: bool) -> tuple[TableScan, Rooted]:
    """t three times, joined by g and then by x; `nested` puts both joins in one operator."""
    a, b = Side(_columns("a"), ("a.g",), 1), Side(_columns("b"), ("b.g",), 1)
    ab, c = Side(_columns("a", "b"), ("b.x",), 2), Side(_columns("c"), ("c.x",), 1)
    joins = [JoinOperator("join0", a, b, [False]), JoinOperator("join1", ab, c, [True])]
    renamed = [_renamed(name) for name in "abc"]
    wires = [(-1,)] * 3
    if nested:
        both = Circuit(joins, [(-1, -2), (0, -3)])
        circuit = Circuit([*renamed, both], [*wires, (0, 1, 2)])
    else:
        circuit = Circuit([*renamed, *joins], [*wires, (0, 1), (3, 2)])
    return scan_of(BY_ID), Rooted(circuit, Merge([BY_ID.size] * 3))


def _sharing() -> tuple[TableScan, Rooted]:
    """Two joins by g with the distinct rows of t, which share one index of them."""
    index = RowIndex("shared", _columns("c"), ["c.g"], 1)
    once = AggregateOperator(
        "once", _columns("c"), (), accesses=1, is_keyed=False, is_distinct=True
    )
    operators: list[Operator] = [*(_renamed(name) for name in "abc"), once, Indexed(index)]
    for name in "ab":
        operators.append(Partners(RowIndex(name, _columns(name), [f"{name}.g"], 1), index))
    columns = [(f"c.{column}", f"c.{column}") for column, _ in COLUMNS]
    operators.append(Union([UnionBranch(tuple(columns), (0, 1))] * 2))
    wires = [(-1,), (-1,), (-1,), (2,), (3,), (0, 4), (1, 4), (5, 6)]
    return scan_of(BY_ID), Rooted(Circuit(operators, wires), Merge([BY_ID.size] * 2))


def _tree(edge: Edge, mode: TreeMode = TreeMode.RING) -> tuple[TableScan, Rooted]:
    """t three times: a.g = b.g, and b.x = c.x with `edge`; grouped by b.s, HAVING in a ring."""
    x, d = Count("a.x", 0), Count("a.d", 1)
    columns = (
        AggregateColumn("n", LONG, None, None),
        AggregateColumn("sum_x", LONG, ExactSum("a.x", 0, LONG), x),
        AggregateColumn("sum_d", DOUBLE, FloatSum("a.d", 1, False), d),
        AggregateColumn("max_x", LONG, Extreme("a.x", 0, True), x),
    )
    is_ring = mode is TreeMode.RING
    arguments = (("a.x", LONG), ("a.d", DOUBLE)) if is_ring else ()
    nodes = (
        TreeNode("a", 0, (("a.g", LONG),), ("a.g",), (False,), (), arguments, (Access(0),)),
        TreeNode("c", 2, (("c.x", LONG),), ("c.x",), (True,), (), (), (Access(2),)),
        TreeNode(
            "b",
            1,
            (("b.g", LONG), ("b.x", LONG), ("b.s", STRING)),
            ("b.s",),
            links=(Link(0, Edge.INNER, ("b.g",)), Link(1, edge, ("b.x",))),
            accesses=(Access(1),),
        ),
    )
    tree = Tree(JoinTree("tree0", nodes, mode, columns if is_ring else (), 3))
    operators: list[Operator] = [*(_renamed(name) for name in "abc"), tree]
    wires: list[tuple[int, ...]] = [(-1,), (-1,), (-1,), (0, 1, 2)]
    if is_ring:
        having = more_than(ColumnRef("sum_x", LONG), 3)
        operators.append(SelectOperator(having, must_be_sure=False))
        wires.append((3,))
    circuit = Circuit([*operators, Live(tree)], [*wires, (len(operators) - 1, 3)])
    return scan_of(BY_ID), Rooted(circuit, Merge([BY_ID.size] * 3))


def _tree_rows(edge: Edge) -> tuple[TableScan, Rooted]:
    """The same joins with stored rows: a double of a and, unless `edge` is SEMI, a text of c."""
    is_shown = edge is not Edge.SEMI
    c_text = (("c.s", STRING),) if is_shown else ()
    nodes = (
        TreeNode(
            "a",
            0,
            (("a.g", LONG), ("a.d", LONG)),
            ("a.g",),
            (False,),
            accesses=(Access(0),),
            bitwise=frozenset({"a.d"}),
        ),
        TreeNode("c", 2, (("c.x", LONG), *c_text), ("c.x",), (True,), accesses=(Access(2),)),
        TreeNode(
            "b",
            1,
            (("b.g", LONG), ("b.x", LONG)),
            (),
            links=(Link(0, Edge.INNER, ("b.g",)), Link(1, edge, ("b.x",))),
            accesses=(Access(1),),
        ),
    )
    shown = [Shown("d", DOUBLE, 0, "a.d"), Shown("x", LONG, 2, "b.x")]
    shown += [Shown("s", STRING, 1, "c.s")] if is_shown else []
    joined = JoinedRows(JoinTree("tree0", nodes, TreeMode.BITS, (), 3), shown)
    stored = KeptRows("answer", [(one.name, one.kind) for one in shown], ["x"])
    operators = [*(_renamed(name) for name in "abc"), joined, stored, JoinedRowTags(joined)]
    circuit = Circuit(operators, [(-1,), (-1,), (-1,), (0, 1, 2), (3,), (3,)])
    return scan_of(BY_ID), Rooted(circuit, Merge([BY_ID.size] * 3))


def _probed() -> tuple[TableScan, Rooted]:
    """t three times in a cyclic join: a.g = b.g, b.x <=> c.x and c.id = a.id."""
    names = [name for name, _ in COLUMNS]
    pairs = ((("g", 0), ("id", 2)), (("g", 0), ("x", 1)), (("x", 1), ("id", 2)))
    inputs = tuple(
        Probed(_columns(letter), tuple((one, names.index(name)) for name, one in classes), 1, 0)
        for letter, classes in zip("abc", pairs, strict=True)
    )
    probe = Probe("probe0", Circle(inputs, (False, True, False), ("a.s", "b.d")))
    renamed = [_renamed(name) for name in "abc"]
    circuit = Circuit([*renamed, probe], [(-1,), (-1,), (-1,), (0, 1, 2)])
    return scan_of(BY_ID), Rooted(circuit, Merge([BY_ID.size] * 3))


SHAPES: dict[str, Callable[[], tuple[TableScan, Rooted]]] = {
    "select only": _plain,
    "keyed group": lambda: _grouped(BY_G, ["g"], keyed=True),
    "group by string": lambda: _grouped(BY_ID, ["s"], keyed=False),
    "group by two": lambda: _grouped(BY_ID, ["s", "g"], keyed=False),
    "group by double": lambda: _grouped(BY_ID, ["d"], keyed=False),
    "global": lambda: _grouped(BY_ID, [], keyed=False),
    "nested": _nested,
    "a circuit in a circuit": lambda: _grouped(BY_ID, ["s"], keyed=False, inner=2),
    "a whole circuit in a circuit": lambda: _grouped(BY_G, ["g"], keyed=True, inner=4),
    "two joins": lambda: _joined(nested=False),
    "two joins as one operator": lambda: _joined(nested=True),
    "a shared index": _sharing,
    "probe": _probed,
    "tree": lambda: _tree(Edge.INNER),
    "tree, semi edge": lambda: _tree(Edge.SEMI),
    "tree of bits, left edge": lambda: _tree(Edge.LEFT, TreeMode.BITS),
    "joined rows of a tree, left edge": lambda: _tree_rows(Edge.LEFT),
}


def feed(scan: TableScan, circuit: Rooted, rows: Sequence[Row], weights: Sequence[int]) -> None:
    """One step with these signed rows."""
    circuit.step(scan.read(table_of(rows), np.array(weights, dtype=np.int64)))


Runs = dict[str, dict[int, pa.Table]]
"""Pieces of state as a store would have them, by name."""


def save(keeper: Keeper, stored: dict[int, pa.Table]) -> None:
    """Write what changed since the last time, as a store would."""
    change = keeper.changes()
    for sequence in change.drop:
        del stored[sequence]
    stored.update(change.put)
    keeper.saved()


def save_all(keepers: Iterable[Keeper], stored: Runs) -> None:
    for keeper in keepers:
        save(keeper, stored.setdefault(keeper.name, {}))


def load_all(keepers: Iterable[Keeper], stored: Runs) -> None:
    for keeper in keepers:
        keeper.load(sorted(stored[keeper.name].items(), key=lambda run: run[0]))


def contents(circuit: Rooted) -> tuple[Any, ...]:
    """The state of the circuit, however it is split into runs: merge counts and live groups."""
    counts = tuple(
        count for access_counts in circuit.merge.counts for count in access_counts.tolist()
    )
    state: list[Any] = [counts]
    for keeper in circuit.circuit.arrangements():
        if isinstance(keeper, Arrangement) and keeper.alive in ("rows", "held"):
            state.append(_live(keeper))
        if isinstance(keeper, RowIndex) and keeper.name.startswith("answer"):
            state.append(_rows(keeper))
    return tuple(state)


def _rows(index: RowIndex) -> tuple[Any, ...]:
    whole = index.whole()
    columns = [column.to_arrow().to_pylist() for _, column in sorted(whole.columns.items())]
    return tuple(sorted(map(repr, zip(whole.weights.tolist(), *columns, strict=True))))


def _live(groups: Arrangement) -> tuple[Any, ...]:
    newest: dict[Any, dict[str, Any]] = {}
    for run in groups.runs:
        # If no key is stored, the code is the whole key.
        keys = [part.to_pylist() for part in run.keys] or [run.codes.tolist()]
        for row in range(len(run)):
            key = tuple("NaN" if k[row] != k[row] else k[row] for k in keys)
            newest[key] = {name: column[row] for name, column in run.values.items()}
    exact = ("rows", "held", "count", "high", "low", "nan", "pinf", "ninf")
    return tuple(
        sorted(
            (
                repr(key),
                sorted((n, int(v)) for n, v in values.items() if n.startswith(exact) and v != 0),
            )
            for key, values in newest.items()
            if values.get("rows", 0) != 0 or values.get("held", 0) != 0
        )
    )
