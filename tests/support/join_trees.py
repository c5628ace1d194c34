"""Join trees: brute force, random trees with tables and changes, and small trees by hand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import LONG, STRING, SqlType
from impctl.data.vector import from_arrow
from impctl.engine.accumulators import AggregateColumn, Count, ExactSum
from impctl.engine.batch import Batch
from impctl.engine.circuit import Circuit
from impctl.engine.extremes import Extreme
from impctl.engine.jointree.spec import Access, Edge, JoinTree, Link, TreeMode, TreeNode
from impctl.engine.jointree.tree import Live, Tree
from impctl.engine.linear import Merge, SelectOperator
from impctl.engine.operator import Operator
from impctl.engine.tags import RowTags
from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr, Literal
from impctl.sketch.sketch import RangePartition
from tests.support.circuits import Rooted, Runs, load_all, save_all


class NodeRow(Struct, frozen=True):
    """One row of a node: values by column, copies, and a range per access of the node."""

    values: Mapping[str, Any]
    copies: int
    ranges: tuple[int, ...]


class Joined(Struct, frozen=True):
    """A joined row of a subtree: kept columns of its top, arguments, copies, source rows."""

    kept: Mapping[str, Any]
    arguments: Mapping[str, Any]
    copies: int
    lineage: frozenset[tuple[int, int]]


Tables = Sequence[Sequence[NodeRow]]
"""The rows of every node, by its position in the tree."""


def groups_of(tree: JoinTree, tables: Tables) -> dict[tuple[Any, ...], list[Joined]]:
    """The joined rows of every group that has any."""
    result: dict[tuple[Any, ...], list[Joined]] = {}
    for row in _joined(tree, tables, len(tree.nodes) - 1):
        result.setdefault(tuple(row.kept[name] for name in tree.root.key), []).append(row)
    return result


def sketches(
    tree: JoinTree, tables: Tables, survives: Callable[[list[Joined]], bool]
) -> list[set[int]]:
    """Per access the ranges of all source rows of groups that survive."""
    groups = groups_of(tree, tables)
    if not tree.root.key:
        groups.setdefault((), [])
    result: list[set[int]] = [set() for _ in range(tree.accesses)]
    for rows in groups.values():
        if survives(rows):
            for index, number in frozenset().union(*(row.lineage for row in rows)):
                accesses = tree.nodes[index].accesses
                for access, range_id in zip(accesses, tables[index][number].ranges, strict=True):
                    result[access.position].add(range_id)
    return result


def values_of(rows: Sequence[Joined], argument: str) -> list[Any]:
    """The values of an argument that are not NULL, repeated as often as they are joined."""
    pairs = ((row.arguments[argument], row.copies) for row in rows)
    return [value for value, copies in pairs if value is not None for _ in range(copies)]


def _joined(tree: JoinTree, tables: Tables, index: int) -> Iterator[Joined]:
    node = tree.nodes[index]
    below = [list(_joined(tree, tables, link.child)) for link in node.links]
    for row in _node_rows(tree, tables, index, below):
        choices = [
            list(_partners(tree, index, number, row, below[number]))
            for number in range(len(node.links))
        ]
        for chosen in product(*choices):
            arguments, copies, lineage = dict(row.arguments), row.copies, row.lineage
            for one in chosen:
                arguments.update(one.arguments)
                copies *= one.copies
                lineage |= one.lineage
            yield Joined(row.kept, arguments, copies, lineage)


def _node_rows(
    tree: JoinTree, tables: Tables, index: int, below: Sequence[Sequence[Joined]]
) -> Iterator[Joined]:
    node = tree.nodes[index]
    if node.is_virtual:
        seen: set[tuple[Any, ...]] = set()
        for link, rows in zip(node.links, below, strict=True):
            for row in rows:
                key = [row.kept[name] for name in tree.nodes[link.child].key]
                kept = dict(zip(link.columns, key, strict=True))
                values = tuple(kept[name] for name in node.kept_names)
                if link.edge is Edge.INNER and values not in seen:
                    seen.add(values)
                    yield Joined(kept, {}, 1, frozenset())
        return
    for number, stored in enumerate(tables[index]):
        kept = {name: stored.values[name] for name in node.kept_names}
        arguments = {name: stored.values[name] for name, _ in node.arguments}
        yield Joined(kept, arguments, stored.copies, frozenset({(index, number)}))


def _partners(
    tree: JoinTree, index: int, number: int, row: Joined, below: Sequence[Joined]
) -> list[Joined]:
    """What the row may be joined with in one child."""
    link = tree.nodes[index].links[number]
    child = tree.nodes[link.child]
    mine = [row.kept[name] for name in link.columns]
    result = [one for one in below if _is_equal(child, mine, [one.kept[n] for n in child.key])]
    nothing = Joined({}, dict.fromkeys(_arguments_below(tree, link.child)), 1, frozenset())
    match link.edge:
        case Edge.INNER:
            return result
        case Edge.LEFT:
            return result or [nothing]
        case Edge.ANTI:
            return [] if result else [nothing]
        case Edge.SEMI:
            rows = frozenset().union(*(one.lineage for one in result))
            return [Joined({}, {}, 1, rows)] if result else []


def _is_equal(child: TreeNode, mine: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return all(
        (left == right) if left is not None and right is not None else safe and left is right
        for left, right, safe in zip(mine, theirs, child.null_safe, strict=True)
    )


def _arguments_below(tree: JoinTree, index: int) -> list[str]:
    node = tree.nodes[index]
    names = [name for name, _ in node.arguments]
    for link in node.links:
        names += _arguments_below(tree, link.child)
    return names


COLUMNS = ("c0", "c1", "c2", "c3", "x", "f")
Row = tuple[Any, ...]
RANGES = RangePartition("t", "f", LONG, (2, 4, 6))
BY_KEY = RangePartition("t", "k", LONG, (1, 2))
COMPARE = {
    CompareOp.GREATER: lambda left, right: left > right,
    CompareOp.LESS: lambda left, right: left < right,
    CompareOp.EQUAL: lambda left, right: left == right,
}


class Having(Struct, frozen=True):
    """`column op bound` over a group's outputs; no column lets every group pass."""

    column: str | None
    op: CompareOp
    bound: int

    def passes(self, outputs: dict[str, Any]) -> bool:
        """As in SQL, NULL does not pass."""
        if self.column is None:
            return True
        value = outputs[self.column]
        return value is not None and bool(COMPARE[self.op](value, self.bound))


