"""Results as text for people: one function for each type of result.

Law: the first line of a result names its query or table, and details are indented. Counts precede
estimates; an estimate without a basis says so instead of giving a number. A dry run says what would
happen. Times are UTC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import singledispatch
from types import MappingProxyType
from typing import TYPE_CHECKING

from impctl.errors import Location, count_text
from impctl.service import results as r
from impctl.service.text import (
    CONTROL,
    duration_text,
    moment_text,
    number_or_name,
    number_text,
    plain,
    size_text,
    span_text,
)

if TYPE_CHECKING:
    from impctl.cli.output.text import Text
    from impctl.service.results import ArrowAnswer, RowValue


@singledispatch
def render(result: r.Result, out: Text) -> None:
    """Print the result; TypeError for a type that has no function here."""
    raise TypeError(f"A result of type `{type(result).__name__}` has no text")


# Words that several results share.

_NO_MOMENTS: Mapping[str, str] = MappingProxyType({})


def mode_text(mode: str) -> str:
    """A mode or action in words: `touch` is conservative maintenance."""
    return "conservative" if mode == "touch" else mode


def sketch_text(sketch: r.SketchEntry) -> str:
    """`sales.price 2 of 4 ranges`; the range of NULL counts on both sides: `3 of 5 ranges`."""
    total = sketch.total + (sketch.total in sketch.ranges)
    ranges = f"{len(sketch.ranges):,} of {count_text(total, 'range')}"
    return f"{sketch.table}.{sketch.attribute} {ranges}"


def _sketches(sketches: Sequence[r.SketchEntry]) -> str:
    return "; ".join(map(sketch_text, sketches)) or "no sketch"


def versions_text(
    versions: Mapping[str, int],
    since: Mapping[str, int] | None = None,
    moments: Mapping[str, str] = _NO_MOMENTS,
) -> str:
    """`sales@1`, or `sales@0..1` for a change of versions, then the values of the clock: `sales@1
    (current_date = 2026-11-25)`."""

    def one(table: str, version: int) -> str:
        start = version if since is None else since.get(table, version)
        return f"{table}@{version}" if start == version else f"{table}@{start}..{version}"

    return _with_moments(", ".join(one(*pair) for pair in versions.items()), moments)


def _with_moments(text: str, moments: Mapping[str, str]) -> str:
    values = ", ".join(f"{name} = {value}" for name, value in moments.items())
    return f"{text} ({values})" if values else text


def _read_at(result: r.QueryResult | r.ChangesResult | r.WhyResult | r.WithoutResult) -> str:
    """The versions, and how long it took."""
    since = result.since or None if isinstance(result, r.ChangesResult) else None
    versions = versions_text(result.versions, since, result.moments)
    return f"{versions} in {duration_text(result.elapsed_ms)}"


def _in_file(location: Location | None) -> str:
    return "" if location is None else f" ({location})"


def _rows(rows: int | None, noun: str = "row") -> str:
    return "unknown number of rows" if rows is None else count_text(rows, noun)


def _files(files: int, size: int) -> str:
    return f"{count_text(files, 'file')}, {size_text(size)}"


def _changes(changes: int | None) -> str:
    """The changed rows processed; a recapture reads whole tables instead."""
    return "whole tables" if changes is None else count_text(changes, "change")


def _skew(entry: r.RangesEntry) -> str:
    """How uneven the ranges are, now and at capture: rows of the largest over the mean."""
    if not entry.rows:
        return "no rows"
    return f"skew {number_text(entry.imbalance)} ({number_text(entry.at_capture)} at capture)"


def _expiry(instant: str) -> str:
    return "none of the present rows" if instant == "never" else f"no row before {instant}"


def _assumption(assumption: str) -> str:
    return f"assumes {assumption} (re-checked on every change)"


def _materialized_reads(count: int) -> str:
    return f"{count_text(count, 'answer')} from the materialized result"


# `check` and `explain`. Law: a reason that several attributes share is shown once, after all of
# them. Operators and remarks on them are separate lines; a position in the file is shown for
# obstacles.

_DEEPEST = 12
"""Maximum levels of a plan to indent; deeper ones would leave no space for words."""
_ANSWERED = {
    "state": "from its materialized result",
    "engine": "by the engine",
    "spark": "by Spark",
}


@render.register(r.CheckResult)
def _check(result: r.CheckResult, out: Text) -> None:
    if result.mode == r.SKETCH_NONE:
        word = "without a sketch"
    elif result.supported:
        word = f"supported, {mode_text(result.mode or '')}"
    else:
        word = "no sketch possible"
    out.head(result.query, word, word)
    out.detail(f"{result.reason}{_in_file(result.place)}")
    out.detail("" if result.hint is None else f"hint: {result.hint}")
    _answered(result, out)
    _attributes(result.candidates, out, "  ")


@render.register(r.ExplainResult)
def _explain(result: r.ExplainResult, out: Text) -> None:
    out.head(result.query, f"{mode_text(result.mode)} (policy {result.policy})", rest="")
    out.detail(result.reason)
    for entry in result.attributes:
        if entry.chosen and (expected := entry.expected) is not None:
            share = 1 - expected.files / max(expected.files_total, 1)
            skipped = f"skips {share:.0%}" if share else "skips none"
            read = f"{_expected(expected)} of {entry.table}, {size_text(expected.bytes)}"
            out.detail(f"with the sketch: {read} ({skipped})")
    if result.plan:
        out.detail("plan" + _sized(", state ", result.state_bytes))
    for operator in result.plan:
        indent = "    " + "  " * min(operator.depth, _DEEPEST)
        out.line(f"{operator.operator} {operator.detail}".rstrip(), indent, indent + "    ")
        for remark in _remarks(operator, result):
            out.line(remark, f"{indent}  - ", f"{indent}    ")
    _answered(result, out)
    groups = [f"{_over(g.name, g.tables)}: {g.mode}, {g.reason}" for g in result.groups]
    _section("sides of joins", map(_join_side, result.joins), out)
    if any(entry.mode != "kept" for entry in result.groups):
        _section("groups", groups, out)
    if any(entry.chosen for entry in result.buffers):
        _section("first rows and values", map(_buffers, result.buffers), out)
    for tree in result.trees:
        _tree(tree, out)
    if result.attributes:
        out.detail("attributes")
    _attributes(result.attributes, out, "    ")


def _section(title: str, lines: Iterator[str] | list[str], out: Text) -> None:
    for number, line in enumerate(lines):
        if number == 0:
            out.detail(title)
        out.line(line, "    ")


def _sized(before: str, size: int | None) -> str:
    return "" if size is None else f"{before}{size_text(size)}"


def _over(name: str, tables: Sequence[str]) -> str:
    return f"{name} ({', '.join(tables) or 'computed rows'})"


def _expected(expected: r.ExpectedReading) -> str:
    """The files to read: measured, or an estimate with its range."""
    files = f"{expected.files:,} of {count_text(expected.files_total, 'file')}"
    if expected.is_measured:
        return f"reads {files}"
    if expected.files_low == expected.files_high:
        return f"estimate: {files}"
    return f"estimate: {files} ({expected.files_low:,} to {expected.files_high:,})"


def _attributes(candidates: Sequence[r.CandidateEntry], out: Text, indent: str) -> None:
    """Print the attributes considered for a sketch: safe or not, chosen or not, and why."""
    judged: dict[str, dict[str, None]] = {}
    for entry in candidates:
        which = f" ({entry.occurrence})" if entry.occurrence else ""
        name = f"{entry.table}{which}.{entry.attribute}"
        judged.setdefault(_judgement(entry), {})[name] = None
    for judgement, names in judged.items():
        out.line(f"{', '.join(names)} {judgement}", indent)


def _judgement(entry: r.CandidateEntry) -> str:
    safe = "safe" if entry.safe else "not safe"
    chosen = ", chosen" if entry.chosen else ""
    text = f"{safe}{chosen}: {entry.reason}" if entry.reason else f"{safe}{chosen}"
    if entry.safe and not entry.chosen and entry.reason.startswith("safe"):
        text = entry.reason
    if entry.expected is not None:
        text += f"; {_expected(entry.expected)}, {size_text(entry.expected.bytes)}"
        text += _sized(", state ", entry.expected.upkeep or None)
    return text


def _remarks(entry: r.PlanEntry, result: r.ExplainResult) -> Iterator[str]:
    """How the operator is maintained and why, then what it filters early."""
    if entry.how:
        why = f": {entry.why}" if entry.why else ""
        is_blocking = entry.why == result.reason
        location = _in_file(entry.place) if is_blocking else ""
        yield f"{entry.how}{why}{_sized('; state ', entry.state_bytes or None)}{location}"
    yield from entry.pushed


def _answered(result: r.CheckResult | r.ExplainResult, out: Text) -> None:
    """Print whether the result is materialized, and what answers the query."""
    if result.answer is not None:
        out.detail(_materialized(result.answer))
    if result.answered is not None:
        out.detail(f"answered {_ANSWERED[result.answered.by]}: {result.answered.reason}")


def _materialized(answer: r.AnswerEntry) -> str:
    if not answer.kept:
        return f"result not materialized: {answer.reason}"
    if not answer.row_bytes:
        size = "its join tree lists the rows, without extra state"
    elif answer.state_bytes is not None:
        size = f"{size_text(answer.state_bytes)} stored"
    else:
        rows = "" if answer.most_rows is None else f", {count_text(answer.most_rows, 'row')}"
        size = f"about {size_text(answer.row_bytes)} per row{rows}"
    of_columns = f" (columns {', '.join(answer.columns)})" if answer.columns else ""
    return f"result materialized{of_columns}: {size}; `query` returns it without reading tables"


def _join_side(side: r.JoinSideEntry) -> str:
    how = f"{side.strategy}, rebuilt" if side.mode == "rebuilt" else side.strategy
    size = _sized(", at most ", side.bytes)
    return f"{_over(side.side, side.tables)}: {how}, {side.reason}{size}"


def _bounded(mode: str, buffer: int | None) -> str:
    return mode if buffer is None else f"{mode} to the best {buffer:,}"


def _buffers(entry: r.BuffersEntry) -> str:
    """`top0 (t): bounded to the best 8, 12 kB, t changes once a day, ...`."""
    size = _sized(", ", entry.state_bytes)
    mode = _bounded(entry.mode, entry.buffer)
    return f"{_over(entry.name, entry.tables)}: {mode}{size}, {entry.reason}"


def _tree(tree: r.TreeResultEntry, out: Text) -> None:
    what = {"ring": ", of counts and sums", "bits": ", of existing rows"}.get(tree.mode, "")
    out.detail(f"join tree{what}: {tree.reason}{_in_file(tree.place)}")
    for drawn, node in zip(tree.drawn, tree.nodes, strict=True):
        text = drawn.lstrip(" ")
        indent = "    " + " " * (len(drawn) - len(text))
        out.line(text + _sized("; ", node.bytes), indent, indent + "    ")


# `capture`, `apply`, `cluster` and `gc`. Law: an expected value is shown beside the actual one.

_STORED = {
    "stale": "replaces a sketch that is not current",
    "current": "the stored sketch is current",
}


@render.register(r.CaptureResult)
def _capture(result: r.CaptureResult, out: Text) -> None:
    sketches = _sketches(result.sketches)
    if result.dry_run and not result.reason:
        _planned_capture(result, out)
    elif result.dry_run:
        out.head(result.query, f"{sketches}")
        out.detail(result.reason)
    elif result.mode == r.SKETCH_NONE:
        out.head(result.query, f"without a sketch, {result.reason}{out.progress}")
    elif result.action == "none":
        out.head(result.query, f"not rebalanced, {sketches}")
        out.detail(result.reason)
    else:
        done = "rebalanced" if result.action == "rebalance" else "captured"
        out.head(result.query, f"{done} {sketches}")
        out.detail(result.reason)
        _captured(result, out)


def _captured(result: r.CaptureResult, out: Text) -> None:
    who, took = ("engine", result.engine_ms) if result.engine_ms else ("Spark", result.spark_ms)
    out.detail(
        f"{versions_text(result.versions, moments=result.moments)}, mode {mode_text(result.mode)}, "
        f"{duration_text(result.elapsed_ms)} ({who} {duration_text(took)}){out.progress}"
    )
    for entry in result.left:
        if entry.files_total > 1:
            files = f"{entry.files:,} of {count_text(entry.files_total, 'file')} of {entry.table}"
            size = f"{size_text(entry.bytes)} of {size_text(entry.bytes_total)}"
            out.detail(f"reads {files}, {size}")
    out.details(map(_assumption, result.assumptions))


def _planned_capture(result: r.CaptureResult, out: Text) -> None:
    """Print what would be captured, by whom, from how much, and each attribute considered."""
    attributes = ", ".join(
        f"{entry.table}.{entry.attribute} in {count_text(entry.total, 'range')}"
        for entry in result.sketches
    )
    by = "" if result.by is None else f" by {result.by}"
    at = f"{versions_text(result.versions)}, mode {mode_text(result.mode)}{by}"
    out.head(result.query, f"would capture {attributes} at {at}")
    for entry in result.reads:
        size = f"{_rows(entry.rows)} in {_files(entry.files, entry.bytes)}"
        out.detail(f"would read {entry.table}@{entry.version}: {size}")
    for candidate in result.considered:
        safe = ("chosen" if candidate.chosen else "safe") if candidate.safe else "not safe"
        why = f": {candidate.reason}" if candidate.reason else ""
        out.detail(f"{candidate.table}.{candidate.attribute} {safe}{why}")
    out.details(map(_assumption, result.assumptions))
    out.detail(_STORED.get(result.stored or "", ""))


@render.register(r.ApplyResult)
def _apply(result: r.ApplyResult, out: Text) -> None:
    at = f"version {result.version}"
    if result.version is None:
        condition = "" if result.statement.startswith("INSERT") else ", if a row matches"
        text = f"would make {result.table} version {result.planned_version}{condition}"
    elif result.already_applied:
        text = f"already applied, {result.table} {at} (repeat it with `--again`)"
    elif not result.inserted + result.deleted + result.updated:
        text = f"no row of {result.table} changed ({at})"
    else:
        text = (
            f"{result.table} {at}, {result.inserted:,} inserted, {result.deleted:,} deleted, "
            f"{result.updated:,} updated"
        )
    out.line(f"{result.name}: {text}")
    if result.version is None:
        out.whole(result.statement)


@render.register(r.ClusterResult)
def _cluster(result: r.ClusterResult, out: Text) -> None:
    if result.action == "cluster":
        text = (
            f"version {result.version}, {result.reason}: {result.files:,} files before, "
            f"{result.files_after:,} now, {duration_text(result.elapsed_ms)}"
        )
    elif result.dry_run and result.reason.startswith(("sorted", "in Z-order")):
        size = size_text(result.bytes)
        text = f"would be {result.reason}, {result.files:,} now; all {size} would be rewritten"
    elif result.dry_run:
        text = f"would not change: {result.reason}"
    else:
        text = f"not changed: {result.reason}"
    out.line(f"{result.table}: {text}")
    out.details(map(_clustered, result.sketches))
    if result.action != "cluster" and result.losers:
        names = ", ".join(loser.query for loser in result.losers)
        out.detail(f"sketches that would read more than now: {names}")


def _clustered(entry: r.ClusteredSketch) -> str:
    before = _files(entry.files, entry.bytes)
    text = f"{entry.query} reads {before} through its sketch on {entry.attribute}"
    estimate = (entry.files_expected, entry.bytes_expected)
    if entry.files_after is None and estimate == (entry.files, entry.bytes):
        return text
    expected = _files(*estimate)
    if entry.files_after is None or entry.bytes_after is None:
        return f"{text}; expected after: {expected}"
    return (
        f"{text} before, {_files(entry.files_after, entry.bytes_after)} now (expected {expected})"
    )


@render.register(r.GcResult)
def _gc(result: r.GcResult, out: Text) -> None:
    done = "would delete" if result.dry_run else "deleted"
    for entry in result.entries:
        word = done if entry.removed or result.dry_run else "not deleted:"
        out.line(f"{word} {_leftover(entry)}, {size_text(entry.bytes)}")
    total = f"{done} {size_text(result.bytes)} in total" if result.entries else "nothing to delete"
    versions = count_text(result.keep, "sketch version")
    out.line(f"{total}; each query keeps its latest {versions}")


def _leftover(entry: r.GcEntry) -> str:
    match entry.kind:
        case "versions":
            return f"{count_text(entry.count, 'old sketch version')} of {entry.name}"
        case "partitions":
            return f"{count_text(entry.count, 'partition')} that no sketch uses"
        case "file":
            return f"unused state: {entry.name}"
        case _:
            return f"files of an interrupted run: {entry.name}"


# `maintain`, `plan` and when queries are due.


@render.register(r.MaintainResult)
def _maintain(result: r.MaintainResult, out: Text) -> None:
    if not result.table:
        out.head(result.query, f"without a sketch, {result.reason}")
        return
    versions = versions_text(result.versions, result.since, result.moments)
    sketch, action = f"{result.table}.{result.attribute}", mode_text(result.action)
    why = f"{result.reason} [{result.reason_code}]"
    if result.action == "none":
        is_postponed = result.reason_code == r.NOT_DUE
        word = "not due" if is_postponed else "up to date"
        out.head(result.query, f"{word} at {versions}, {sketch}", word, is_idle=True)
        out.detail(result.reason if is_postponed else "")
    elif result.dry_run:
        is_full = result.action == "recapture"
        verb = "recapture" if is_full else f"maintain ({action})"
        pending = "" if result.changes is None else f", {count_text(result.changes, 'change')}"
        out.head(result.query, f"would {verb} {versions}, {sketch}{pending}", action)
        out.detail(f"{why}; the new sketch was not computed")
        return
    else:
        out.head(result.query, f"{action} {versions}, {sketch}{_moved(result)}", action)
        out.detail(
            f"{_changes(result.changes)} in {duration_text(result.elapsed_ms)} "
            f"(read {duration_text(result.read_ms)}, engine {duration_text(result.engine_ms)}, "
            f"commit {duration_text(result.commit_ms)})"
        )
        out.detail(why if result.reason else "")
        _after_maintaining(result, out)
    if result.ranges is not None and result.ranges.drifted:
        name = f"{result.ranges.table}.{result.ranges.attribute}"
        out.detail(f"ranges of {name}: {_skew(result.ranges)}; {result.ranges.hint}")


def _after_maintaining(result: r.MaintainResult, out: Text) -> None:
    """Print what became of the result, and each of several steps."""
    if result.answer_changed == r.ANSWER_SAME:
        out.detail("the result of the query did not change")
    for step in result.steps if len(result.steps) > 1 else ():
        out.detail(
            f"step {versions_text(step.versions)}: "
            f"{mode_text(step.action)}, {_changes(step.changes)}, "
            f"+{len(step.added):,} -{len(step.removed):,} ranges, "
            f"{duration_text(step.elapsed_ms)}"
        )
    out.details(f"changes of its result: {path}" for path in result.change_files)


def _moved(result: r.MaintainResult) -> str:
    """The ranges added and removed, such as ` +3 -1 ranges`."""
    counts = ((len(result.added), "+"), (len(result.removed), "-"))
    moved = [f"{sign}{count:,}" for count, sign in counts if count]
    if not moved:
        return " unchanged"
    noun = "range" if len(result.removed or result.added) == 1 else "ranges"
    return f" {' '.join(moved)} {noun}"


@render.register(r.PlanResult)
def _plan(result: r.PlanResult, out: Text) -> None:
    action = mode_text(result.action)
    word = {"none": "up to date", r.REFUSED: "no sketch possible"}.get(result.action, action)
    if result.reason_code == r.SKETCH_NONE:
        word = "without a sketch"
    reason = f"{result.reason} [{result.reason_code}]"
    if not result.versions:
        out.head(result.query, word, word)
        out.detail(reason)
        out.detail("" if result.hint is None else f"hint: {result.hint}")
        return
    by = "" if result.by is None else f" by {result.by}"
    verb = "nothing to do" if result.action == "none" else f"{action}{by}"
    versions = versions_text(result.versions, result.since or None)
    out.head(result.query, f"{verb}, {versions}", word)
    out.detail(reason)
    out.details(map(_planned_change, result.pending))
    if result.next_change is not None:
        out.detail(_next_change(result.next_change))
    if result.next_expiry is not None:
        out.detail(f"expires  {_expiry(result.next_expiry)}")
    if result.due is not None:
        out.detail(_planned_due(result.due))
    out.details(map(_piece, result.state))
    if result.action in ("none", "capture"):
        out.detail(f"policy {result.policy}")
        return
    maintain = _estimate(result.maintain_ms, result.maintain_runs)
    recapture = _estimate(result.recapture_ms, result.recapture_runs)
    out.detail(f"estimated to maintain: {maintain}")
    out.detail(f"estimated to recapture: {recapture}")
    out.detail(f"policy {result.policy} chooses: {result.action}")


def _planned_change(entry: r.PlannedChange) -> str:
    versions = count_text(entry.until - entry.since, "version")
    if entry.until < entry.since:
        versions = "an older version"
    head = f"{entry.table}: {versions}, {_rows(entry.rows, 'changed row')}"
    if entry.files is None or entry.bytes is None:
        return f"{head}, the log cannot be read that far back"
    return f"{head} in {_files(entry.files, entry.bytes)}"


def _piece(piece: r.PlannedPiece) -> str:
    """`state  join4.left: read, 26.2 MB -> 600 kB: supplier changes once in 10 days, ...`; or
    `state  top0: bounded to the best 8 (now kept), 26.2 MB -> 600 kB: ...`."""
    change = "" if piece.mode == piece.now else f" (now {piece.now})"
    size = size_text(piece.kept_bytes)
    size = size if piece.mode == "kept" else f"{size} -> {size_text(piece.bytes)}"
    return (
        f"state  {piece.name}: {_bounded(piece.mode, piece.buffer)}{change}, {size}: {piece.reason}"
    )


def _next_change(coming: r.NextChange) -> str:
    """`next change  orders: in 41 min (25 min to 1 h 10), 1,010 rows (760 to 1,300), by ...`."""
    if coming.in_s is None:
        return f"next change  unknown: {coming.unknown}"
    when = _when(coming.in_s, coming.in_s_low, coming.in_s_high)
    rows = _rows(None if coming.rows is None else _rounded(coming.rows))
    if coming.rows is not None and coming.rows_low is not None and coming.rows_high is not None:
        low, high = f"{_rounded(coming.rows_low):,}", f"{_rounded(coming.rows_high):,}"
        rows += f" ({_between(low, high)})"
    return f"next change  {', '.join(coming.tables)}: {when}, {rows}, by {coming.by}"


def _when(seconds: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"in {span_text(seconds)}" if seconds else "any time"
    if not seconds:
        # A change that is late may also have ceased.
        return f"any time (within {span_text(high)})" if high else "overdue"
    return f"in {span_text(seconds)} ({_between(span_text(low), span_text(high))})"


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _rounded(number: float) -> int:
    """Round to three digits: more are never known."""
    rounded = round(number)
    return round(rounded, min(0, 3 - len(str(rounded))))


def _estimate(milliseconds: float | None, runs: int) -> str:
    if not runs and milliseconds is not None:
        return f"{duration_text(milliseconds)} (first estimate, from the capture)"
    if not runs:
        return "unknown, because no run is recorded yet"
    if milliseconds is None:
        return "unknown, because the log lacks the size of the change"
    return f"{duration_text(milliseconds)} ({count_text(runs, 'run')})"


@render.register(r.DueResult)
def _due(result: r.DueResult, out: Text) -> None:
    word = "due now" if result.due else "not due" if result.pending else "nothing pending"
    out.head(result.query, _due_when(result), word)
    is_named = result.trigger in result.why
    out.detail(result.why if is_named else f"{result.why} ({result.trigger})")
    if result.pending:
        since = "" if result.oldest_at is None else f" since {moment_text(result.oldest_at)}"
        cost = _due_cost(result) or "no estimate, because no run is recorded"
        out.detail(f"pending{since}: {_rows(result.rows)}, {cost}")


def _planned_due(result: r.DueResult) -> str:
    """When the query is due, in one line of a plan, which shows pending changes itself."""
    when = _due_when(result)
    if when == "not due":
        text = result.why
    elif result.pending:
        text = f"{when.removeprefix('due ')}: {result.why}"
    else:
        text = f"{when}, for {result.trigger}"
    estimate = f" ({cost})" if result.pending and (cost := _due_cost(result)) else ""
    return f"due          {text}{estimate}"


def _due_cost(result: r.DueResult) -> str:
    if result.cost_ms is None:
        return ""
    padded = duration_text(result.cost_ms * result.margin)
    return f"estimate {duration_text(result.cost_ms)}, {padded} with safety factor"


def _due_when(result: r.DueResult) -> str:
    if result.due:
        by = "" if result.due_by is None else f", deadline {moment_text(result.due_by)}"
        return f"due now{by}"
    if result.due_at is None or result.start_at is None:
        return "not due"
    at = f"due at {moment_text(result.due_at)}"
    starts = f", starts {moment_text(result.start_at)}" if result.start_at != result.due_at else ""
    return f"{at}{starts}" if result.pending else f"nothing pending, next {at.removeprefix('due ')}"


# `rewrite`, `query`, `changes` and `why`: SQL or rows alone on stdout, so that they can be piped,
# and remarks on stderr. Law: a derivation is called smallest only where that is proved.

_CLAIMS = {
    "smallest": "a smallest set: fewer rows cannot derive it",
    "minimal": "a minimal set: no row can be removed, but another set may be smaller",
    "group": "all rows of its groups",
}


@render.register(r.RewriteResult)
def _rewrite(result: r.RewriteResult, out: Text) -> None:
    sql = result.sql.rstrip("\n")
    shown = sql
    if out.stdout.isatty():
        # Spark reads these escapes in a literal, so the text can be copied.
        shown = CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", sql)
    out.document(shown)
    files = f"reads {result.files_kept} of {count_text(result.files_total, 'file')}"
    # Without ranges of a sketch the text is right for any version.
    versions = versions_text(result.versions, moments=result.moments)
    only = f", valid only for {versions}" if result.sketches else ""
    out.remark(f"{result.query}: {_sketches(result.sketches)}, {files}{only}", "")
    if shown != sql:
        out.remark(
            "control characters of the text are shown as escapes; a pipe gets the original text"
        )
    if not result.runs_on_spark:
        out.remark(
            "for DuckDB, PostgreSQL or SQLite: Spark does not support WITH RECURSIVE with UNION"
        )
    _used_sketch(result, out)


@render.register(r.QueryResult)
def _query(result: r.QueryResult, out: Text) -> None:
    out.rows(result)
    who = "the engine" if result.by == "engine" else "Spark"
    source = f"{who} read {result.files_kept} of {count_text(result.files_total, 'file')}"
    source = "from the materialized result" if result.by == r.STATE else source
    start = result.spark_start_ms
    started = f", Spark took {duration_text(start)} to start" if start else ""
    out.remark(
        f"{result.query}: {_shown_rows(result)}, {source} at {_read_at(result)}{started}", ""
    )
    if result.by != r.STATE and result.by_reason:
        out.remark(f"answered by {who}: {result.by_reason}")
        if result.quicker:
            out.remark(f"faster alternative: {result.quicker}")
    _used_sketch(result, out)


def _shown_rows(result: ArrowAnswer) -> str:
    """How many rows, and the file that they were written to."""
    total = count_text(result.row_count, "row")
    if result.limit is not None and result.limit < result.row_count:
        total = f"{result.limit:,} of {total}"
    return total if result.written is None else f"{total} written to {result.written}"


def _used_sketch(result: r.QueryResult | r.RewriteResult, out: Text) -> None:
    """Print which sketch was used, how it was maintained, and which cost more than it saves."""
    for table, reason in result.unused_sketches.items():
        which = f" of `{table}`" if len(result.versions) > 1 else ""
        out.remark(f"sketch{which} not used: {reason} (force with `--sketch always`)")
    if result.reuse is not None:
        _reuse(result.reuse, out)
        if result.reuse.query is None:
            return
    if result.action == r.NOT_USED:
        out.remark("no sketch was requested")
    elif result.action == r.NO_SKETCH:
        # A warning says so, unless the workload file excludes sketches.
        if result.reason == r.SKETCH_NONE_REASON:
            out.remark(f"no sketch: {result.reason}")
    elif result.action == "none":
        if not result.unused_sketches:
            out.remark("sketch was up to date")
    elif result.action == "kept":
        out.remark("used the sketch stored for these versions; nothing was maintained")
    else:
        out.remark(f"sketch maintained first ({mode_text(result.action)}): {result.reason}")


def _reuse(reuse: r.ReuseEntry, out: Text) -> None:
    """Print the sketch reused for a query with other constants, and those that were not used."""
    if reuse.query is None:
        out.remark(f"no sketch: {reuse.reason}")
    for entry in reuse.candidates:
        which = _sketches(entry.sketches) if entry.sketches else ""
        use = f"({which})" if entry.chosen else "not used"
        out.remark(f"sketch of `{entry.query}` {use}: {entry.reason}")


@render.register(r.ChangesResult)
def _changed_rows(result: r.ChangesResult, out: Text) -> None:
    out.rows(result)
    what = "changes" if result.since else "the whole result"
    out.remark(f"{result.query}: {what}, {_shown_rows(result)}, {_read_at(result)}", "")
    if result.by != r.STATE:
        out.remark(result.by_reason)


@render.register(r.WhyResult)
def _why(result: r.WhyResult, out: Text) -> None:
    rows = count_text(result.row_count, "row")
    head = f"{result.query}: {_row(result.row)} is derived from {rows}"
    out.line(f"{head}, {_CLAIMS[result.claim]}")
    out.details(f"{entry.table}: {_row(entry.row)}" for entry in result.rows)
    more = result.row_count - len(result.rows)
    out.detail(f"... and {count_text(more, 'row')} more" if more else "")
    verb = "occurs" if result.lineage == 1 else "occur"
    lineage = f"{count_text(result.lineage, 'row')} {verb} in its derivations"
    out.remark(f"{result.query}: {lineage}; {_provenance_read(result)}", "")


@render.register(r.WithoutResult)
def _without(result: r.WithoutResult, out: Text) -> None:
    out.rows(result)
    changes = Counter(result.answer.column("_change").to_pylist())
    deleted, inserted = count_text(changes["delete"], "row"), changes["insert"]
    appearing = f", {count_text(inserted, 'row')} would appear" if inserted else ""
    removed = (f"{count_text(rows, 'row')} of {name}" for name, rows in result.removed.items())
    out.remark(
        f"{result.query}: without {', '.join(removed)}, {deleted} of the result would "
        f"disappear{appearing}; {_provenance_read(result)}",
        "",
    )


def _provenance_read(result: r.WhyResult | r.WithoutResult) -> str:
    files = f"{result.files_kept} of {count_text(result.files_total, 'file')}"
    source = "from the stored provenance" if result.by == r.STATE else f"the engine read {files}"
    return f"{source} at {_read_at(result)}"


def _row(row: Mapping[str, RowValue]) -> str:
    """`n=17, name=abc`, NULL for none."""
    return ", ".join(f"{name}={_value(row[name])}" for name in row) or "a row without columns"


def _value(value: RowValue) -> str:
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


# `status` and `gain`. Law: the most urgent comes first; labels are fixed words, so that lines can
# be searched for.

_LABEL = 9


@render.register(r.StatusResult)
def _status(result: r.StatusResult, out: Text) -> None:
    if result.mode == r.SKETCH_NONE:
        out.line(f"{result.query}: without a sketch, {r.SKETCH_NONE_REASON}")
    elif not result.versions:
        trigger = "" if result.trigger is None else f", trigger {result.trigger}"
        policy = f"(policy {result.policy}{trigger})"
        out.line(f"{result.query}: not captured {policy}; `impctl check` shows if it can be")
    else:
        state = "stale" if result.stale else "current"
        out.line(f"{result.query}: {state}, {_sketches(result.sketches)}", rest="")
        for label, text in _labelled(result):
            out.line(text, f"  {label:<{_LABEL}}", " " * (_LABEL + 2))


def _labelled(result: r.StatusResult) -> Iterator[tuple[str, str]]:
    if result.stale_reason is not None:
        yield "why", result.stale_reason
    for entry in result.pending:
        yield "pending", _pending(entry)
    if result.fresh is not None and result.fresh.age_s:
        fresh = result.fresh
        text = f"the oldest pending change is {duration_text(fresh.age_s * 1000)} old"
        if fresh.bound_s is not None:
            late = "late: " if fresh.late else ""
            text = f"{late}{text}; the limit is {duration_text(fresh.bound_s * 1000)}"
        yield "fresh", text
    if result.trigger is not None:
        yield "trigger", result.trigger
    versions = (f"version {version} of {table}" for table, version in result.versions.items())
    at = _with_moments(", ".join(versions), result.moments)
    mode = "" if result.mode is None else f", mode {mode_text(result.mode)}"
    answer = ", result materialized" if result.materialized else ""
    yield "at", f"{at}{mode}, policy {result.policy}{answer}{_provenance(result)}"
    if result.next_expiry is not None:
        yield "expires", _expiry(result.next_expiry)
    yield "size", f"sketch {size_text(result.sketch_bytes)}, state {size_text(result.state_bytes)}"
    yield "verified", _verified(result)
    for ranges in result.ranges:
        hint = f"; {ranges.hint}" if ranges.hint else ""
        yield "ranges", f"{ranges.table}.{ranges.attribute}: {_skew(ranges)}{hint}"
    if (tree := result.tree) is not None and (touched := tree.touched_each) is not None:
        changes = count_text(tree.changes, "change")
        expected = "" if tree.expected is None else f"; expected {tree.expected:,.1f}"
        yield "trees", f"{touched:,.1f} tuples touched per changed row, in {changes}{expected}"
    if result.last_use is not None:
        yield "uses", f"{_uses(result)}; last use {moment_text(result.last_use)}"
    for number, run in enumerate(result.runs):
        yield "" if number else "runs", _run(run)


def _pending(entry: r.PendingEntry) -> str:
    until = entry.since + entry.versions
    head = f"{entry.table}@{entry.since}..{until}: {count_text(entry.versions, 'version')}"
    if entry.files is None:
        return f"{head}, the log no longer has its size"
    files = count_text(entry.files, "file")
    return f"{head}, {_rows(entry.rows)} in {files}{_sized(', ', entry.bytes)}"


def _provenance(result: r.StatusResult) -> str:
    """How provenance of a recursion maintained by absorption is stored."""
    if result.provenance is None:
        return ""
    if result.provenance == "given_up":
        return ", maintained by ranks: provenance was too large"
    return f", provenance stored ({result.provenance})"


def _verified(result: r.StatusResult) -> str:
    verified = result.verified
    if verified is None:
        return "not yet"
    slack = f"slack {verified.slack}" if verified.sound else "NOT SOUND"
    return f"{slack} at {versions_text(verified.versions)}, {moment_text(verified.at)}"


def _uses(result: r.StatusResult) -> str:
    texts = []
    if result.uses or not result.materialized_reads:
        skipped = size_text(result.bytes_skipped)
        texts.append(f"{count_text(result.uses, 'use')}, {skipped} skipped")
    if result.materialized_reads:
        texts.append(_materialized_reads(result.materialized_reads))
    return "; ".join(texts)


def _run(run: r.RunEntry) -> str:
    changes = f", {count_text(run.changes, 'change')}" if run.changes else ""
    why = f": {run.reason}" if run.reason else ""
    took = duration_text(run.elapsed_ms)
    return f"{moment_text(run.at)}  {mode_text(run.action)}{changes}, {took}{why}"


@render.register(r.GainResult)
def _gain(result: r.GainResult, out: Text) -> None:
    out.gains.append(result)
    since = "" if result.since is None else f" since {result.since:%Y-%m-%d %H:%MZ}"
    last = "" if result.last_use is None else f", last use {result.last_use:%Y-%m-%d %H:%M:%SZ}"
    counted = (
        [count_text(result.uses, "use")] if result.uses or not result.materialized_reads else []
    )
    if result.materialized_reads:
        counted.append(_materialized_reads(result.materialized_reads))
    out.line(f"{result.query}: {', '.join(counted)}{since}{last}")
    if result.uses:
        files = count_text(result.files_plain - result.files, "file")
        rows = count_text(result.rows_plain - result.rows, "row")
        out.detail(
            f"{_skipped(result.bytes_skipped, result.bytes_plain)}, {files}, {rows}, beyond what "
            "the query's own conditions skip"
        )
    if result.materialized_reads:
        out.detail(f"its materialized result saved reading about {size_text(result.answers_bytes)}")
    if result.uses > result.used:
        out.detail(f"sketch not used in {count_text(result.uses - result.used, 'use')}")
    paid = f"not used yet; upkeep took {duration_text(result.upkeep_ms)}"
    if result.verdict != r.NOT_USED_YET:
        paid = _paid(result.saved_ms, result.upkeep_ms)
    hint = f"; {result.hint}" if result.hint else ""
    out.detail(f"{paid} ({count_text(result.upkeep_runs, 'run')}){hint}")


def _paid(saved_ms: float, upkeep_ms: float) -> str:
    """Whether sketches have saved more time than they cost."""
    verdict = "has paid so far" if saved_ms >= upkeep_ms else "has not paid so far"
    return (
        f"{verdict}: saved about {duration_text(saved_ms)}, upkeep took {duration_text(upkeep_ms)}"
    )


def _skipped(skipped: int, total: int) -> str:
    return f"skipped {size_text(skipped)} of {size_text(total)} ({skipped / max(total, 1):.0%})"


def render_total(results: Sequence[r.GainResult], out: Text) -> None:
    """Print what the sketches of all queries skipped and cost together."""
    uses = sum(result.uses for result in results)
    answers = sum(result.materialized_reads for result in results)
    plain_bytes = sum(result.bytes_plain + result.answers_bytes for result in results)
    skipped = sum(result.bytes_skipped + result.answers_bytes for result in results)
    upkeep = sum(result.upkeep_ms for result in results)
    saved = sum(result.saved_ms for result in results)
    out.line(
        f"{count_text(len(results), 'query', 'queries')}: {count_text(uses, 'use')} of sketches, "
        f"{count_text(answers, 'answer')} from materialized results"
    )
    out.detail(f"sketches and materialized results {_skipped(skipped, plain_bytes)}")
    out.detail(_paid(saved, upkeep))


# `doctor`, `verify`, `init` and `bench`. Law: every finding begins with its level, so that `grep
# problem` finds the problems; a line with `fix:` has only the fix.

_COLOURS = {r.Level.OK: "32", r.Level.WARNING: "33", r.Level.PROBLEM: "31"}
_LEVEL = max(map(len, r.Level))


@render.register(r.Finding)
def _finding(result: r.Finding, out: Text) -> None:
    if out.quiet and result.level is r.Level.OK:
        return
    is_same = result.area == result.subject
    heading = result.area if is_same else f"{result.area} {result.subject}"
    if out.heading != heading:
        out.heading = heading
        out.raw(heading)
    lead = " " * (_LEVEL + 4)
    first, *more = out.wrapped(result.message, lead, lead)
    mark = out.marked(f"{result.level:<{_LEVEL}}", _COLOURS[result.level], out.stdout)
    out.stdout.write(f"  {mark}{first[_LEVEL + 2 :]}\n")
    for line in more:
        out.raw(line)
    if result.fix is not None:
        out.line(result.fix, lead + "fix: ", lead + "     ")


@render.register(r.StartedResult)
def _started(result: r.StartedResult, out: Text) -> None:
    out.line(f"{result.file}: written")
    for command in result.next_commands:
        out.whole(command)


@render.register(r.VerifyResult)
def _verify(result: r.VerifyResult, out: Text) -> None:
    sound = "sound" if result.is_sound else "NOT SOUND"
    sketch = f"{result.table}.{result.attribute} slack {result.slack}"
    versions = versions_text(result.versions, moments=result.moments)
    out.head(result.query, f"{sound}, {sketch} at {versions}{_compared(result)}")
    if result.missing:
        total = count_text(result.total + (result.total in result.missing), "range")
        out.detail(f"the sketch lacks {len(result.missing):,} of {total}")
    if result.extra:
        out.detail(f"the sketch has {count_text(len(result.extra), 'range')} more than needed")


def _compared(result: r.VerifyResult) -> str:
    """Whether results with and without the sketch are equal, if they were compared."""
    if result.results_equal is None:
        return ""
    text = ", results equal" if result.results_equal else ", results differ"
    if result.answer_equal is not None:
        text += f", materialized result {'equal' if result.answer_equal else 'differs'}"
    if result.counts_only:
        text += " (only the number of rows: LIMIT without ORDER BY)"
    return text


@render.register(r.GenerateResult)
def _generate(result: r.GenerateResult, out: Text) -> None:
    rows = count_text(result.rows, "row")
    out.line(f"{result.table}: {rows}, version {result.version}, {result.path}")


@render.register(r.WrittenResult)
def _written(result: r.WrittenResult, out: Text) -> None:
    out.note(plain(f"{result.kind}: {result.path}"))


@render.register(r.Record)
def _record(result: r.Record, out: Text) -> None:
    from impctl.cli.output.measurements import record_lines

    for line in record_lines(result):
        out.raw(line)


@render.register(r.RecordComparison)
def _comparison(result: r.RecordComparison, out: Text) -> None:
    from impctl.cli.output.measurements import comparison_lines

    head, *details = comparison_lines(result)
    out.line(head)
    for line in details:
        out.detail(line)


@render.register(r.SimulateResult)
def _simulate(result: r.SimulateResult, out: Text) -> None:
    from impctl.cli.output.measurements import render_simulated

    render_simulated(result, out)
