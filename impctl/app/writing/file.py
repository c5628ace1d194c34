"""An answer written to a file.

Law: the file is there whole or as it was before; what stands in the way is told before the query
runs, as far as it can be known then. Out of scope: which rows (`app.query`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from impctl.app.workbench.output import check_output, whole_file
from impctl.app.writing.formats import RowsFormat, ending_of
from impctl.app.writing.json_values import unique_names
from impctl.app.writing.lines import text_of
from impctl.errors import StorageError, UnsupportedError

_TEXTS = {".csv": RowsFormat.CSV, ".jsonl": RowsFormat.JSONL}


def check_goal(path: Path, reserved: Mapping[str, str]) -> None:
    """UsageError or StorageError where no answer can be written to this file."""
    ending_of(path)
    check_output(path, reserved)
    if not path.parent.is_dir():
        made = f"mkdir -p {shlex.quote(str(path.parent))}"
        raise StorageError(
            f"The result cannot be written to `{path}`: the folder `{path.parent}` does not exist",
            hint=f"create it first, `{made}`, or name a file in another folder",
            code="answer_not_written",
        )
    if path.is_dir():
        raise StorageError(
            f"The result cannot be written to `{path}`: it is a folder",
            hint="name a file in it",
            code="answer_not_written",
        )


def write_answer(table: pa.Table, path: Path, *, escape_formulas: bool = False) -> None:
    """Write all rows, in the format that the ending names; formulas are escaped in CSV only."""
    ending = ending_of(path)
    try:
        with whole_file(path) as file:
            if ending == ".parquet":
                _write_parquet(table, file)
            else:
                for text in text_of(table, _TEXTS[ending], escape_formulas=escape_formulas):
                    file.write(text.encode())
    except OSError as error:
        raise StorageError(
            f"The result could not be written to `{path}`: {error.strerror or error}",
            hint="name a file in a folder with write access, on a disk with enough space",
            code="answer_not_written",
        ) from error


def _write_parquet(table: pa.Table, file: object) -> None:
    """Parquet; its readers find columns by name, so that no two may have the same one."""
    import pyarrow.parquet as pq

    try:
        pq.write_table(table.rename_columns(unique_names(table.column_names)), file)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UnsupportedError(
            f"The result has a type that Parquet does not support: {error}",
            hint="write a file that ends in .csv or .jsonl, or cast the column in the query",
            code="answer_type",
        ) from error
