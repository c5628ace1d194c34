"""The section `partitions` of the workload file: candidates for range partitions.

Law: boundaries strictly increase and are of one kind, as far as can be told without the column:
text may stand for decimals, so text that increases as numbers is as good as text that increases
by code point. The column's type has the last word (`sketch.partition`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation

from yaml.nodes import Node

from impctl.workload.models import BoundaryLiteral, PartitionSpec
from impctl.workload.names import Declared, declared_table
from impctl.workload.reading import Entry, FileReading, inside, shown
from impctl.workload.scalars import kind_of

MAX_FRAGMENTS = 100_000
"""Far below what the engine has room for in a number (`engine.tags.FRAGMENT_BITS`)."""

_OLD_KEY = "fragments"
"""What the key `ranges` was called; accepted until the first release."""

MAX_BOUNDARIES = MAX_FRAGMENTS - 1


def read_partitions(
    node: Node | None, tables: Declared, reading: FileReading
) -> tuple[PartitionSpec, ...]:
    """The candidates that could be read, in file order."""
    partition_specs: list[PartitionSpec] = []
    for written, entry in (reading.entries(node, "`partitions`") or {}).items():
        table = declared_table(written, entry.key, tables, "`partitions`", reading)
        where = inside("`partitions`", written)
        columns = reading.columns(entry.value, where)
        for column, inner in (columns or {}).items():
            spec = _read_partition(table or written, column, inner, where, reading)
            if table is None or spec is None:
                continue
            if any(_is_same(spec, other) for other in partition_specs):
                reading.report(
                    inner.key,
                    f"Column {shown(column)} of table {shown(table)} is partitioned twice",
                    "remove one; all names of a table refer to the same table",
                )
            partition_specs.append(spec)
    return tuple(partition_specs)


def _is_same(one: PartitionSpec, other: PartitionSpec) -> bool:
    return one.table == other.table and one.column.lower() == other.column.lower()


def _read_partition(
    table: str, column: str, entry: Entry, where: str, reading: FileReading
) -> PartitionSpec | None:
    path = inside(where, column)
    fields = reading.record(entry.value, path, (), ("boundaries", "ranges", _OLD_KEY))
    if fields is None:
        return None
    boundaries = _read_boundaries(fields.get("boundaries"), inside(path, "boundaries"), reading)
    key = _OLD_KEY if _OLD_KEY in fields else "ranges"
    ranges = reading.whole_number(
        fields.get(key),
        inside(path, key),
        MAX_FRAGMENTS,
        "16 to 1000 suit most tables",
    )
    if len(fields) != 1:
        reading.report(
            entry.key,
            f"{path} must have either `boundaries` or `ranges`",
            "write `boundaries: [601, 1001]` or `ranges: 16`",
        )
    if boundaries is None and ranges is None:
        return None
    place = reading.at(entry.key)
    return PartitionSpec(table, column, boundaries, ranges, place, is_old_key=key == _OLD_KEY)


def _read_boundaries(
    node: Node | None, where: str, reading: FileReading
) -> tuple[BoundaryLiteral, ...] | None:
    elements = reading.elements(node, where)
    if node is None or elements is None:
        return None
    if not 1 <= len(elements) <= MAX_BOUNDARIES:
        reading.report(
            node,
            f"{where} must have from 1 to {MAX_BOUNDARIES} values",
            "n boundaries make n + 1 ranges",
        )
        return None
    values = [_read_boundary(element, where, reading) for element in elements]
    whole = [value for value in values if value is not None]
    if len(whole) < len(values):
        return None
    return tuple(whole) if _increase(whole, elements, where, reading) else None


def _read_boundary(node: Node, where: str, reading: FileReading) -> BoundaryLiteral | None:
    cell = reading.cell(node, f"A value of {where}", "a number, text or a date")
    if cell is None:
        return None
    if cell.value is None or isinstance(cell.value, bool):
        reading.report(
            node,
            f"A value of {where} must be a number, text or a date, not {kind_of(cell.value)}",
            "NULL always has its own range" if cell.value is None else "put quotes around text",
        )
        return None
    if isinstance(cell.value, float) and not math.isfinite(cell.value):
        reading.report(
            node,
            f"A value of {where} is not finite",
            "remove it; the first range has no lower bound and the last one no upper bound",
        )
        return None
    return cell.value


def _increase(
    values: Sequence[BoundaryLiteral], nodes: Sequence[Node], where: str, reading: FileReading
) -> bool:
    kinds = [_order_kind(value) for value in values]
    for kind, node in zip(kinds, nodes, strict=True):
        if kind != kinds[0]:
            reading.report(
                node,
                f"Values of {where} must be of one type, not {kinds[0]} and {kind}",
                "write all of them with quotes, or all without",
            )
            return False
    position = _first_descent(values)
    numbers = _as_decimals(values)
    if position is not None and numbers is not None:
        position = _first_descent(numbers)
    if position is None:
        return True
    reading.report(
        nodes[position],
        f"Values of {where} must increase, but number {position + 1} does not",
        "sort the boundaries and remove duplicates",
    )
    return False


def _order_kind(value: BoundaryLiteral) -> str:
    match value:
        case int() | float():
            return "numbers"
        case str():
            return "text"
        case datetime():
            return "timestamps" if value.tzinfo is None else "timestamps with a time zone"
        case date():
            return "dates"


def _first_descent(values: Sequence[BoundaryLiteral] | Sequence[Decimal]) -> int | None:
    for position in range(1, len(values)):
        if not values[position - 1] < values[position]:  # type: ignore[operator]  # one kind
            return position
    return None


def _as_decimals(values: Sequence[BoundaryLiteral]) -> list[Decimal] | None:
    """The values as decimals where all of them are text that says a finite number."""
    numbers: list[Decimal] = []
    for value in values:
        if not isinstance(value, str):
            return None
        try:
            numbers.append(Decimal(value.strip()))
        except InvalidOperation:
            return None
    return numbers if all(number.is_finite() for number in numbers) else None
