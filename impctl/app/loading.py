"""A circuit filled by the engine itself, from the table's files and without a JVM.

Law: a whole table is the change from the empty one, so loading is stepping: what comes out is what
maintaining would have come to. Rows pass in batches, so memory is the state's, not the table's.
Out of scope: partial aggregates from Spark (`app.passes`), whose summing is the better way for
tables too large for one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import pyarrow as pa

from impctl.app.workbench import Workbench
from impctl.engine.operators.aggregate import Aggregate
from impctl.errors import EvaluationError, NotExactError, TableError
from impctl.maintain.compile import Compiled
from impctl.maintain.session import MaintainedQuery
from impctl.plan.nodes import Scan
from impctl.tables.rows import read_batches

_BATCH_ROWS = 1_000_000
"""Measured: half a million to a million rows stay in the caches and are quickest."""

_LARGEST_LOAD = 32_000_000
"""Rows that take the engine about as long as Spark needs to start and to pass over them."""

_LARGEST_LOAD_BESIDE_SPARK = 1_000_000
"""The same for a keyed plan once Spark is running: it sends back one row per group."""


def is_loaded_here(bench: Workbench, compiled: Compiled) -> bool:
    """Whether the engine is the quicker one to fill this circuit."""
    rows = bench.snapshot(_scan(compiled).table).rows
    if rows is None or rows > _LARGEST_LOAD:
        return False
    if bench.has_spark and _is_keyed(compiled):
        return rows <= _LARGEST_LOAD_BESIDE_SPARK
    return True


def loaded(bench: Workbench, compiled: Compiled) -> MaintainedQuery | None:
    """The session with its state; None where the engine could not do it and Spark has to.

    A column only Spark can read, a value on the way that is not exact, an overflow that only the
    order of the batches brought about: Spark decides these. Files that are gone are told at once.
    """
    session = MaintainedQuery(compiled)
    snapshot = bench.snapshot(_scan(compiled).table)
    try:
        with ThreadPoolExecutor(1) as reader:
            rows = read_batches(snapshot, compiled.scan.table_columns, _BATCH_ROWS)
            session.load(_one_ahead(rows, reader))
    except (EvaluationError, NotExactError, TableError):
        return None
    return session


def _one_ahead(items: Iterator[pa.Table], reader: Executor) -> Iterator[pa.Table]:
    """The items, the next one being made while one is worked on."""
    following = reader.submit(next, items, None)
    while (item := following.result()) is not None:
        following = reader.submit(next, items, None)
        yield item


def _scan(compiled: Compiled) -> Scan:
    scan = compiled.chain[0]
    assert isinstance(scan, Scan)
    return scan


def _is_keyed(compiled: Compiled) -> bool:
    """Whether Spark would send one row per group, not one per group and fragment."""
    if compiled.first is None:
        return True
    operator = compiled.circuit.operators[compiled.first]
    return isinstance(operator, Aggregate) and operator.is_keyed
