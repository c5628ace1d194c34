"""The section `updates` of the workload file: batches that `apply` commits, in file order.

Law: each update has a name of its own and does exactly one thing. Rows are kept as typed by YAML,
expressions as SQL text. Out of scope: whether they fit the table (`tables.write.updates`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from yaml.nodes import Node

from impctl.errors import Location
from impctl.values import dataclass
from impctl.workload.models import CellValue, ChangeSpec, DeleteSpec, InsertSpec, UpdateSpec
from impctl.workload.names import Declared, declared_table, is_name, refuse_name
from impctl.workload.paths import read_path
from impctl.workload.reading import FileReading, inside, written_at


@dataclass(frozen=True, slots=True)
class _Head:
    """What is known of an update before its action is read; None where that went wrong."""

    name: str | None
    location: Location
    path: str


def read_updates(
    node: Node | None, tables: Declared, base: Path, reading: FileReading
) -> tuple[UpdateSpec, ...]:
    """The updates that could be read, in file order."""
    update_specs: list[UpdateSpec] = []
    first_line: dict[str, int] = {}
    for number, element in enumerate(reading.elements(node, "`updates`") or [], start=1):
        path = f"`updates[{number}]`"
        fields = reading.record(element, path, ("name",), ("insert", "delete", "update"))
        if fields is None:
            continue
        name = _read_name(fields.get("name"), inside(path, "name"), first_line, reading)
        head = _Head(name, reading.at(element), path)
        specs = (
            _read_insert(fields.get("insert"), head, tables, base, reading),
            _read_delete(fields.get("delete"), head, tables, reading),
            _read_change(fields.get("update"), head, tables, reading),
        )
        actions = len(fields.keys() - {"name"})
        if actions != 1:
            reading.report(
                element,
                f"{path} must have exactly one of `insert`, `delete`, `update`",
                "make a second update for a second action" if actions else "add one of them",
            )
        update_specs.extend(spec for spec in specs if spec is not None)
    return tuple(update_specs)


def _read_name(
    node: Node | None, path: str, first_line: dict[str, int], reading: FileReading
) -> str | None:
    name = reading.text(node, path)
    if node is None or name is None:
        return None
    if not is_name(name):
        refuse_name(node, name, "an update", reading)
        return None
    if name in first_line:
        reading.report(
            node,
            f"Update {written_at(node, name)} appears twice",
            f"give each update its own name; the first is on line {first_line[name]}",
        )
        return None
    first_line[name] = reading.at(node).line
    return name


def _read_insert(
    node: Node | None, head: _Head, tables: Declared, base: Path, reading: FileReading
) -> InsertSpec | None:
    path = inside(head.path, "insert")
    fields = reading.record(node, path, ("table",), ("rows", "file"))
    if node is None or fields is None:
        return None
    table = _read_table(fields.get("table"), path, tables, reading)
    rows = _read_rows(fields.get("rows"), inside(path, "rows"), reading)
    file = read_path(fields.get("file"), inside(path, "file"), base, reading)
    if ("rows" in fields) == ("file" in fields):
        reading.report(
            node,
            f"{path} must have either `rows` or `file`",
            "write `rows: [{column: value}]` or `file: batch.parquet`",
        )
    if head.name is None or table is None or (rows is None) == (file is None):
        return None
    return InsertSpec(head.name, table, rows, file, head.location)


def _read_delete(
    node: Node | None, head: _Head, tables: Declared, reading: FileReading
) -> DeleteSpec | None:
    path = inside(head.path, "delete")
    fields = reading.record(node, path, ("table", "where"))
    if fields is None:
        return None
    table = _read_table(fields.get("table"), path, tables, reading)
    where = reading.text(fields.get("where"), inside(path, "where"))
    if head.name is None or table is None or where is None:
        return None
    return DeleteSpec(head.name, table, where, head.location)


def _read_change(
    node: Node | None, head: _Head, tables: Declared, reading: FileReading
) -> ChangeSpec | None:
    path = inside(head.path, "update")
    fields = reading.record(node, path, ("table", "set"), ("where",))
    if fields is None:
        return None
    table = _read_table(fields.get("table"), path, tables, reading)
    assignments = _read_set(fields.get("set"), inside(path, "set"), reading)
    where = reading.text(fields.get("where"), inside(path, "where"))
    # A condition that could not be read must not turn into an update of every row.
    if "where" in fields and where is None:
        return None
    if head.name is None or table is None or assignments is None:
        return None
    return ChangeSpec(
        head.name,
        table,
        {column: text for column, (text, _) in assignments.items()},
        where,
        head.location,
        {column: place for column, (_, place) in assignments.items()},
    )


def _read_table(node: Node | None, path: str, tables: Declared, reading: FileReading) -> str | None:
    table = reading.text(node, inside(path, "table"))
    if node is None or table is None:
        return None
    return declared_table(table, node, tables, path, reading)


def _read_rows(
    node: Node | None, path: str, reading: FileReading
) -> tuple[Mapping[str, CellValue], ...] | None:
    elements = reading.elements(node, path)
    if node is None or elements is None:
        return None
    if not elements:
        reading.report(node, f"{path} is empty", "write at least one row")
        return None
    rows: list[Mapping[str, CellValue]] = []
    for number, element in enumerate(elements, start=1):
        place = f"{path[:-1]}[{number}]`"
        row: dict[str, CellValue] = {}
        columns = reading.columns(element, place) or {}
        for column, entry in columns.items():
            cell = reading.cell(entry.value, inside(place, column), "a single value")
            if cell is not None:
                row[column] = cell.value
        if columns and len(row) == len(columns):
            rows.append(row)
    return tuple(rows) if len(rows) == len(elements) else None


def _read_set(
    node: Node | None, path: str, reading: FileReading
) -> Mapping[str, tuple[str, Location]] | None:
    """The expression of each column, and where it stands."""
    columns = reading.columns(node, path)
    if not columns:
        return None
    assignments: dict[str, tuple[str, Location]] = {}
    for column, entry in columns.items():
        place = inside(path, column)
        cell = reading.cell(entry.value, place, "an SQL expression")
        if cell is None:
            continue
        # A bare number or switch is an SQL expression as it stands; a bare date is not.
        if cell.value is None or not cell.written.strip():
            reading.report(entry.value, f"{place} is empty", "write `NULL` in quotes for NULL")
        elif not isinstance(cell.value, str | int | float):
            reading.report(
                entry.value,
                f"{place} must be an SQL expression, not a date",
                "write it as SQL in quotes: \"DATE '2022-01-01'\"",
            )
        else:
            assignments[column] = cell.written, reading.at(entry.value)
    return assignments if len(assignments) == len(columns) else None
