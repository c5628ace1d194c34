"""The half of a store that only reads, as a type: who is given this cannot write.

Law: every method leaves the store's files as they are and never waits for a writer.
Out of scope: how it is read and all that writes (`store.store`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from impctl.data.pages import StoredTable
    from impctl.forecast import History
    from impctl.store.records import (
        Chosen,
        Collected,
        KeptVersion,
        RunCost,
        RunRecord,
        RunRef,
        StoredQuery,
    )
    from impctl.types import QueryName, TableName, TableVersion


class StoreReader(Protocol):
    """What a store tells; `Store` says more of each."""

    def load(self, query: QueryName) -> StoredQuery | None:
        """The query's newest sketches."""
        ...

    def queries(self) -> tuple[QueryName, ...]:
        """The queries there are."""
        ...

    def history(self, query: QueryName, limit: int = 20) -> tuple[RunRecord, ...]:
        """The latest runs of a query."""
        ...

    def costs(self, query: QueryName) -> tuple[RunCost, ...]:
        """What the query's latest runs cost."""
        ...

    def arrivals(self, tables: Iterable[str], *, is_whole: bool = True) -> dict[TableName, History]:
        """The latest commits of tables, as numbers."""
        ...

    def chosen(self) -> Chosen | None:
        """What the last choice of state was made by."""
        ...

    def kept(
        self, query: QueryName, versions: Mapping[TableName, TableVersion] | None = None
    ) -> tuple[KeptVersion, ...]:
        """The commits whose sketches are still there."""
        ...

    def load_kept(self, query: QueryName, generation: int) -> StoredQuery | None:
        """An older commit's sketches."""
        ...

    def run_refs(self, query: QueryName) -> tuple[RunRef, ...]:
        """The files of the query's state."""
        ...

    def load_runs(
        self, query: QueryName, beginning: str = ""
    ) -> dict[str, list[tuple[int, StoredTable]]]:
        """The query's state, each page of which is looked at before it is used."""
        ...

    def collectable(self, keep: int = ...) -> Collected:
        """What `gc` would remove."""
        ...
