"""Models of the circuits of TPC-H's queries."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from impctl.compile.compile import Dataflow, compile_plan
from impctl.compile.flows import Chooser
from impctl.data.schema import DATE, LONG
from impctl.engine.aggregate import AggregateOperator
from impctl.engine.linear import SelectOperator
from impctl.placement import KindOfChange, Numbers, StateModel, state_model
from impctl.sketch.sketch import RangePartition
from impctl.workload.load import load_workload
from tests.compile.jointree.shapes import TPCH, core

ROWS = {
    "region": 5,
    "nation": 25,
    "customer": 150_000,
    "orders": 1_500_000,
    "lineitem": 6_001_215,
    "part": 200_000,
    "partsupp": 800_000,
    "supplier": 10_000,
}
KINDS = (
    KindOfChange(frozenset({"orders", "lineitem"}), 24.0),
    KindOfChange(frozenset({"customer"}), 1.0),
    KindOfChange(frozenset({"part"}), 1 / 7),
    KindOfChange(frozenset({"partsupp"}), 1 / 7),
    KindOfChange(frozenset({"supplier"}), 1 / 30),
)
_CHANGED = {"lineitem": 1000.0, "orders": 250.0, "customer": 100.0}
_BYTES = 40
_WORKLOAD = Path(__file__).parents[2] / "workloads" / "tpch.yaml"
_QUERIES = load_workload(_WORKLOAD, {}).queries
NAMES = tuple(_QUERIES)


@cache
def circuit(name: str) -> Dataflow:
    """The circuit of a query (shared: do not step it)."""
    return compiled(name)


def compiled(name: str, chooser: Chooser | None = None, *, has_trees: bool = False) -> Dataflow:
    """The circuit with the workload's sketches, or else one on a key of the largest table."""
    query = _QUERIES[name]
    root = core(query.sql, TPCH)
    longest = max((scan.table for scan in root.scans), key=ROWS.__getitem__)
    sketched = {}
    for scan in root.scans:
        attribute = query.sketch.get(scan.table)
        if not query.sketch and scan.table == longest:
            attribute = min(a.name for a in scan.attributes if a.type == LONG)
        if attribute is not None:
            kind = DATE if attribute.endswith("date") else LONG
            sketched[scan.access] = RangePartition(scan.table, attribute, kind, (10, 20))
    return compile_plan(root, sketched, {}, chooser, barriers=(), has_trees=has_trees)


@cache
def model(name: str) -> StateModel:
    result = circuit(name)
    return state_model(result, KINDS, numbers(result))


_SHARES = {SelectOperator: 1 / 3, AggregateOperator: 1 / 4}
"""Output rows of an operator as a share of its larger input's rows."""


def numbers(result: Dataflow) -> Numbers:
    """Rows, changes and bytes estimated from the constants above."""
    operators, wires = tuple(result.circuit), result.circuit.wires
    stored = {keeper.name: i for i, one in enumerate(operators) for keeper in one.arrangements()}
    for operator, inputs in zip(operators, wires, strict=True):
        stored |= {name: wire for (name, _), wire in zip(operator.held_sides, inputs, strict=False)}

    @cache
    def rows(wire: int) -> float:
        if wire < 0:
            return float(ROWS[result.sources[-1 - wire].table])
        return max(map(rows, wires[wire])) * _SHARES.get(type(operators[wire]), 1.0)

    @cache
    def changed(wire: int, kind: KindOfChange) -> float:
        if wire < 0:
            table = result.sources[-1 - wire].table
            return _CHANGED.get(table, 5.0) if table in kind.tables else 0.0
        return sum(changed(below, kind) * rows(wire) / rows(below) for below in wires[wire])

    return Numbers(
        rows=rows,
        changed=changed,
        # Filters are not stored beside kept pieces.
        bytes=lambda name: int(rows(stored[name]) * _BYTES) if name in stored else 0,
        fresh=lambda side, kind: 0.95 if len(kind.tables) > 1 else 0.0,
    )
