"""Models of the circuits of TPC-H's queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from impctl.compile.compile import Dataflow, compile_plan
from impctl.compile.flows import Chooser, row_bytes
from impctl.data.schema import DATE, LONG
from impctl.engine.aggregate import AggregateOperator
from impctl.engine.join import JoinOperator
from impctl.engine.linear import SelectOperator
from impctl.placement.model import KindOfChange, Numbers, StateModel, state_model
from impctl.plan.nodes import Plan
from impctl.sketch.sketch import RangePartition
from impctl.types import TableName
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
    """The circuit of a query, to look at and not to step."""
    return compiled(name)


def compiled(
    name: str, chooser: Chooser | None = None, trees: dict[str, int] | None = None
) -> Dataflow:
    query = _QUERIES[name]
    root = core(query.sql, TPCH)
    return compiled_plan(root, dict(query.sketch), chooser, trees)


def compiled_plan(
    root: Plan,
    asked: Mapping[TableName, str],
    chooser: Chooser | None = None,
    trees: dict[str, int] | None = None,
) -> Dataflow:
    """The circuit with the sketches that are asked for, else on a key of the longest table."""
    longest = max((scan.table for scan in root.scans), key=lambda name: ROWS.get(name, 0))
    sketched = {}
    for scan in root.scans:
        keys = sorted(a.name for a in scan.attributes if a.type == LONG)
        attribute = asked.get(scan.table)
        if not asked and scan.table == longest:
            attribute = keys[0]
        if attribute is not None:
            kind = DATE if str(attribute).endswith("date") else LONG
            sketched[scan.access] = RangePartition(scan.table, str(attribute), kind, (10, 20))
    return compile_plan(root, sketched, {}, chooser, barriers=(), trees=trees)


@cache
def model(name: str) -> StateModel:
    result = circuit(name)
    return state_model(result, KINDS, numbers(result))


def numbers(result: Dataflow) -> Numbers:
    """Rows, changes and bytes by the rules above."""
    guess = _Guess(result)
    sides = {
        name: (wire, side)
        for at, operator in enumerate(result.circuit)
        if isinstance(operator, JoinOperator)
        for (name, _), wire, side in zip(
            operator.held_sides, result.circuit.wires[at], operator.sides, strict=True
        )
    }
    keyed = {
        keeper.name: at
        for at, operator in enumerate(result.circuit)
        for keeper in operator.arrangements()
    }

    def size(name: str) -> int:
        if name in sides:
            wire, side = sides[name]
            return int(guess.rows(wire) * row_bytes(side.columns, side.accesses))
        # Of what is kept no filter is stored.
        return int(guess.rows(keyed[name]) * _BYTES) if name in keyed else 0

    return Numbers(
        rows=guess.rows,
        changed=guess.changed,
        bytes=size,
        fresh=lambda side, kind: 0.95 if len(kind.tables) > 1 else 0.0,
    )


class _Guess:
    def __init__(self, result: Dataflow) -> None:
        self._tables: Sequence[TableName] = [source.table for source in result.sources]
        self._operators = tuple(result.circuit)
        self._wires = result.circuit.wires

    def rows(self, wire: int) -> float:
        base, share = self._sized(wire)
        return base * share

    def _sized(self, wire: int) -> tuple[float, float]:
        if wire < 0:
            return ROWS.get(self._tables[-1 - wire], 1000), 1.0
        operator = self._operators[wire]
        below = [self._sized(one) for one in self._wires[wire]]
        base, share = max(below)
        if isinstance(operator, SelectOperator):
            return base, share / 3
        if isinstance(operator, JoinOperator):
            return base, below[0][1] * below[1][1]
        if isinstance(operator, AggregateOperator):
            return max(1.0, base / 4), share
        return base, share

    def changed(self, wire: int, kind: KindOfChange) -> float:
        if wire < 0:
            table = self._tables[-1 - wire]
            return _CHANGED.get(table, 5.0) if table in kind.tables else 0.0
        operator = self._operators[wire]
        each = [
            self.changed(one, kind) * self.rows(wire) / max(1e-9, self.rows(one))
            for one in self._wires[wire]
        ]
        return sum(each) * (2 if isinstance(operator, AggregateOperator) else 1)
