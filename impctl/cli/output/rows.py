"""Rows of a result on stdout, in the requested format."""

from __future__ import annotations

import os
from io import TextIOWrapper
from typing import TYPE_CHECKING, TextIO

from impctl.cli.output.json import JsonOutput
from impctl.cli.output.terminal import columns_of, table_lines
from impctl.cli.output.wording import versions_text
from impctl.errors import count_text
from impctl.service.text import RowsFormat, duration_text, plain

if TYPE_CHECKING:
    from impctl.cli.job import Display
    from impctl.service.answer import ArrowAnswer
    from impctl.service.results import ChangesResult, FollowedRun, QueryResult


# The answer of a query on stdout, in the format asked for, and the line about it. Law: stdout has
# rows and nothing else. Formats that programs read are UTF-8 whatever the locale is, and escaped
# only where they go to a terminal, which a value must not drive.


def write_rows(
    result: ArrowAnswer,
    rows_format: RowsFormat,
    stdout: TextIO,
    *,
    escape_formulas: bool,
    has_names: bool = True,
) -> None:
    """Print the rows unless they went to a file; `has_names` is for CSV."""
    if result.written is not None:
        return
    if rows_format is RowsFormat.TABLE:
        from impctl.service.formats import text_columns

        width = columns_of(os.environ, stdout)
        for line in table_lines(text_columns(result.shown, " "), width):
            stdout.write(line + "\n")
        return
    from impctl.service.formats import text_of

    is_terminal = stdout.isatty()
    if isinstance(stdout, TextIOWrapper):
        stdout.reconfigure(encoding="utf-8")
    pieces = text_of(result.shown, rows_format, escape_formulas=escape_formulas)
    if not has_names:
        next(pieces)
    for text in pieces:
        stdout.write(plain(text) if is_terminal else text)


def answer_line(result: QueryResult) -> str:
    """How many rows, where they went, and what was read for them."""
    versions = versions_text(result.versions, None, result.moments)
    start = result.spark_start_ms
    started = f", Spark took {duration_text(start)} to start" if start else ""
    written = "" if result.written is None else f" written to {result.written}"
    return (
        f"{result.query}: {_rows_text(result)}{written}, {_source_text(result)} "
        f"at {versions} in {duration_text(result.elapsed_ms)}{started}"
    )


def _source_text(result: QueryResult) -> str:
    if result.by == "state":
        return "from the materialized result"
    who = "the engine" if result.by == "engine" else "Spark"
    return f"{who} read {result.files_kept} of {count_text(result.files_total, 'file')}"


def changes_line(result: ChangesResult) -> str:
    """How many rows were inserted and deleted, and between which versions."""
    since = result.since or None
    versions = versions_text(result.versions, since, result.moments)
    written = "" if result.written is None else f" written to {result.written}"
    what = "changes" if since else "the whole result"
    return (
        f"{result.query}: {what}, {_rows_text(result)}{written}, {versions} "
        f"in {duration_text(result.elapsed_ms)}"
    )


def _rows_text(result: ArrowAnswer) -> str:
    total = count_text(result.row_count, "row")
    if result.limit is None or result.limit >= result.row_count:
        return total
    return f"{result.limit:,} of {total}"


# Changes of an answer as `changes --follow` prints them, look by look. Law: rows and nothing else
# on stdout, in one format from the first look to the last, so that a CSV has its names once; with
# `--json` a document per look. Between what versions goes to stderr.


class ChangeLines:
    """Prints changes run by run, and the names of a CSV only once."""

    def __init__(self, stdout: TextIO, stderr: TextIO, display: Display) -> None:
        self._stdout = stdout
        self._stderr = stderr
        self._display = display
        self._has_names = False

    def write(self, result: ChangesResult, run: FollowedRun) -> None:
        """Print the changes of one run."""
        if self._display.json:
            output = JsonOutput("changes", self._stdout, run)
            output.changes(result)
            output.end((), (), None)
        else:
            rows_format = self._display.rows_format
            is_csv = rows_format is RowsFormat.CSV
            write_rows(
                result,
                rows_format,
                self._stdout,
                escape_formulas=self._display.escape_formulas,
                has_names=not (is_csv and self._has_names),
            )
            self._has_names = True
            self._stdout.flush()
            if self._display.verbosity >= 0:
                self._stderr.write(plain(changes_line(result)) + "\n")
        self._stdout.flush()
