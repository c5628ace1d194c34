"""`budget` and `limits` of a workload file: what all state and a process may take, and how far a
recursive query may go.

Law: a budget bounds what is kept, never an answer; beyond a limit there is none. 0 is allowed for
`disk` and means the least. A share of the machine's memory stays as it is written: the machine is
another one now and then.
Out of scope: what is kept under it (`placement`), what memory there is
(`app.workbench.memory_limit`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from yaml import Node

from impctl.workload.models import BudgetSpec, LimitSpec
from impctl.workload.reading import FileReading, inside
from impctl.workload.scalars import SIZE_HINT, share_from, size_from
from impctl.workload.schema_parts import JsonSchema, object_of, text_of

MEMORY_HINT = f"{SIZE_HINT}, or a share of the machine's memory such as 25%"

_V = TypeVar("_V")
_PATH = "`budget`"
_LIMITS = "`limits`"
_MOST = 2**62


def read_budget(node: Node | None, reading: FileReading) -> BudgetSpec:
    """The budget; without one everything is kept."""
    if node is None:
        return BudgetSpec()
    fields = reading.record(node, _PATH, (), ("disk", "memory")) or {}
    return BudgetSpec(
        _read(fields, "disk", size_from, SIZE_HINT, reading),
        _read(fields, "memory", _memory, MEMORY_HINT, reading),
    )


def read_limits(node: Node | None, reading: FileReading) -> LimitSpec:
    """The limits of recursive queries; as usual where they are not given."""
    usual = LimitSpec()
    if node is None:
        return usual
    fields = reading.record(node, _LIMITS, (), ("rounds", "rows")) or {}

    def read(name: str, default: int) -> int:
        path, hint = inside(_LIMITS, name), f"the default is {default}"
        return reading.whole_number(fields.get(name), path, _MOST, hint) or default

    return LimitSpec(read("rounds", usual.rounds), read("rows", usual.rows))


def _read(
    fields: Mapping[str, Node],
    name: str,
    read: Callable[[str], _V],
    hint: str,
    reading: FileReading,
) -> _V | None:
    at, path = fields.get(name), inside(_PATH, name)
    cell = None if at is None else reading.cell(at, path, "a size such as 1GB")
    if at is None or cell is None:
        return None
    try:
        return read(str(cell.value))
    except ValueError:
        reading.report(at, f"{path} must be a size, not `{cell.value}`", hint)
        return None


def _memory(text: str) -> str:
    if share_from(text) is None and size_from(text) == 0:
        raise ValueError(text)
    return text


def budget_schema() -> JsonSchema:
    """What an editor is told of it."""
    disk = text_of(
        "Limit for the state of all queries on disk, such as 500MB or 2GB; 0 keeps the minimum."
    )
    memory = text_of("Memory limit of a process: 500MB, 2GB, or 25% of the machine's memory.")
    fields = {
        name: {**told, "type": ["string", "integer"]}
        for name, told in (("disk", disk), ("memory", memory))
    }
    return object_of("Limits for the state of all queries.", fields)


def limits_schema() -> JsonSchema:
    """What an editor is told of the limits."""
    whole = {"type": "integer", "minimum": 1}
    usual = LimitSpec()
    return object_of(
        "Limits of WITH RECURSIVE with UNION; beyond them the query fails with `recursion_limit`.",
        {
            "rounds": {**whole, "description": f"Rounds in one run; default: {usual.rounds}."},
            "rows": {**whole, "description": f"Rows derived; default: {usual.rows}."},
        },
    )
