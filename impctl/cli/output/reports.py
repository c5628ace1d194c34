"""Results of commands as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING

from impctl.cli.output.terminal import wrapped
from impctl.cli.output.wording import (
    Mark,
    assumed_text,
    at_text,
    expected_text,
    expiry_text,
    mode_text,
    ranges_text,
    sketches_text,
    versions_text,
)
from impctl.errors import count_text
from impctl.service.results import (
    COSTS_MORE,
    NOT_USED_YET,
    REFUSED,
    SKETCH_NONE,
    SKETCH_NONE_REASON,
    STATE,
    AnsweredEntry,
    AnswerEntry,
    ApplyResult,
    BuffersEntry,
    CandidateEntry,
    CaptureResult,
    CheckResult,
    ClusteredSketch,
    ClusterResult,
    DueResult,
    ExplainResult,
    Finding,
    FreshEntry,
    GainResult,
    GcEntry,
    GcResult,
    GroupsEntry,
    JoinSideEntry,
    Level,
    NextChange,
    PendingEntry,
    PlanEntry,
    PlannedChange,
    PlannedPiece,
    PlanResult,
    RunEntry,
    StatusResult,
    TreeRecord,
    TreeResultEntry,
    WhyResult,
    WithoutResult,
)
from impctl.service.text import duration_text, moment_text, plain, size_text, span_text

if TYPE_CHECKING:
    from impctl.service.answer import RowValue

# What `check` found of a query, as lines of text, and one line that sums a run up. Law: a reason
# that several attributes share is said once, with all of them before it.

_NO_SKETCH = "no sketch possible"


def check_lines(result: CheckResult, width: int | None) -> list[str]:
    """Render support, maintenance, materialization and attributes of a query."""
    lines = [plain(f"{result.query}: {check_word(result)}")]
    place = "" if result.place is None else f" ({result.place})"
    hint = "" if result.hint is None else f"hint: {result.hint}"
    answers = answer_texts(result.answer, result.answered)
    for text in (f"{result.reason}{place}", hint, *answers):
        lines += _under(text, width, "  ")
    return lines + attribute_lines(result.candidates, width)


def check_word(result: CheckResult) -> str:
    """Whether the query is supported, in a few words."""
    if result.mode == SKETCH_NONE:
        return "without a sketch"
    return f"supported, {mode_text(result.mode or '')}" if result.supported else _NO_SKETCH


def summed_up(words: Sequence[str]) -> str:
    """Count words: `3 queries: 2 supported, exact; 1 no sketch possible`."""
    counts = "; ".join(f"{count:,} {word}" for word, count in Counter(words).most_common())
    return f"{count_text(len(words), 'query', 'queries')}: {counts}"


# What clustering a table does, or would do, as lines of text. Law: what was expected stands
# beside what came.


def cluster_lines(result: ClusterResult) -> list[str]:
    """Render the table, then a line per sketch."""
    if result.action == "cluster":
        head = (
            f"{result.table}: version {result.version}, {result.reason}: {result.files:,} files"
            f" before, {result.files_after:,} now, {duration_text(result.elapsed_ms)}"
        )
    elif result.foreseen and result.reason.startswith(("sorted", "in Z-order")):
        head = (
            f"{result.table}: would be {result.reason}, {result.files:,} now; all "
            f"{size_text(result.bytes)} would be rewritten"
        )
    elif result.foreseen:
        head = f"{result.table}: would not change: {result.reason}"
    else:
        head = f"{result.table}: not changed: {result.reason}"
    lines = [plain(head), *(_sketch_text(entry) for entry in result.sketches)]
    if result.action != "cluster" and result.losers:
        names = ", ".join(loser.query for loser in result.losers)
        lines.append(plain(f"sketches that would read more than now: {names}"))
    return lines


def _sketch_text(entry: ClusteredSketch) -> str:
    before = _files_text(entry.files, entry.bytes)
    text = f"{entry.query} reads {before} through its sketch on {entry.attribute}"
    estimate = (entry.files_expected, entry.bytes_expected)
    expected = _files_text(*estimate)
    if entry.files_after is None and estimate == (entry.files, entry.bytes):
        return plain(text)
    if entry.files_after is None or entry.bytes_after is None:
        return plain(f"{text}; expected after: {expected}")
    after = _files_text(entry.files_after, entry.bytes_after)
    return plain(f"{text} before, {after} now (expected {expected})")


def _files_text(files: int, size: int) -> str:
    return f"{count_text(files, 'file')}, {size_text(size)}"


def _rows_text(rows: int | None, noun: str = "row") -> str:
    return "unknown number of rows" if rows is None else count_text(rows, noun)


# Findings of `doctor` as lines of text: a heading per subject, a line each, the fix below. Law:
# every line begins with how bad it is, so that `grep problem` finds the problems; nothing but the
# fix stands on a line with `fix:`.

_COLOURS = {Level.OK: "32", Level.WARNING: "33", Level.PROBLEM: "31"}
_WIDTH = max(map(len, Level))


def finding_lines(
    finding: Finding, before: Finding | None, width: int | None, mark: Mark
) -> list[str]:
    """Render a finding; `before` is the previous one."""
    lines = []
    if before is None or (before.area, before.subject) != (finding.area, finding.subject):
        is_same = finding.area == finding.subject
        lines.append(finding.area if is_same else plain(f"{finding.area} {finding.subject}"))
    level = Level(finding.level)
    lead = " " * (_WIDTH + 4)
    first, *more = wrapped(plain(finding.message), width, lead)
    lines.append("  " + mark(f"{level:<{_WIDTH}}", _COLOURS[level]) + first[_WIDTH + 2 :])
    lines += more
    if finding.fix is not None:
        lines += wrapped(plain(finding.fix), width, lead + "fix: ", lead + "     ")
    return lines


# When queries are due, as lines of text. Law: the first line says whether and when, the others
# why and what is pending; all times are UTC.


def due_word(result: DueResult) -> str:
    if result.due:
        return "due now"
    return "not due" if result.pending else "nothing pending"


def due_lines(result: DueResult) -> list[str]:
    """Render whether a query is due, when next, and why."""
    why = result.why if result.trigger in result.why else f"{result.why} ({result.trigger})"
    return [f"{result.query}: {_when(result)}", why, *_pending(result)]


def planned_due_text(result: DueResult) -> str:
    """When the query is due, in one line of a plan, which shows pending changes itself."""
    when = _when(result)
    if when == "not due":
        said = result.why
    elif result.pending:
        said = f"{when.removeprefix('due ')}: {result.why}"
    else:
        said = f"{when}, for {result.trigger}"
    estimate = f" ({cost})" if result.pending and (cost := _cost_text(result)) else ""
    return f"due          {said}{estimate}"


def _cost_text(result: DueResult) -> str:
    if result.cost_ms is None:
        return ""
    whole = duration_text(result.cost_ms * result.margin)
    return f"estimate {duration_text(result.cost_ms)}, {whole} with safety factor"


def _when(result: DueResult) -> str:
    if result.due:
        by = "" if result.due_by is None else f", deadline {moment_text(result.due_by)}"
        return f"due now{by}"
    if result.due_at is None or result.start_at is None:
        return "not due"
    at = f"due at {moment_text(result.due_at)}"
    starts = f", starts {moment_text(result.start_at)}" if result.start_at != result.due_at else ""
    return f"{at}{starts}" if result.pending else f"nothing pending, next {at.removeprefix('due ')}"


def _pending(result: DueResult) -> list[str]:
    if not result.pending:
        return []
    since = "" if result.oldest_at is None else f" since {moment_text(result.oldest_at)}"
    cost = _cost_text(result) or "no estimate, because no run is recorded"
    return [f"pending{since}: {_rows_text(result.rows)}, {cost}"]


def fresh_text(fresh: FreshEntry) -> str:
    """The age of the oldest pending change, and its limit."""
    text = f"the oldest pending change is {duration_text(fresh.age_s * 1000)} old"
    if fresh.bound_s is None:
        return text
    late = "late: " if fresh.late else ""
    return f"{late}{text}; the limit is {duration_text(fresh.bound_s * 1000)}"


# The explanation of a query: its plan as a tree with a remark or two below each operator. Law: an
# operator's own words are never mixed with what is said about it; a place in the file is shown
# where something stands in the way.

_DEEPEST = 12
"""Maximum levels of a plan to indent; deeper ones would leave no space for words."""


def explain_lines(result: ExplainResult, width: int | None) -> list[str]:
    """Render one query."""
    lines = _summary(result, width)
    if result.plan:
        kept = "" if result.state_bytes is None else f", state {size_text(result.state_bytes)}"
        lines.append(f"  plan{kept}")
    for entry in result.plan:
        indent = "    " + "  " * min(entry.depth, _DEEPEST)
        named = plain(f"{entry.operator} {entry.detail}".rstrip())
        lines += wrapped(named, width, indent, indent + "    ")
        for remark in _remarks(entry, result):
            lines += wrapped(plain(remark), width, f"{indent}  - ", f"{indent}    ")
    for text in answer_texts(result.answer, result.answered):
        lines += _under(text, width, "  ")
    if result.joins:
        lines.append("  sides of joins")
    for side in result.joins:
        lines += _under(_side(side), width, "    ")
    if any(groups.mode != "kept" for groups in result.groups):
        lines.append("  groups")
        for groups in result.groups:
            lines += _under(_groups(groups), width, "    ")
    if any(buffers.chosen for buffers in result.buffers):
        lines.append("  first rows and values")
        for buffers in result.buffers:
            lines += _under(_buffers(buffers), width, "    ")
    for tree in result.trees:
        lines += _under(_tree(tree), width, "  ")
        for line, node in zip(tree.drawn, tree.nodes, strict=True):
            named = line.lstrip(" ")
            indent = "    " + " " * (len(line) - len(named))
            held = "" if node.bytes is None else f"; {size_text(node.bytes)}"
            lines += wrapped(plain(named) + held, width, indent, indent + "    ")
    if result.attributes:
        lines.append("  attributes")
    return lines + attribute_lines(result.attributes, width, "    ")


def _summary(result: ExplainResult, width: int | None) -> list[str]:
    head = f"{result.query}: {mode_text(result.mode)} (policy {result.policy})"
    lines = [*wrapped(plain(head), width), *_under(result.reason, width, "  ")]
    for entry in result.attributes:
        if entry.chosen and (expected := entry.expected) is not None:
            share = 1 - expected.files / max(expected.files_total, 1)
            skipped = f"skips {share:.0%}" if share else "skips none"
            read = f"{expected_text(expected)} of {entry.table}, {size_text(expected.bytes)}"
            lines += _under(f"with the sketch: {read} ({skipped})", width, "  ")
    return lines


def attribute_lines(
    candidates: Sequence[CandidateEntry], width: int | None, indent: str = "  "
) -> list[str]:
    """Render the attributes considered for a sketch: safe or not, chosen or not, and why."""
    judged: dict[str, dict[str, None]] = {}
    for entry in candidates:
        which = f" ({entry.occurrence})" if entry.occurrence else ""
        name = f"{entry.table}{which}.{entry.attribute}"
        judged.setdefault(_judgement(entry), {})[name] = None
    lines = []
    for judgement, names in judged.items():
        lines += _under(f"{', '.join(names)} {judgement}", width, indent)
    return lines


def _judgement(entry: CandidateEntry) -> str:
    """The judgement of an attribute; attributes with the same one share a line."""
    safe = "safe" if entry.safe else "not safe"
    chosen = ", chosen" if entry.chosen else ""
    said = f"{safe}{chosen}: {entry.reason}" if entry.reason else f"{safe}{chosen}"
    if entry.safe and not entry.chosen and entry.reason.startswith("safe"):
        said = entry.reason
    if entry.expected is not None:
        said += f"; {expected_text(entry.expected)}, {size_text(entry.expected.bytes)}"
        if entry.expected.upkeep:
            said += f", state {size_text(entry.expected.upkeep)}"
    return said


def _remarks(entry: PlanEntry, result: ExplainResult) -> Iterator[str]:
    """How the operator is maintained and why, then what it filters early."""
    if entry.how:
        why = f": {entry.why}" if entry.why else ""
        state = f"; state {size_text(entry.state_bytes)}" if entry.state_bytes else ""
        is_blocking = entry.why == result.reason and entry.place is not None
        place = f" ({entry.place})" if is_blocking else ""
        yield f"{entry.how}{why}{state}{place}"
    yield from entry.pushed


_ANSWERED = {
    "state": "from its materialized result",
    "engine": "by the engine",
    "spark": "by Spark",
}


def answer_texts(answer: AnswerEntry | None, answered: AnsweredEntry | None) -> list[str]:
    """Whether the result is materialized, and what answers the query."""
    texts = [] if answer is None else [_kept_answer(answer)]
    if answered is not None:
        texts.append(f"answered {_ANSWERED[answered.by]}: {answered.reason}")
    return texts


def _kept_answer(answer: AnswerEntry) -> str:
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


def _side(side: JoinSideEntry) -> str:
    size = "" if side.bytes is None else f", at most {size_text(side.bytes)}"
    tables = ", ".join(side.tables) or "computed rows"
    how = f"{side.strategy}, rebuilt" if side.mode == "rebuilt" else side.strategy
    return f"{side.side} ({tables}): {how}, {side.reason}{size}"


def _groups(entry: GroupsEntry) -> str:
    tables = ", ".join(entry.tables) or "computed rows"
    return f"{entry.name} ({tables}): {entry.mode}, {entry.reason}"


def _buffers(entry: BuffersEntry) -> str:
    """`top0 (t): bounded to the best 8, 12 kB, t changes once a day, ...`."""
    tables = ", ".join(entry.tables) or "computed rows"
    mode = entry.mode if entry.buffer is None else f"{entry.mode} to the best {entry.buffer:,}"
    size = "" if entry.state_bytes is None else f"{size_text(entry.state_bytes)}, "
    return f"{entry.name} ({tables}): {mode}, {size}{entry.reason}"


def _tree(tree: TreeResultEntry) -> str:
    place = "" if tree.place is None else f" ({tree.place})"
    what = {"ring": ", of counts and sums", "bits": ", of existing rows"}.get(tree.mode, "")
    return f"join tree{what}: {tree.reason}{place}"


def _under(text: str, width: int | None, indent: str) -> list[str]:
    return wrapped(plain(text), width, indent, indent + "  ") if text else []


# What has not been done yet, as lines of text: plans and dry runs. Law: a line per query, then
# its reasons, sizes and estimates; an estimate without a recorded run to learn from says so
# instead of giving a number.

_NOW = {"stale": "replaces a sketch that is not current", "current": "the stored sketch is current"}


def plan_word(result: PlanResult) -> str:
    """The action in a word or two."""
    if result.reason_code == SKETCH_NONE:
        return "without a sketch"
    return {"none": "up to date", REFUSED: "no sketch possible"}.get(
        result.action, mode_text(result.action)
    )


def plan_lines(result: PlanResult) -> list[str]:
    """Render the action and why, pending changes, both estimates and the policy."""
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
    if result.action in ("none", "capture"):
        return [*lines, f"policy {result.policy}"]
    return [
        *lines,
        f"estimated to maintain: {_estimate_text(result.maintain_ms, result.maintain_runs)}",
        f"estimated to recapture: {_estimate_text(result.recapture_ms, result.recapture_runs)}",
        f"policy {result.policy} chooses: {result.action}",
    ]


def capture_lines(result: CaptureResult) -> list[str]:
    """Render what would be captured, by whom, from how much, and each attribute considered."""
    at = versions_text(result.versions)
    wanted = ", ".join(
        f"{entry.table}.{entry.attribute} in {count_text(entry.total, 'range')}"
        for entry in result.sketches
    )
    by = "" if result.by is None else f" by {result.by}"
    lines = [f"{result.query}: would capture {wanted} at {at}, mode {mode_text(result.mode)}{by}"]
    lines += [
        f"would read {entry.table}@{entry.version}: {_rows_text(entry.rows)} in "
        f"{_files_text(entry.files, entry.bytes)}"
        for entry in result.reads
    ]
    for entry in result.considered:
        safe = ("chosen" if entry.chosen else "safe") if entry.safe else "not safe"
        why = f": {entry.reason}" if entry.reason else ""
        lines.append(f"{entry.table}.{entry.attribute} {safe}{why}")
    lines += [assumed_text(assumption) for assumption in result.assumptions]
    lines += [_NOW[result.stored]] if result.stored in _NOW else []
    return lines


def rebalance_lines(result: CaptureResult) -> list[str]:
    """Render ranges that would change, or why not."""
    return [f"{result.query}: {sketches_text(result.sketches)}", result.reason]


def apply_lines(result: ApplyResult) -> list[str]:
    """Render the version that a batch would create, and its statement."""
    condition = "" if result.statement.startswith("INSERT") else ", if a row matches"
    version = f"{result.table} version {result.foreseen_version}"
    return [f"{result.name}: would make {version}{condition}", result.statement]


def _pending_text(entry: PlannedChange) -> str:
    versions = count_text(entry.until - entry.since, "version")
    if entry.until < entry.since:
        versions = "an older version"
    head = f"{entry.table}: {versions}, {_rows_text(entry.rows, 'changed row')}"
    if entry.files is None or entry.bytes is None:
        return f"{head}, the log cannot be read that far back"
    return f"{head} in {_files_text(entry.files, entry.bytes)}"


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
    when = _when_text(coming.in_s, coming.in_s_low, coming.in_s_high)
    rows = _rows_text(None if coming.rows is None else _rounded(coming.rows))
    if coming.rows is not None and coming.rows_low is not None and coming.rows_high is not None:
        rows += (
            f" ({_between(f'{_rounded(coming.rows_low):,}', f'{_rounded(coming.rows_high):,}')})"
        )
    return f"next change  {', '.join(coming.tables)}: {when}, {rows}, by {coming.by}"


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
    """Round to three digits: more are never known."""
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


# What sketches left out and what they cost, as lines of text. Law: what was counted comes before
# what is estimated.


def gain_lines(result: GainResult) -> list[str]:
    """Render one query."""
    since = "" if result.since is None else f" since {result.since:%Y-%m-%d %H:%MZ}"
    last = "" if result.last_use is None else f", last use {result.last_use:%Y-%m-%d %H:%M:%SZ}"
    counted = [count_text(result.uses, "use")] if result.uses or not result.kept_answers else []
    if result.kept_answers:
        counted.append(_answers_text(result.kept_answers))
    head = f"{result.query}: {', '.join(counted)}{since}{last}"
    return [plain(text) for text in (head, *_details(result))]


def _answers_text(count: int) -> str:
    return f"{count_text(count, 'answer')} from the materialized result"


def total_lines(results: Sequence[GainResult]) -> list[str]:
    """Render all queries together, in two lines."""
    uses = sum(result.uses for result in results)
    answers = sum(result.kept_answers for result in results)
    plain_bytes = sum(result.bytes_plain + result.answers_bytes for result in results)
    skipped = sum(result.bytes_left_out + result.answers_bytes for result in results)
    upkeep = sum(result.upkeep_ms for result in results)
    saved = sum(result.saved_ms for result in results)
    return [
        f"{count_text(len(results), 'query', 'queries')}: {count_text(uses, 'use')} of sketches, "
        f"{count_text(answers, 'answer')} from materialized results",
        f"skipped {size_text(skipped)} of {size_text(plain_bytes)} "
        f"({skipped / max(plain_bytes, 1):.0%}); saved about {duration_text(saved)}, upkeep took "
        f"{duration_text(upkeep)}",
    ]


def _details(result: GainResult) -> Iterator[str]:
    if result.uses:
        files = result.files_plain - result.files
        rows = result.rows_plain - result.rows
        share = result.bytes_left_out / max(result.bytes_plain, 1)
        yield (
            f"skipped {size_text(result.bytes_left_out)} of {size_text(result.bytes_plain)} "
            f"({share:.0%}), {count_text(files, 'file')}, {count_text(rows, 'row')}, beyond what "
            "the query's own conditions skip"
        )
    if result.kept_answers:
        yield f"its materialized result saved reading about {size_text(result.answers_bytes)}"
    if result.uses > result.used:
        yield f"sketch not used in {count_text(result.uses - result.used, 'use')}"
    upkeep = f"{count_text(result.upkeep_runs, 'run')}, {duration_text(result.upkeep_ms)}"
    is_used = result.uses or result.kept_answers
    saved = f"; saved about {duration_text(result.saved_ms)}" if is_used else ""
    yield f"upkeep: {upkeep}{saved}"
    if result.verdict == COSTS_MORE:
        yield f"costs more than it saves: {result.hint}"
    elif result.verdict == NOT_USED_YET and result.hint:
        yield f"not used: {result.hint}"


# What `gc` removed, as lines of text: one per thing, then their sum. Law: a line starts with what
# happened, so that a dry run reads as what would happen.


def gc_lines(result: GcResult) -> Iterator[str]:
    """Render a line per entry, and one for all."""
    done = "would delete" if result.foreseen else "deleted"
    for entry in result.entries:
        word = done if entry.removed or result.foreseen else "not deleted:"
        yield f"{word} {_what(entry)}, {size_text(entry.bytes)}"
    kept = f"each query keeps its latest {count_text(result.keep, 'sketch version')}"
    if result.entries:
        yield f"{done} {size_text(result.bytes)} in total; {kept}"
    else:
        yield f"nothing to delete; {kept}"


def _what(entry: GcEntry) -> str:
    match entry.kind:
        case "versions":
            return f"{count_text(entry.count, 'old sketch version')} of {entry.name}"
        case "partitions":
            return f"{count_text(entry.count, 'partition')} that no sketch uses"
        case "file":
            return f"unused state: {entry.name}"
        case _:
            return f"files of an interrupted run: {entry.name}"


# The status of a query as a few labelled lines, each with its own kind of news. Law: what to look
# at first comes first; labels are fixed words, so that lines can be searched for.

_LABEL = 9


def status_lines(result: StatusResult, width: int | None) -> list[str]:
    """Render one query."""
    if result.mode == SKETCH_NONE:
        return [plain(f"{result.query}: without a sketch, {SKETCH_NONE_REASON}")]
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
        yield "pending", _pending_line(entry)
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
    texts = []
    if result.uses or not result.kept_answers:
        skipped = size_text(result.bytes_left_out)
        texts.append(f"{count_text(result.uses, 'use')}, {skipped} skipped")
    if result.kept_answers:
        texts.append(_answers_text(result.kept_answers))
    return f"{'; '.join(texts)}; last use {moment_text(last)}"


def _touched(record: TreeRecord, each: float) -> str:
    said = f"{each:,.1f} tuples touched per changed row, in {count_text(record.changes, 'change')}"
    return said if record.expected is None else f"{said}; expected {record.expected:,.1f}"


def _pending_line(entry: PendingEntry) -> str:
    until = entry.since + entry.versions
    head = f"{entry.table}@{entry.since}..{until}: {count_text(entry.versions, 'version')}"
    if entry.files is None:
        return f"{head}, the log no longer has its size"
    size = "" if entry.bytes is None else f", {size_text(entry.bytes)}"
    return f"{head}, {_rows_text(entry.rows)} in {count_text(entry.files, 'file')}{size}"


def _provenance(result: StatusResult) -> str:
    """How provenance of a recursion maintained by absorption is stored."""
    if result.provenance is None:
        return ""
    if result.provenance == "given_up":
        return ", maintained by ranks: provenance was too large"
    return f", provenance stored ({result.provenance})"


def _slack(result: StatusResult) -> str:
    verified = result.verified
    if verified is None:
        return "not yet"
    slack = f"slack {verified.slack}" if verified.sound else "NOT SOUND"
    return f"{slack} at {versions_text(verified.versions)}, {moment_text(verified.at)}"


def _run(run: RunEntry) -> str:
    changes = f", {count_text(run.changes, 'change')}" if run.changes else ""
    why = f": {run.reason}" if run.reason else ""
    took = duration_text(run.elapsed_ms)
    return f"{moment_text(run.at)}  {mode_text(run.action)}{changes}, {took}{why}"


# What derives a row of an answer, and what would go without some rows, as text. Law: what is
# claimed of the rows is said in full words: smallest only where it is proved.

_CLAIMS = {
    "smallest": "a smallest set: fewer rows cannot derive it",
    "minimal": "a minimal set: no row can be removed, but another set may be smaller",
    "group": "all rows of its groups",
}


def why_lines(result: WhyResult) -> list[str]:
    """Render the row, the claim, and a line per source row."""
    rows = count_text(result.row_count, "row")
    head = f"{result.query}: {_row_text(result.row)} is derived from {rows}"
    lines = [f"{entry.table}: {_row_text(entry.row)}" for entry in result.rows]
    left = result.row_count - len(result.rows)
    if left:
        lines.append(f"... and {count_text(left, 'row')} more")
    return [f"{head}, {_CLAIMS[result.claim]}", *lines]


def why_line(result: WhyResult) -> str:
    """What was read to derive a row."""
    versions = versions_text(result.versions, None, result.moments)
    verb = "occurs" if result.lineage == 1 else "occur"
    return (
        f"{result.query}: {count_text(result.lineage, 'row')} {verb} in its derivations; "
        f"{_by(result)} at {versions} in {duration_text(result.elapsed_ms)}"
    )


def without_line(result: WithoutResult) -> str:
    """How many rows would disappear and appear, and without which rows."""
    changes = Counter(result.answer.column("_change").to_pylist())
    deleted, inserted = changes["delete"], changes["insert"]
    versions = versions_text(result.versions, None, result.moments)
    appearing = f", {count_text(inserted, 'row')} would appear" if inserted else ""
    removed = ", ".join(
        f"{count_text(rows, 'row')} of {table}" for table, rows in result.removed.items()
    )
    return (
        f"{result.query}: without {removed}, {count_text(deleted, 'row')} of the result would "
        f"disappear{appearing}; {_by(result)} at {versions} in {duration_text(result.elapsed_ms)}"
    )


def _by(result: WhyResult | WithoutResult) -> str:
    if result.by == STATE:
        return "from the stored provenance"
    return f"the engine read {result.files_kept} of {count_text(result.files_total, 'file')}"


def _row_text(row: Mapping[str, RowValue]) -> str:
    """`n=17, name=abc`, NULL for none."""
    texts = (f"{name}={_value_text(value)}" for name, value in row.items())
    return ", ".join(texts) or "a row without columns"


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
