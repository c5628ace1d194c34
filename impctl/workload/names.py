"""Names in the workload file: what may be one, and which tables are declared.

Law: names of queries and updates serve on a command line and in file names as they are; names of
parameters are plain SQL identifiers; tables may be called by names of up to three parts.
"""

from __future__ import annotations

import re

from yaml.nodes import Node

from impctl.sql.names import TableNames
from impctl.types import TableName
from impctl.values import dataclass
from impctl.workload.reading import FileReading, suggestion, written_at

NAME_PATTERN = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
IDENTIFIER_PATTERN = "[A-Za-z_][A-Za-z0-9_]{0,127}"
"""What may name a parameter, and a part of a table's name without backticks."""

_PART = f"(?:{IDENTIFIER_PATTERN}|`[^`]+`)"
TABLE_PATTERN = rf"{_PART}(?:\.{_PART}){{0,2}}"
"""What may name a table or a view: `sales`, `shop.sales`, ``main.`my shop`.sales``."""


@dataclass(frozen=True, slots=True)
class DeclaredTables:
    """The tables of the file, those with a problem too, and what they may be called."""

    listed: tuple[TableName, ...]
    names: TableNames

    def table(self, written: str) -> TableName | None:
        """The table that is called so; None for none."""
        result = self.names.called(written)
        return written if result is None and written in self.listed else result


Declared = DeclaredTables | None
"""None where `tables` itself is missing or broken."""


def is_name(name: str) -> bool:
    """Whether a query or an update may be called so."""
    return re.fullmatch(NAME_PATTERN, name) is not None


def is_identifier(name: str) -> bool:
    """Whether a parameter may be called so."""
    return re.fullmatch(IDENTIFIER_PATTERN, name) is not None


def is_table_name(name: str) -> bool:
    """Whether a table may be called so."""
    return re.fullmatch(TABLE_PATTERN, name) is not None


def refuse_name(node: Node, name: str, what: str, reading: FileReading) -> None:
    """Note that `name` cannot name `what`."""
    hint = "use letters, digits, `_`, `-` and `.`, at most 128 characters"
    reading.report(node, f"{written_at(node, name)} cannot be the name of {what}", hint)


def declared_table(
    written: str, node: Node, tables: Declared, path: str, reading: FileReading
) -> TableName | None:
    """The table called `written` at `node`; None, with a problem noted, where none is."""
    if tables is None:
        return written
    result = tables.table(written)
    if result is None:
        reading.report(
            node,
            f"Table {written_at(node, written)} in {path} is not declared under `tables`",
            suggestion(written, tables.listed, "declared tables"),
        )
    return result
