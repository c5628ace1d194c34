"""Whether a stored sketch was captured for what the workload file says now, by this release.

Law: told from content hashes alone, without reading SQL, so that a run with nothing to do ends at
once. `definition` changes whenever the query, its parameters, the sketch asked for, its candidate
partitions or the tables' paths change. Another release of impctl may read the same SQL otherwise,
or capture otherwise; so what it captured is captured anew.
Out of scope: whether its tables are the same and moved on (`app.capturing.pins`), what to do about
it (`app.maintain`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from impctl.app.workbench.workbench import Workbench
from impctl.data.schema import quoted
from impctl.errors import RecaptureNeededError, masked
from impctl.sql.names import SPARK_CATALOG, SPARK_SCHEMA, FullName
from impctl.store.reader import StoreReader
from impctl.store.records import StoredQuery
from impctl.types import TableName
from impctl.version import is_stamped_alike, stamped
from impctl.workload.models import JoinStrategy, Lineage, QuerySpec, TableSpec, Workload

_TUNING = frozenset({"spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"})
"""SQL settings that change how fast a query runs, never what it means."""


def stored_query(desk: Workbench, store: StoreReader | None, spec: QuerySpec) -> StoredQuery:
    """What the store has of a query; RecaptureNeededError where it has nothing."""
    stored = None if store is None else store.load(spec.name)
    if stored is None:
        raise RecaptureNeededError(
            f"Query `{spec.name}` has not been captured",
            code="not_captured",
            hint=f"run `impctl capture {desk.workload.file} --query {spec.name}`",
        )
    return stored


def check_definition(desk: Workbench, spec: QuerySpec, stored: StoredQuery) -> None:
    """RecaptureNeededError where the sketch was captured for another definition of the query.

    So too where another release of impctl captured it.
    """
    if not is_defined_alike(desk, spec, stored):
        raise RecaptureNeededError(
            f"Query `{spec.name}`, its partitions or its settings changed since the capture",
            code="definition_changed",
            hint=f"run `impctl capture {desk.workload.file} --query {spec.name}`; if another "
            "file has a query with this name in the same store, give one of them a "
            "separate `store`",
        )
    if not is_of_this_release(stored):
        raise RecaptureNeededError(
            f"The sketch of query `{spec.name}` was captured by another release of impctl, "
            "which may interpret the query differently",
            code="engine_changed",
            hint=f"run `impctl capture {desk.workload.file} --query {spec.name}`",
        )


def is_captured_alike(desk: Workbench, spec: QuerySpec, stored: StoredQuery) -> bool:
    """Whether this release captured the stored sketch for what the workload file says now."""
    return is_of_this_release(stored) and is_defined_alike(desk, spec, stored)


def is_of_this_release(stored: StoredQuery) -> bool:
    """Whether the stored sketch was captured by the release of impctl that runs."""
    return is_stamp_of_this_release(stored.state_meta)


def is_stamp_of_this_release(described: Mapping[str, Any]) -> bool:
    """Whether the release that runs wrote what is beside a stored sketch."""
    return is_stamped_alike(str(described.get("template", "")), stamped(""))


def is_defined_alike(desk: Workbench, spec: QuerySpec, stored: StoredQuery) -> bool:
    """Whether the stored sketch was captured for what the workload file says now."""
    return stored.fingerprint == definition(desk, spec, tuple(stored.versions))


def definition(desk: Workbench, spec: QuerySpec, tables: Sequence[TableName]) -> str:
    """Content hash of all that makes a stored sketch the sketch of this query.

    `tables` are those the query reads. Spark's SQL settings count, because the session's time zone
    decides what some expressions mean. A URI that is signed anew names the same table.
    """
    partitions = [
        (part.table, part.column, part.boundaries, part.ranges)
        for part in desk.workload.partitions
        if part.table in tables
    ]
    known = desk.workload.tables
    paths = [(name, masked(known[name].path) if name in known else None) for name in sorted(tables)]
    sketch = sorted(spec.sketch.items())
    settings = sorted(
        (name, value)
        for name, value in desk.spark_spec.conf.items()
        if name.startswith("spark.sql.") and name not in _TUNING
    )
    params = sorted((name, type(value).__name__, str(value)) for name, value in spec.params.items())
    text = repr((spec.sql, sketch, partitions, paths, settings, *((params,) if params else ())))
    views = _views_in(spec.sql, desk.workload)
    if views:
        text += f" views {views}"
    named = _names_in("\n".join((spec.sql, *(sql for _, sql in views))), desk.workload)
    if named:
        names = desk.workload.names
        text += f" names {(names.catalog, names.schema)} {named}"
    if spec.join is not JoinStrategy.AUTO:
        text += spec.join
    if spec.buffer is not None:
        text += f" buffer {spec.buffer}"
    if spec.moves:
        text += f" moves {sorted(spec.moves.items())}"
    if spec.lineage is not Lineage.ALL:
        text += f" lineage {spec.lineage}"
    if spec.answer:
        text += " answer"
    if spec.provenance is not None:
        text += f" provenance {spec.provenance.ship} {spec.provenance.nodes}"
    text += _expiry_of(tables, known)
    return hashlib.sha256(text.encode()).hexdigest()


def _expiry_of(tables: Sequence[TableName], known: Mapping[TableName, TableSpec]) -> str:
    """How rows of these tables expire; empty where none do."""
    result = [(name, known[name].expiry) for name in sorted(tables) if name in known]
    lives = [(name, how.column.lower(), how.after) for name, how in result if how is not None]
    return f" expiry {lives}" if lives else ""


def _views_in(sql: str, workload: Workload) -> list[tuple[FullName, str]]:
    """The views that may stand in the text, and those that may stand in these."""
    result: dict[FullName, str] = {}
    texts = [sql.lower()]
    while texts:
        text = texts.pop()
        for full, view in workload.views.items():
            if full not in result and ("`" in full[-1] or full[-1] in text):
                result[full] = view.sql
                texts.append(view.sql.lower())
    return sorted(result.items())


def _names_in(sql: str, workload: Workload) -> list[tuple[str, TableName]]:
    """What names that may stand in the text mean, but for a table's own name by itself.

    A name that ends in a word which the text has nowhere does not stand in it.
    """
    names, text = workload.names, sql.lower()
    result = []
    for full, table in names.tables.items():
        is_plain = full == (SPARK_CATALOG, SPARK_SCHEMA, table.lower())
        if not is_plain and ("`" in full[-1] or full[-1] in text):
            result.append((".".join(map(quoted, full)), table))
    return sorted(result)
