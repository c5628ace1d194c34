"""`budget` of a workload file: how much disk all state may take.

Law: a budget bounds what is kept, never an answer. 0 is allowed and means the least.
Out of scope: what is kept under it (`circuits.keeping`).
"""

from __future__ import annotations

from yaml import Node

from impctl.workload.models import BudgetSpec
from impctl.workload.reading import FileReading, inside
from impctl.workload.scalars import SIZE_HINT, size_from
from impctl.workload.schema_parts import JsonSchema, object_of, text_of

_PATH = "`budget`"


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
