"""A recursive query asked anew over rows in memory: of DuckDB, and by searches written for it.

Law: DuckDB has the rows in tables of its own, and is asked the query's text; searches are of a
graph's nodes, breadth first, from all nodes below `sources`: by arrays here, and by scipy where
somebody installed it. Putting rows where they are asked is not timed for DuckDB; a search makes its
index of links first, which has to be made whenever links change. Times of DuckDB are the lesser of
its processor time and its wall time on all cores.
Out of scope: comparing answers (`app.measuring.kinds.recursion_cost`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.aliases import TableName
from impctl.bench.clock import milliseconds
from impctl.bench.parquet_sql import ParquetSql

Integers = npt.NDArray[np.int64]

_HELD = "held_"


class DuckDb:
    """A connection with the rows of the tables that a query reads."""

    def __init__(self, connection: ParquetSql, sql: str) -> None:
        self._connection = connection
        self._sql = sql

    def put(self, table: TableName, rows: pa.Table) -> None:
        """From now on the table has these rows; SqlFailed where DuckDB cannot."""
        self._connection.put(_HELD + table, rows)
        self._connection.change(
            f'CREATE OR REPLACE TABLE "{table}" AS SELECT * FROM "{_HELD}{table}"'
        )

    def asked(self) -> tuple[pa.Table, float]:
        """The answer, and the milliseconds it took; SqlFailed where DuckDB cannot."""
        return _timed(lambda: self._connection.run(self._sql))


def has_scipy() -> bool:
    """Whether somebody installed it: nothing needs it."""
    return find_spec("scipy") is not None


def searched(rows: pa.Table, sources: int) -> tuple[pa.Table, float]:
    """What the sources reach by one link at least, and milliseconds of processor time."""
    return _processor_timed(lambda: _reached(*_ends(rows), sources))


def searched_by_scipy(rows: pa.Table, sources: int) -> tuple[pa.Table, float]:
    """The same by `scipy.sparse.csgraph`."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order

    def search() -> pa.Table:
        src, dst = _ends(rows)
        nodes = _nodes(src, dst)
        # One more node, from which a link leads wherever one leads from a source.
        first = np.unique(dst[src < sources])
        starts, ends = np.append(src, np.full(len(first), nodes)), np.append(dst, first)
        links = csr_matrix(
            (np.ones(len(starts), dtype=np.int8), (starts, ends)), shape=(nodes + 1, nodes + 1)
        )
        order = breadth_first_order(links, nodes, return_predecessors=False)
        return _table(np.sort(order[order < nodes]).astype(np.int64))

    return _processor_timed(search)


def _reached(src: Integers, dst: Integers, sources: int) -> pa.Table:
    nodes = _nodes(src, dst)
    order = np.argsort(src, kind="stable")
    ends = dst[order]
    first = np.searchsorted(src[order], np.arange(nodes + 1))
    found = np.zeros(nodes, dtype=bool)
    front = np.arange(min(sources, nodes))
    # A round per hop.
    while len(front):
        lengths = first[front + 1] - first[front]
        within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        nexts = ends[np.repeat(first[front], lengths) + within]
        front = np.unique(nexts[~found[nexts]])
        found[front] = True
    return _table(np.flatnonzero(found).astype(np.int64))


def _nodes(src: Integers, dst: Integers) -> int:
    return int(max(src.max(initial=-1), dst.max(initial=-1))) + 1


def _ends(rows: pa.Table) -> tuple[Integers, Integers]:
    return rows.column("src").to_numpy(), rows.column("dst").to_numpy()


def _table(nodes: Integers) -> pa.Table:
    return pa.table({"n": pa.array(nodes)})


def _processor_timed(run: Callable[[], pa.Table]) -> tuple[pa.Table, float]:
    began = time.process_time()
    found = run()
    return found, (time.process_time() - began) * 1000.0


def _timed(run: Callable[[], pa.Table]) -> tuple[pa.Table, float]:
    found: list[pa.Table] = []
    began = time.process_time()
    wall_ms = milliseconds(lambda: found.append(run()))
    return found[0], min(wall_ms, (time.process_time() - began) * 1000.0)
