"""Compute a query's result in the engine: its plan run once over the files.

Law: of each table the rows are those that the query reads through its sketches: files that are left
of it, and of these the rows whose range is in the sketch, since a group that is seen in part may
pass where the whole does not. Nothing is stored, and no more memory taken than `memory` allows.
What the engine cannot compute is refused before anything is read; a value that it cannot tell for
sure, or that fails, ends the run as an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING

from impctl.compile.answers import answer_of_rows
from impctl.compile.compile import Dataflow, compile_answer
from impctl.data.vector import Bools, from_arrow
from impctl.errors import NotExactError, QueryError
from impctl.expr.evaluate import Condition
from impctl.service.context import Context, Versions, limited
from impctl.service.cost_model import rows_of
from impctl.service.filters import Pruned, Slices, one_ahead, united_groups
from impctl.service.memory_limit import MemoryLimit, batch_size, within_memory
from impctl.service.result_changes import RowsOf
from impctl.store.records import StoredSketch
from impctl.tables.rows import BATCH_ROWS, read_batches
from impctl.types import AccessId, TableName

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.compile.flows import BlockedError, Source
    from impctl.data.schema import Column
    from impctl.engine.batch import Batch
    from impctl.expr.nodes import Expr
    from impctl.service.pinned import PinnedTables
    from impctl.service.prepare import PreparedQuery

_FEW_ROWS, _MANY_ROWS = 200_000, 2_000_000
"""Batch sizes. Few rows are read while earlier ones are worked on, and files need not be joined;
for many rows the fewest steps are quickest (decision 0074)."""

Sketches = Mapping[AccessId, StoredSketch]


class ExcludedRows:
    """Rows to ignore, for which a condition on `columns` is true; `rows` counts them."""

    def __init__(self, condition: Expr, columns: Sequence[Column]) -> None:
        self.columns = tuple(column.name for column in columns)
        self.rows = 0
        self._condition = Condition(condition)
        self._types = {column.name: column.type for column in columns}

    def rest(self, rows: pa.Table) -> pa.Table:
        """The other ones of these rows; NotExactError if that is undecided."""
        import pyarrow as pa

        is_excluded = self.excludes(rows)
        self.rows += int(is_excluded.sum())
        return rows.filter(pa.array(~is_excluded))

    def excludes(self, rows: pa.Table) -> Bools:
        values = {name: from_arrow(rows.column(name), kind) for name, kind in self._types.items()}
        truth = self._condition.truth(values, len(rows))
        if bool(truth.is_unsure.any()):
            raise NotExactError(
                "A condition on rows of a table is too close to its limit to evaluate",
                hint="in `--without`, compare doubles with a value that is less close to theirs",
            )
        return truth.sure_true()


def engine_cannot(
    prepared: PreparedQuery, blocked: BlockedError, hint: str, why: str = ""
) -> QueryError:
    """The error where only the engine may answer; `why`, if that needs a word."""
    return QueryError(
        f"The engine cannot run query `{prepared.spec.name}`{why}: {blocked.message}",
        hint=hint,
        code="engine_cannot",
        location=prepared.place(blocked.span),
    )


def engine_answer(
    ctx: Context,
    prepared: PreparedQuery,
    versions: Versions,
    pruned: Pruned,
    sketches: Sequence[StoredSketch],
    where: Expr | None = None,
) -> pa.Table:
    """Compute the answer; `pruned` are the files, by `sketches`. `where` is a condition on the
    answer's columns. BlockedError if the engine lacks a part of the plan; NotExactError or
    EvaluationError if a value or the memory ends it."""
    with within_memory(ctx) as limit:
        result = engine_rows(ctx, limit, prepared, versions, pruned, sketches)
        return answer_of_rows(result.ending, result.rows, ctx.session_zone, where)


def engine_rows(
    ctx: Context,
    limit: MemoryLimit,
    prepared: PreparedQuery,
    versions: Versions,
    pruned: Pruned,
    sketches: Sequence[StoredSketch] = (),
    excluded: Mapping[TableName, ExcludedRows] = MappingProxyType({}),
) -> RowsOf:
    """The answer's rows without `excluded`, within the limit. Raises as `engine_answer`."""
    answer = ctx.memory.answer(prepared.planned)
    compiled = limited(ctx, compile_answer(answer))
    read_by = united_groups(prepared, sketches)
    used = {read.access: read for read in read_by if read.access in pruned.filters}
    compiled.circuit.start()
    # Rows are derived once all that they are derived from is there.
    compiled.circuit.fill(any(operator.holds_back for operator in compiled.circuit))
    slices = Slices(compiled, limit.bytes, limit.check)
    with ThreadPoolExecutor(1) as reader:
        most = batch_size(limit.bytes)
        read = _read(ctx.tables, compiled, versions, pruned, used, excluded, most)
        for table, rows in one_ahead(read, reader):
            for part in slices.of(rows):
                batches = [
                    _batch(source, part, used) if source.table == table else None
                    for source in compiled.sources
                ]
                compiled.circuit.step(*batches)
    for _ in compiled.circuit.filled():
        limit.check()
    return RowsOf.kept(answer.ending, compiled.kept)


def _read(
    tables: PinnedTables,
    compiled: Dataflow,
    versions: Versions,
    pruned: Pruned,
    used: Sketches,
    excluded: Mapping[TableName, ExcludedRows],
    most: int | None,
) -> Iterator[tuple[TableName, pa.Table]]:
    """Rows in batches of about `most` bytes, smaller tables first: later rows look them up."""
    snapshots = [tables.snapshot(table, versions.get(table)) for table in compiled.tables]
    for snapshot in sorted(snapshots, key=lambda result: result.likely_rows):
        name = snapshot.table
        columns = list(compiled.columns_of(name))
        columns += [read.attribute for read in used.values() if read.table == name]
        out = excluded.get(name)
        columns += () if out is None else out.columns
        names, files = list(dict.fromkeys(columns)), pruned.files[name]
        least = _FEW_ROWS if rows_of(files) < _MANY_ROWS else BATCH_ROWS
        for rows in read_batches(snapshot, names, files, least, most):
            yield name, rows if out is None else out.rest(rows)


def _batch(source: Source, rows: pa.Table, used: Sketches) -> Batch:
    batch = source.inserted(rows)
    sketch = used.get(source.access)
    if sketch is None or not len(rows):
        return batch
    partition, wanted = sketch.partition, sketch.ranges.to_mask()
    values = from_arrow(rows.column(sketch.attribute), partition.type)
    if partition.are_all_in(values, wanted):
        return batch
    return batch.keep(wanted[partition.range_ids_of(values)])