class Case(Struct, frozen=True):
    """A tree, the table and the source columns of each node, and a HAVING."""

    tree: JoinTree
    tables: tuple[int, ...]
    sources: tuple[dict[str, str], ...]
    having: Having

    @property
    def kinds(self) -> dict[str, SqlType]:
        return {name: kind for node in self.tree.nodes for name, kind in _typed(node)}

    def circuit(self) -> Rooted:
        """The tree, its condition, the downward pass and the merge."""
        tree = Tree(self.tree)
        operators: list[Operator] = [tree]
        wires: list[tuple[int, ...]] = [tuple(-1 - index for index in range(self.tree.inputs))]
        if self.having.column is not None:
            left = ColumnRef(self.having.column, LONG)
            predicate = Compare(self.having.op, left, Literal(self.having.bound, LONG))
            operators.append(SelectOperator(predicate, must_be_sure=False))
            wires.append((0,))
        operators.append(Live(tree))
        wires.append((len(operators) - 2, 0))
        sizes = {
            a.position: (a.by or ("", RANGES))[1].size for n in self.tree.nodes for a in n.accesses
        }
        return Rooted(
            Circuit(operators, wires), Merge([sizes[index] for index in range(self.tree.accesses)])
        )

    def batches(self, changes: Sequence[tuple[int, Row, int]]) -> list[Batch | None]:
        """Changes (table, row, weight) as the batches of all inputs."""
        result: list[Batch | None] = [None] * self.tree.inputs
        for index, node in enumerate(self.tree.nodes):
            rows = [(row, weight) for table, row, weight in changes if table == self.tables[index]]
            if node.input is not None and rows:
                result[node.input] = self._batch(index, rows)
        return result

    def _batch(self, index: int, rows: Sequence[tuple[Row, int]]) -> Batch:
        node = self.tree.nodes[index]
        columns = {}
        for name, kind in _typed(node):
            position = COLUMNS.index(self.sources[index][name])
            values = [_typed_value(row[position], kind) for row, _ in rows]
            arrow = pa.string() if kind == STRING else pa.int64()
            columns[name] = from_arrow(pa.array(values, arrow), kind)
        row_ranges = [self._node_row(index, row, 1).ranges for row, _ in rows]
        tags = tuple(
            RowTags(np.array([one[position] for one in row_ranges], dtype=np.int32))
            for position in range(len(node.accesses))
        )
        weights = np.array([weight for _, weight in rows], dtype=np.int64)
        return Batch(columns, weights, tags)

    def held(self, tables: Sequence[Counter[Row]]) -> list[list[NodeRow]]:
        """The rows of every node, as input of the reference."""
        return [
            []
            if node.is_virtual
            else [
                self._node_row(index, row, n) for row, n in tables[self.tables[index]].items() if n
            ]
            for index, node in enumerate(self.tree.nodes)
        ]

    def _node_row(self, index: int, row: Row, copies: int) -> NodeRow:
        node = self.tree.nodes[index]
        named = dict(zip(COLUMNS, row, strict=True))
        values = {n: _typed_value(named[self.sources[index][n]], kind) for n, kind in _typed(node)}
        ranges = tuple(
            _range_id(RANGES, named["f"])
            if access.by is None
            else _range_id(access.by[1], values[access.by[0]])
            for access in node.accesses
        )
        return NodeRow(values, copies, ranges)

    def outputs(self, rows: list[Joined]) -> dict[str, Any]:
        """The values of the tree's columns for a group of joined rows."""
        result: dict[str, Any] = {}
        for column in self.tree.columns:
            part = column.accumulator
            if part is None:
                result[column.id] = sum(row.copies for row in rows)
                continue
            values = values_of(rows, part.argument)  # type: ignore[union-attr]  # no spreads here
            if isinstance(part, Count):
                result[column.id] = len(values)
            elif not values:
                result[column.id] = None
            elif isinstance(part, Extreme):
                result[column.id] = max(values) if part.reverse else min(values)
            else:
                result[column.id] = sum(values)
        return result

    def survives(self, rows: list[Joined]) -> bool:
        return self.having.passes(self.outputs(rows))


