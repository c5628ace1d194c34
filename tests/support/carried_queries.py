"""Queries maintained by circuits: loaded, stepped, stored and restored, with their rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.answers import answer_of_rows
from impctl.compile.compile import Dataflow, compile_plan
from impctl.compile.fill import Transient
from impctl.compile.flows import RANGE_COLUMN, Readable, Source, Strategy
from impctl.compile.session import MaintainedQuery, TableChange, read_in_turn
from impctl.data.schema import LONG, Column, Schema, SqlType
from impctl.data.vector import Bools, Vector, from_arrow
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.fixpoint.absorption import Absorbs
from impctl.engine.fixpoint.rows import BestFixpointRows
from impctl.engine.operator import Limits
from impctl.engine.tags import RowTags
from impctl.expr.evaluate import Condition
from impctl.expr.nodes import Expr
from impctl.plan.lineage import MovedConditions
from impctl.plan.nodes import Fixpoint, Plan, Project, Query, Scan
from impctl.rules.finalize import answer_plan
from impctl.rules.optimize import apply_rules, core_of
from impctl.sketch.sketch import RangePartition
from impctl.sql.statement import parse_query
from impctl.tables.rows import WantedValues, bare_rows
from impctl.tables.snapshot import arrow_type
from impctl.types import AccessId, ColumnName, TableName
from tests.support.reference_plan import Annotated, Lineage, Tables, annotate, bag


def arrow_rows(schema: Schema, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows by column name, in the types that impctl's readers return."""
    kinds = pa.schema([(column.name, arrow_type(column.type)) for column in schema])
    return pa.Table.from_pylist(list(rows), schema=kinds)


Stored = dict[tuple[str, int], pa.Table]
"""A query's state as a store would have it."""


def restored(session: MaintainedQuery, stored: Stored, fresh: MaintainedQuery) -> MaintainedQuery:
    """Continue a session in `fresh`, by way of a store."""
    checkpoint = session.checkpoint()
    session.saved()
    for name, sequence in checkpoint.drop:
        del stored[name, sequence]
    stored.update({(name, sequence): table for name, sequence, table in checkpoint.put})
    runs: dict[str, list[tuple[int, pa.Table]]] = {}
    for (name, sequence), table in sorted(stored.items(), key=lambda item: item[0]):
        runs.setdefault(name, []).append((sequence, table))
    names = {keeper.name for keeper in fresh.keepers()}
    for name, sequence in [key for key in stored if key[0] not in names]:
        del stored[name, sequence]
    fresh.restore(runs, checkpoint.counters, is_converted=True)
    return fresh


def sketches_of(query: MaintainedQuery) -> dict[str, set[int]]:
    return {access: set(result) for access, result in query.ranges().items()}


def counts_of(query: MaintainedQuery) -> list[list[int]]:
    """The number of rows with each range, per access."""
    return [count.tolist() for count in query.merge.counts]


Row = Mapping[str, int | None]
CarriedTables = Mapping[str, list[Row]]


def every_one(node: Plan) -> bool:
    return True


BOUNDARIES = (1, 2, 3)
"""Boundaries of the ranges of column f."""


class Case(Struct, frozen=True, dict=True):
    """A query, and the circuits that maintain its sketches and rows; fixpoints are barriers."""

    query: Query
    sketched: Mapping[AccessId, RangePartition]
    core: Plan

    @cached_property
    def ruled(self) -> Query:
        return replace(self.query, root=apply_rules(self.query.root))

    def compiled(self, *, with_answer: bool, absorbs: Absorbs | None = None) -> Dataflow:
        answer = answer_plan(self.ruled) if with_answer else None
        plan = self.core if answer is None else answer.kept
        barriers = [index for index, node in enumerate(plan.walk()) if isinstance(node, Fixpoint)]
        return compile_plan(
            plan, self.sketched, {}, barriers=barriers, answer=answer, absorbs=absorbs
        )

    def expected(
        self, tables: CarriedTables, is_barrier: Callable[[Plan], bool] = every_one
    ) -> dict[AccessId, set[int]]:
        """The ranges of the result's rows and of all rows of barriers."""
        return self.fragments(annotate(self.core, tables, whole_windows=True), tables, is_barrier)

    def fragments(
        self,
        result: Annotated,
        tables: CarriedTables,
        is_barrier: Callable[[Plan], bool] = every_one,
    ) -> dict[AccessId, set[int]]:
        nodes, table = list(self.core.walk()), {s.access: s.table for s in self.core.scans}
        barrier_rows = (
            rows for index, rows in result.first_rows.items() if is_barrier(nodes[index])
        )
        ranges: dict[AccessId, set[int]] = {access: set() for access in self.sketched}
        for access, number in result.lineage.union(*barrier_rows):
            if access in ranges:
                ranges[access].add(range_id(tables[table[access]][number]))
        return ranges


