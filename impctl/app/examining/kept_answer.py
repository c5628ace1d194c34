"""What keeping a query's answer takes, before and after it is captured.

Law: what is told before is a bound or a size per row, never a guess; what is stored is counted.
Rows that a join tree tells take nothing.
Out of scope: keeping it (`circuits`), reading it (`app.using.kept_answer`).
"""

from __future__ import annotations

from impctl.app.examining.plan_lines import StoredPieces
from impctl.app.results.explanations import AnswerEntry
from impctl.compile.answers import kept_rows
from impctl.compile.compile import Way
from impctl.compile.flows import row_bytes
from impctl.workload.models import QuerySpec


def answer_entry(
    spec: QuerySpec, way: Way | None, stored: StoredPieces | None
) -> AnswerEntry | None:
    """Whether the answer is kept, or why not; None where it is not to be."""
    if not spec.answer:
        return None
    if way is None:
        return AnswerEntry(False, "the query has no safe sketch, which a materialized result needs")
    if way.answer is None:
        return AnswerEntry(False, way.no_answer)
    is_lying = way.lying_answer is not None
    rows = kept_rows(way.answer.ending).rows
    first = way.answer.ending.first
    is_cut = first is not None and first.order and first.count is not None
    return AnswerEntry(
        kept=True,
        reason="",
        columns=tuple(attribute.name for attribute in way.answer.ending.columns),
        row_bytes=row_bytes(rows.columns, 0) if is_lying else 0,
        most_rows=first.count + first.offset if is_cut and first and first.count else None,
        state_bytes=None if stored is None else stored.pieces.get(rows.name, 0),
    )