class Stored:
    """The state of a circuit as successive checkpoints store it."""

    def __init__(self) -> None:
        self._runs: Runs = {}

    def restarted(self, old: Rooted, fresh: Rooted) -> Rooted:
        """Store the next checkpoint of `old`, and restore it in `fresh`."""
        save_all(old.arrangements(), self._runs)
        load_all(fresh.arrangements(), self._runs)
        fresh.circuit.take_up(old.circuit.counters())
        fresh.merge.restore()
        return fresh


def _typed(node: TreeNode) -> list[tuple[str, SqlType]]:
    return list(dict([*node.kept, *node.arguments]).items())


def _typed_value(value: Any, kind: SqlType) -> Any:
    return f"v{value}" if kind == STRING and value is not None else value


def _range_id(partition: RangePartition, value: Any) -> int:
    vector = from_arrow(pa.array([value], pa.int64()), LONG)
    return int(partition.range_ids_of(vector)[0])


class _Growing:
    """A tree under construction: from the root down, to be numbered from the leaves up."""

    def __init__(self, random_: random.Random, size: int, *, only_inner: bool) -> None:
        self.random = random_
        self.kept: list[list[str]] = [[]]
        self.parents: list[int | None] = [None]
        self.edges: list[Edge] = [Edge.INNER]
        self.pairs: list[list[tuple[str, str]]] = [[]]
        self.kinds: dict[str, SqlType] = {}
        self.safe: list[list[bool]] = [[]]
        others = [] if only_inner else [Edge.SEMI, Edge.ANTI, Edge.LEFT]
        self.choices = [Edge.INNER] * 3 + others
        self.groups = [self._column(0) for _ in range(random_.choice([0, 1, 1, 2]))]
        for _ in range(size - 1):
            self._grow()
        for index in range(size):
            # A column that is not joined: a leaf then keeps more than its key.
            if random_.random() < 0.12:
                self._column(index)

    def _column(self, index: int, kind: SqlType | None = None) -> str:
        name = f"n{index}.k{len(self.kept[index])}"
        self.kept[index].append(name)
        self.kinds[name] = kind or self.random.choice([LONG, LONG, LONG, STRING])
        return name

    def _grow(self) -> None:
        parent = self.random.randrange(len(self.kept))
        index = len(self.kept)
        self.kept.append([])
        self.parents.append(parent)
        self.edges.append(self.random.choice(self.choices))
        pairs: list[tuple[str, str]] = []
        for _ in range(self.random.choice([0, 1, 1, 1, 1, 2])):
            old = [name for name in self.kept[parent] if name not in [mine for mine, _ in pairs]]
            is_old = bool(old) and self.random.random() < 0.5
            mine = self.random.choice(old) if is_old else self._column(parent)
            pairs.append((mine, self._column(index, self.kinds[mine])))
        self.random.shuffle(pairs)
        self.pairs.append(pairs)
        self.safe.append([self.random.random() < 0.25 for _ in pairs])


