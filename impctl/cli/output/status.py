"""The status of a query as a few labelled lines, each with its own kind of news.

Law: what to look at first comes first; labels are fixed words, so that lines can be searched for.
Out of scope: JSON; the other results (`cli.output.text`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from impctl.cli.output.due import fresh_text
from impctl.cli.output.wording import (
    at_text,
    expiry_text,
    mode_text,
    ranges_text,
    sketches_text,
    versions_text,
)
from impctl.cli.output.wrapped import wrapped
from impctl.errors import count_text
from impctl.service.results import (
    ASKED_FOR_NONE,
    SKETCH_NONE,
    PendingEntry,
    RunEntry,
    StatusResult,
    TreeRecord,
)
from impctl.service.text import duration_text, moment_text, plain, size_text

_LABEL = 9


def status_lines(result: StatusResult, width: int | None) -> list[str]:
    """The lines of one query."""
    if result.mode == SKETCH_NONE:
        return [plain(f"{result.query}: without a sketch, {ASKED_FOR_NONE}")]
    if not result.versions:
        trigger = "" if result.trigger is None else f", trigger {result.trigger}"
        said = f"{result.query}: not captured (policy {result.policy}{trigger})"
        return [plain(f"{said}; `impctl check` shows if it can be")]
    state = "stale" if result.stale else "current"
    lines = wrapped(plain(f"{result.query}: {state}, {sketches_text(result.sketches)}"), width)
    for label, text in _labelled(result):
        lines += wrapped(plain(text), width, f"  {label:<{_LABEL}}", " " * (_LABEL + 2))
    return lines


def _labelled(result: StatusResult) -> Iterator[tuple[str, str]]:
    if result.stale_reason is not None:
        yield "why", result.stale_reason
    for entry in result.pending:
        yield "pending", _pending(entry)
    if result.fresh is not None and result.fresh.age_s:
        yield "fresh", fresh_text(result.fresh)
    if result.trigger is not None:
        yield "trigger", result.trigger
    mode = "" if result.mode is None else f", mode {mode_text(result.mode)}"
    answer = ", result materialized" if result.keeps_answer else ""
    at = at_text(result.versions, result.moments)
    yield "at", f"{at}{mode}, policy {result.policy}{answer}{_provenance(result)}"
    if result.next_expiry is not None:
        yield "expires", expiry_text(result.next_expiry)
    yield "size", f"sketch {size_text(result.sketch_bytes)}, state {size_text(result.state_bytes)}"
    yield "verified", _slack(result)
    for ranges in result.ranges:
        said = ranges_text(ranges).removeprefix("ranges of ")
        yield "ranges", said + (f"; {ranges.hint}" if ranges.hint else "")
    if result.tree is not None and result.tree.touched_each is not None:
        yield "trees", _touched(result.tree, result.tree.touched_each)
    if result.last_use is not None:
        yield "uses", _uses(result, result.last_use)
    for position, run in enumerate(result.runs):
        yield "runs" if position == 0 else "", _run(run)


def _uses(result: StatusResult, last: datetime) -> str:
    """How often the sketch and the kept answer were used, and when last."""
    said = [f"{count_text(result.uses, 'use')}, {size_text(result.bytes_left_out)} skipped"]
    if result.kept_answers:
        told = f"{count_text(result.kept_answers, 'answer')} from the materialized result"
        said = [*said, told] if result.uses else [told]
    return f"{'; '.join(said)}; last use {moment_text(last)}"


def _touched(record: TreeRecord, each: float) -> str:
    """What join trees took since the capture."""
    said = f"{each:,.1f} tuples touched per changed row, in {count_text(record.changes, 'change')}"
    return said if record.expected is None else f"{said}; expected {record.expected:,.1f}"


def _pending(entry: PendingEntry) -> str:
    until = entry.since + entry.versions
    head = f"{entry.table}@{entry.since}..{until}: {count_text(entry.versions, 'version')}"
    if entry.files is None:
        return f"{head}, the log no longer has its size"
    rows = "unknown number of rows" if entry.rows is None else count_text(entry.rows, "row")
    size = "" if entry.bytes is None else f", {size_text(entry.bytes)}"
    return f"{head}, {rows} in {count_text(entry.files, 'file')}{size}"


def _provenance(result: StatusResult) -> str:
    """How recursion is kept that is to be by absorption."""
    match result.provenance:
        case None:
            return ""
        case "given_up":
            return ", maintained by ranks: provenance was too large"
        case ship:
            return f", provenance stored ({ship})"


def _slack(result: StatusResult) -> str:
    match = result.verified
    if match is None:
        return "not yet"
    said = f"slack {match.slack}" if match.sound else "NOT SOUND"
    return f"{said} at {versions_text(match.versions)}, {moment_text(match.at)}"


def _run(run: RunEntry) -> str:
    changes = f", {count_text(run.changes, 'change')}" if run.changes else ""
    why = f": {run.reason}" if run.reason else ""
    took = duration_text(run.elapsed_ms)
    return f"{moment_text(run.at)}  {mode_text(run.action)}{changes}, {took}{why}"
