"""Recursive programs by definition, and as hand-built circuits of fixpoint, lineage and merge."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.data.keys import key_codes
from impctl.data.schema import BOOLEAN, DOUBLE, LONG, STRING, SqlType
from impctl.data.vector import all_null
from impctl.engine.batch import Batch
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.fixpoint import FixpointOperator, LineageOperator, UnionAllFixpoint
from impctl.engine.fixpoint.frontier import NO_BODY
from impctl.engine.fixpoint.rows import NAMES, RankedRows
from impctl.engine.fixpoint.single_join import THIN
from impctl.engine.join import JoinOperator, Side
from impctl.engine.linear import (
    Merge,
    ProjectOperator,
    SelectOperator,
    TableScan,
    Union,
    UnionBranch,
)
from impctl.engine.operator import LIMITS, Keeper, LevelLimits, Limits, Operator
from impctl.engine.trace import RowIndex
from impctl.expr.nodes import Call, ColumnRef, Compare, CompareOp, Expr, Literal
from impctl.sketch.sketch import RangePartition
from tests.support.circuits import load_all, save_all

_NAN, _ODD = 4, 1
"""The node that is NaN in kind `doubles`, and the one with NULL's code in `collisions`."""


class Kind(Struct, frozen=True):
    """The type of nodes, and their values."""

    type: SqlType
    arrow: pa.DataType
    odd: int | None = None
    """The value of node `_ODD`, if not its number."""

    def value(self, node: int | None, turn: int) -> Any:
        if node is None or self.type == LONG:
            return self.odd if node == _ODD and self.odd is not None else node
        if self.type == STRING:
            return "n" * node
        if node == 0:
            return -0.0 if turn % 2 else 0.0
        return math.nan if node == _NAN else node + 0.5

    def node(self, value: Any) -> int | None:
        if value is None or self.type == LONG:
            is_odd = value is not None and value == self.odd
            return _ODD if is_odd else value  # type: ignore[no-any-return]  # a number or NULL
        if self.type == STRING:
            return len(value)
        if math.isnan(value):
            return _NAN
        return 0 if value == 0 else int(value - 0.5)


KINDS = {
    "numbers": Kind(LONG, pa.int64()),
    "collisions": Kind(LONG, pa.int64(), int(key_codes([all_null(LONG, 1)], 1)[0])),
    "texts": Kind(STRING, pa.large_string()),
    "doubles": Kind(DOUBLE, pa.float64()),
}


Value = int | None
Row = tuple[Value, ...]
Tables = Mapping[str, Counter[Row]]


class Derivation(Struct, frozen=True):
    """One way to derive `head`."""

    head: Row
    bodies: tuple[Row, ...]
    leaves: tuple[tuple[int, Row], ...]
    """Access and row; accesses as the program numbers them."""
    weight: int


Rules = Callable[[Tables, frozenset[Row]], Iterable[Derivation]]
"""All derivations over these tables whose bodies are among these rows."""


def least_fixpoint(rules: Rules, tables: Tables) -> frozenset[Row]:
    """All rows that can be derived."""
    rows: frozenset[Row] = frozenset()
    while True:
        more = rows | {derivation.head for derivation in rules(tables, rows)}
        if more == rows:
            return rows
        rows = more


def weights_of(derivations: Iterable[Derivation]) -> Counter[Row]:
    """The total weight of the derivations of each row."""
    result: Counter[Row] = Counter()
    for derivation in derivations:
        result[derivation.head] += derivation.weight
    return result


def low_weights(derivations: Iterable[Derivation], ranks: Mapping[Row, int]) -> Counter[Row]:
    """The total weight of each row's derivations from rows of lower rank."""
    result: Counter[Row] = Counter()
    for derivation in derivations:
        if all(ranks[body] < ranks[derivation.head] for body in derivation.bodies):
            result[derivation.head] += derivation.weight
    return result


def range_ids_of(derivations: Iterable[Derivation], cut: Callable[[Row], int]) -> Counter[object]:
    """How often each range of each access is used; `cut` gives the range of a row."""
    counts: Counter[object] = Counter()
    for derivation in derivations:
        for access, leaf in derivation.leaves:
            counts[access, cut(leaf)] += derivation.weight
    return +counts