def random_case(seed: int, *, mode: TreeMode | None = None, only_inner: bool = False) -> Case:
    """A random tree of two to five nodes, with its tables and HAVING."""
    random_ = random.Random(seed)
    mode = mode or random_.choice([TreeMode.RING, TreeMode.RING, TreeMode.BITS])
    grown = _Growing(random_, random_.randint(2, 5), only_inner=only_inner)
    size = len(grown.kept)
    # Nodes are created parents first; the tree has children first.
    position = {index: size - 1 - index for index in range(size)}
    tables = [random_.randrange(3) for _ in range(size)]
    sources: list[dict[str, str]] = [
        {name: random_.choice(COLUMNS[:4]) for name in grown.kept[index]} for index in range(size)
    ]
    is_virtual = _may_be_virtual(grown) and random_.random() < 0.7
    nodes, accesses = [], 0
    for index in reversed(range(size)):
        links = [c for c in range(size) if grown.parents[c] == index]
        node = TreeNode(
            name=f"n{index}",
            input=None if is_virtual and index == 0 else position[index],
            kept=tuple((name, grown.kinds[name]) for name in grown.kept[index]),
            key=tuple(grown.groups if index == 0 else [theirs for _, theirs in grown.pairs[index]]),
            null_safe=() if index == 0 else tuple(grown.safe[index]),
            links=tuple(
                Link(position[c], grown.edges[c], tuple(mine for mine, _ in grown.pairs[c]))
                for c in links
            ),
        )
        if not node.is_virtual:
            node = replace(node, accesses=_accesses(random_, node, accesses))
            accesses += len(node.accesses)
            if mode is TreeMode.RING and random_.random() < 0.5 and not _is_hidden(grown, index):
                node = replace(node, arguments=((f"n{index}.x", LONG),))
                sources[index][f"n{index}.x"] = "x"
        nodes.append(node)
    arguments = [name for node in nodes for name, _ in node.arguments]
    columns = _columns(arguments) if mode is TreeMode.RING else ()
    tree = JoinTree("tree0", tuple(nodes), mode, columns, accesses)
    ordered = list(reversed(range(size)))
    return Case(
        tree,
        tuple(tables[index] for index in ordered),
        tuple(sources[index] for index in ordered),
        _having(random_, columns),
    )


def _may_be_virtual(grown: _Growing) -> bool:
    """Whether the root has only group columns, all in the key of every child."""
    everything = set(grown.groups)
    children = [c for c, parent in enumerate(grown.parents) if parent == 0]
    keys = [{mine for mine, _ in grown.pairs[c]} for c in children]
    is_inner = any(grown.edges[c] is Edge.INNER for c in children)
    return (
        bool(everything)
        and everything == set(grown.kept[0])
        and is_inner
        and all(key == everything for key in keys)
    )


def _is_hidden(grown: _Growing, index: int | None) -> bool:
    while index is not None:
        if grown.edges[index] in (Edge.SEMI, Edge.ANTI):
            return True
        index = grown.parents[index]
    return False


