"""The section `updates` of the workload file: batches that `apply` commits, in file order.

Law: each update has a name of its own and does exactly one thing. Rows are kept as typed by YAML,
expressions as SQL text. Out of scope: whether they fit the table (`tables.updates`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from yaml.nodes import Node, ScalarNode

from impctl.workload.models import CellValue, ChangeSpec, DeleteSpec, InsertSpec, UpdateSpec
from impctl.workload.paths import resolve_path
from impctl.workload.queries import NAME_HINT, check_table, is_name
from impctl.workload.reading import Entry, Reading, shown

_ACTIONS = ("insert", "delete", "update")


def read_updates(
    node: Node, tables: Collection[str], base: Path, reading: Reading
) -> tuple[UpdateSpec, ...]:
    """The updates that could be read, in file order."""
    found: list[UpdateSpec] = []
    first_line: dict[str, int] = {}
    for number, element in enumerate(reading.elements(node, "`updates`") or [], start=1):
        path = f"`updates[{number}]`"
        fields = reading.record(element, path, ("name",), _ACTIONS)
        if fields is None:
            continue
        name = _read_name(fields["name"].value, path, first_line, reading)
        actions = [fields[action] for action in _ACTIONS if action in fields]
        if len(actions) != 1:
            reading.report(
                element,
                f"{path} must have exactly one of `insert`, `delete`, `update`",
                "make a second update for a second action" if actions else "add one of them",
            )
            continue
        spec = _read_action(name or "", actions[0], tables, base, path, reading)
        if name is not None and spec is not None:
            found.append(spec)
    return tuple(found)


def _read_name(node: Node, path: str, first_line: dict[str, int], reading: Reading) -> str | None:
    name = reading.text(node, f"{path[:-1]}.name`")
    if name is None:
        return None
    written = shown(node.value if isinstance(node, ScalarNode) else name)
    if not is_name(name):
        reading.report(node, f"{written} cannot name an update", NAME_HINT)
        return None
    if name in first_line:
        reading.report(
            node,
            f"Update {written} stands twice",
            f"give each update a name of its own; the first is on line {first_line[name]}",
        )
        return None
    first_line[name] = reading.at(node).line
    return name


def _read_action(
    name: str, action: Entry, tables: Collection[str], base: Path, path: str, reading: Reading
) -> UpdateSpec | None:
    where = f"{path[:-1]}.{action.name}`"
    required = {"insert": ("table",), "delete": ("table", "where"), "update": ("table", "set")}
    optional = {"insert": ("rows", "file"), "delete": (), "update": ("where",)}
    fields = reading.record(action.value, where, required[action.name], optional[action.name])
    if fields is None:
        return None
    table = _read_table(fields["table"].value, where, tables, reading)
    if action.name == "insert":
        return _read_insert(name, table, action, fields, base, where, reading)
    condition: str | None = None
    if "where" in fields:
        condition = reading.text(fields["where"].value, f"{where[:-1]}.where`")
        if condition is None:
            return None
    if action.name == "delete":
        if table is None or condition is None:
            return None
        return DeleteSpec(name, table, condition, reading.at(action.key))
    assignments = _read_set(fields["set"].value, f"{where[:-1]}.set`", reading)
    if table is None or assignments is None:
        return None
    return ChangeSpec(name, table, assignments, condition, reading.at(action.key))


def _read_table(node: Node, where: str, tables: Collection[str], reading: Reading) -> str | None:
    table = reading.text(node, f"{where[:-1]}.table`")
    if table is None or not check_table(table, node, tables, where, reading):
        return None
    return table


def _read_insert(
    name: str,
    table: str | None,
    action: Entry,
    fields: Mapping[str, Entry],
    base: Path,
    where: str,
    reading: Reading,
) -> InsertSpec | None:
    if ("rows" in fields) == ("file" in fields):
        reading.report(
            action.key,
            f"{where} must have either `rows` or `file`",
            "write `rows: [{column: value}]` or `file: batch.parquet`",
        )
        return None
    rows: tuple[Mapping[str, CellValue], ...] | None = None
    file: str | None = None
    if "rows" in fields:
        rows = _read_rows(fields["rows"].value, f"{where[:-1]}.rows`", reading)
    else:
        file = reading.text(fields["file"].value, f"{where[:-1]}.file`")
        file = None if file is None else resolve_path(base, file)
    if table is None or (rows is None and file is None):
        return None
    return InsertSpec(name, table, rows, file, reading.at(action.key))


def _read_rows(
    node: Node, where: str, reading: Reading
) -> tuple[Mapping[str, CellValue], ...] | None:
    elements = reading.elements(node, where)
    if elements is None:
        return None
    if not elements:
        reading.report(node, f"{where} is empty", "write at least one row")
        return None
    before = len(reading.problems)
    rows: list[Mapping[str, CellValue]] = []
    for number, element in enumerate(elements, start=1):
        path = f"{where[:-1]}[{number}]`"
        row: dict[str, CellValue] = {}
        entries = reading.entries(element, path)
        if entries is not None and not entries:
            reading.report(element, f"{path} is empty", "write `{column: value}`")
        for column, entry in (entries or {}).items():
            cell = reading.cell(entry.value, f"{path[:-1]}.{column}`", "a single value")
            row[column] = None if cell is None else cell.value
        rows.append(row)
    return tuple(rows) if len(reading.problems) == before else None


def _read_set(node: Node, where: str, reading: Reading) -> Mapping[str, str] | None:
    entries = reading.entries(node, where)
    if entries is None:
        return None
    if not entries:
        reading.report(node, f"{where} is empty", 'write `{column: "expression"}`')
        return None
    assignments: dict[str, str] = {}
    for column, entry in entries.items():
        path = f"{where[:-1]}.{column}`"
        cell = reading.cell(entry.value, path, "an SQL expression")
        if cell is None:
            continue
        # A bare number or switch is an SQL expression as it stands; a bare date is not.
        if cell.value is None or not cell.written.strip():
            reading.report(entry.value, f"{path} is empty", "write `NULL` in quotes for NULL")
        elif not isinstance(cell.value, str | int | float):
            reading.report(
                entry.value,
                f"{path} must be an SQL expression, not a date",
                "write it as SQL in quotes: \"DATE '2022-01-01'\"",
            )
        else:
            assignments[column] = cell.written
    return assignments if len(assignments) == len(entries) else None
