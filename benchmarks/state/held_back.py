"""Tables of a scratch copy without some of their rows, which return later in several changes.

Law: the rows held back are drawn from the whole table, each row in one part at most; equal tables
and seeds give equal parts. A deletion reverts rows of the last commit before it, so that the change
feed has exactly these rows, and no file of the base is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from msgspec import Struct

from benchmarks.figures import SuiteCase
from impctl.measure.scratch import scratch_copy, sync_commit
from impctl.service.context import Context
from impctl.service.prepare import prepare
from impctl.tables.rows import read_rows
from impctl.tables.write.maintenance import append_rows, rewind
from impctl.types import TableName


class Part(Struct, frozen=True):
    """One change of one table: rows that come, and how many of the last that came go before."""

    comes: pa.Table
    goes: int = 0


Change = Mapping[TableName, Part]
"""What one run carries on."""


def moving_tables(
    case: SuiteCase, expected: str = "tables of the workload"
) -> tuple[TableName, ...]:
    """Option `tables`; WorkloadError, which says what is `wanted`, for none or for unknown ones."""
    tables = case.texts("tables")
    if not tables or not set(tables) <= case.ctx.workload.tables.keys():
        raise case.refuse("tables", expected)
    return tables


def share_of_each(case: SuiteCase, usual: float, changes: int) -> float:
    """Option `share`, of each of so many changes; WorkloadError where they leave no rows."""
    share = case.numbers("share", (usual,))[0]
    if not 0 < share * changes < 1:
        raise case.refuse("share", "a share of the rows, less than all of them in all changes")
    return share


@contextmanager
def reduced_copy(
    case: SuiteCase,
    tables: Sequence[TableName],
    shares: Sequence[float],
    *,
    deletes: float = 0.0,
    come: int | None = None,
) -> Iterator[tuple[Context, list[TableName], tuple[Change, ...]]]:
    """A copy of the query's tables without these shares, which `tables` it reads, and the changes.

    Only the first `come` of the tables change, if it is given.
    """
    reads = prepare(case.ctx, case.query).tables
    moving = [table for table in tables if table in reads]
    with scratch_copy(case.ctx, reads) as base:
        by_table = dict.fromkeys(moving[:come], shares)
        yield base, moving, hold_back(base, by_table, deletes, case.seed)


def hold_back(
    ctx: Context, shares: Mapping[TableName, Sequence[float]], deletes: float, seed: int
) -> tuple[Change, ...]:
    """Take shares of the rows out of the tables; the changes in which they come back.

    `shares` are those of each change, by table, as many for each. Of each change, `deletes` is the
    share of rows that are deletions: of rows that stay in the tables until then, in a commit of
    their own.
    """
    result: list[dict[TableName, Part]] = []
    for table, share in shares.items():
        parts = _held(ctx, table, share, deletes, seed)
        result = result or [{} for _ in parts]
        for change, part in zip(result, parts, strict=True):
            change[table] = part
    return tuple(result)


def commit(ctx: Context, change: Change) -> int:
    """Commit a change of every table; the rows it has."""
    rows = 0
    for table, part in change.items():
        source = ctx.tables.source(table)
        if part.goes:
            rewind(source.path, source.version - 1)
        if len(part.comes):
            append_rows(source.path, part.comes)
        # Not advanced: whoever follows the table finds it.
        sync_commit(ctx.tables, table, source.version + 1)
        rows += part.goes + len(part.comes)
    return rows


def _held(
    ctx: Context, table: TableName, shares: Sequence[float], deletes: float, seed: int
) -> list[Part]:
    snapshot = ctx.tables.snapshot(table)
    rows = read_rows(snapshot, snapshot.schema.names)
    random = np.random.default_rng([seed, len(rows)])
    order = random.permutation(len(rows))
    sizes = [max(1, round(len(rows) * share)) for share in shares]
    ends = np.cumsum(sizes).tolist()
    deleted = round(sizes[0] * deletes) if len(sizes) == 1 else 0
    base = rows.take(pa.array(np.sort(order[ends[-1] :])))
    path = ctx.tables.source(table).path
    size = max(1, base.nbytes // max(1, len(snapshot.files)))
    write_deltalake(path, base, mode="overwrite", target_file_size=size)
    drawn = [
        rows.take(pa.array(np.sort(order[end - size : end])))
        for size, end in zip(sizes, ends, strict=True)
    ]
    if deleted:
        append_rows(path, drawn[0].slice(0, deleted))
    ctx.tables.advance(table)
    return [Part(one.slice(deleted), deleted) for one in drawn]
