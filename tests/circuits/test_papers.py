"""The worked examples of the papers, state included.

imp-edbt26, figure 5: a selection, a join, a grouping with HAVING and the merge. imp-draft, examples
5.2 and 5.3: a cross product whose two sides change at once, and the grouping above it. The state
named there (rows and fragments per group) is read off the circuit's own.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from impctl.compile.compile import compile_plan
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import LONG, Column, Schema
from impctl.engine.aggregate import Aggregate
from impctl.engine.tags import FRAGMENT_BITS
from impctl.engine.trace import Run, slices
from impctl.plan.nodes import scans_of
from impctl.rules.optimize import apply_rules
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query


def session_of(
    sql: str, columns: dict[str, tuple[str, ...]], partitions: dict[str, tuple[str, int]]
) -> MaintainedQuery:
    """A circuit over tables of integers, each split in two at one boundary."""
    catalog = {
        table: Schema(tuple(Column(name, LONG) for name in names))
        for table, names in columns.items()
    }
    root = apply_rules(parse_query(sql, catalog).root)
    sketched = {}
    for scan in scans_of(root):
        name, boundary = partitions[scan.table]
        sketched[scan.access] = RangePartition(scan.table, name, LONG, (boundary,))
    return MaintainedQuery(compile_plan(root, sketched, {}))


def rows(names: tuple[str, ...], *values: tuple[int, ...]) -> pa.Table:
    return pa.table({name: [row[at] for row in values] for at, name in enumerate(names)})


def groups_of(session: MaintainedQuery) -> dict[int, tuple[int, int, dict[int, int], ...]]:
    """Per group: sum, count, and for each access the rows per fragment."""
    operator = next(op for op in session.circuit if isinstance(op, Aggregate))
    groups, *fragments = operator.arrangements()
    newest: dict[int, tuple[int, int, int]] = {}
    runs: tuple[Run, ...] = groups.runs  # type: ignore[union-attr]  # sums only: no other state
    for run in runs:
        none = np.zeros(len(run), dtype=np.int64)
        totals = run.values.get("low0", none)
        for at, code in enumerate(run.codes.tolist()):
            result = [run.values.get(name, none)[at] for name in ("rows", "group")]
            newest[code] = (int(totals[at]), int(result[0]), int(result[1]))
    state = {}
    for key, (total, count, number) in newest.items():
        if not count:
            continue
        low = np.array([number << FRAGMENT_BITS])
        held = []
        for counts in fragments:
            part: tuple[Run, ...] = counts.runs  # type: ignore[union-attr]  # as above
            _, codes, values = slices(part, low, low + (1 << FRAGMENT_BITS), "count")
            ids = (codes & ((1 << FRAGMENT_BITS) - 1)).tolist()
            held.append(dict(zip(ids, values.tolist(), strict=True)))
        state[key] = (total, count, *held)
    return state


def sketches(session: MaintainedQuery) -> list[tuple[int, ...]]:
    return [fragment.ids for fragment in session.fragments().values()]


def test_figure_5_of_the_edbt_paper() -> None:
    session = session_of(
        "SELECT a, SUM(c) AS total FROM (SELECT a, b FROM r WHERE a > 3) JOIN s ON b = d"
        " GROUP BY a HAVING SUM(c) > 5",
        {"r": ("a", "b"), "s": ("c", "d")},
        {"r": ("a", 6), "s": ("c", 7)},
    )
    session.load([("r", rows(("a", "b"), (1, 7), (9, 9))), ("s", rows(("c", "d"), (6, 9), (7, 8)))])
    assert groups_of(session) == {9: (6, 1, {1: 1}, {0: 1})}
    assert sketches(session) == [(1,), (0,)]
    one = np.ones(1, dtype=np.int64)
    deltas = session.step({"r": TableChange(rows(("a", "b"), (5, 8)), one)})
    assert groups_of(session) == {9: (6, 1, {1: 1}, {0: 1}), 5: (7, 1, {0: 1}, {1: 1})}
    assert [delta.added.tolist() for delta in deltas.values()] == [[0], [1]]
    assert [delta.removed.tolist() for delta in deltas.values()] == [[], []]
    counts = [count.tolist()[:2] for count in session.merge.counts]
    assert counts == [[1, 1], [1, 1]]


def test_examples_5_2_and_5_3_of_the_draft() -> None:
    """Group 1 goes, group 10 comes, group 7 changes its sum; figure 6 misprints 10's f2 as f1."""
    session = session_of(
        "SELECT r, SUM(s) AS summation FROM rr, ss GROUP BY r",
        {"rr": ("r",), "ss": ("s",)},
        {"rr": ("r", 5), "ss": ("s", 5)},
    )
    session.load([("rr", rows(("r",), (1,), (7,))), ("ss", rows(("s",), (1,), (8,)))])
    assert groups_of(session) == {
        1: (9, 2, {0: 2}, {0: 1, 1: 1}),
        7: (9, 2, {1: 2}, {0: 1, 1: 1}),
    }
    turned = np.array([-1, 1], dtype=np.int64)
    session.step(
        {
            "rr": TableChange(rows(("r",), (1,), (10,)), turned),
            "ss": TableChange(rows(("s",), (8,), (10,)), turned),
        }
    )
    assert groups_of(session) == {
        7: (11, 2, {1: 2}, {0: 1, 1: 1}),
        10: (11, 2, {1: 2}, {0: 1, 1: 1}),
    }
    assert sketches(session) == [(1,), (0, 1)]
