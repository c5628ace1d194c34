"""The formats of an answer, by name and by the ending of a file.

Law: imports nothing heavy, since every start of the command line reads it.
Out of scope: writing them (`app.writing.lines`, `app.writing.file`).
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from impctl.errors import UsageError

ENDINGS = (".parquet", ".csv", ".jsonl")
"""What a file may end in, which says how it is written."""


class RowsFormat(StrEnum):
    """How rows are shown."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    MARKDOWN = "markdown"


def ending_of(path: Path) -> str:
    """The ending of the file, in lower case; UsageError for one that names no format."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise UsageError(
            f"`--out` does not support the file name extension of {path}",
            hint=f"name a file that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}; other"
            " formats go to stdout, such as `--format json > FILE`",
            code="answer_ending",
        )
    return ending
