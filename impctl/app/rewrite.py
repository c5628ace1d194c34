"""Use case: the query's SQL with its sketch as range predicates.

Law: the text printed gives, over the versions named beside it, what the query gives, and fails only
where it does. No Spark is started unless the sketch has to be recaptured first.
Out of scope: running the text (`app.query`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from impctl.app.capturing.entries import sketch_entry
from impctl.app.preparing.filters import Pruned, filters_of, interval_texts
from impctl.app.preparing.given_values import GivenValues
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.results import Outcome, RewriteResult
from impctl.app.using.in_part import never_failing
from impctl.app.using.lost_nan import losing_nan
from impctl.app.using.older_versions import AtVersions
from impctl.app.using.recorded import record_use
from impctl.app.using.request import asked
from impctl.app.using.text import is_for_others, written_query
from impctl.app.using.unread import Unread
from impctl.app.using.worth import worth_using
from impctl.app.workbench.output import check_output, write_whole
from impctl.app.workbench.workbench import Workbench
from impctl.errors import StorageError, TableError
from impctl.plan.nodes import Fixpoint, nodes_of
from impctl.tables.rows import why_not_plain
from impctl.tables.snapshot import DataFile
from impctl.types import TableName, TableVersion
from impctl.workload.models import SketchUse

BEST_ROWS_ONLY = "best_rows_only"


def rewrite(
    desk: Workbench,
    query: str | None,
    params: GivenValues = (),
    sql: str | None = None,
    at: AtVersions | None = None,
    files: Path | None = None,
    use: SketchUse = SketchUse.ALWAYS,
    *,
    required: bool = False,
) -> Outcome:
    """The rewritten SQL of one query; `params`, `sql`, `at`, `use` and `required` as for
    `app.query`.

    `files`: where to write which data files the text reads, by table, as JSON.
    """
    if files is not None:
        check_output(files, desk.reserved)
    match = asked(desk, query, params, sql, at, use, required=required)
    if isinstance(match, Unread):
        return _as_it_stands(desk, match, files)
    match = never_failing(desk.tables, match, required=required)
    sketches, left_away = worth_using(desk.tables, match, use)
    written = written_query(
        desk.tables,
        match.prepared,
        match.query,
        sketches,
        match.versions,
        has_files=files is not None,
    )
    pruned = written.pruned
    texts = [text for one in dict.fromkeys(pruned.filters.values()) for text in interval_texts(one)]
    result = RewriteResult(
        query=match.prepared.spec.name,
        sql=written.sql,
        sketches=tuple(sketch_entry(sketch) for sketch in sketches),
        versions=match.versions,
        files_kept=pruned.files_kept,
        files_total=pruned.files_total,
        intervals=tuple(texts),
        action=match.action,
        reason=match.reason,
        reuse=match.reuse,
        left_away=left_away,
        moments=match.prepared.moments,
        runs_on_spark=not is_for_others(match.query),
    )
    if files is not None:
        _check_nan(desk, match.versions, pruned)
        _write_files(desk, match.versions, pruned.files, files)
    plain = filters_of(desk.tables, match.prepared, (), match.versions)
    record_use(desk, match, pruned, plain, command="rewrite")
    return Outcome((result,), (*match.warnings, *_endless(match.prepared)))


def _endless(prepared: PreparedQuery) -> list[str]:
    """That another reader of the text may find no end where impctl does."""
    best = {node.id for node in nodes_of(prepared.root) if isinstance(node, Fixpoint) and node.best}
    return [
        f"recursive `{name}` terminates because impctl keeps only its best rows; elsewhere "
        f"the text may run forever on data with cycles [{BEST_ROWS_ONLY}]"
        for name in sorted(best)
    ]


def _as_it_stands(desk: Workbench, match: Unread, files: Path | None) -> Outcome:
    """The text of a query that only Spark can read: the user's own."""
    read = {t: desk.tables.snapshot(t, version).files for t, version in match.versions.items()}
    if files is not None:
        _write_files(desk, match.versions, read, files)
    count = match.files(desk)
    result = RewriteResult(
        query=match.spec.name,
        sql=match.sql,
        sketches=(),
        versions=match.versions,
        files_kept=count,
        files_total=count,
        intervals=(),
        action=match.action,
        reason=match.reason,
    )
    return Outcome((result,), match.warnings)


def _check_nan(desk: Workbench, versions: Mapping[TableName, TableVersion], pruned: Pruned) -> None:
    """TableError where readers of the files would lose rows that the ranges ask for."""
    for table in sorted(losing_nan(desk.tables, pruned, versions)):
        raise TableError(
            f"Table `{table}` cannot be read file by file through its sketch: its files may "
            "contain NaN in the requested range, and Parquet readers may skip such rows",
            hint="omit `--files` and run the text on Spark, or do not use the sketch: `--sketch "
            "never`",
            code="files_not_plain",
        )


def _write_files(
    desk: Workbench,
    versions: Mapping[TableName, TableVersion],
    files: Mapping[TableName, Sequence[DataFile]],
    path: Path,
) -> None:
    """Which files are left of each table; an error where rows are not simply those of the files."""
    for table in files:
        reason = why_not_plain(desk.tables.snapshot(table, versions.get(table)))
        if reason:
            raise TableError(
                f"Table `{table}` cannot be read file by file: {reason}",
                hint="omit `--files` and run the text with a reader that supports Delta",
                code="files_not_plain",
            )
    listed = {table: [file.uri for file in own] for table, own in files.items()}
    try:
        write_whole(path, json.dumps(listed, indent=1) + "\n")
    except OSError as error:
        raise StorageError(
            f"The list of files could not be written to `{path}`: {error.strerror}",
            hint="name a file in a folder with write access",
            code="files_not_written",
        ) from error
