"""A recursive query's circuit over rows in memory, with its answer kept: stepped, and filled anew.

Law: the circuit is the one of the query's plan, sketched where the workload says so, by ranges of
about equally many rows; nothing is read or committed while it is timed. It is built from
the plan as it is, whatever a capture would choose.
Out of scope: which rows (`measures.recursion_cost`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.figures import SuiteCase
from impctl.compile.answers import answer_of_rows
from impctl.compile.compile import Dataflow, compile_plan
from impctl.compile.flows import BlockedError
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import Schema
from impctl.errors import UnsupportedError, UsageError
from impctl.measure.kinds import CallTimes, timed
from impctl.measure.scratch import AgainstRecapture
from impctl.plan.nodes import Fixpoint, Plan
from impctl.rules.finalize import AnswerPlan, answer_plan
from impctl.rules.optimize import apply_rules
from impctl.sketch.boundaries import equidepth_boundaries
from impctl.sketch.sketch import RangePartition, compare
from impctl.sql.statement import parse_query
from impctl.tables.rows import read_rows
from impctl.types import AccessId, TableName
from impctl.workload.models import QuerySpec

Tables = Mapping[TableName, pa.Table]

_SAMPLE = 1_000_000
"""Rows that boundaries are found by, where there are twice as many."""


class RecursiveQuery(Struct, frozen=True):
    """A query over its tables: the plan whose rows are its answer's, and its sketches' ranges."""

    spec: QuerySpec
    answer: AnswerPlan
    partitions: Mapping[AccessId, RangePartition]
    tables: Tables
    zone: str

    def compiled(self) -> Dataflow:
        """A circuit of its own for whoever asks: it holds its state; UnsupportedError for none."""
        kept = self.answer.kept
        barriers = [index for index, node in enumerate(kept.walk()) if isinstance(node, Fixpoint)]
        try:
            return compile_plan(kept, self.partitions, {}, barriers=barriers, answer=self.answer)
        except BlockedError as error:
            raise UnsupportedError(
                f"Query `{self.spec.name}` has no circuit to measure: {error}",
                code="not_incremental",
                hint="sketch a table of the query, and see `impctl explain`",
                location=self.spec.location,
            ) from error

    def filled(self, tables: Tables) -> Kept:
        """A circuit over these rows."""
        return Kept(self, tables)


class Kept:
    """A circuit, and what it took to fill it (`filling`)."""

    def __init__(self, query: RecursiveQuery, tables: Tables) -> None:
        self._query = query
        compiled = query.compiled()
        self._session = MaintainedQuery(compiled)
        smaller = sorted(compiled.tables, key=lambda table: len(tables[table]))
        loaded = [(table, tables[table]) for table in smaller]
        self.filling = timed(lambda: self._session.load(loaded))[1]

    def step(self, table: TableName, rows: pa.Table, sign: int) -> CallTimes:
        """Rows come (1) or go (-1): what that took."""
        change = TableChange(rows, np.full(len(rows), sign, dtype=np.int64))
        return timed(lambda: self._session.step({table: change}))[1]

    def answer(self) -> pa.Table:
        """The rows that the query asks for."""
        kept = self._session.compiled.kept
        assert kept is not None, "the circuit materializes its result"
        return answer_of_rows(self._query.answer.ending, kept.whole(), self._query.zone)

    def against(self, other: Kept) -> AgainstRecapture:
        """Its sketches beside those of another circuit over the same rows."""
        ours, theirs = self._session.ranges(), other._session.ranges()
        relations = [compare(ranges, theirs[access]) for access, ranges in ours.items()]
        return AgainstRecapture(all(r.covers for r in relations), sum(r.slack for r in relations))

    @property
    def state_bytes(self) -> int:
        """Bytes of keyed state held."""
        return self._session.state_bytes()


def recursive_query(case: SuiteCase, ranges: int) -> RecursiveQuery:
    """The case's query over its tables, whole; QueryError for what is not read."""
    ctx, spec = case.ctx, case.query
    snapshots = {name: ctx.tables.snapshot(name) for name in case.named_tables()}
    tables = {name: read_rows(result, result.schema.names) for name, result in snapshots.items()}
    schemas = {name: result.schema for name, result in snapshots.items()}
    zone = ctx.session_zone
    query = parse_query(spec.sql, schemas, name=spec.name, zone=zone, names=ctx.workload.names)
    answer = answer_plan(replace(query, root=apply_rules(query.root)))
    partitions = _partitions(answer.kept, case, schemas, tables, ranges)
    return RecursiveQuery(spec, answer, partitions, tables, zone)


def _partitions(
    plan: Plan,
    case: SuiteCase,
    schemas: Mapping[TableName, Schema],
    tables: Tables,
    ranges: int,
) -> dict[AccessId, RangePartition]:
    """Of every access of the tables whose attribute the workload names."""
    created: dict[TableName, RangePartition] = {}
    for table, attribute in case.query.sketch.items():
        column = schemas[table].find(attribute)
        if column is None:
            raise UsageError(
                f"Query `{case.query.name}` is sketched on `{attribute}`, which `{table}` "
                "does not have",
                hint="name a column of the table",
                location=case.query.location,
            )
        values = tables[table].column(attribute).drop_null()
        # Of many rows one in so many tells as much, and is in memory as Python's numbers.
        every = max(len(values) // _SAMPLE, 1)
        boundaries = equidepth_boundaries(
            values.take(np.arange(0, len(values), every)).to_pylist(), ranges
        )
        created[table] = RangePartition(table, attribute, column.type, boundaries)
    return {scan.access: created[scan.table] for scan in plan.scans if scan.table in created}
