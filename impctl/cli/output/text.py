"""Results as text for people."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from impctl.cli.output.json import JsonOutput
from impctl.cli.output.measurements import comparison_lines, record_lines, simulated_lines
from impctl.cli.output.protocol import show
from impctl.cli.output.reports import (
    apply_lines,
    capture_lines,
    check_lines,
    check_word,
    cluster_lines,
    due_lines,
    due_word,
    explain_lines,
    finding_lines,
    gain_lines,
    gc_lines,
    plan_lines,
    plan_word,
    rebalance_lines,
    status_lines,
    summed_up,
    total_lines,
    why_line,
    why_lines,
    without_line,
)
from impctl.cli.output.rows import answer_line, changes_line, write_rows
from impctl.cli.output.terminal import has_colour, marked, unmarked, width_for, wrapped
from impctl.cli.output.wording import (
    assumed_text,
    carried_text,
    failure_lines,
    grouped_by_cause,
    left_text,
    mode_text,
    pending_text,
    plain_sql,
    ranges_text,
    results_text,
    sketches_text,
    summary_line,
    used_lines,
    versions_text,
)
from impctl.errors import count_text
from impctl.service.outcome import most_severe
from impctl.service.results import (
    ANSWER_SAME,
    NOT_DUE,
    SKETCH_NONE,
    STATE,
    ApplyResult,
    CaptureResult,
    ChangesResult,
    CheckResult,
    ClusterResult,
    DueResult,
    ExplainResult,
    Failure,
    Finding,
    FollowedRun,
    GainResult,
    GcResult,
    GenerateResult,
    Level,
    MaintainResult,
    Outcome,
    PlanResult,
    QueryResult,
    Record,
    RecordComparison,
    Result,
    RewriteResult,
    SimulateResult,
    StartedResult,
    StatusResult,
    VerifyResult,
    WhyResult,
    WithoutResult,
    WrittenResult,
)
from impctl.service.text import RowsFormat, duration_text, plain

if TYPE_CHECKING:
    from impctl.service.answer import ArrowAnswer


# One line on stdout per run of `maintain --follow`, for people or as JSON. Law: a line is whole
# and flushed before the next run begins; a JSON line is the envelope of `docs/json.md` with the
# run beside it. Warnings and failures stand in the line, not on stderr.


def print_run_json(outcome: Outcome, run: FollowedRun, stdout: TextIO) -> None:
    """Print the run as one JSON document."""
    output = JsonOutput("maintain", stdout, run)
    for result in outcome.results:
        show(output, result)
    output.end(outcome.warnings, outcome.failures, most_severe(outcome))
    stdout.flush()


def print_run_text(outcome: Outcome, run: FollowedRun, stdout: TextIO) -> None:
    """Print the run as one line of text."""
    done = {r.query: r for r in outcome.results if isinstance(r, MaintainResult)}
    parts = [
        f"{result.query} recapture [{result.reason_code}]"
        if result.changes is None
        else f"{result.query} {mode_text(result.action)}, {count_text(result.changes, 'change')}"
        for result in done.values()
    ]
    parts += [
        f"{'run' if failure.query is None else failure.query} failed: {failure.error.message} "
        f"[{failure.error.code}]"
        for failure in outcome.failures
    ]
    parts += [f"warning: {text}" for text in outcome.warnings]
    if run.late_ms:
        parts.append(f"late by {duration_text(run.late_ms)}")
    if run.retry_ms is not None:
        parts.append(f"retry in {duration_text(run.retry_ms)}")
    line = f"{run.started_at} run {run.number}, {duration_text(run.elapsed_ms)}: {'; '.join(parts)}"
    stdout.write(" ".join(plain(line).split()) + "\n")
    stdout.flush()


# Results as text for people: a line per query, then reasons, without colour. Law: results go to
# stdout, what is said about them to stderr; user text is printed as it is, with no markup and no
# control characters. Sentences are as wide as the terminal and whole in a pipe, tables of rows
# have 80 columns there; a command or a statement is never broken.


class TextOutput:
    """Prints each result as it comes."""

    def __init__(
        self,
        stdout: TextIO,
        stderr: TextIO,
        *,
        quiet: bool,
        colour: bool,
        rows_format: RowsFormat = RowsFormat.TABLE,
        escape_formulas: bool = False,
    ) -> None:
        self._stdout = stdout
        self._stderr = stderr
        self._rows_format = rows_format
        self._escape_formulas = escape_formulas
        self._quiet = quiet
        self._colour = colour
        self._shown: Finding | None = None
        self._named: set[str] = set()
        self._words: dict[str, str] = {}
        """A word on each query, for the line that sums up."""
        self._gains: list[GainResult] = []
        self._place = ""
        """The progress of the run, shown after the time of a result."""

    def check(self, result: CheckResult) -> None:
        self._named.add(result.query)
        self._words[result.query] = check_word(result)
        self._lines(check_lines(result, self._width()))

    def capture(self, result: CaptureResult) -> None:
        self._named.add(result.query)
        if result.foreseen:
            self._block(rebalance_lines(result) if result.reason else capture_lines(result))
            return
        if result.mode == SKETCH_NONE:
            self._say(f"{result.query}: without a sketch, {result.reason}{self._place}")
            return
        if result.action == "none":
            self._say(f"{result.query}: not rebalanced, {sketches_text(result.sketches)}")
            self._detail(result.reason)
            return
        done = "rebalanced" if result.action == "rebalance" else "captured"
        self._say(f"{result.query}: {done} {sketches_text(result.sketches)}")
        self._detail(result.reason)
        who, took = ("engine", result.engine_ms) if result.engine_ms else ("Spark", result.spark_ms)
        versions = versions_text(result.versions, None, result.moments)
        self._detail(
            f"{versions}, mode {mode_text(result.mode)}, "
            f"{duration_text(result.elapsed_ms)} ({who} {duration_text(took)}){self._place}"
        )
        for entry in result.left:
            if entry.files_total > 1:
                self._detail(left_text(entry))
        for assumption in result.assumptions:
            self._detail(assumed_text(assumption))

    def apply(self, result: ApplyResult) -> None:
        if result.version is None:
            head, statement = apply_lines(result)
            self._say(head)
            self._whole(statement)
            return
        at = f"version {result.version}"
        if result.already_applied:
            text = f"already applied, {result.table} {at} (repeat it with `--again`)"
        elif not result.inserted + result.deleted + result.updated:
            text = f"no row of {result.table} changed ({at})"
        else:
            text = (
                f"{result.table} {at}, {result.inserted:,} inserted, {result.deleted:,} deleted, "
                f"{result.updated:,} updated"
            )
        self._say(f"{result.name}: {text}")

    def cluster(self, result: ClusterResult) -> None:
        self._block(cluster_lines(result))

    def gain(self, result: GainResult) -> None:
        self._gains.append(result)
        self._block(gain_lines(result))

    def maintain(self, result: MaintainResult) -> None:
        self._named.add(result.query)
        sketch = f"{result.table}.{result.attribute}"
        versions = versions_text(result.versions, result.since, result.moments)
        if not result.table:
            self._say(f"{result.query}: without a sketch, {result.reason}")
            return
        if result.action == "none":
            # Another sketch of the query may have had something to do.
            word = "not due" if result.reason_code == NOT_DUE else "up to date"
            self._words.setdefault(result.query, word)
            self._say(f"{result.query}: {word} at {versions}, {sketch}")
            self._detail(result.reason if result.reason_code == NOT_DUE else "")
            self._drifted(result)
            return
        self._words[result.query] = mode_text(result.action)
        if result.foreseen:
            pending = pending_text(result.changes)
            is_full = result.action == "recapture"
            verb = "recapture" if is_full else f"maintain ({mode_text(result.action)})"
            self._say(f"{result.query}: would {verb} {versions}, {sketch}{pending}")
            self._detail(f"{result.reason} [{result.reason_code}]; the new sketch was not computed")
            return
        self._say(
            f"{result.query}: {mode_text(result.action)} {versions}, {sketch}{_moved(result)}"
        )
        self._detail(
            f"{carried_text(result.changes)} in {duration_text(result.elapsed_ms)} "
            f"(read {duration_text(result.read_ms)}, engine {duration_text(result.engine_ms)}, "
            f"commit {duration_text(result.commit_ms)})"
        )
        self._detail(f"{result.reason} [{result.reason_code}]" if result.reason else "")
        if result.answer_changed == ANSWER_SAME:
            self._detail("the result of the query did not change")
        for step in result.steps if len(result.steps) > 1 else ():
            self._detail(
                f"step {versions_text(step.versions)}: "
                f"{mode_text(step.action)}, {carried_text(step.changes)}, "
                f"+{len(step.added):,} -{len(step.removed):,} ranges, "
                f"{duration_text(step.elapsed_ms)}"
            )
        for path in result.change_files:
            self._detail(f"changes of its result: {path}")
        self._drifted(result)

    def plan(self, result: PlanResult) -> None:
        self._named.add(result.query)
        self._words[result.query] = plan_word(result)
        self._block(plan_lines(result))

    def due(self, result: DueResult) -> None:
        self._named.add(result.query)
        self._words[result.query] = due_word(result)
        self._block(due_lines(result))

    def simulate(self, result: SimulateResult) -> None:
        self._lines(simulated_lines(result, self._width()))

    def _drifted(self, result: MaintainResult) -> None:
        if result.ranges is not None and result.ranges.drifted:
            self._detail(f"{ranges_text(result.ranges)}; {result.ranges.hint}")

    def rewrite(self, result: RewriteResult) -> None:
        """Print the SQL alone on stdout, so that it can be piped, and the rest on stderr."""
        sql = result.sql.rstrip("\n")
        shown = plain_sql(sql) if self._stdout.isatty() else sql
        self._stdout.write(shown + "\n")
        files = f"reads {result.files_kept} of {count_text(result.files_total, 'file')}"
        # Without ranges of a sketch the text is right for any version.
        versions = versions_text(result.versions, None, result.moments)
        only = f", valid only for {versions}" if result.sketches else ""
        self._remark(f"{result.query}: {sketches_text(result.sketches)}, {files}{only}", "")
        if shown != sql:
            self._remark(
                "control characters of the text are shown as escapes; a pipe gets the original text"
            )
        self._used(result)

    def _rows(self, result: ArrowAnswer) -> None:
        write_rows(result, self._rows_format, self._stdout, escape_formulas=self._escape_formulas)

    def query(self, result: QueryResult) -> None:
        self._rows(result)
        self._remark(answer_line(result), "")
        self._used(result)

    def changes(self, result: ChangesResult) -> None:
        self._rows(result)
        self._remark(changes_line(result), "")
        if result.by != STATE:
            self._remark(result.by_reason)

    def why(self, result: WhyResult) -> None:
        self._block(why_lines(result))
        self._remark(why_line(result), "")

    def without(self, result: WithoutResult) -> None:
        self._rows(result)
        self._remark(without_line(result), "")

    def _used(self, result: QueryResult | RewriteResult) -> None:
        for line in used_lines(result):
            self._remark(line)

    def status(self, result: StatusResult) -> None:
        self._lines(status_lines(result, self._width()))

    def explain(self, result: ExplainResult) -> None:
        self._named.add(result.query)
        self._lines(explain_lines(result, self._width()))

    def finding(self, result: Finding) -> None:
        if self._quiet and result.level == Level.OK:
            return
        mark = marked if has_colour(self._stdout, os.environ) else unmarked
        self._lines(finding_lines(result, self._shown, self._width(), mark))
        self._shown = result

    def started(self, result: StartedResult) -> None:
        self._say(f"{result.file}: written")
        for command in result.next_commands:
            self._whole(command)

    def verify(self, result: VerifyResult) -> None:
        self._named.add(result.query)
        sound = "sound" if result.is_sound else "NOT SOUND"
        versions = versions_text(result.versions, None, result.moments)
        self._say(
            f"{result.query}: {sound}, {result.table}.{result.attribute} slack {result.slack} "
            f"at {versions}{results_text(result)}"
        )
        if result.missing:
            total = count_text(result.total + (result.total in result.missing), "range")
            self._detail(f"the sketch lacks {len(result.missing):,} of {total}")
        if result.extra:
            extra = count_text(len(result.extra), "range")
            self._detail(f"the sketch has {extra} more than needed")

    def generate(self, result: GenerateResult) -> None:
        rows = count_text(result.rows, "row")
        self._say(f"{result.table}: {rows}, version {result.version}, {result.path}")

    def record(self, result: Record) -> None:
        self._lines([plain(line) for line in record_lines(result)])

    def comparison(self, result: RecordComparison) -> None:
        for line in comparison_lines(result):
            self._say(line)

    def written(self, result: WrittenResult) -> None:
        self._note(f"{result.kind}: {result.path}")

    def gc(self, result: GcResult) -> None:
        for line in gc_lines(result):
            self._say(line)

    def finished(self, result: Result, place: str) -> bool:
        self._place = f"; {place}" if place else ""
        show(self, result)
        self._place = ""
        return True

    def document(self, text: str) -> None:
        self._stdout.write(text.rstrip("\n") + "\n")

    def end(
        self,
        warnings: tuple[str, ...],
        failures: tuple[Failure, ...],
        decisive: Failure | None,
        note: str = "",
    ) -> None:
        """Print the note and warnings (unless quiet) and every failure on stderr."""
        if len(self._gains) > 1:
            self._block(total_lines(self._gains))
        self._stdout.flush()
        if note:
            self._note(note)
        head = self._marked("warning", "33")
        for warning in grouped_by_cause(warnings):
            for line in _wrapped(f"{head}: {plain(warning)}", self._stderr):
                self._note(line, is_plain=True)
        for text in failure_lines(failures, self._marked):
            for line in _wrapped(text, self._stderr):
                self._stderr.write(line + "\n")
        self._summary(failures)

    def _summary(self, failures: tuple[Failure, ...]) -> None:
        """Sum up the queries of a run, and those that failed, if it had several."""
        if len(self._words) > 1:
            self._note(summed_up(list(self._words.values())))
        failed = dict.fromkeys(f.query for f in failures if f.query is not None)
        done = self._named - failed.keys()
        if failed and len(failed) + len(done) > 1:
            self._stderr.write(summary_line(list(failed), len(failed) + len(done)) + "\n")

    def _width(self) -> int | None:
        return width_for(os.environ, self._stdout)

    def _lines(self, lines: list[str]) -> None:
        self._stdout.write("".join(f"{line}\n" for line in lines))

    def _say(self, line: str) -> None:
        self._lines(_wrapped(plain(line), self._stdout))

    def _block(self, lines: Sequence[str]) -> None:
        self._say(lines[0])
        for line in lines[1:]:
            self._detail(line)

    def _detail(self, line: str) -> None:
        if line:
            self._lines(_broken(line, "  ", self._stdout))

    def _whole(self, text: str) -> None:
        """Print a command or statement on a line of its own: wrapped, it could not be copied."""
        self._lines([plain("  " + text)])

    def _note(self, line: str, *, is_plain: bool = False) -> None:
        if not self._quiet:
            self._stderr.write((line if is_plain else plain(line)) + "\n")

    def _remark(self, line: str, indent: str = "  ") -> None:
        for part in _broken(line, indent, self._stderr):
            self._note(part, is_plain=True)

    def _marked(self, word: str, colour: str) -> str:
        return marked(word, colour) if self._colour else word


def _wrapped(text: str, stream: TextIO) -> list[str]:
    """Wrap text without control characters; further lines are indented more."""
    indent = text[: len(text) - len(text.lstrip(" "))]
    return wrapped(text[len(indent) :], width_for(os.environ, stream), indent, indent + "  ")


def _broken(line: str, indent: str, stream: TextIO) -> list[str]:
    """Wrap a sentence after `indent`; further lines are indented more."""
    return wrapped(plain(line), width_for(os.environ, stream), indent, indent + "  ")


def _moved(result: MaintainResult) -> str:
    """The ranges added and removed, such as `+3 -1 ranges`."""
    counts = ((len(result.added), "+"), (len(result.removed), "-"))
    moved = [f"{sign}{count:,}" for count, sign in counts if count]
    if not moved:
        return " unchanged"
    noun = "range" if len(result.removed or result.added) == 1 else "ranges"
    return f" {' '.join(moved)} {noun}"
