"""The text by which another reader runs a query through its sketches.

Law: over the versions it was made for the text gives what the query gives, on a Spark that hands
conditions down to files too. It has one filter per table, of few intervals; `pruned` tells the
files that these leave. What Spark does not run is written for DuckDB, PostgreSQL and SQLite: a
sketch whose ranges they might read otherwise is left out of it.
Out of scope: counting it as a use (`app.rewrite`), reading in parts (`app.using.answers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.app.preparing.filters import Pruned, filters_of, guards_of
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.workbench.pinned import PinnedTables
from impctl.plan.nodes import Fixpoint, Query, nodes_of
from impctl.sketch.sketch import MAX_INTERVALS, range_filter
from impctl.spark.predicates import plain_condition, rewrite_sql
from impctl.store.records import StoredSketch
from impctl.tables.footers import hiding_columns
from impctl.types import TableName, TableVersion
from impctl.values import dataclass

_MOST_INTERVALS = 256
"""Of a filter that Spark does not compile: DuckDB's time grows slowly with their number."""


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
    *,
    has_files: bool = False,
) -> WrittenQuery:
    """`query`, as it was asked, with the sketches as range predicates, at these versions.

    `has_files`: the reader gets a list of files, so it is not Spark, and its text may have more
    intervals.
    """
    limit = _MOST_INTERVALS if has_files else MAX_INTERVALS
    if is_for_others(query):
        sketches = [one for one in sketches if _has_plain_text(tables, one, versions)]
        pruned = filters_of(tables, prepared, sketches, versions, for_text=True, limit=limit)
        return WrittenQuery(rewrite_sql(query, pruned.filters, is_plain=True), pruned)
    pruned = filters_of(tables, prepared, sketches, versions, for_text=True, limit=limit)
    # Others' Spark hands conditions down to the files too.
    guards = guards_of(tables, pruned, versions)
    return WrittenQuery(rewrite_sql(query, pruned.filters, guards=guards), pruned)


def is_for_others(query: Query) -> bool:
    """Whether Spark does not run the text: it has WITH RECURSIVE of UNION, used or not."""
    every = (*nodes_of(query.root), *query.unused)
    return any(isinstance(node, Fixpoint) and node.is_set for node in every)


def _has_plain_text(
    tables: PinnedTables, sketch: StoredSketch, versions: Mapping[TableName, TableVersion]
) -> bool:
    """Whether other engines keep its rows; those that prune by statistics may lose NaN."""
    wanted = range_filter(sketch.fragments, sketch.partition)
    if plain_condition(wanted, sketch.attribute) is None:
        return False
    snapshot = tables.snapshot(sketch.table, versions.get(sketch.table))
    return not hiding_columns(snapshot, [sketch.attribute])
