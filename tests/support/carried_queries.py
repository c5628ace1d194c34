"""Recursive queries carried along: loaded, stepped by random changes, stored and taken up again.

Tables are lists of rows of whole numbers and NULL, sketched on their column f; what a step changes
in them has come about when the query is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import pyarrow as pa

from impctl.compile.answers import answer_of_rows
from impctl.compile.compile import Compiled
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import LONG, Column, Schema
from impctl.engine.fixpoint.rows import BestRows
from impctl.engine.operator import Limits
from impctl.plan.nodes import Plan, Query, scans_of
from impctl.rules.finalize import answer_plan
from impctl.types import AccessId
from tests.support.reference_plan import bag
from tests.support.restored_query import Stored, restored

Row = Mapping[str, int | None]
Tables = Mapping[str, list[Row]]

BOUNDARIES = (1, 2, 3)
"""Of the fragments by f."""


@dataclass(frozen=True)
class Drawn:
    """Tables of these columns, whose rows are drawn at random."""

    columns: Mapping[str, Sequence[str]]
    some_row: Callable[[Random, str], Row]

    @property
    def catalog(self) -> Mapping[str, Schema]:
        return {
            name: Schema(tuple(Column(column, LONG) for column in columns))
            for name, columns in self.columns.items()
        }

    def some_tables(self, rng: Random, sizes: Mapping[str, int]) -> dict[str, list[Row]]:
        """So many rows of each."""
        return {n: [self.some_row(rng, n) for _ in range(sizes[n])] for n in self.columns}

    def some_change(
        self, rng: Random, name: str, rows: list[Row], most: int
    ) -> tuple[list[Row], list[int]]:
        """Rows that come, some twice, and rows that go; `rows` is brought up to date."""
        came = [self.some_row(rng, name) for _ in range(rng.randint(0, most))]
        came += rng.sample(came, len(came) // 3)
        gone = rng.sample(rows, min(len(rows), rng.randint(0, most)))
        for row in gone:
            rows.remove(row)
        rows += came
        return came + gone, [1] * len(came) + [-1] * len(gone)

    def some_changes(
        self, rng: Random, tables: Tables, most: Sequence[int]
    ) -> dict[str, TableChange]:
        """Those of most of the tables, of so many rows or so many."""
        return {
            name: self.change_of(name, *self.some_change(rng, name, rows, rng.choice(most)))
            for name, rows in tables.items()
            if rng.random() < 0.8
        }

    def change_of(self, name: str, rows: Sequence[Row], weights: Sequence[int]) -> TableChange:
        arrays = {c: pa.array([row[c] for row in rows], pa.int64()) for c in self.columns[name]}
        return TableChange(pa.table(arrays), np.array(weights, dtype=np.int64))

    def whole(self, tables: Mapping[str, Sequence[Row]]) -> list[tuple[str, pa.Table]]:
        """The tables as a query is loaded with them."""
        return [
            (name, self.change_of(name, rows, [1] * len(rows)).rows)
            for name, rows in tables.items()
        ]

    def carried(
        self,
        rng: Random,
        tables: Tables,
        compiled: Callable[[], Compiled],
        steps: int,
        most: Sequence[int] = (1, 3, 6),
        limits: Limits | None = None,
    ) -> Iterator[MaintainedQuery]:
        """The query once it is loaded, and after each of so many steps; `tables` are brought up to
        date. Between steps it is sometimes taken up anew from what was stored."""
        query, stored = MaintainedQuery(compiled()), Stored()
        if limits is not None:
            query.circuit.end_by(limits)
        query.load(self.whole(tables))
        yield query
        for _ in range(steps):
            query.step(self.some_changes(rng, tables, most))
            yield query
            if rng.random() < 0.3:
                query = restored(query, stored, MaintainedQuery(compiled()))


def fragment(row: Row) -> int:
    value = row["f"]
    return len(BOUNDARIES) + 1 if value is None else sum(value >= one for one in BOUNDARIES)


def fragments_read(
    lineage: Collection[tuple[AccessId, int]],
    core: Plan,
    sketched: Collection[AccessId],
    tables: Mapping[str, Sequence[Row]],
) -> dict[AccessId, set[int]]:
    """The fragments, by sketched access of the plan, of the rows that it reads in these places."""
    table = {scan.access: scan.table for scan in scans_of(core)}
    result: dict[AccessId, set[int]] = {access: set() for access in sketched}
    for access, number in lineage:
        if access in result:
            result[access].add(fragment(tables[table[access]][number]))
    return result


def rows_kept(query: MaintainedQuery, asked: Query) -> object:
    """The rows of the answer by what is kept of it."""
    kept = query.compiled.kept
    assert kept is not None
    answer = answer_of_rows(answer_plan(asked).ending, kept.whole(), "UTC")
    return bag(zip(*(column.to_pylist() for column in answer.columns), strict=True))


def best_ranked(held: BestRows) -> list[tuple[dict[str, int | None], int, int]]:
    """All rows that are in by their columns, with rank and low."""
    run = held.inside.whole()
    if run is None:
        return []
    whole = held.rows()
    columns = [whole.columns[name].to_arrow().to_pylist() for name in held.names]
    ranks = run.values["rank"].tolist()
    lows = run.values["low"].tolist() if "low" in run.values else [0] * len(ranks)
    rows = (dict(zip(held.names, row, strict=True)) for row in zip(*columns, strict=True))
    return list(zip(rows, ranks, lows, strict=True))