def _each(table: Counter[Row]) -> Iterator[tuple[Row, int]]:
    return ((row, weight) for row, weight in table.items() if weight)


def _is_equal(one: Value, other: Value) -> bool:
    return one is not None and one == other


def reach(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """r(n) <- seeds(n); r(n) <- r(m), links(m, n)."""
    for row, weight in _each(tables["seeds"]):
        yield Derivation(row[:1], (), ((0, row),), weight)
    for row, weight in _each(tables["links"]):
        for body in rows:
            if _is_equal(body[0], row[0]):
                yield Derivation(row[1:2], (body,), ((1, row),), weight)


def right_linear(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """r(x, y) <- links(x, y); r(x, y) <- links(x, z), r(z, y)."""
    for row, weight in _each(tables["links"]):
        yield Derivation(row[:2], (), ((0, row),), weight)
        for body in rows:
            if _is_equal(row[1], body[0]):
                yield Derivation((row[0], body[1]), (body,), ((1, row),), weight)


def left_linear(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """r(x, y) <- links(x, y); r(x, y) <- r(x, z), links(z, y)."""
    for row, weight in _each(tables["links"]):
        yield Derivation(row[:2], (), ((0, row),), weight)
        for body in rows:
            if _is_equal(body[1], row[0]):
                yield Derivation((body[0], row[1]), (body,), ((1, row),), weight)


def two_keys(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """r(x, y) <- links(x, y); r(y, x) <- r(x, y), links(x, y)."""
    for row, weight in _each(tables["links"]):
        yield Derivation(row[:2], (), ((0, row),), weight)
        for body in rows:
            if _is_equal(body[0], row[0]) and _is_equal(body[1], row[1]):
                yield Derivation((body[1], body[0]), (body,), ((1, row),), weight)


def closure(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """r(x, y) <- links(x, y); r(x, y) <- r(x, z), r(z, y)."""
    for row, weight in _each(tables["links"]):
        yield Derivation(row[:2], (), ((0, row),), weight)
    for left in rows:
        for right in rows:
            if _is_equal(left[1], right[0]):
                yield Derivation((left[0], right[1]), (left, right), (), 1)


def same_generation(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """s(x, y) <- seeds(x), seeds(y) of one row; s(x, y) <- links(x, a), s(a, b), links(y, b)."""
    for row, weight in _each(tables["seeds"]):
        yield Derivation((row[0], row[0]), (), ((0, row),), weight)
    for up, weight in _each(tables["links"]):
        for down, other in _each(tables["links"]):
            for body in rows:
                if _is_equal(up[1], body[0]) and _is_equal(body[1], down[1]):
                    leaves = ((1, up), (2, down))
                    yield Derivation((up[0], down[0]), (body,), leaves, weight * other)


def two_branches(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """r(n) <- seeds(n); r(n) <- r(m), links(m, n); r(n) <- links(_, n), n = 1: without a body."""
    yield from reach(tables, rows)
    for row, weight in _each(tables["links"]):
        if row[1] == 1:
            yield Derivation(row[1:2], (), ((2, row),), weight)


def both_ways(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """r(n) <- seeds(n); r(n) <- r(m), links(m, n); r(n) <- r(m), links(n, m)."""
    yield from reach(tables, rows)
    for row, weight in _each(tables["links"]):
        for body in rows:
            if _is_equal(body[0], row[1]):
                yield Derivation(row[:1], (body,), ((2, row),), weight)


class Beyond(Exception):
    """There are rows in too many levels, or too many rows."""


def levels_of(
    rules: Rules, tables: Tables, most_levels: int, most_rows: int
) -> tuple[list[Counter[Row]], list[Derivation]]:
    """The weighted rows of every level, and their weighted derivations.

    Each level derives the next, by rules with one body. Raises Beyond if rows are on more than
    `most_levels` levels, or if there are `most_rows` or more.
    """
    base = list(rules(tables, frozenset()))
    derivations = list(base)
    levels = [weights_of(base)]
    while levels[-1]:
        if len(levels) > most_levels:
            raise Beyond("levels")
        if sum(level.total() for level in levels) >= most_rows:
            raise Beyond("rows")
        last = levels[-1]
        result = [
            replace(one, weight=one.weight * last[one.bodies[0]])
            for one in rules(tables, frozenset(last))
            if one.bodies
        ]
        derivations += result
        levels.append(weights_of(result))
    return levels[:-1], derivations


BAGS: Mapping[str, Rules] = {
    "reach": reach,
    "right-linear": right_linear,
    "same generation": same_generation,
    "both ways": both_ways,
}
"""Programs in which every row is derived from at most one other."""

PROGRAMS: Mapping[str, Rules] = {
    "reach": reach,
    "right-linear": right_linear,
    "left-linear": left_linear,
    "two keys": two_keys,
    "closure": closure,
    "same generation": same_generation,
    "two branches": two_branches,
}


FRAGMENTS = (1, 2, 3)
"""Boundaries, such that the value f is in range f."""


def ranked_rows(stored: RankedRows) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """Rank, `all` and `low` of every stored row."""
    run = stored.arrangement.whole()
    if run is None:
        return {}
    rows = zip(*(key.to_arrow().to_pylist() for key in stored.keys_of(run)), strict=True)
    return dict(zip(rows, zip(*(run.values[n].tolist() for n in NAMES), strict=True), strict=True))


class Recursive(Struct, dict=True):
    """A program's circuit: `tables` are those of its sources, in their order."""

    kind: Kind
    fixpoint: Any
    """A `Fixpoint` or `Levels`."""
    circuit: Circuit
    tables: tuple[str, ...]
    accesses: int
    arity: int
    scans: Mapping[str, TableScan]
    stored: dict[str, dict[int, pa.Table]] = field(default_factory=dict)

    @cached_property
    def merge(self) -> Merge:
        return Merge([len(FRAGMENTS) + 2] * self.accesses)

    def step(self, changes: Mapping[str, Counter[Row]]) -> Counter[Row]:
        """Step by signed rows; count the sketches, and return the changes of the result."""
        sources = [self.read(name, changes[name]) for name in self.tables]
        output = self.circuit.step(*sources)
        return self.counted(output)

    def counted(self, output: Batch | None) -> Counter[Row]:
        """The rows in a batch of the circuit; counts its tags."""
        if output is None:
            return Counter()
        self.merge.step(output)
        rows = output.keep(output.columns["is_row"].values) if len(output) else output
        return self.rows_of(rows)

    def read(self, name: str, rows: Counter[Row]) -> Batch | None:
        """A batch of a table's rows; None without any."""
        if not rows:
            return None
        names = ("a", "b", "f") if name == "links" else ("a", "f")
        columns: dict[str, Any] = {}
        for index, column in enumerate(names):
            values = [row[index] for row in rows]
            if column == "f":
                columns[column] = pa.array(values, pa.int64())
            else:
                result = [self.kind.value(node, turn) for turn, node in enumerate(values)]
                columns[column] = pa.array(result, self.kind.arrow)
        weights = np.array(list(rows.values()), dtype=np.int64)
        return self.scans[name].read(pa.table(columns), weights)

    def rows_of(self, batch: Batch) -> Counter[Row]:
        """Rows of the fixpoint with their weights, consolidated."""
        counts: Counter[Row] = Counter()
        if len(batch):
            names = [f"t.{index}" for index in range(self.arity)]
            columns = [batch.columns[name].to_arrow().to_pylist() for name in names]
            for *values, weight in zip(*columns, batch.weights.tolist(), strict=True):
                counts[tuple(map(self.kind.node, values))] += weight
        return Counter({row: weight for row, weight in counts.items() if weight})

    def ranked(self) -> dict[Row, tuple[int, int, int]]:
        """Rank, `all` and `low` of every stored row."""
        ranked = ranked_rows(self.fixpoint.rows)
        return {tuple(map(self.kind.node, row)): values for row, values in ranked.items()}

    def by_keys(self) -> list[Counter[Row]]:
        """Rows with ranks and weights, in each index of the step that stores ranks."""
        result = []
        for keeper in self.fixpoint.arrangements():
            names = [name for name, _ in keeper.columns] if isinstance(keeper, RowIndex) else []
            if len(names) != self.arity + 1 or not names[-1].startswith("rank"):
                continue
            assert isinstance(keeper, RowIndex)
            stored = keeper.whole()
            rows: Counter[Row] = Counter()
            columns = [stored.columns[name].to_arrow().to_pylist() for name in names if len(stored)]
            for *values, rank, weight in zip(*columns, stored.weights.tolist(), strict=True):
                rows[(*map(self.kind.node, values), rank)] += weight
            result.append(rows)
        return result

    def levelled(self) -> Counter[tuple[Row, int]]:
        """The weight of every stored row, by level."""
        whole = self.fixpoint.rows.whole()
        result: Counter[tuple[Row, int]] = Counter()
        if len(whole):
            names = [f"t.{index}" for index in range(self.arity)]
            columns = [whole.columns[name].to_arrow().to_pylist() for name in (*names, "rank")]
            for *values, level, weight in zip(*columns, whole.weights.tolist(), strict=True):
                result[tuple(map(self.kind.node, values)), level] += weight
        return result

    def ranges(self) -> Counter[object]:
        """How often each range of each access is counted at the root."""
        return Counter(
            {
                (access, range_id): count
                for access, counts in enumerate(self.merge.counts)
                for range_id, count in enumerate(counts.tolist())
                if count
            }
        )

    def save(self) -> None:
        """Write what changed since the last time into `stored`, as a store would."""
        save_all(self._keepers(), self.stored)

    def restarted(self, fresh: Recursive) -> Recursive:
        """Store this state, and restore it in `fresh`."""
        self.save()
        return self.gone_on(fresh, self.circuit.counters())

    def gone_on(self, fresh: Recursive, counters: Mapping[str, int]) -> Recursive:
        """Restore the state that is already stored, and these counters, in `fresh`."""
        fresh.stored = self.stored
        load_all(fresh._keepers(), self.stored)
        fresh.circuit.take_up(counters)
        fresh.merge.restore()
        return fresh

    def _keepers(self) -> tuple[Keeper, ...]:
        return (*self.circuit.arrangements(), *self.merge.arrangements())


class _Builder:
    """Operators of a circuit under construction."""

    def __init__(self, kind: Kind, prefix: str = "") -> None:
        self.kind = kind
        self.prefix = prefix
        self.operators: list[Operator] = []
        self.inputs: list[tuple[int, ...]] = []

    def put(self, operator: Operator, *inputs: int) -> int:
        self.operators.append(operator)
        self.inputs.append(inputs)
        return len(self.operators) - 1

    def project(self, source: int, **outputs: str) -> int:
        """Rename columns; `_` in a keyword is a dot."""
        pairs = [(new.replace("_", "."), self.ref(old)) for new, old in outputs.items()]
        return self.put(ProjectOperator(pairs), source)

    def ref(self, name: str) -> Expr:
        return ColumnRef(name, LONG if name.startswith("rank") else self.kind.type)

    def columns(self, *names: str) -> tuple[tuple[str, SqlType], ...]:
        kind = self.kind.type
        return tuple((name, LONG if name.startswith("rank") else kind) for name in names)

    def join(
        self, left: tuple[int, Sequence[str], int], right: tuple[int, Sequence[str], int], *on: str
    ) -> int:
        """`on` are the keys, one of each side; a side is its position, columns and accesses."""
        name = f"{self.prefix}join{len(self.operators)}"
        sides = [
            Side(self.columns(*columns), (key,), accesses)
            for (_, columns, accesses), key in zip((left, right), on, strict=True)
        ]
        return self.put(JoinOperator(name, sides[0], sides[1], [False]), left[0], right[0])

    def circuit(self) -> Circuit:
        return Circuit(self.operators, self.inputs)


def _reach_step(kind: Kind) -> tuple[Circuit, int]:
    builder = _Builder(kind, "step.")
    joined = builder.join((-1, ("t.0", "rank"), 0), (-2, ("a", "b"), 1), "t.0", "a")
    builder.project(joined, t_0="b", rank="rank")
    return builder.circuit(), 1


def _right_linear_step(kind: Kind) -> tuple[Circuit, int]:
    builder = _Builder(kind, "step.")
    joined = builder.join((-2, ("a", "b"), 1), (-1, ("t.0", "t.1", "rank"), 0), "b", "t.0")
    builder.project(joined, t_0="a", t_1="t.1", rank="rank")
    return builder.circuit(), 1


def _left_linear_step(kind: Kind) -> tuple[Circuit, int]:
    builder = _Builder(kind, "step.")
    rows = builder.project(-1, own_0="t.0", own_1="t.1", rankown="rank")
    joined = builder.join(
        (rows, ("own.0", "own.1", "rankown"), 0), (-2, ("a", "b"), 1), "own.1", "a"
    )
    chosen = builder.project(joined, first="own.0", second="b", ranks="rankown")
    builder.project(chosen, t_0="first", t_1="second", rank="ranks")
    return builder.circuit(), 1


def _two_keys_step(kind: Kind) -> tuple[Circuit, int]:
    builder = _Builder(kind, "step.")
    rows, links = (builder.columns("t.0", "t.1", "rank"), builder.columns("a", "b"))
    sides = Side(rows, ("t.0", "t.1"), 0), Side(links, ("a", "b"), 1)
    joined = builder.put(JoinOperator("step.join", *sides, [False, False]), -1, -2)
    builder.project(joined, t_0="t.1", t_1="t.0", rank="rank")
    return builder.circuit(), 1


def _closure_step(kind: Kind) -> tuple[Circuit, int]:
    builder = _Builder(kind, "step.")
    left = builder.project(-1, l_0="t.0", l_1="t.1", rankl="rank")
    right = builder.project(-1, r_0="t.0", r_1="t.1", rankr="rank")
    joined = builder.join(
        (left, ("l.0", "l.1", "rankl"), 0), (right, ("r.0", "r.1", "rankr"), 0), "l.1", "r.0"
    )
    ranks = (builder.ref("rankl"), builder.ref("rankr"))
    outputs = [("t.0", builder.ref("l.0")), ("t.1", builder.ref("r.1"))]
    builder.put(ProjectOperator([*outputs, ("rank", Call("greatest", ranks, LONG))]), joined)
    return builder.circuit(), 0


def _same_generation_step(kind: Kind) -> tuple[Circuit, int]:
    builder = _Builder(kind, "step.")
    up = builder.project(-2, u_a="a", u_b="b")
    down = builder.project(-3, d_a="a", d_b="b")
    first = builder.join((up, ("u.a", "u.b"), 1), (-1, ("t.0", "t.1", "rank"), 0), "u.b", "t.0")
    kept = ("u.a", "u.b", "t.0", "t.1", "rank")
    second = builder.join((first, kept, 1), (down, ("d.a", "d.b"), 1), "t.1", "d.b")
    builder.project(second, t_0="u.a", t_1="d.a", rank="rank")
    return builder.circuit(), 2


def _two_branches_step(kind: Kind) -> tuple[Circuit, int]:
    builder = _Builder(kind, "step.")
    joined = builder.join((-1, ("t.0", "rank"), 0), (-2, ("a", "b"), 1), "t.0", "a")
    first = builder.project(joined, t_0="b", rank="rank")
    one = Literal(kind.value(1, 0), kind.type)
    chosen = builder.put(
        SelectOperator(Compare(CompareOp.EQUAL, builder.ref("b"), one), must_be_sure=True), -3
    )
    second = builder.put(
        ProjectOperator([("t.0", builder.ref("b")), ("rank", Literal(NO_BODY, LONG))]), chosen
    )
    columns = (("t.0", "t.0"), ("rank", "rank"))
    builder.put(
        Union([UnionBranch(columns, (0, None)), UnionBranch(columns, (None, 0))]), first, second
    )
    return builder.circuit(), 2


def _both_ways_step(kind: Kind) -> tuple[Circuit, int]:
    builder = _Builder(kind, "step.")
    ahead = builder.join((-1, ("t.0", "rank"), 0), (-2, ("a", "b"), 1), "t.0", "a")
    first = builder.project(ahead, t_0="b", rank="rank")
    back = builder.join((-1, ("t.0", "rank"), 0), (-3, ("a", "b"), 1), "t.0", "b")
    second = builder.project(back, t_0="a", rank="rank")
    columns = (("t.0", "t.0"), ("rank", "rank"))
    builder.put(
        Union([UnionBranch(columns, (0, None)), UnionBranch(columns, (None, 0))]), first, second
    )
    return builder.circuit(), 2


_STEPS: Mapping[str, Callable[[Kind], tuple[Circuit, int]]] = {
    "reach": _reach_step,
    "right-linear": _right_linear_step,
    "left-linear": _left_linear_step,
    "two keys": _two_keys_step,
    "closure": _closure_step,
    "same generation": _same_generation_step,
    "two branches": _two_branches_step,
    "both ways": _both_ways_step,
}
_SOURCES = {
    "reach": (("a",), "seeds", "links"),
    "right-linear": (("a", "b"), "links", "links"),
    "left-linear": (("a", "b"), "links", "links"),
    "two keys": (("a", "b"), "links", "links"),
    "closure": (("a", "b"), "links"),
    "same generation": (("a", "a"), "seeds", "links", "links"),
    "two branches": (("a",), "seeds", "links", "links"),
    "both ways": (("a",), "seeds", "links", "links"),
}
"""The base table's columns of the head; then the base table, and the tables of the step."""


def recursive(
    program: str,
    kind: str = "numbers",
    limits: Limits | LevelLimits = LIMITS,
    thin: int = THIN,
    *,
    chooses: bool = False,
) -> Recursive:
    """A fresh circuit of the program.

    Fronts of up to `thin` rows are processed row by row. If it `chooses`, it reports one derivation
    of each row.
    """
    nodes = KINDS[kind]
    head, *tables = _SOURCES[program]
    step, step_accesses = _STEPS[program](nodes)
    names = [f"t.{index}" for index in range(len(head))]
    builder = _Builder(nodes)
    outputs = [(name, builder.ref(old)) for name, old in zip(names, head, strict=True)]
    base = builder.put(ProjectOperator(outputs), -1)
    fixpoint: FixpointOperator | UnionAllFixpoint
    if isinstance(limits, Limits):
        columns = builder.columns(*names)
        accesses = (1, step_accesses)
        fixpoint = FixpointOperator("fix", columns, "rank", step, accesses, limits, chooses=chooses)
        fixpoint.thin = thin
    else:
        fixpoint = UnionAllFixpoint(
            "fix", builder.columns(*names), "rank", step, (1, step_accesses), limits
        )
    index = builder.put(fixpoint, base, *(-2 - other for other in range(len(tables) - 1)))
    lineage = builder.put(LineageOperator(fixpoint), index)
    marked = builder.put(
        ProjectOperator([*((n, builder.ref(n)) for n in names), ("is_row", _mark(True))]), index
    )
    nulls = [(name, Literal(None, nodes.type)) for name in names]
    lineage_rows = builder.put(ProjectOperator([*nulls, ("is_row", _mark(False))]), lineage)
    pairs = tuple((name, name) for name in (*names, "is_row"))
    count = 1 + step_accesses
    none, every = (None,) * count, tuple(range(count))
    builder.put(Union([UnionBranch(pairs, none), UnionBranch(pairs, every)]), marked, lineage_rows)
    scans = {
        name: TableScan(
            [(column, column, nodes.type) for column in ("a", "b")[: 1 + (name == "links")]],
            [RangePartition(name, "f", LONG, FRAGMENTS)],
        )
        for name in ("links", "seeds")
    }
    return Recursive(nodes, fixpoint, builder.circuit(), tuple(tables), count, len(names), scans)


def _mark(is_row: bool) -> Literal:
    return Literal(is_row, BOOLEAN)


def cut(row: Row) -> int:
    """The range of a table's row."""
    value = row[-1]
    return len(FRAGMENTS) + 1 if value is None else sum(value >= one for one in FRAGMENTS)
