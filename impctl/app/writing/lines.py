"""The rows of an answer as CSV, JSON, JSON lines or Markdown, piece by piece.

Law: pieces together are one whole text, and none holds more than some thousand rows, so that a pipe
is fed at once. In CSV a NULL is nothing and an empty text is `""`; names stay as they are. In JSON
each row is an object, whose keys are told apart where the answer has two columns of one name.
Out of scope: the table for people (`cli.output.table`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from impctl.app.results.amounts import plain
from impctl.app.writing.formats import RowsFormat
from impctl.app.writing.json_values import json_values, unique_names
from impctl.app.writing.texts import TextColumn, Texts, is_plain, text_columns, texts_of

_ROWS = 8192
"""Rows of one piece."""

_QUOTED = re.compile(r'[",\r\n]|^$|^\s|\s$')
"""What has to stand in quotes: what would end the value, and what readers may take for NULL or
strip."""

_LINE_END = re.compile(r"\r\n|\r")
_FORMULA = re.compile(r"[=+\-@\t\r]")
"""What spreadsheets take for the start of a formula (https://owasp.org, CSV Injection)."""

_encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def text_of(
    table: pa.Table, rows_format: RowsFormat, *, escape_formulas: bool = False
) -> Iterator[str]:
    """The rows in one of the formats that are text through and through."""
    match rows_format:
        case RowsFormat.CSV:
            return csv_text(table, escape_formulas=escape_formulas)
        case RowsFormat.JSON:
            return json_text(table)
        case RowsFormat.JSONL:
            return json_lines(table)
        case RowsFormat.MARKDOWN:
            return markdown_text(table)
    raise ValueError(rows_format)


def csv_text(table: pa.Table, *, escape_formulas: bool = False) -> Iterator[str]:
    """CSV as RFC 4180 has it, lines ended by a newline alone.

    With `escape_formulas` a text that a spreadsheet would take for a formula gets a `'` in front.
    """
    field = _harmless_field if escape_formulas else _field
    yield ",".join(map(field, table.column_names)) + "\n"
    for batch in table.to_batches(max_chunksize=_ROWS):
        columns = [_fields(array, field) for array in batch.columns]
        yield "".join(",".join(row) + "\n" for row in zip(*columns, strict=True))


def json_lines(table: pa.Table) -> Iterator[str]:
    """An object a row, each on a line of its own."""
    for objects in _objects(table):
        yield "".join(f"{one}\n" for one in objects)


def json_text(table: pa.Table) -> Iterator[str]:
    """One array of objects, each on a line of its own."""
    before = "[\n"
    for objects in _objects(table):
        yield before + ",\n".join(objects)
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def markdown_text(table: pa.Table) -> Iterator[str]:
    """A table as GitHub draws it: numbers to the right, NULL as that word."""
    columns = text_columns(table, " ")
    yield _piped([_cell(column.name) for column in columns])
    yield _piped(["---:" if column.is_number else "---" for column in columns])
    for row in zip(*(_cells(column) for column in columns), strict=True):
        yield _piped(row)


def _fields(array: pa.Array, field: Callable[[str], str]) -> list[str]:
    texts: Texts = texts_of(array)
    if is_plain(array.type):
        return ["" if text is None else text for text in texts]
    return ["" if text is None else field(text) for text in texts]


def _harmless_field(text: str) -> str:
    return _field(f"'{text}" if _FORMULA.match(text) else text)


def _field(text: str) -> str:
    if _QUOTED.search(text) is None:
        return text
    return '"' + text.replace('"', '""') + '"'


def _objects(table: pa.Table) -> Iterator[list[str]]:
    """The rows as JSON texts, in pieces of at least one."""
    names = unique_names(table.column_names)
    for batch in table.to_batches(max_chunksize=_ROWS):
        columns = [json_values(array) for array in batch.columns]
        result = [
            _encoded(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)
        ]
        if result:
            yield result


def _cells(column: TextColumn) -> Iterator[str]:
    return ("NULL" if text is None else _cell(text) for text in column.texts)


def _cell(text: str) -> str:
    """A text that stays in its cell, is not read as markup of the table and drives no terminal."""
    text = plain(_LINE_END.sub("\n", text))
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")


def _piped(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"
