"""Whether a captured query remembers more than its tables hold, and what a bound would save.

Law: only what the store and the logs say, and the query planned once more with a bound; nothing is
read, nothing refused. A saving is named only of state that the bounded query could refill.
Out of scope: what a sketch saves (`app.capturing.advice`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from impctl.app.capturing.chosen_way import chosen_way, restored_verdict
from impctl.app.capturing.join_choice import chooser_of
from impctl.app.capturing.meta import StateMeta
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.amounts import size_text
from impctl.app.workbench.workbench import Workbench
from impctl.compile.buffers import Refilled
from impctl.store.reader import StoreReader
from impctl.store.records import RunRef

_SMALL = 1 << 20
"""State of fewer bytes takes no room worth a word."""

_BUFFER = 1000
"""The bound that the saving is told for; 100 to 10,000 serve most queries."""


def state_warnings(desk: Workbench, store: StoreReader, prepared: PreparedQuery) -> list[str]:
    """A warning where the state of the query, as stored, is larger than its tables."""
    name = prepared.spec.name
    runs = store.run_refs(name)
    held = sum(run.bytes for run in runs)
    size = sum(desk.tables.snapshot(table).bytes for table in prepared.tables)
    if held < _SMALL or held <= size:
        return []
    said = (
        f"the state of query `{name}` takes {size_text(held)}, more than the "
        f"{size_text(size)} of its tables"
    )
    is_bounded = isinstance(prepared.spec.buffer, int)
    saving = None if is_bounded else _saving(desk, store, prepared, runs)
    return [said if saving is None else f"{said}; {saving}"]


def _saving(
    desk: Workbench, store: StoreReader, prepared: PreparedQuery, runs: Sequence[RunRef]
) -> str | None:
    """What `buffer` would save; None where nothing of the state could be bounded."""
    stored = store.load(prepared.spec.name)
    if stored is None:
        return None
    verdict, partitions = restored_verdict(desk.tables, prepared, stored)
    bounded = replace(prepared, spec=replace(prepared.spec, buffer=_BUFFER))
    meta = StateMeta.read(stored.query, stored.state_meta)
    way = chosen_way(bounded, verdict, partitions, chooser_of(bounded, meta))
    if way.compiled is None:
        return None
    # What is bounded already keeps fewer of each group.
    refills = [one for one in way.compiled.refills if one.operator.piece not in meta.buffers]
    saved, is_sure = _saved(refills, _by_piece(runs))
    if saved < _SMALL:
        return None
    about = "about" if is_sure else "up to"
    return (
        f"`buffer: {_BUFFER}` would save {about} {size_text(saved)}; impctl then "
        "rereads rows of the table when deletions exhaust a buffer"
    )


def _by_piece(runs: Sequence[RunRef]) -> Mapping[str, tuple[int, int]]:
    """Rows and bytes of each piece of state."""
    result: dict[str, tuple[int, int]] = {}
    for run in runs:
        rows, size = result.get(run.arrangement, (0, 0))
        result[run.arrangement] = (rows + run.rows, size + run.bytes)
    return result


def _saved(refills: Sequence[Refilled], pieces: Mapping[str, tuple[int, int]]) -> tuple[int, bool]:
    """Bytes, and whether they are sure: of keyed state the number of groups is not known."""
    saved, is_sure = 0.0, True
    for refilled in refills:
        for keeper in refilled.operator.arrangements():
            rows, size = pieces.get(keeper.name, (0, 0))
            if rows > _BUFFER:
                saved += size * (1 - _BUFFER / rows)
                is_sure = is_sure and not refilled.keys
    return int(saved), is_sure
