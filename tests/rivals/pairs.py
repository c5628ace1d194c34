"""Two tables of rows that all have partners, a grouped join of them, and who follows it in impctl.

Law: equal arguments give equal rows and steps; what the answer has to be is counted here by NumPy
from all rows, without joining and without impctl. Out of scope: Delta tables (`on_disk`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.large_joins.partners import MEASURES, partners_table
from benchmarks.trees.streams import Step
from impctl.compile.answers import answer_of_rows
from impctl.compile.compile import compile_plan
from impctl.compile.session import MaintainedQuery
from impctl.data.schema import LONG, Column, Schema
from impctl.plan.nodes import scans_of
from impctl.rules.finalize import AnswerPlan, answer_plan
from impctl.rules.optimize import core_of, whole_answer
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query

Groups = Mapping[int, int]
"""The sum of every group that is in the answer."""

_CATALOG = {name: Schema(tuple(Column(c, LONG) for c in ("id", "a", "c", "b"))) for name in "rs"}
_RANGES = 100


@dataclass(frozen=True)
class Pairs:
    """Two tables `r` and `s` of so many rows, of which every key has `partners` in each."""

    rows: int
    partners: int

    @property
    def least(self) -> int:
        """What a sum has to be above: three hundredths more than the mean one."""
        return self.partners * self.partners * (MEASURES - 1) * 103 // 200

    @property
    def sql(self) -> str:
        return (
            "SELECT r.a, SUM(s.b) AS total FROM s JOIN r ON s.a = r.a "
            f"GROUP BY r.a HAVING SUM(s.b) > {self.least}"
        )

    def tables(self) -> dict[str, pa.Table]:
        """The rows before anything comes: their `id` is an even number."""
        tables = {"r": partners_table(self.rows, self.partners, 1)}
        tables["s"] = partners_table(self.rows, self.partners, 2)
        return {name: _with_ids(rows, 0) for name, rows in tables.items()}

    def steps(self, size: int) -> Iterator[Step]:
        """So many rows like its own, with an odd `id`, come to `s`, and go with the next step."""
        random = np.random.default_rng(1)
        own = partners_table(self.rows, self.partners, 2)
        before = self.tables()["s"]
        while True:
            drawn = random.choice(self.rows, size, replace=False)
            came = _with_ids(own.take(pa.array(drawn)), 1)
            yield Step({"s": came}, {}, {"s": pa.concat_tables([before, came])})
            yield Step({}, {"s": came}, {"s": before})

    def groups(self, tables: Mapping[str, pa.Table]) -> Groups:
        """The answer: of a key as often the sum of `s` as `r` has it."""
        keys = [tables[name].column("a").to_numpy() for name in "rs"]
        size = int(max(part.max() for part in keys)) + 1
        times = np.bincount(keys[0], minlength=size)
        sums = np.zeros(size, dtype=np.int64)
        np.add.at(sums, keys[1], tables["s"].column("b").to_numpy())
        totals = times * sums
        return {int(key): int(totals[key]) for key in np.flatnonzero(totals > self.least)}

    def keys_to_ranges(self, name: str, tables: Mapping[str, pa.Table], groups: Groups) -> set[int]:
        """The ranges of a table's `id` that hold rows of these groups."""
        rows = tables[name]
        are_in = np.isin(rows.column("a").to_numpy(), list(groups))
        ids = rows.column("id").to_numpy()[are_in]
        return set(np.searchsorted(bounds_of(self.rows), ids, side="right").tolist())


def bounds_of(rows: int) -> Any:
    """Where the ranges of `id` begin, but for the first."""
    return np.unique(np.linspace(0, 2 * rows, _RANGES + 1, dtype=np.int64)[1:-1])


def _with_ids(rows: pa.Table, odd: int) -> pa.Table:
    """Everybody's `id` twice as large, and one more for odd ones: those that come have new ones."""
    ids = rows.column("id").to_numpy() * 2 + odd
    return rows.set_column(rows.schema.get_field_index("id"), "id", pa.array(ids))


class Tree:
    """impctl's circuit over a join tree: both sketches, the answer's rows, all in memory."""

    def __init__(self, pairs: Pairs, start: Mapping[str, pa.Table], *, keeps: bool) -> None:
        """Filled; with `keeps` the answer's rows are kept beside the sketches."""
        self.pairs = pairs
        query = whole_answer(parse_query(pairs.sql, _CATALOG))
        self._answer = answer_plan(query) if keeps else None
        plan = core_of(query.root) if self._answer is None else self._answer.kept
        bounds = tuple(bounds_of(pairs.rows).tolist())
        partitions = {
            scan.access: RangePartition(scan.table, "id", LONG, bounds) for scan in scans_of(plan)
        }
        compiled = compile_plan(plan, partitions, {}, barriers=(), trees={}, answer=self._answer)
        self._session = MaintainedQuery(compiled)
        self._session.load(list(start.items()))

    def step(self, step: Step) -> float:
        """Milliseconds of processor time of the step of the engine."""
        changes = step.changes()
        began = time.process_time()
        self._session.step(changes)
        return (time.process_time() - began) * 1000.0

    def is_right(self, tables: Mapping[str, pa.Table]) -> bool:
        """Whether the sketches, and the answer where it is kept, are those of these rows."""
        groups = self.pairs.groups(tables)
        result = {
            access.split("#")[0]: set(fragments)
            for access, fragments in self._session.fragments().items()
        }
        wanted = {name: self.pairs.keys_to_ranges(name, tables, groups) for name in "rs"}
        return result == wanted and (self._answer is None or self._kept(self._answer) == groups)

    def _kept(self, answer: AnswerPlan) -> Groups:
        kept = self._session.compiled.kept
        assert kept is not None
        table = answer_of_rows(answer.ending, kept.whole(), "UTC")
        keys, totals = (table.column(at).to_pylist() for at in (0, 1))
        return dict(zip(keys, totals, strict=True))
