"""A random plan's tables, the changes of these, and the sketches that the reference finds.

Law: the sketches follow from the lineage of the plan that is kept, by the reference alone.
Out of scope: what maintains them (`test_plans_against_reference`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from random import Random

import numpy as np
import pyarrow as pa

from impctl.compile.session import TableChange
from impctl.data.schema import SqlType
from impctl.plan.nodes import Fixpoint, Plan, Project, Query, Sort, TopK, Window, nodes_of, scans_of
from impctl.safety.judge import Verdict, carried
from impctl.sketch.partition import RangePartition
from tests.plan.keyed_sketches import evened
from tests.plan.random_plans import CATALOG
from tests.plan.trials import Trial, accurate_sketches
from tests.plan.witness_plans import kept_by_witnesses
from tests.support.arrow_rows import arrow_rows
from tests.support.reference_expr import Value
from tests.support.reference_plan import Tables, annotate

Rows = list[Mapping[str, Value]]


def table_of(name: str, rows: Sequence[Mapping[str, Value]]) -> pa.Table:
    return arrow_rows(CATALOG[name], rows)


def partitions_of(trial: Trial) -> dict[str, RangePartition]:
    """The trial's partitions in impctl's own form."""
    tables = {scan.access: scan.table for scan in scans_of(trial.root)}
    result = {}
    for access, (name, boundaries) in trial.partitions.items():
        table = tables[access]
        column = CATALOG[table].find(name)
        assert column is not None
        result[access] = RangePartition(
            table,
            column.name,
            column.type,
            tuple(canonical(value, column.type) for value in boundaries),
        )
    return result


def canonical(value: Value, kind: SqlType) -> int | float | str | bytes:
    if isinstance(value, Decimal):
        return int(value.scaleb(kind.scale))
    assert isinstance(value, int | float | str | bytes)
    return value


def change_of(rng: Random, rows: Rows, spare: Rows) -> tuple[Rows, list[int]]:
    """Some rows out, some in; `rows` is brought up to date."""
    changed: Rows = []
    weights: list[int] = []
    for _ in range(rng.randint(0, 4)):
        if rows and rng.random() < 0.5:
            changed.append(rows.pop(rng.randrange(len(rows))))
            weights.append(-1)
        elif spare:
            row = rng.choice(spare)
            rows.append(row)
            changed.append(row)
            weights.append(1)
    return changed, weights


def changes_of(
    rng: Random, names: Sequence[str], tables: dict[str, Rows], spare: Mapping[str, Rows]
) -> dict[str, TableChange]:
    """A batch of some of the tables, which are brought up to date."""
    result = {}
    for name in names:
        if rng.random() < 0.7:
            rows, weights = change_of(rng, tables[name], spare[name])
            result[name] = TableChange(table_of(name, rows), np.array(weights, dtype=np.int64))
    return result


@dataclass(frozen=True)
class Judged:
    """The plan whose lineage is the sketch, and of which of its top-k and fixpoints all rows do."""

    oracle: Plan
    barriers: tuple[int, ...]
    counted: frozenset[int]
    verdict: Verdict | None = None
    """On the oracle, where it has top-k or fixpoints."""

    @classmethod
    def of(
        cls, trial: Trial, root: Plan, verdict: Verdict, plain: Plan | None = None
    ) -> Judged | None:
        """None where ties, or what is not safe, leave several sketches right.

        `plain` is the plan without the rules, where it is not the trial's.
        """
        nodes = tuple(nodes_of(root))
        last = next(at for at, node in enumerate(nodes) if not isinstance(node, Project | Sort))
        tops = {at for at, node in enumerate(nodes) if isinstance(node, TopK | Fixpoint)}
        if not tops:
            plain = trial.root if plain is None else plain
            # Of a window call that nobody reads the other rows of its partition are not needed.
            is_less = _window_calls(root) < _window_calls(plain)
            return cls(root if is_less else plain, (), frozenset())
        counted = tops & {last, *verdict.barrier_positions}
        inner = tops - {last}
        if inner and not verdict.safe:
            return None
        if tops - counted and verdict.ties is not None:
            return None
        return cls(root, verdict.barrier_positions, frozenset(counted), verdict)

    def sketches(self, trial: Trial, tables: Tables) -> dict[str, set[int]]:
        """The fragments of the result, and of the first rows of each top-k that counts whole."""
        result = annotate(self.oracle, tables, whole_windows=True)
        counted = {at: rows for at, rows in result.first_rows.items() if at in self.counted}
        result = replace(result, first_rows=counted)
        sketches = accurate_sketches(result, trial.root, tables, trial.partitions)
        return sketches if self.verdict is None else evened(self.oracle, self.verdict, sketches)


def _window_calls(plan: Plan) -> int:
    return sum(len(node.calls) for node in nodes_of(plan) if isinstance(node, Window))


def of_witnesses(trial: Trial, root: Plan, verdict: Verdict) -> Judged | None:
    """The same of the plan that a sketch of witnesses is kept by; None where it has none."""
    if not verdict.safe:
        return None
    kept = kept_by_witnesses(root, trial, verdict)
    if kept == root:
        return None
    return Judged.of(trial, kept, carried(verdict, Query("", kept), trial.sketched), kept)