def _accesses(random_: random.Random, node: TreeNode, first: int) -> tuple[Access, ...]:
    result = []
    for number in range(random_.choice([0, 1, 1, 2])):
        whole = [name for name, kind in node.kept if kind == LONG]
        by = (random_.choice(whole), BY_KEY) if whole and random_.random() < 0.4 else None
        result.append(Access(first + number, by))
    return tuple(result)


def _columns(arguments: Sequence[str]) -> tuple[AggregateColumn, ...]:
    columns = [AggregateColumn("n", LONG, None, None)]
    for slot, argument in enumerate(arguments):
        count = Count(argument, slot)
        columns += [
            AggregateColumn(f"count{slot}", LONG, count, None),
            AggregateColumn(f"sum{slot}", LONG, ExactSum(argument, slot, LONG), count),
            AggregateColumn(f"min{slot}", LONG, Extreme(argument, slot, False), count),
            AggregateColumn(f"max{slot}", LONG, Extreme(argument, slot, True), count),
        ]
    return tuple(columns)


def _having(random_: random.Random, columns: Sequence[AggregateColumn]) -> Having:
    if not columns or random_.random() < 0.1:
        return Having(None, CompareOp.EQUAL, 0)
    column = random_.choice(columns).id
    op = random_.choice(list(COMPARE))
    return Having(column, op, random_.choice([0, 1, 2, 3, 5, 8]))


def random_row(random_: random.Random) -> Row:
    """Few distinct values, including NULL, so that rows join."""
    keys = [random_.choice([None, 0, 1, 1, 2, 2]) for _ in range(4)]
    return (*keys, random_.choice([None, -2, 0, 1, 3]), random_.choice([None, 0, 1, 2, 3, 5, 7]))


def random_changes(
    random_: random.Random,
    tables: Sequence[Counter[Row]],
    some_row: Callable[[random.Random, int], Row] = lambda random_, table: random_row(random_),
) -> list[tuple[int, Row, int]]:
    """A batch over all tables: inserted, deleted, changed and repeated rows.

    `some_row` creates a row of a table; its last value determines the range.
    """
    changes: list[tuple[int, Row, int]] = []
    if random_.random() < 0.06:
        return [(t, row, -n) for t, rows in enumerate(tables) for row, n in rows.items() if n]
    for index, rows in enumerate(tables):
        present = Counter(rows)
        for _ in range(random_.choice([0, 1, 2, 4])):
            known = [row for row, n in present.items() if n > 0]
            if known and random_.random() < 0.45:
                row = random_.choice(known)
                copies_deleted = random_.randint(1, present[row])
                present[row] -= copies_deleted
                changes.append((index, row, -copies_deleted))
                if random_.random() < 0.3:
                    changes.append(
                        (index, (*row[:-1], random_.choice([0, 2, 4, 7])), copies_deleted)
                    )
            elif sum(present.values()) < 7:
                is_known = bool(known) and random_.random() < 0.2
                row = random_.choice(known) if is_known else some_row(random_, index)
                copies = random_.choice([1, 1, 2])
                present[row] += copies
                changes.append((index, row, copies))
        if random_.random() < 0.2:
            row = some_row(random_, index)
            changes += [(index, row, 1), (index, row, -1)]
    random_.shuffle(changes)
    return changes


FRAGMENTS = 64
X = "x"
N, SUM = "n", "sum"

Values = tuple[int | None, ...]
Rows = Sequence[tuple[Values, int, int]]
"""Values of the node's kept columns and its argument, the range, the weight."""


def node(
    position: int,
    name: str,
    kept: str,
    key: str,
    links: Sequence[tuple[int, Edge, str]] = (),
    *,
    argument: bool = False,
    safe: bool = False,
) -> TreeNode:
    """The node at `position`, which reads that input and has that access; letters name columns."""

    def named(letters: str) -> tuple[str, ...]:
        return tuple(f"{name}.{letter}" for letter in letters)

    return TreeNode(
        name,
        position,
        tuple((column, LONG) for column in named(kept)),
        named(key),
        (safe,) * len(key),
        tuple(Link(child, edge, named(letters)) for child, edge, letters in links),
        ((X, LONG),) if argument else (),
        (Access(position),),
    )


