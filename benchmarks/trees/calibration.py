"""Measures the times of joins in `impctl.costs` again: `python -m benchmarks.trees.calibration`.

Both ways of many queries are stepped in turns with 1,000 changed rows in memory, and processor time
is explained by what the estimate counts: what a constant of 1 makes of it is that constant's share.
Least squares of relative errors, outliers weighing less, no constant below zero. Takes some
minutes; steps of a machine in use differ by half, so differences of that size mean nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import astuple

from benchmarks.large_joins.partners import partners_table
from benchmarks.large_joins.power_law import power_law_graph
from benchmarks.trees.streams import Stream, there_and_back, window
from impctl import costs
from impctl.compile.compile import compile_plan
from impctl.compile.jointree import cost
from impctl.compile.jointree.cost import KeySide, index_cost, tree_cost
from impctl.compile.jointree.graph import TreeShape
from impctl.compile.jointree.shape import planned_blocks
from impctl.compile.session import MaintainedQuery
from impctl.data.schema import LONG, Column, Schema
from impctl.engine.jointree.spec import TreeMode
from impctl.plan.nodes import Plan
from impctl.rules.optimize import core_of, without_free_limit
from impctl.sketch.sketch import RangePartition
from impctl.sql.statement import parse_query
from impctl.tables.sample import KeyCounts, counted, fan_out

Tables = Mapping[str, pa.Table]

_STEPS, _WARM, _MOST_JOINED = 10, 2, 6_000_000
_CATALOG = {name: Schema(tuple(Column(c, LONG) for c in ("id", "a", "c", "b"))) for name in "rsm"}
_CATALOG["g"] = Schema(tuple(Column(c, LONG) for c in ("id", "src", "dst", "value")))


class FanOutsOfRows(Struct, frozen=True):
    """Fan-outs of tables in memory."""

    tables: Tables

    def met(self, changed: KeySide, other: KeySide) -> float:
        return fan_out(self.counts(changed), self.counts(other))

    def counts(self, side: KeySide) -> KeyCounts:
        return counted([self.tables[side.table]], side.columns)


class Case(Struct, frozen=True):
    sql: str
    tables: Tables
    changed: str
    is_window: bool


class Measured(Struct, frozen=True):
    """Microseconds of both ways, and what each constant would be multiplied with."""

    mode: TreeMode
    index_us: float
    tree_us: float
    index: tuple[float, ...]
    tree: tuple[float, ...]


def main() -> None:
    """Measure, and write the constants with the errors that half and four fifths stay below."""
    result = [one for one in map(measured, cases(Random(7))) if one is not None]
    for mode, way in product(TreeMode, ("index", "tree")):
        cells = [one for one in result if one.mode is mode]
        shares = np.array([getattr(one, way) for one in cells])
        actual = np.array([getattr(one, f"{way}_us") for one in cells])
        constants = fitted(shares, actual)
        errors = np.exp(np.abs(np.log(shares @ constants / actual)))
        kind = costs.IndexTimes if way == "index" else costs.TreeTimes
        listed = ", ".join(
            f"{name}={c:.3g}" for name, c in zip(kind.__struct_fields__, constants, strict=True)
        )
        half, most = np.quantile(errors, [0.5, 0.8])
        line = f"{mode} {way}: {listed}; {len(cells)} cells, off by {half:.2f} and {most:.2f} times"
        sys.stdout.write(f"{line}\n")


def cases(random: Random) -> Iterator[Case]:
    """Pairs, paths, facts with dimensions and graphs, with and without conditions and groups."""
    for keys, mine, theirs in (
        *((20_000, 1, 1), (100_000, 1, 1), (10_000, 2, 2), (20_000, 1, 5), (4_000, 5, 5)),
        *((20_000, 5, 5), (2_000, 10, 10), (10_000, 10, 10), (1_000, 20, 20), (5_000, 20, 20)),
        *((500, 50, 50), (100, 200, 200), (1_000, 20, 1), (1_000, 1, 20)),
    ):
        tables = {
            "r": partners_table(keys * mine, mine, 1),
            "s": partners_table(keys * theirs, theirs, 2),
            "m": partners_table(keys, 1, 3),
        }
        rows = mine * theirs * 50
        pair = "FROM s JOIN r ON s.a = r.a{}"
        path = "FROM r JOIN m ON r.a = m.a JOIN s ON m.c = s.c{}"
        facts = "FROM r JOIN m ON r.a = m.a JOIN m n ON r.c = n.c{}"
        star = "FROM r JOIN s ON r.a = s.a JOIN m ON r.a = m.a{}"
        for joins, (limited, least) in product(
            (pair, path, facts, star), (("r", 100), ("r", 10), ("s", 10), ("r", 1), ("s", 1))
        ):
            if f" {limited} " not in joins or random.random() < 0.5:
                continue
            named = joins.format("" if least == 100 else f" WHERE {limited}.b < {least}")
            summed = "r.b" if joins is facts else "s.b"
            grouped = f"SELECT r.a {named} GROUP BY r.a HAVING SUM({summed}) > {rows}"
            for sql in (grouped, f"SELECT r.id {named}"):
                changed = random.choice([t for t in tables if f" {t} " in joins])
                # Rows that come twice wake nobody where nothing is grouped, as few do.
                yield Case(sql, tables, changed, "HAVING" not in sql or random.random() < 0.5)
    for edges, kept in product((9_000, 40_000), (1, 10, 100, 1_000)):
        graph = {"g": power_law_graph(edges, edges // 7, 2.2, 1)}
        two = f"FROM g g1 JOIN g g2 ON g1.dst = g2.src WHERE g2.value < {kept}"
        three = two.replace("WHERE", "JOIN g g3 ON g2.dst = g3.src WHERE").replace(
            "g2.value", "g3.value"
        )
        for joins in (two, three):
            yield Case(f"SELECT g1.src {joins}", graph, "g", True)
            grouped = f"SELECT g2.src {joins} GROUP BY g2.src HAVING COUNT(*) > 50"
            yield Case(grouped, graph, "g", random.random() < 0.5)


def measured(case: Case) -> Measured | None:
    """The case, unless far too much is joined, or too few rows are there to change."""
    root = core_of(without_free_limit(parse_query(case.sql, _CATALOG)).root)
    stream = _stream(case)
    tables = {scan.table: stream.start[scan.table] for scan in root.scans}
    (one,) = planned_blocks(root)
    assert one.block is not None
    assert isinstance(one.shape, TreeShape)
    tree = tree_cost(one.shape, FanOutsOfRows(tables))
    index = index_cost(one.block.joins, one.shape.mode, FanOutsOfRows(tables))
    assert tree is not None
    assert index is not None
    weights = {case.changed: 1}
    each = cost.rows_joined(index.accesses, weights)
    rows = len(tables[case.changed])
    if each * rows > _MOST_JOINED or rows < cost.STEP_ROWS:
        return None
    mode = one.shape.mode
    index_us, tree_us = _stepped(root, tables, stream)
    return Measured(
        mode,
        index_us,
        tree_us,
        _shares(costs.INDEX_JOIN, mode, lambda: cost.index_ms(index.accesses, tree, weights)),
        _shares(costs.JOIN_TREE, mode, lambda: cost.tree_ms(tree, weights)),
    )


def _stream(case: Case) -> Stream:
    if case.is_window:
        return window(case.tables, [case.changed], cost.STEP_ROWS, order="id", share=0.5)
    return there_and_back(case.tables, [case.changed], cost.STEP_ROWS, 1)


def _stepped(root: Plan, tables: Tables, stream: Stream) -> tuple[float, float]:
    """Microseconds of a step of the index join and of the tree, the lower third of all."""
    variants = [_filled(root, tables, has_trees=False), _filled(root, tables, has_trees=True)]
    times: list[list[float]] = [[], []]
    for step in range(_WARM + _STEPS):
        changes = next(stream.steps).changes()
        for variant in (0, 1) if step % 2 else (1, 0):
            began = time.process_time()
            variants[variant].step(changes)
            times[variant].append((time.process_time() - began) * 1e6)
    assert list(variants[0].ranges().values()) == list(variants[1].ranges().values())
    index, tree = (float(np.quantile(part[_WARM:], 0.3)) for part in times)
    return index, tree


def _filled(root: Plan, tables: Tables, *, has_trees: bool) -> MaintainedQuery:
    sketched = {}
    for scan in root.scans:
        bounds = np.linspace(0, len(tables[scan.table]), 100, dtype=np.int64)[1:-1]
        sketched[scan.access] = RangePartition(
            scan.table, "id", LONG, tuple(np.unique(bounds).tolist())
        )
    session = MaintainedQuery(compile_plan(root, sketched, {}, barriers=(), has_trees=has_trees))
    session.load(list(tables.items()))
    return session


def _shares(constants: dict[str, Any], mode: TreeMode, milliseconds: Any) -> tuple[float, ...]:
    """What each constant is multiplied with: the time that it makes when it alone is 1."""
    usual = constants[mode]
    count = len(astuple(usual))
    try:
        result = []
        for at in range(count):
            constants[mode] = type(usual)(*(float(place == at) for place in range(count)))
            result.append(milliseconds() * 1000.0)
    finally:
        constants[mode] = usual
    return tuple(result)


def fitted(shares: Any, actual: Any) -> Any:
    """Constants of zero and more by which the products come near what is wanted, relatively."""
    expected, weights = actual, np.ones(len(actual))
    for _ in range(6):
        scale = weights / np.sqrt(actual * np.maximum(expected, 1.0))
        constants = _at_least_zero(shares * scale[:, None], actual * scale)
        expected = shares @ constants
        errors = np.abs(np.log(np.maximum(expected, 1.0) / actual))
        weights = 1.0 / np.sqrt(np.maximum(errors / 0.3, 1.0))
    return constants


def _at_least_zero(shares: Any, actual: Any) -> Any:
    places: Sequence[int] = range(shares.shape[1])
    while True:
        result, *_ = np.linalg.lstsq(shares[:, list(places)], actual, rcond=None)
        if (result >= 0).all():
            break
        least = int(np.argmin(result))
        places = [position for index, position in enumerate(places) if index != least]
    constants = np.zeros(shares.shape[1])
    constants[list(places)] = result
    return constants


if __name__ == "__main__":
    main()
