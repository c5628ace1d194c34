"""Use case: the query's SQL with its sketch as range predicates.

Law: the text printed gives, over the versions named beside it, what the query gives. No Spark is
started unless the sketch has to be recaptured first.
Out of scope: running the text (`app.query`).
"""

from __future__ import annotations

import json
from pathlib import Path

from impctl.app.capturing.entries import sketch_entry
from impctl.app.preparing.filters import Pruned, filters_of, interval_texts
from impctl.app.preparing.given_values import GivenValues
from impctl.app.results.results import Outcome, RewriteResult
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.using.older_versions import AtVersions
from impctl.app.using.recorded import record_use
from impctl.app.using.request import asked
from impctl.app.using.text import written_query
from impctl.app.workbench.whole_file import write_whole
from impctl.app.workbench.workbench import Workbench
from impctl.errors import StorageError, TableError
from impctl.tables.plain_files import why_not_plain


def rewrite(
    desk: Workbench,
    query: str | None,
    params: GivenValues = (),
    sql: str | None = None,
    at: AtVersions | None = None,
    files: Path | None = None,
) -> Outcome:
    """The rewritten SQL of one query; `params`, `sql` and `at` as for `app.query`.

    `files`: where to write which data files the text reads, by table, as JSON.
    """
    found = asked(desk, query, params, sql, at)
    written = written_query(
        desk.tables, found.prepared, found.query, found.sketches, found.versions
    )
    pruned = written.pruned
    texts = [text for one in dict.fromkeys(pruned.filters.values()) for text in interval_texts(one)]
    result = RewriteResult(
        query=found.prepared.spec.name,
        sql=written.sql,
        sketches=tuple(sketch_entry(sketch) for sketch in found.sketches),
        versions=found.versions,
        files_kept=pruned.files_kept,
        files_total=pruned.files_total,
        intervals=tuple(texts),
        action=found.action,
        reason=found.reason,
        reuse=found.reuse,
        moments=found.prepared.moments,
    )
    if files is not None:
        _write_files(desk, found, pruned, files)
    plain = filters_of(desk.tables, found.prepared, (), found.versions)
    record_use(desk, found, pruned, plain, command="rewrite")
    return Outcome((result,), found.warnings)


def _write_files(desk: Workbench, found: Fresh, pruned: Pruned, path: Path) -> None:
    """Which files are left of each table; an error where rows are not simply those of the files."""
    for table in pruned.files:
        reason = why_not_plain(desk.tables.snapshot(table, found.versions.get(table)))
        if reason:
            raise TableError(
                f"Table `{table}` cannot be read file by file: {reason}",
                hint="leave `--files` out and run the text with a reader that knows Delta",
                code="files_not_plain",
            )
    listed = {table: [file.uri for file in files] for table, files in pruned.files.items()}
    try:
        write_whole(path, json.dumps(listed, indent=1) + "\n")
    except OSError as error:
        raise StorageError(
            f"The list of files could not be written to `{path}`: {error.strerror}",
            hint="name a file in a folder that you may write",
            code="files_not_written",
        ) from error