class Grown(Struct, dict=True):
    """A tree and its condition, with counts of the work of steps."""

    nodes: Sequence[TreeNode]
    rooted: Rooted
    name: str

    def step(self, **rows: Rows) -> tuple[int, int, int]:
        """Change these nodes; return how much was touched, flipped and output."""
        before = self._numbers()
        batches: list[Batch | None] = [None] * sum(not node.is_virtual for node in self.nodes)
        for node in self.nodes:
            if node.input is not None and node.name in rows:
                batches[node.input] = batch_of(node, rows[node.name])
        self.rooted.step(*batches)
        after = self._numbers()
        return (after[0] - before[0], after[1] - before[1], after[2] - before[2])

    def _numbers(self) -> list[int]:
        counters = self.rooted.circuit.counters()
        return [counters[f"{self.name}.{name}"] for name in ("touched", "flips", "pairs")]

    def sketch(self, name: str) -> set[int]:
        """Ranges of one node's rows in the result."""
        (access,) = next(node.accesses for node in self.nodes if node.name == name)
        return set(self.rooted.merge.members(access.position).nonzero()[0].tolist())

    @property
    def sketches(self) -> dict[str, set[int]]:
        return {node.name: self.sketch(node.name) for node in self.nodes if node.accesses}


def batch_of(node: TreeNode, rows: Rows) -> Batch:
    """Signed rows of a node as a batch."""
    names = [*node.kept_names, *(name for name, _ in node.arguments)]
    lists = list(zip(*(values for values, _, _ in rows), strict=True)) or [() for _ in names]
    columns = {
        name: from_arrow(pa.array(values, pa.int64()), LONG)
        for name, values in zip(names, lists, strict=True)
    }
    ranges = np.array([range_id for _, range_id, _ in rows], dtype=np.int32)
    weights = np.array([weight for _, _, weight in rows], dtype=np.int64)
    return Batch(columns, weights, (RowTags(ranges),) if node.accesses else ())


def grown(nodes: Sequence[TreeNode], having: Expr | None = None, *, bits: bool = False) -> Grown:
    """The tree of these nodes, children first, below a HAVING."""
    count = Count(X, 0)
    has_sum = any(node.arguments for node in nodes)
    columns = [AggregateColumn(N, LONG, None, None)]
    if has_sum:
        columns.append(AggregateColumn(SUM, LONG, ExactSum(X, 0, LONG), count))
    mode = TreeMode.BITS if bits else TreeMode.RING
    accesses = sum(len(node.accesses) for node in nodes)
    spec = JoinTree("tree0", tuple(nodes), mode, () if bits else tuple(columns), accesses)
    tree = Tree(spec)
    operators: list[Operator] = [tree]
    wires: list[tuple[int, ...]] = [tuple(-1 - index for index in range(spec.inputs))]
    if having is not None:
        operators.append(SelectOperator(having, must_be_sure=False))
        wires.append((0,))
    circuit = Circuit([*operators, Live(tree)], [*wires, (len(operators) - 1, 0)])
    rooted = Rooted(circuit, Merge([FRAGMENTS] * accesses))
    first = circuit.start()
    if first is not None:
        rooted.merge.step(first)
    return Grown(nodes, rooted, spec.name)


def compared(column: str, op: CompareOp, bound: int) -> Compare:
    """`column op bound`."""
    return Compare(op, ColumnRef(column, LONG), Literal(bound, LONG))


ANY = compared(N, CompareOp.GREATER, 0)


def pair(edge: Edge = Edge.INNER, *, having: Expr = ANY, safe: bool = False) -> Grown:
    """s below r, which has the groups; SUM over s if its columns are visible, else over r."""
    is_visible = edge not in (Edge.SEMI, Edge.ANTI)
    nodes = [
        node(0, "s", "a", "a", argument=is_visible, safe=safe),
        node(1, "r", "ag", "g", [(0, edge, "a")], argument=not is_visible),
    ]
    return grown(nodes, having)
