"""Whether a step may have changed the query's answer, all of its columns counted.

Law: `False` only where no database with these two states gives two answers. A sketch that covers
both states' provenance gives both answers (`docs/soundness.md`); where no changed row lies in it,
it reads the same rows of both. So it is the ranges that decide, never values: columns that only go
out are not read for a change.
Out of scope: which fragments a change moves (`compile.session`).
"""

from __future__ import annotations

from collections.abc import Mapping

from impctl.app.capturing.taken_up import TakenUp
from impctl.app.maintaining.moved import Moved
from impctl.data.vector import from_arrow
from impctl.engine.linear import fragments_of
from impctl.sketch.sketch import FragmentSet
from impctl.types import AccessId, TableName


def may_change_answer(
    taken: TakenUp, moved: Mapping[TableName, Moved], after: Mapping[AccessId, FragmentSet]
) -> bool:
    """Whether the answer may be another one with the sketches `after` the step than before it."""
    schemas = {pin.table: pin.schema_json for pin in taken.stored.pins}
    if any(change.ending.schema_json != schemas[table] for table, change in moved.items()):
        return True
    changed = {table: change for table, change in moved.items() if change.rows}
    if not changed:
        return False
    if taken.session is None:
        return True
    return any(
        _lies_in_sketch(taken, access, changed[table], after)
        for access, table in taken.way.accesses.items()
        if table in changed
    )


def _lies_in_sketch(
    taken: TakenUp, access: AccessId, change: Moved, after: Mapping[AccessId, FragmentSet]
) -> bool:
    """Whether a changed row is in a range of the access's sketch, before the step or after it;
    so is every row of an access without one, and of a change whose rows are not at hand."""
    partition = taken.stored.partitions.get(access)
    if partition is None or change.grouped is not None:
        return True
    changes = change.changes
    column = from_arrow(changes.table.column(partition.attribute), partition.type)
    held = taken.fragments[access].union(after[access]).to_mask()
    return bool(held[fragments_of(partition, column, changes.shared)].any())
