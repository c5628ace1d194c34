"""What has not been done yet, as lines of text: plans and dry runs.

Law: a line per query, then its reasons, sizes and estimates; an estimate without a recorded run to
learn from says so instead of giving a number.
Out of scope: what was done (`cli.output.text`), JSON (`cli.output.json`).
"""

from __future__ import annotations

from impctl.cli.output.due import planned_due_text
from impctl.cli.output.wording import (
    assumed_text,
    expiry_text,
    mode_text,
    sketches_text,
    versions_text,
)
from impctl.errors import count_text
from impctl.service.results import (
    REFUSED,
    SKETCH_NONE,
    ApplyResult,
    CaptureResult,
    NextChange,
    PlannedChange,
    PlannedPiece,
    PlanResult,
    ReadEntry,
)
from impctl.service.text import duration_text, size_text, span_text

_NOW = {"stale": "replaces a sketch that is not current", "current": "the stored sketch is current"}


def plan_word(result: PlanResult) -> str:
    """What would be done, in a word or two."""
    if result.reason_code == SKETCH_NONE:
        return "without a sketch"
    return {"none": "up to date", REFUSED: "no sketch possible"}.get(
        result.action, mode_text(result.action)
    )


def plan_lines(result: PlanResult) -> list[str]:
    """The action and why, pending changes, both estimates and the policy."""
    reason = f"{result.reason} [{result.reason_code}]"
    if not result.versions:
        hint = [] if result.hint is None else [f"hint: {result.hint}"]
        return [f"{result.query}: {plan_word(result)}", reason, *hint]
    versions = versions_text(result.versions, result.since or None)
    by = "" if result.by is None else f" by {result.by}"
    verb = "nothing to do" if result.action == "none" else f"{mode_text(result.action)}{by}"
    lines = [f"{result.query}: {verb}, {versions}", reason]
    lines += [_pending_text(entry) for entry in result.pending]
    lines += [] if result.next_change is None else [_next_text(result.next_change)]
    lines += [] if result.next_expiry is None else [f"expires  {expiry_text(result.next_expiry)}"]
    lines += [] if result.due is None else [planned_due_text(result.due)]
    lines += [_piece_text(piece) for piece in result.state]
    maintain = _estimate_text(result.maintain_ms, result.maintain_runs)
    recapture = _estimate_text(result.recapture_ms, result.recapture_runs)
    if result.action in ("none", "capture"):
        lines.append(f"policy {result.policy}")
    else:
        lines.append(f"estimated to maintain: {maintain}")
        lines.append(f"estimated to recapture: {recapture}")
        lines.append(f"policy {result.policy} chooses: {result.action}")
    return lines


def capture_lines(result: CaptureResult) -> list[str]:
    """What would be captured, by whom, from how much; each attribute looked at."""
    at = versions_text(result.versions)
    wanted = ", ".join(
        f"{entry.table}.{entry.attribute} in {count_text(entry.total, 'range')}"
        for entry in result.sketches
    )
    by = "" if result.by is None else f" by {result.by}"
    lines = [f"{result.query}: would capture {wanted} at {at}, mode {mode_text(result.mode)}{by}"]
    lines += [f"would read {_read_text(entry)}" for entry in result.reads]
    for entry in result.considered:
        safe = ("chosen" if entry.chosen else "safe") if entry.safe else "not safe"
        why = f": {entry.reason}" if entry.reason else ""
        lines.append(f"{entry.table}.{entry.attribute} {safe}{why}")
    lines += [assumed_text(assumption) for assumption in result.assumptions]
    lines += [_NOW[result.stored]] if result.stored in _NOW else []
    return lines


def rebalance_lines(result: CaptureResult) -> list[str]:
    """Ranges that would change, or why not."""
    return [f"{result.query}: {sketches_text(result.sketches)}", result.reason]


def apply_lines(result: ApplyResult) -> list[str]:
    """The version that a batch would make, and its statement."""
    version = result.foreseen_version
    head = f"{result.name}: would make {result.table} version {version}"
    if result.statement.startswith("INSERT"):
        return [head, result.statement]
    return [f"{head}, if a row matches", result.statement]


def _pending_text(entry: PlannedChange) -> str:
    versions = count_text(entry.until - entry.since, "version")
    if entry.until < entry.since:
        versions = "an older version"
    rows = "unknown number of rows" if entry.rows is None else count_text(entry.rows, "changed row")
    if entry.files is None or entry.bytes is None:
        return f"{entry.table}: {versions}, {rows}, the log cannot be read that far back"
    return (
        f"{entry.table}: {versions}, {rows} in {count_text(entry.files, 'file')},"
        f" {size_text(entry.bytes)}"
    )


def _piece_text(piece: PlannedPiece) -> str:
    """`state  join4.left: read, 26.2 MB -> 600 kB: supplier changes once in 10 days, ...`; or
    `state  top0: bounded to the best 8 (now kept), 26.2 MB -> 600 kB: ...`."""
    change = "" if piece.mode == piece.now else f" (now {piece.now})"
    size = size_text(piece.kept_bytes)
    size = size if piece.mode == "kept" else f"{size} -> {size_text(piece.bytes)}"
    mode = piece.mode if piece.buffer is None else f"{piece.mode} to the best {piece.buffer:,}"
    return f"state  {piece.name}: {mode}{change}, {size}: {piece.reason}"


def _next_text(coming: NextChange) -> str:
    """`next change  orders: in 41 min (25 min to 1 h 10), 1,010 rows (760 to 1,300), by ...`."""
    if coming.in_s is None:
        return f"next change  unknown: {coming.unknown}"
    words = [_when_text(coming.in_s, coming.in_s_low, coming.in_s_high)]
    if coming.rows is None:
        words.append("unknown number of rows")
    else:
        words.append(count_text(_rounded(coming.rows), "row"))
        if coming.rows_low is not None and coming.rows_high is not None:
            low, high = (f"{_rounded(each):,}" for each in (coming.rows_low, coming.rows_high))
            words[1] += f" ({_between(low, high)})"
    return f"next change  {', '.join(coming.tables)}: {', '.join(words)}, by {coming.by}"


def _when_text(seconds: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"in {span_text(seconds)}" if seconds else "any time"
    if not seconds:
        # What should have come by the end of the interval may as well have ceased.
        return f"any time (within {span_text(high)})" if high else "overdue"
    return f"in {span_text(seconds)} ({_between(span_text(low), span_text(high))})"


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _rounded(number: float) -> int:
    """To three digits: more are never known."""
    whole = round(number)
    return round(whole, min(0, 3 - len(str(whole))))


def _estimate_text(milliseconds: float | None, runs: int) -> str:
    if not runs and milliseconds is not None:
        return f"{duration_text(milliseconds)} (first estimate, from the capture)"
    if not runs:
        return "unknown, because no run is recorded yet"
    if milliseconds is None:
        return "unknown, because the log lacks the size of the change"
    return f"{duration_text(milliseconds)} ({count_text(runs, 'run')})"


def _read_text(entry: ReadEntry) -> str:
    rows = "unknown number of rows" if entry.rows is None else count_text(entry.rows, "row")
    files = count_text(entry.files, "file")
    return f"{entry.table}@{entry.version}: {rows} in {files}, {size_text(entry.bytes)}"
