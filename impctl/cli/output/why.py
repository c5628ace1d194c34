"""What derives a row of an answer, and what would go without some rows, as text.

Law: what is claimed of the rows is said in full words: smallest only where it is proved.
Out of scope: rows as tables (`cli.output.answer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime

from impctl.cli.output.wording import versions_text
from impctl.errors import count_text
from impctl.service.answer import RowValue
from impctl.service.results import STATE, WhyResult, WithoutResult
from impctl.service.text import duration_text

_CLAIMS = {
    "smallest": "a smallest set: fewer rows cannot derive it",
    "minimal": "a minimal set: no row can be removed, but another set may be smaller",
    "group": "all rows of its groups",
}


def why_lines(result: WhyResult) -> list[str]:
    """The row, what is claimed, and a line per row of a table."""
    rows = count_text(result.row_count, "row")
    head = f"{result.query}: {_row_text(result.row)} is derived from {rows}"
    lines = [f"{entry.table}: {_row_text(entry.row)}" for entry in result.rows]
    left = result.row_count - len(result.rows)
    if left:
        lines.append(f"... and {count_text(left, 'row')} more")
    return [f"{head}, {_CLAIMS[result.claim]}", *lines]


def why_line(result: WhyResult) -> str:
    """What was looked at."""
    versions = versions_text(result.versions, None, result.moments)
    verb = "occurs" if result.lineage == 1 else "occur"
    return (
        f"{result.query}: {count_text(result.lineage, 'row')} {verb} in its derivations; "
        f"{_by(result)} at {versions} in {duration_text(result.elapsed_ms)}"
    )


def without_line(result: WithoutResult) -> str:
    """How many rows would go and come, and without what."""
    changed = result.answer.column("_change").to_pylist()
    went, came = changed.count("delete"), changed.count("insert")
    versions = versions_text(result.versions, None, result.moments)
    come = f", {count_text(came, 'row')} would appear" if came else ""
    removed = ", ".join(
        f"{count_text(rows, 'row')} of {table}" for table, rows in result.removed.items()
    )
    return (
        f"{result.query}: without {removed}, {count_text(went, 'row')} of the result would "
        f"disappear{come}; {_by(result)} at {versions} in {duration_text(result.elapsed_ms)}"
    )


def _by(result: WhyResult | WithoutResult) -> str:
    """What was looked at for it."""
    if result.by == STATE:
        return "from the stored provenance"
    return f"the engine read {result.files_kept} of {count_text(result.files_total, 'file')}"


def _row_text(row: Mapping[str, RowValue]) -> str:
    """`n=17, name=abc`, NULL for none."""
    return ", ".join(_parts(row)) or "a row without columns"


def _parts(row: Mapping[str, RowValue]) -> Iterable[str]:
    for name, value in row.items():
        yield f"{name}={_value_text(value)}"


def _value_text(value: RowValue) -> str:
    from impctl.service.formats import number_or_name  # loads what others need not

    match value:
        case None:
            return "NULL"
        case datetime() | date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case bool():
            return str(value).lower()
        case float():
            return str(number_or_name(value))
    return str(value)
