"""A circuit filled by the engine itself, from the table's files and without a JVM.

Law: a whole table is the change from the empty one, so loading is stepping: what comes out is what
maintaining would have come to; only pairs of a join with a side that Spark reads are its own.
Files of which the conditions right above their accesses let nothing through are counted, not read.
Rows pass in batches, and where joins multiply them in smaller ones, so memory is the state's, not
the table's nor the joins'. A state that would take more than it may (`memory`) is given up before
the machine is out of it.
Out of scope: partial aggregates from Spark (`app.capturing.fill`), whose summing is the better way
for tables too large for one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor

import pyarrow as pa

from impctl.app.capturing.counts import count_left_out
from impctl.app.capturing.partners.by_spark import Partners
from impctl.app.preparing.read_ahead import Slices, one_ahead
from impctl.app.preparing.wanted_files import files_of_table
from impctl.app.workbench.memory_limit import MemoryLimit, batch_size, held_to, memory_of
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.recursion_limits import limited
from impctl.app.workbench.workbench import Workbench
from impctl.compile.compile import Compiled
from impctl.compile.session import MaintainedQuery, Turn
from impctl.engine.fixpoint.absorption import PROVENANCE_TOO_LARGE
from impctl.errors import (
    EvaluationError,
    JoinTooLargeError,
    NotExactError,
    OutOfMemoryError,
    TableError,
)
from impctl.sketch.partition import RangePartition
from impctl.tables.rows import read_batches
from impctl.tables.snapshot import DataFile, rows_in
from impctl.types import AccessId

_LARGEST_LOAD = 32_000_000
"""Rows that take the engine about as long as Spark needs to start and to pass over them."""

_LARGEST_LOAD_BESIDE_SPARK = 1_000_000
"""The same where Spark is running already and would send few rows back."""


def is_loaded_here(desk: Workbench, compiled: Compiled) -> bool:
    """Whether the engine is the quicker one to fill this circuit, or the only one that can."""
    if compiled.chain is None:
        return True
    snapshot = desk.tables.snapshot(compiled.chain.scan.table)
    rows = rows_in(snapshot, files_of_table(snapshot, compiled))
    if rows is None or rows > _LARGEST_LOAD:
        return False
    if desk.has_spark and compiled.chain.has_few_partials:
        return rows <= _LARGEST_LOAD_BESIDE_SPARK
    return True


def loaded(
    desk: Workbench, compiled: Compiled, partitions: Mapping[AccessId, RangePartition]
) -> MaintainedQuery | None:
    """The session with its state; None where the engine could not do it and Spark has to.

    OutOfMemoryError where it would take more memory than it may, EvaluationError where functions
    take more nodes (`PROVENANCE_TOO_LARGE`).

    A column only Spark can read, a value on the way that is not exact, an overflow that only the
    order of the batches brought about: Spark decides these. Files that are gone are told at once.
    """
    session = MaintainedQuery(limited(desk, compiled))
    limit = MemoryLimit(memory_of(desk.settings, desk.workload))
    try:
        with held_to(limit), ThreadPoolExecutor(1) as reader:
            pairs = Partners(desk, compiled, partitions, {}).pairs
            rows = _Rows(desk.tables, session, limit, reader)
            turns = session.turns(lambda table: desk.tables.snapshot(table).likely_rows)
            session.load_in_turn(turns, rows.of, pairs)
        for partition in session.range_rows.partitions:
            snapshot = desk.tables.snapshot(partition.table)
            read = rows.files[session.counted_at(partition)]
            count_left_out(session.range_rows, partition, snapshot, read)
    except OutOfMemoryError:
        session.give_up()
        raise
    except (EvaluationError, JoinTooLargeError, NotExactError, TableError) as error:
        session.give_up()
        if error.code == PROVENANCE_TOO_LARGE:
            raise
        return None
    return session


class _Rows:
    """The rows of a circuit's turns, read one batch ahead; `files` are those read for each
    source."""

    def __init__(
        self, tables: PinnedTables, session: MaintainedQuery, limit: MemoryLimit, reader: Executor
    ) -> None:
        self.files: dict[int, tuple[DataFile, ...]] = {}
        self._tables, self._session, self._limit, self._reader = tables, session, limit, reader

    def of(self, turn: Turn) -> Iterator[pa.Table]:
        """The rows of a turn's table, all but those that the conditions right above the accesses
        drop, and those on scalars that are known by then."""
        compiled, snapshot = self._session.compiled, self._tables.snapshot(turn.table)
        files = files_of_table(snapshot, compiled, turn.sources)
        self.files |= dict.fromkeys(turn.sources, files)
        columns = compiled.columns_of(turn.table, turn.sources)
        most = batch_size(self._limit.bytes)
        batches = read_batches(snapshot, columns, files, most=most)
        slices = Slices(compiled, self._limit.bytes, self._limit.check)
        for rows in one_ahead(batches, self._reader):
            yield from slices.of(rows)
