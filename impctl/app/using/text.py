"""The text by which another reader runs a query through its sketches.

Law: over the versions it was made for the text gives what the query gives, on a Spark that hands
conditions down to files too. It has one filter per table, of few intervals; `pruned` tells the
files that these leave.
Out of scope: counting it as a use (`app.rewrite`), reading in parts (`app.using.answers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.aliases import TableName, TableVersion
from impctl.app.preparing.filters import Pruned, filters_of, guards_of
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.workbench.pinned import PinnedTables
from impctl.capture.use import rewrite_sql
from impctl.plan.nodes import Query
from impctl.store.records import StoredSketch
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class WrittenQuery:
    """The text, and what it leaves to read."""

    sql: str
    pruned: Pruned


def written_query(
    tables: PinnedTables,
    prepared: PreparedQuery,
    query: Query,
    sketches: Sequence[StoredSketch],
    versions: Mapping[TableName, TableVersion],
) -> WrittenQuery:
    """`query`, as it was asked, with the sketches as range predicates, at these versions."""
    pruned = filters_of(tables, prepared, sketches, versions, for_text=True)
    # Others' Spark hands conditions down to the files too.
    guards = guards_of(tables, pruned, versions)
    return WrittenQuery(rewrite_sql(query, pruned.filters, guards=guards), pruned)
