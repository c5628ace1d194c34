"""Why a row is in an answer, and what an answer would be without some rows, as it is told.

Law: as for `app.results.results`.
Out of scope: finding it (`app.using.derived_row`, `app.using.answer_without`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from impctl.app.results.answer import ArrowAnswer, RowValue
from impctl.app.results.foreseen import ENGINE
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class WhyEntry:
    """A row of a table, by the columns that the query reads."""

    table: str
    row: Mapping[str, RowValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyResult:
    """Rows of tables that derive a row of the answer together, the first `limit` of `row_count`.

    `claim`: smallest (no fewer rows do), minimal (no part of them does), or group (all rows of the
    groups that it is made of). `lineage`: how many rows take part in any derivation.
    `by`: engine, which read tables, or state.
    """

    query: str
    row: Mapping[str, RowValue]
    claim: str
    rows: tuple[WhyEntry, ...]
    row_count: int
    lineage: int
    limit: int | None
    versions: Mapping[str, int]
    files_kept: int
    files_total: int
    elapsed_ms: float
    action: str
    reason: str
    moments: Mapping[str, str] = field(default_factory=dict)
    by: str = ENGINE


@dataclass(frozen=True, kw_only=True)
class WithoutResult(ArrowAnswer):
    """Rows of the answer that would go, or come, if rows for which a condition is true were not
    there; each with `_change` and `_copies`.

    `without`: the conditions by table; `removed`: how many rows that is, of those read, or of those
    in the state where `by` is state.
    """

    query: str
    without: Mapping[str, tuple[str, ...]]
    removed: Mapping[str, int]
    versions: Mapping[str, int]
    files_kept: int
    files_total: int
    elapsed_ms: float
    action: str
    reason: str
    moments: Mapping[str, str] = field(default_factory=dict)
    by: str = ENGINE