class Drawn(Struct, frozen=True):
    """Tables of these columns, with random rows."""

    columns: Mapping[str, Sequence[str]]
    some_row: Callable[[Random, str], Row]

    @property
    def catalog(self) -> Mapping[str, Schema]:
        return {
            name: Schema(tuple(Column(column, LONG) for column in columns))
            for name, columns in self.columns.items()
        }

    def case(self, sql: str, tables: Collection[str] | None = None) -> Case:
        """The query with sketches of all accesses, or of those to these tables."""
        query = parse_query(sql, self.catalog)
        core = core_of(query.root)
        names = self.columns if tables is None else tables
        sketched = {
            scan.access: RangePartition(scan.table, "f", LONG, BOUNDARIES)
            for scan in core.scans
            if scan.table in names
        }
        return Case(query, sketched, core)

    def some_tables(self, rng: Random, sizes: Mapping[str, int]) -> dict[str, list[Row]]:
        """Random tables of these sizes."""
        return {n: [self.some_row(rng, n) for _ in range(sizes[n])] for n in self.columns}

    def some_change(
        self, rng: Random, name: str, rows: list[Row], most: int
    ) -> tuple[list[Row], list[int]]:
        """Inserted rows, some twice, and deleted rows; this updates `rows`."""
        inserted = [self.some_row(rng, name) for _ in range(rng.randint(0, most))]
        inserted += rng.sample(inserted, len(inserted) // 3)
        deleted = rng.sample(rows, min(len(rows), rng.randint(0, most)))
        for row in deleted:
            rows.remove(row)
        rows += inserted
        return inserted + deleted, [1] * len(inserted) + [-1] * len(deleted)

    def some_changes(
        self, rng: Random, tables: CarriedTables, most: Sequence[int]
    ) -> dict[str, TableChange]:
        """Changes of most tables; `most` lists maximum numbers of rows to choose from."""
        return {
            name: self.change_of(name, *self.some_change(rng, name, rows, rng.choice(most)))
            for name, rows in tables.items()
            if rng.random() < 0.8
        }

    def change_of(self, name: str, rows: Sequence[Row], weights: Sequence[int]) -> TableChange:
        arrays = {c: pa.array([row[c] for row in rows], pa.int64()) for c in self.columns[name]}
        return TableChange(pa.table(arrays), np.array(weights, dtype=np.int64))

    def whole(self, tables: Mapping[str, Sequence[Row]]) -> list[tuple[str, pa.Table]]:
        """The whole tables, as a query loads them."""
        return [
            (name, self.change_of(name, rows, [1] * len(rows)).rows)
            for name, rows in tables.items()
        ]

    def carried(
        self,
        rng: Random,
        tables: CarriedTables,
        compiled: Callable[[], Dataflow],
        steps: int,
        most: Sequence[int] = (1, 3, 6),
        limits: Limits | None = None,
    ) -> Iterator[MaintainedQuery]:
        """Yield the query after loading and after each step; this updates `tables`.

        Between steps it is sometimes restored from stored state.
        """
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


def range_id(row: Row) -> int:
    value = row["f"]
    return len(BOUNDARIES) + 1 if value is None else sum(value >= one for one in BOUNDARIES)


def rows_kept(query: MaintainedQuery, query_asked: Query) -> object:
    """The rows of the result, computed from the materialized ones."""
    stored = query.compiled.kept
    assert stored is not None
    answer = answer_of_rows(answer_plan(query_asked).ending, stored.whole(), "UTC")
    return bag(zip(*(column.to_pylist() for column in answer.columns), strict=True))


def best_ranked(stored: BestFixpointRows) -> list[tuple[dict[str, int | None], int, int]]:
    """All stored rows by column, with rank and low."""
    run = stored.arrangement.whole()
    if run is None:
        return []
    whole = stored.rows()
    columns = [whole.columns[name].to_arrow().to_pylist() for name in stored.names]
    ranks = run.values["rank"].tolist()
    lows = run.values["low"].tolist() if "low" in run.values else [0] * len(ranks)
    rows = (dict(zip(stored.names, row, strict=True)) for row in zip(*columns, strict=True))
    return list(zip(rows, ranks, lows, strict=True))


class ReferencePartners(Struct, frozen=True):
    """Reads sides and joins of a circuit from the current tables."""

    compiled: Dataflow
    partitions: Mapping[AccessId, RangePartition]
    tables: Tables

    def rows(self, side: str, keys: Sequence[Vector]) -> Batch:
        assert keys
        assert len(keys[0])
        readable = self.compiled.read_side(side)
        if side not in self.compiled.sides_by(Strategy.FILES):
            return self._read(readable)
        return self._by_files(readable, keys)

    def _by_files(self, readable: Readable, keys: Sequence[Vector]) -> Batch:
        reading = Transient(readable, self.partitions)
        sizes = {access: len(self.tables[s.table]) for access, s in reading.sources.items()}
        result = read_in_turn(readable, reading.sources, keys, sizes, self._matching)
        return empty_batch(len(readable.accesses)) if result is None else reading.rows(result)

    def _matching(
        self, source: Source, values_asked: Mapping[ColumnName, Sequence[Vector]]
    ) -> pa.Table:
        """Only the rows of a table with these values."""
        kinds = {name: kind for _, name, kind in source.scan.columns}
        kinds |= {p.attribute: p.type for p in source.scan.partitions}
        rows = self.tables[source.table]
        columns = {
            name: pa.array([row[name] for row in rows], arrow_type(kinds[name]))
            for name in source.scan.table_columns
        }
        mask = np.ones(len(rows), dtype=np.bool_)
        for name, lists in values_asked.items():
            for values in lists:
                mask &= WantedValues.of(values).held_by(from_arrow(columns[name], kinds[name]))
        return pa.table(columns).filter(pa.array(mask)) if columns else bare_rows(len(rows))

    def whole(self, side: str) -> Iterator[Batch]:
        """All rows of a side, in two parts."""
        yield from self._halves(self._all(self.compiled.read_side(side)))

    def moved(self, side: str, before: Expr, after: Expr) -> Iterator[Batch]:
        """The rows that exact statistics would not skip, in two parts."""
        rows = self._all(self.compiled.read_side(side))
        conditions = MovedConditions((before,), (after,)).rows_that_move
        mask = np.zeros(len(rows), dtype=np.bool_)
        for parts in conditions if len(rows) else ():
            mask |= np.logical_and.reduce([_may_meet(part, rows) for part in parts])
        yield from self._halves(rows.keep(mask))

    def _all(self, readable: Readable) -> Batch:
        if readable.plan is readable.rows:
            # Above a grouping the reference has sets of ranges, which it cannot put in rows.
            return self._by_files(readable, ())
        return self._read(readable)

    def pairs(self, joined: Readable) -> list[Batch]:
        return self._halves(self._read(joined))

    @staticmethod
    def _halves(whole: Batch) -> list[Batch]:
        half = len(whole) // 2
        return [whole.take(np.arange(half)), whole.take(np.arange(half, len(whole)))]

    def _read(self, readable: Readable) -> Batch:
        plan = _without_ranges(readable.plan)
        result = annotate(plan, self.tables)
        columns = {
            name: self._vector([values[index] for values, _ in result.rows], kind)
            for index, (name, kind) in enumerate(readable.columns)
        }
        names = {scan.access: scan.table for scan in plan.scans}
        tags = tuple(
            RowTags(self._ranges(access, names[access], [of for _, of in result.rows]))
            for access in readable.accesses
        )
        return Batch(columns, np.ones(len(result.rows), np.int64), tags)

    def _vector(self, values: list[object], kind: SqlType) -> Vector:
        return from_arrow(pa.array(values, arrow_type(kind)), kind)

    def _ranges(
        self, access: AccessId, table: TableName, lineages: Sequence[Lineage]
    ) -> np.ndarray:
        partition = self.partitions[access]
        numbers = [next(row for of, row in lineage if of == access) for lineage in lineages]
        values = [self.tables[table][number][partition.attribute] for number in numbers]
        return partition.range_ids_of(self._vector(list(values), partition.type))


def _without_ranges(plan: Plan) -> Plan:
    """The plan without the columns that carry ranges."""
    if isinstance(plan, Scan):
        remaining = tuple(a for a in plan.attributes if a.name != RANGE_COLUMN)
        return replace(plan, attributes=remaining)
    if isinstance(plan, Project):
        outputs = tuple(o for o in plan.outputs if o.attribute.name != RANGE_COLUMN)
        plan = replace(plan, outputs=outputs)
    return plan.map_inputs(_without_ranges)


def _may_meet(condition: Expr, rows: Batch) -> Bools:
    """Which rows may meet a condition; all rows if it reads other columns."""
    if not condition.columns <= rows.columns.keys():
        return np.ones(len(rows), dtype=np.bool_)
    return Condition(condition).truth(rows.columns, len(rows)).may_true
