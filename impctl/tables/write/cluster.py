"""A table's files rewritten in the order of some columns, so that their statistics tell them apart.

Law: the same rows before and after, in one commit that says so (`dataChange` false): whoever reads
an older version finds its files until a VACUUM, and changes of rows there are none. What deltalake
would copy wrongly is refused, as `apply` does.
Out of scope: by which columns (`app.cluster`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from deltalake import CommitProperties

from impctl.errors import ImpctlError, TableError
from impctl.tables.failures import READ_FAILURES
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import DeltaSource, refresh
from impctl.tables.write.failures import plain_failures
from impctl.tables.write.writable import check_rewritable, check_writable
from impctl.types import ColumnName, TableVersion
from impctl.values import dataclass

FILES = 200
"""Files that a table is cut into: enough for a hundredth of it to be read by itself."""
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 128 << 20
"""Smaller files cost more to open than they save; larger ones are what writers make anyway."""

CLUSTERED_BY = "impctl.clusteredBy"
"""The key of the commit's note; deltalake itself does not say by which columns it put files in
order."""


@dataclass(frozen=True, slots=True)
class Clustered:
    """The version that was made, and the rows there were and are."""

    version: TableVersion
    rows_before: int | None
    rows_after: int | None


def bytes_per_file(snapshot: Snapshot) -> int:
    """About how large the files are to be."""
    return min(_MOST_BYTES, max(_LEAST_BYTES, snapshot.bytes // FILES))


def check_clusterable(snapshot: Snapshot, columns: Sequence[ColumnName]) -> None:
    """Refuse what deltalake cannot put in order, or would change on the way; TableError."""
    check_writable(snapshot)
    check_rewritable(snapshot)
    reason = None
    if snapshot.deletions:
        reason = "it has deletion vectors, which deltalake may not apply when it copies rows"
    for name in columns:
        if name in snapshot.partition_columns:
            reason = f"it is partitioned by `{name}`, so its files are already separated by it"
    if reason is not None:
        raise TableError(
            f"impctl cannot cluster table `{snapshot.table}`: {reason}",
            hint="run OPTIMIZE with ZORDER BY in Spark with the Delta JAR, or give other columns "
            "with `--by`",
            code="table_not_clusterable",
        )


def cluster_table(source: DeltaSource, columns: Sequence[ColumnName]) -> Clustered:
    """Rewrite the newest version: sorted by one column, along a Z-order curve by several.

    Raises TableError as `check_clusterable` does, RetryableError where another writer came first;
    nothing is committed then.
    """
    newest = refresh(source)
    before = newest.snapshot()
    check_clusterable(before, columns)
    with plain_failures(newest):
        newest.delta.optimize.z_order(
            list(columns),
            target_size=bytes_per_file(before),
            commit_properties=CommitProperties({CLUSTERED_BY: json.dumps(list(columns))}),
        )
    done = refresh(source)
    after = done.snapshot()
    if done.version == newest.version + 1 and before.rows != after.rows:
        raise ImpctlError(
            f"Clustering changed the number of rows of table `{source.name}` from {before.rows} to "
            f"{after.rows}, in version {done.version}",
            hint=f"restore the table to version {newest.version}, and report this bug",
            code="rows_clustered_differ",
        )
    return Clustered(done.version, before.rows, after.rows)


def clustered_by(source: DeltaSource) -> tuple[ColumnName, ...]:
    """The columns by which the pinned version was clustered, if that is what made it."""
    try:
        latest = source.delta.history(1)
    except READ_FAILURES:
        return ()
    if not latest or latest[0].get("version") != source.version:
        return ()
    noted = latest[0].get(CLUSTERED_BY)
    return _columns(noted) if isinstance(noted, str) else ()


def _columns(noted: str) -> tuple[ColumnName, ...]:
    try:
        result = json.loads(noted)
    except ValueError:
        return ()
    return tuple(map(str, result)) if isinstance(result, list) else ()
