"""Names in the workload file: what may be one, and which tables are declared.

Law: names of queries and updates serve on a command line and in file names as they are; names of
tables and parameters are plain SQL identifiers.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from yaml.nodes import Node

from impctl.workload.reading import FileReading, suggestion, written_at

NAME_PATTERN = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
IDENTIFIER_PATTERN = "[A-Za-z_][A-Za-z0-9_]{0,127}"
"""What may name a table or a parameter."""

Declared = Collection[str] | None
"""Names of the tables of the file; None where `tables` itself is missing or broken."""


def is_name(name: str) -> bool:
    """Whether a query or an update may be called so."""
    return re.fullmatch(NAME_PATTERN, name) is not None


def is_identifier(name: str) -> bool:
    """Whether a table may be called so."""
    return re.fullmatch(IDENTIFIER_PATTERN, name) is not None


def refuse_name(node: Node, name: str, what: str, reading: FileReading) -> None:
    """Note that `name` cannot name `what`."""
    hint = "use letters, digits, `_`, `-` and `.`, at most 128 characters"
    reading.report(node, f"{written_at(node, name)} cannot name {what}", hint)


def is_declared(table: str, node: Node, tables: Declared, path: str, reading: FileReading) -> bool:
    """Whether `table`, written at `node`, is declared; a problem if not."""
    if tables is None or table in tables:
        return True
    reading.report(
        node,
        f"Table {written_at(node, table)} in {path} is not declared under `tables`",
        suggestion(table, list(tables), "declared tables"),
    )
    return False
