"""Operator state that stays in memory between runs of a process.

Law: state is reused only if the store has exactly its commit and the tables have the columns,
constraints and features it was built for; otherwise it is dropped, and the stored state is loaded
as in a fresh process. State that a failed step touched is never kept. With a limit, the latest
states that fit are kept. If the process exceeds its memory, states with the most bytes per use are
dropped until it does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from impctl.data.memory import held_memory

if TYPE_CHECKING:
    from impctl.service.context import Context
    from impctl.service.maintenance_plan import QueryState
    from impctl.service.pinned import PinnedTables
    from impctl.store.records import StoredQuery
    from impctl.types import QueryName

_Form = tuple[object, ...]


class _CachedState(Struct, frozen=True):
    """Restored state, what the store had after its last commit, and the tables' metadata then."""

    state: QueryState
    stored: StoredQuery
    forms: tuple[_Form, ...]
    bytes: int


class StateCache:
    def __init__(
        self,
        limit: int | None = None,
        memory: int | None = None,
        held: Callable[[], int | None] = held_memory,
    ) -> None:
        """`limit`: bytes of state; `memory`: bytes of the process, which uses `held()`."""
        self._limit = limit
        self._memory = memory
        self._held = held
        self._uses: Counter[QueryName] = Counter()
        self._states: dict[QueryName, _CachedState] = {}

    def take(self, ctx: Context, stored: StoredQuery) -> QueryState | None:
        """Take a query's state for one run; None if missing or outdated. A failing run leaves
        nothing."""
        entry = self._states.pop(stored.query, None)
        if entry is None or entry.stored != stored or entry.forms != _forms(ctx.tables, stored):
            return None
        return entry.state

    def keep(self, ctx: Context, state: QueryState) -> None:
        """Keep the state after a committed step, which later runs compare with the store's."""
        stored, size = state.stored, state.maintained.state_bytes()
        self._uses[stored.query] += 1
        self._states.pop(stored.query, None)
        if self._limit is not None and size > self._limit:
            return
        self._states[stored.query] = _CachedState(state, stored, _forms(ctx.tables, stored), size)
        while self._limit is not None and self._bytes > self._limit:
            # The least recently maintained one.
            del self._states[next(iter(self._states))]
        self._drop_to_memory()

    def _drop_to_memory(self) -> None:
        """Drop the states least worth their bytes until the process fits its memory."""
        used = None if self._memory is None else self._held()
        over = 0 if used is None or self._memory is None else used - self._memory
        while over > 0 and self._states:
            dearest = max(
                self._states, key=lambda name: self._states[name].bytes / self._uses[name]
            )
            over -= self._states.pop(dearest).bytes

    @property
    def _bytes(self) -> int:
        return sum(entry.bytes for entry in self._states.values())

    def drop(self) -> None:
        self._states.clear()


def _forms(tables: PinnedTables, stored: StoredQuery) -> tuple[_Form, ...]:
    """All metadata of the tables that a plan, its safety or its circuit depends on."""
    snapshots = (tables.snapshot(pin.table) for pin in stored.pins)
    return tuple(
        (
            snapshot.table,
            snapshot.table_id,
            snapshot.schema_json,
            snapshot.partition_columns,
            dict(snapshot.configuration),
            snapshot.reader_features,
        )
        for snapshot in snapshots
    )
