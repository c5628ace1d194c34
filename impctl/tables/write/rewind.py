"""Going forth and back on a scratch clone: rows appended, and taken out again.

Law: only for tables impctl itself cloned (`tables.write.clone`); each call is one commit, and going
back is a RESTORE, which the change feed tells as deletions.
Out of scope: update batches of users (`tables.write.updates`).
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from impctl.errors import StorageError
from impctl.tables.failures import READ_FAILURES, failure_text
from impctl.types import TableVersion


def append_rows(path: str, rows: pa.Table, options: Mapping[str, str] | None = None) -> None:
    """Commit rows of the table's own columns."""
    try:
        write_deltalake(
            path, rows, mode="append", storage_options=None if options is None else dict(options)
        )
    except READ_FAILURES as error:
        raise StorageError(f"Appending to the clone failed: {failure_text(error)}") from error


def checkpoint(path: str) -> None:
    """Write a checkpoint of the log, as other writers do every few commits."""
    try:
        DeltaTable(path).create_checkpoint()
    except READ_FAILURES as error:
        raise StorageError(
            f"Writing a checkpoint of the clone failed: {failure_text(error)}",
            hint="check that the folder of the table can be written",
        ) from error


def rewind(path: str, version: TableVersion) -> None:
    """Commit the table as it was at `version`."""
    try:
        DeltaTable(path).restore(version)
    except READ_FAILURES as error:
        raise StorageError(f"Restoring the clone failed: {failure_text(error)}") from error


def replace_rows(path: str, rows: pa.Table, *, files: int) -> None:
    """Commit that the table has these rows instead of its own, in about so many files."""
    size = max(1, rows.nbytes // max(1, files))
    try:
        write_deltalake(path, rows, mode="overwrite", target_file_size=size)
    except READ_FAILURES as error:
        raise StorageError(f"Rewriting the clone failed: {failure_text(error)}") from error
