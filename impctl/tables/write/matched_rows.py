"""Which rows a delete or update takes, decided by impctl's own engine before anything is written.

Law: deltalake is handed a condition only after the rows that it takes are known. A condition over
partition columns alone is decided value by value and handed on as equalities and IS NULL, the one
form of which deltalake chooses whole files exactly; of any other form it takes every file that it
cannot rule out. A condition over other columns is counted twice, by the engine and by a query of
deltalake's, and refused where the two differ or where either cannot tell.
Out of scope: how the condition is spelled (`tables.write.datafusion`), committing
(`tables.write.updates`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from deltalake import QueryBuilder

from impctl.data.schema import Column
from impctl.data.vector import Bools, Vector, from_arrow
from impctl.errors import EvaluationError, NotExactError
from impctl.expr.evaluate import Condition, find_condition_blocker
from impctl.expr.nodes import Expr, columns_of
from impctl.tables.arrow_types import to_arrow_type
from impctl.tables.prune_condition import prune_by_condition
from impctl.tables.rows import FileReader, read_batches
from impctl.tables.snapshot import DataFile, Snapshot, partition_array
from impctl.tables.source import DeltaSource
from impctl.tables.write.datafusion import UntranslatableError, is_one_of
from impctl.tables.write.failures import plain_failures
from impctl.tables.write.update_sql import read_condition, where_text
from impctl.types import AttributeId, ColumnName
from impctl.values import dataclass

_NAME = "updated_table"


@dataclass(frozen=True, slots=True)
class MatchedRows:
    """How many rows a batch takes, and the condition that makes deltalake take them."""

    rows: int
    predicate: str | None
    """None takes every row; without meaning where no row is taken."""


def matched_rows(source: DeltaSource, snapshot: Snapshot, where: str | None) -> MatchedRows:
    """The rows for which `where` is true, every row without one.

    Raises UsageError or QueryError for a text that is
    no condition on a row, UntranslatableError where deltalake cannot be trusted with it,
    EvaluationError where it fails on a row.
    """
    if where is None:
        return MatchedRows(_rows_in(snapshot, snapshot.files), None)
    scan, condition = read_condition(snapshot, where)
    used = columns_of(condition)
    read = {a.id: snapshot.readable(a.name) for a in scan.attributes if a.id in used}
    if all(column.name in snapshot.partition_columns for column in read.values()):
        return _of_partitions(snapshot, where, condition, read)
    text = where_text(snapshot, where)
    files = prune_by_condition(snapshot, condition, {key: c.name for key, c in read.items()})
    rows = _count(snapshot, where, condition, read, files)
    _check_deltalake(source, snapshot, where, text, rows)
    return MatchedRows(rows, text)


def _of_partitions(
    snapshot: Snapshot, where: str, condition: Expr, read: dict[AttributeId, Column]
) -> MatchedRows:
    files = snapshot.files
    arrays = {
        column.name: to_arrow_type(
            pa.chunked_array([partition_array(snapshot.actions, column.name)]), column.type
        )
        for column in read.values()
    }
    columns = {key: from_arrow(arrays[c.name], c.type) for key, c in read.items()}
    taken = np.flatnonzero(_taken(snapshot, where, condition, columns, len(files)))
    rows = _rows_in(snapshot, [files[at] for at in taken])
    if not read or not len(taken):
        return MatchedRows(rows, None)
    try:
        values = {name: array.take(pa.array(taken)).to_pylist() for name, array in arrays.items()}
    except (ValueError, OverflowError) as error:
        raise _untranslatable(
            snapshot, where, "it selects dates outside the years 1 to 9999"
        ) from error
    # By their texts: to Python the two zeros are one value, and no NaN is itself.
    chosen = {repr(row): row for row in zip(*values.values(), strict=True)}
    return MatchedRows(rows, is_one_of(list(read.values()), list(chosen.values())))


def _rows_in(snapshot: Snapshot, files: Sequence[DataFile]) -> int:
    """Rows that these files have; those are counted of which the log does not tell."""
    reader = FileReader(snapshot, [], files)
    rows = (len(reader.read_some(f, range)) if f.rows is None else f.rows for f in files)
    return sum(rows) - sum(0 if file.deleted is None else len(file.deleted) for file in files)


def _count(
    snapshot: Snapshot,
    where: str,
    condition: Expr,
    read: dict[AttributeId, Column],
    files: Sequence[DataFile],
) -> int:
    names: list[ColumnName] = [column.name for column in read.values()]
    result = 0
    for batch in read_batches(snapshot, names, files):
        columns = {key: from_arrow(batch.column(c.name), c.type) for key, c in read.items()}
        result += int(_taken(snapshot, where, condition, columns, len(batch)).sum())
    return result


def _taken(
    snapshot: Snapshot,
    where: str,
    condition: Expr,
    columns: dict[AttributeId, Vector],
    length: int,
) -> Bools:
    """The rows for which the condition is true, as Spark has it."""
    blocker = find_condition_blocker(condition)
    if blocker is not None:
        raise _untranslatable(snapshot, where, blocker.reason)
    try:
        return Condition(condition).truth(columns, length).sure_true()
    except NotExactError as error:
        raise _untranslatable(
            snapshot, where, "it compares doubles that are too close to decide"
        ) from error
    except EvaluationError as error:
        raise EvaluationError(
            f"The condition `{_shown(where)}` fails on a row of table `{snapshot.table}`:"
            f" {error.message}",
            hint="restrict `where` to rows for which the condition can be computed",
        ) from error


def _check_deltalake(
    source: DeltaSource, snapshot: Snapshot, where: str, predicate: str, rows: int
) -> None:
    """Have deltalake count the rows, too, before it may change any."""
    with plain_failures(source, is_commit=False):
        query = QueryBuilder().register(_NAME, source.delta)
        result = query.execute(f"SELECT count(*) AS n FROM {_NAME} WHERE {predicate}").read_all()
    counted = int(pa.table(result).column("n")[0].as_py())
    if counted != rows:
        raise _untranslatable(
            snapshot, where, f"it selects {rows:,} rows, but in deltalake it selects {counted:,}"
        )


def _untranslatable(snapshot: Snapshot, where: str, why: str) -> UntranslatableError:
    return UntranslatableError(
        f"An update of table `{snapshot.table}` cannot use `{_shown(where)}`: {why}",
        hint="run this update in Spark instead",
    )


def _shown(where: str) -> str:
    return " ".join(where.split())
