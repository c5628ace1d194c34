"""`budget` of a workload file: how much disk all state may take, and sizes as people write them.

Law: a budget bounds what is kept, never an answer. 0 is allowed and means the least. A text is one
amount of whole bytes or refused; a number without a unit is bytes.
Out of scope: what is kept under it (`circuits.keeping`).
"""

from __future__ import annotations

import re
from fractions import Fraction

from yaml import Node

from impctl.workload.models import BudgetSpec
from impctl.workload.reading import FileReading, inside
from impctl.workload.schema_parts import JsonSchema, object_of, text_of

_PATH = "`budget`"
_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
SIZE_HINT = "write a size such as 500MB, 2GB or 2GiB"


def size_from(text: str) -> int:
    """The bytes of a size; 0 is one. ValueError for what is none."""
    found = _WRITTEN.fullmatch(text.strip())
    unit = None if found is None else _UNITS.get(found.group(2).lower())
    if found is None or unit is None:
        raise ValueError(text)
    return int(Fraction(found.group(1)) * unit)


def read_budget(node: Node | None, reading: FileReading) -> BudgetSpec:
    """The budget; without one everything is kept."""
    if node is None:
        return BudgetSpec()
    fields = reading.record(node, _PATH, (), ("disk",))
    at = None if fields is None else fields.get("disk")
    if at is None:
        return BudgetSpec()
    path = inside(_PATH, "disk")
    cell = reading.cell(at, path, "a size such as 1GB")
    if cell is None:
        return BudgetSpec()
    try:
        return BudgetSpec(size_from(str(cell.value)))
    except ValueError:
        reading.report(at, f"{path} must be a size, not `{cell.value}`", SIZE_HINT)
        return BudgetSpec()


def budget_schema() -> JsonSchema:
    """What an editor is told of it."""
    disk = text_of("Bytes that the state of all queries may take: 500MB, 2GB; 0: the least.")
    disk = {**disk, "type": ["string", "integer"]}
    return object_of("What the state of all queries may take.", {"disk": disk})
