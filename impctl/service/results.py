"""Results of commands as frozen records: all that the command line and Python show.

Law: a record declares a result. Its fields, in order, are the keys of the JSON document, and they
change only with `SCHEMA_VERSION`; in the document, rows replace an Arrow table. Durations are
milliseconds and times UTC. Ranges are numbers from 0 to `total` - 1, and `total` itself is the
range of NULL. What is unknown is None, never a guess. `moments` are the values of a query's clock
constants. A dry run sets `dry_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.bench.record import Record as Record
from impctl.bench.record import RecordComparison as RecordComparison
from impctl.bench.record import RecordKind as RecordKind
from impctl.errors import (
    INTERRUPTED,
    EvaluationError,
    ImpctlError,
    Location,
    ProblemsFoundError,
    UnsoundSketchError,
    UsageError,
    with_limit,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.compile.jointree import shape

SCHEMA_VERSION = 1

SKETCH_NONE = "sketch_none"
"""The reason code and mode of a query with `sketch: none`; a sketch stored before stays."""
SKETCH_NONE_REASON = "the workload file sets `sketch: none`"
NOT_DUE = "not_due"
"""The reason code of a stale query that `maintain --due` postpones."""
REFUSED = "refused"
"""The action of a query that can have no sketch."""
NOT_USED = "not_used"
"""The action of a query that is read without a sketch on request."""
NO_SKETCH = "no_sketch"
"""The action of a query that has no usable sketch."""
VERIFY = "verify"
"""The action of a recorded verification: `added` is the slack, `removed` the missing ranges."""
WHOLE_TABLES = frozenset({"capture", "recapture", VERIFY})
"""Actions that read whole tables, not their changes."""
VERIFIED = "verified"
"""The reason code of a verification that found nothing wrong."""
ENGINE, SPARK = "engine", "Spark"
STATE = "state"
"""`by` of an answer from stored rows."""
ANSWER_SAME, ANSWER_OPEN = "no", "maybe"
"""Whether the result of a query has changed, as far as maintaining its sketch shows."""
PAYS, COSTS_MORE, NOT_USED_YET = "pays", "costs_more", "not_used"
ANSWERS = "answers"
"""Verdict: the materialized result was read, and saved less than its maintenance so far."""


# The rows of an answer as one Arrow table, and the forms in which programs take them.
# Law: the table keeps the engine's types, order and duplicate names. Python values are made on
# request only, and showing the table never changes it.

RowValue = bool | int | float | str | Decimal | date | datetime | bytes | None
"""A value of a result row; lists and structs are lists and dictionaries."""


def rows_of(table: pa.Table) -> tuple[tuple[RowValue, ...], ...]:
    try:
        columns = [column.to_pylist() for column in table.columns]
    except (OverflowError, ValueError) as error:
        raise EvaluationError(
            "A date or time of the result is before year 1 or after year 9999, which "
            "Python does not support",
            hint="get the result as Arrow (`to_arrow`) or as text (`impctl query --format csv`)",
            code="beyond_python",
        ) from error
    return tuple(zip(*columns, strict=True)) if columns else ()


class ArrowAnswer(Struct, frozen=True, kw_only=True, dict=True):
    """An answer that DuckDB, Polars and pandas read through its Arrow stream. `limit`: how many
    rows are shown or written, None for all; `written`: the file they are in."""

    answer: pa.Table
    limit: int | None = None
    written: str | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.row_count} rows of {', '.join(self.columns)}>"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.answer.column_names)

    @cached_property
    def rows(self) -> tuple[tuple[RowValue, ...], ...]:
        """Return all rows as Python values; EvaluationError for a year that Python lacks."""
        return rows_of(self.answer)

    @property
    def row_count(self) -> int:
        return int(self.answer.num_rows)

    @property
    def shown(self) -> pa.Table:
        if self.limit is None or self.limit >= len(self.answer):
            return self.answer
        return self.answer.slice(0, self.limit)

    def to_arrow(self) -> pa.Table:
        return self.answer

    def to_pandas(self) -> Any:
        if find_spec("pandas") is None:
            raise UsageError(
                "The result cannot be converted to pandas, which is not installed",
                hint="run `pip install pandas`, or get the result with `to_arrow`",
                code="pandas_missing",
            )
        return self.answer.to_pandas()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.answer.__arrow_c_stream__(requested_schema)


# Parts of several results.


class SketchEntry(Struct, frozen=True):
    """The ranges in a sketch, of `total` ranges."""

    table: str
    attribute: str
    ranges: tuple[int, ...]
    total: int


class RangesEntry(Struct, frozen=True, kw_only=True):
    """How evenly the ranges of a sketch are filled, without NULL rows. `imbalance` is the largest
    range over the mean, 0 without rows; `at_capture` is that when the ranges were chosen. `drifted`
    ranges exceed the run's threshold; `hint` says what to do."""

    table: str
    attribute: str
    ranges: int
    rows: int
    largest: int
    imbalance: float
    at_capture: float
    drifted: bool
    hint: str | None = None


class ExpectedReading(Struct, frozen=True, kw_only=True):
    """Expected reads of a table through a sketch of an attribute, from a sample of files. `files`
    lie between `files_low` and `files_high` nine times out of ten. `upkeep` is the stored state in
    bytes, which every run of `maintain` reads. `is_measured`: by a capture that stored nothing."""

    files: int
    files_low: int
    files_high: int
    files_total: int
    rows: int
    bytes: int
    upkeep: int = 0
    is_measured: bool = False


class CandidateEntry(Struct, frozen=True):
    """A candidate attribute of a sketch: safe or not, chosen or not, and why. `expected` is None if
    there was no choice or no estimate. `occurrence` is the alias, else the number, of one of
    several places where the query reads the table."""

    table: str
    attribute: str
    safe: bool
    chosen: bool
    reason: str
    expected: ExpectedReading | None = None
    occurrence: str = ""


class AnswerEntry(Struct, frozen=True):
    """Whether a query's result is materialized (`kept`); `reason` says why not. A row takes about
    `row_bytes`, 0 if a join tree provides it; there are `most_rows` except for ties, None without a
    LIMIT. `state_bytes` is the stored size, None if the query is not captured in this form."""

    kept: bool
    reason: str
    columns: tuple[str, ...] = ()
    row_bytes: int = 0
    most_rows: int | None = None
    state_bytes: int | None = None


class AnsweredEntry(Struct, frozen=True):
    """What answers a query by default: `state`, `engine` or `spark`, and why. Times of engine and
    Spark are estimates in milliseconds; None if one of them cannot."""

    by: str
    reason: str
    engine_ms: int | None = None
    spark_ms: int | None = None


class TreeWork(Struct, frozen=True):
    """What join trees did in a run: `touched` tuples, `flips` of their liveness, reported `pairs`
    of tuple and range."""

    touched: int
    flips: int
    pairs: int

    @property
    def text(self) -> str:
        """The work in a run's reason."""
        return f"trees: {self.touched:,} tuples touched, {self.flips:,} flips, {self.pairs:,} pairs"


# `check`, `explain` and `doctor`.


class CheckResult(Struct, frozen=True):
    """Whether a query can have a sketch; `mode` is how it would be maintained. If it can have none,
    `hint` says what to do and `place` where the obstacle is in the file. `answer` says whether its
    result would be materialized, None if not requested; `answered` what answers it."""

    query: str
    supported: bool = False
    mode: str | None = SKETCH_NONE
    reason: str = SKETCH_NONE_REASON
    candidates: tuple[CandidateEntry, ...] = ()
    hint: str | None = None
    answer: AnswerEntry | None = None
    place: Location | None = None
    answered: AnsweredEntry | None = None


class PlanEntry(Struct, frozen=True, kw_only=True):
    """A line of the plan tree: `how` an operator is maintained, why, and its position.
    `state_bytes` is its stored state, None without any; `pushed` is what is applied early at a scan
    or to a change: columns, conditions, the sketch's ranges, files."""

    depth: int
    operator: str
    detail: str
    how: str = ""
    why: str = ""
    place: Location | None = None
    state_bytes: int | None = None
    pushed: tuple[str, ...] = ()


class JoinSideEntry(Struct, frozen=True):
    """How one side of a join finds partners: `index` stores its rows, `files` and `spark` read
    them; `mode` is *rebuilt* if all rows are read, because no key narrows them. `rows` and `bytes`
    are upper bounds of the index."""

    side: str
    tables: tuple[str, ...]
    strategy: str
    mode: str
    reason: str
    rows: int | None
    bytes: int | None


class GroupsEntry(Struct, frozen=True):
    """The groups of a grouping or DISTINCT over these tables: *kept*, *read* from files when they
    change, or *rebuilt* from all rows if no key narrows them; and why. Without tables, the input
    rows are computed."""

    name: str
    tables: tuple[str, ...]
    mode: str
    reason: str


class BuffersEntry(Struct, frozen=True):
    """First rows over these tables, or values of MIN and MAX: all *kept*, or *bounded* to the best
    `buffer` of each group; and why. `chosen`: a budget or `state: least` bounds them; `state_bytes`
    is their stored size, None if the query is not captured in this form."""

    name: str
    tables: tuple[str, ...]
    mode: str
    buffer: int | None
    chosen: bool
    reason: str
    state_bytes: int | None = None


class TreeResultEntry(Struct, frozen=True):
    """Joins that are `used` as a tree, that could be one, or why they cannot. `mode` is `ring` if
    counts and sums decide, else `bits`; `height` counts edges. `nodes` has the root first; `drawn`
    shows them as lines. Estimated means, with indexes and with the tree: `joined` rows or `touched`
    tuples per changed row, milliseconds of a step of a thousand changed rows, and bytes of
    state."""

    used: bool
    reason: str
    place: Location | None = None
    mode: str = ""
    height: int = 0
    nodes: tuple[shape.TreeNodeEntry, ...] = ()
    drawn: tuple[str, ...] = ()
    joined: float | None = None
    touched: float | None = None
    index_ms: float | None = None
    tree_ms: float | None = None
    index_bytes: int | None = None
    tree_bytes: int | None = None


class ExplainResult(Struct, frozen=True, kw_only=True):
    """Whether a query can be sketched and maintained, and the obstacles. `state_bytes` is all that
    is stored for it, including range counts outside operators; None if it is not captured in its
    present form. `answer` is set if the result is to be materialized, `provenance` if recursion is
    to be kept by absorption: how it is, or `given_up`. `answered` says what answers it."""

    query: str
    mode: str
    reason: str
    policy: str
    plan: tuple[PlanEntry, ...]
    attributes: tuple[CandidateEntry, ...]
    joins: tuple[JoinSideEntry, ...] = ()
    groups: tuple[GroupsEntry, ...] = ()
    buffers: tuple[BuffersEntry, ...] = ()
    trees: tuple[TreeResultEntry, ...] = ()
    state_bytes: int | None = None
    answer: AnswerEntry | None = None
    provenance: str | None = None
    answered: AnsweredEntry | None = None


class Level(StrEnum):
    """How severe a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Area(StrEnum):
    """What a finding is about, in the order of the report."""

    SOFTWARE = "software"
    SPARK = "spark"
    TABLE = "table"
    STORE = "store"


class Finding(Struct, frozen=True):
    """A finding of `doctor`; `check` is its stable name, `subject` the table or query. `fix` says
    what to do, except for good findings. A problem has the `exit_code` of a command that it makes
    fail, a warning 0."""

    area: Area
    subject: str
    check: str
    level: Level
    message: str
    fix: str | None = None
    exit_code: int = 0


# `init`, `capture`, `apply`, `cluster`, `gc` and `bench`.


class StartedResult(Struct, frozen=True):
    """The workload file that `init` wrote, its tables and queries, and the next command."""

    file: str
    tables: tuple[str, ...]
    queries: tuple[str, ...]
    next_commands: tuple[str, ...]


class ReadEntry(Struct, frozen=True):
    """What would be read of a table; `rows` is None if its log does not count them."""

    table: str
    version: int
    rows: int | None
    files: int
    bytes: int


class LeftEntry(Struct, frozen=True, kw_only=True):
    """What a query reads of a table through its sketch and conditions. `expected` is the estimate
    when the attribute was chosen."""

    table: str
    files: int
    files_total: int
    bytes: int
    bytes_total: int
    expected: ExpectedReading | None = None


class CaptureResult(Struct, frozen=True, kw_only=True):
    """A captured sketch; `action` is capture, rebalance, or none (a dry run, or nothing to do).
    `spark_ms` is 0 if the engine captured alone. After a rebalance, `reason` describes ranges and
    state. A dry run says what would capture it (`by`), what it would read, and what is `stored`
    now: none, stale or current (of ranges: uneven or even)."""

    query: str
    action: str = "none"
    sketches: tuple[SketchEntry, ...] = ()
    versions: Mapping[str, int] = field(default_factory=dict)
    mode: str = SKETCH_NONE
    elapsed_ms: float = 0.0
    spark_ms: float = 0.0
    engine_ms: float = 0.0
    considered: tuple[CandidateEntry, ...] = ()
    left: tuple[LeftEntry, ...] = ()
    assumptions: tuple[str, ...] = ()
    reason: str = ""
    dry_run: bool = False
    by: str | None = None
    reads: tuple[ReadEntry, ...] = ()
    stored: str | None = None
    moments: Mapping[str, str] = field(default_factory=dict)


class ApplyResult(Struct, frozen=True, kw_only=True):
    """One update batch; `version` is the one it committed, None if it committed nothing. With
    `already_applied`, an earlier run committed it. A dry run has the `planned_version` that its
    `statement` would commit, and the rows of an insert; a delete or update that matches no row
    commits no version."""

    name: str
    table: str
    version: int | None = None
    inserted: int = 0
    deleted: int = 0
    updated: int = 0
    statement: str = ""
    planned_version: int | None = None
    already_applied: bool = False


class ClusteredSketch(Struct, frozen=True, kw_only=True):
    """Files and bytes that one query reads of the table through its sketch and conditions.
    `files_after` and `bytes_after` are None if nothing was written."""

    query: str
    attribute: str
    files: int
    bytes: int
    files_expected: int
    bytes_expected: int
    files_after: int | None = None
    bytes_after: int | None = None


class ClusterResult(Struct, frozen=True, kw_only=True):
    """One table: `action` is cluster, or none (a dry run, or nothing to gain: see `reason`).
    `bytes` is the size of the table's files, all of which are rewritten."""

    table: str
    action: str
    by: tuple[str, ...]
    reason: str
    files: int
    bytes: int = 0
    files_after: int | None = None
    version: int | None = None
    elapsed_ms: float = 0.0
    sketches: tuple[ClusteredSketch, ...] = ()
    dry_run: bool = False

    @property
    def losers(self) -> tuple[ClusteredSketch, ...]:
        """Sketches expected to read more than now."""
        return tuple(s for s in self.sketches if s.bytes_expected > s.bytes)

    @property
    def winners(self) -> tuple[ClusteredSketch, ...]:
        """Sketches expected to read less."""
        return tuple(s for s in self.sketches if s.bytes_expected < s.bytes)


class GcEntry(Struct, frozen=True):
    """Something that is no longer needed. `kind` is versions (old sketch versions of query `name`),
    partitions (used by no sketch), file (unreferenced state) or folder (scratch of a killed run),
    where `name` is the path. `bytes` is what its removal frees."""

    kind: str
    name: str
    count: int
    bytes: int
    removed: bool


class GcResult(Struct, frozen=True):
    """What was removed from the store and beside the tables; with `dry_run` it still exists."""

    store: str
    keep: int
    entries: tuple[GcEntry, ...]
    bytes: int
    dry_run: bool = False


class GenerateResult(Struct, frozen=True):
    """A table written for the demo or a benchmark."""

    table: str
    path: str
    rows: int
    version: int


class WrittenResult(Struct, frozen=True):
    """A file written beside the result: `kind` is record or report."""

    kind: str
    path: str


# `maintain`, `plan` and `simulate`.


class MaintainStep(Struct, frozen=True):
    """The versions and cost of one step of a run."""

    action: str
    versions: Mapping[str, int]
    added: tuple[int, ...]
    removed: tuple[int, ...]
    changes: int | None
    elapsed_ms: float
    answer_changed: str | None = None


class MaintainResult(Struct, frozen=True, kw_only=True):
    """One maintained sketch of `total` ranges; `action` is exact, touch, recapture or none. Without
    a sketch, `table` and `attribute` are empty. `since` are the versions before the run, `versions`
    those after it; `steps` has an entry per version if the query is maintained eagerly. In a dry
    run the action is the planned one, and no sketch was computed. `changes` are the changed rows
    processed; None for a recapture, which reads tables. `ranges` is None if not counted.
    `refilled_groups` counts groups whose bounded buffer was refilled, from `refilled_rows` rows of
    the table. `answer_changed` is `no` if the result is surely unchanged, else `maybe`; None in a
    dry run. `change_files` are the files of the result's changes, one per step (`--changes`)."""

    query: str
    table: str = ""
    attribute: str = ""
    total: int = 0
    action: str = "none"
    reason_code: str = SKETCH_NONE
    reason: str = SKETCH_NONE_REASON
    since: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    changes: int | None = 0
    elapsed_ms: float = 0.0
    read_ms: float = 0.0
    engine_ms: float = 0.0
    commit_ms: float = 0.0
    steps: tuple[MaintainStep, ...] = ()
    dry_run: bool = False
    ranges: RangesEntry | None = None
    refilled_groups: int = 0
    refilled_rows: int = 0
    tree: TreeWork | None = None
    answer_changed: str | None = None
    moments: Mapping[str, str] = field(default_factory=dict)
    change_files: tuple[str, ...] = ()


class FollowedRun(Struct, frozen=True):
    """One run of `maintain --follow`, shown beside its outcome; `started_at` is ISO 8601 in UTC.
    `retry_ms` is the pause until the first query with a temporary failure is retried. `late_ms` is
    the largest excess over a bound of its queries, 0 without excess; None without bounds."""

    number: int
    started_at: str
    elapsed_ms: float
    exit_code: int
    retry_ms: float | None = None
    late_ms: float | None = None


class DueResult(Struct, frozen=True, kw_only=True):
    """When a query is maintained next, and why. `due`: a run would start for it now. `due_at` is
    the time from its `trigger` (a commit, a moment, the end of a bound), `due_by` the deadline,
    `start_at` the start of a run for it; None if it never occurs by itself. `rows` are pending,
    None if a log does not count them; `cost_ms` is the estimated time, None without a recorded run,
    and `margin` its error factor."""

    query: str
    trigger: str
    due: bool
    why: str
    due_at: datetime | None
    due_by: datetime | None
    start_at: datetime | None
    pending: bool
    rows: int | None
    oldest_at: datetime | None
    cost_ms: float | None
    margin: float


class PlannedChange(Struct, frozen=True):
    """A change of a table that is missing from the sketch; None if its log does not show it."""

    table: str
    since: int
    until: int
    rows: int | None
    files: int | None
    bytes: int | None


class NextChange(Struct, frozen=True, kw_only=True):
    """The next change of a query's tables, in seconds from now, with 80% intervals. `by` and
    `rows_by` name the evidence for time and rows. `unknown` says why all values are None, if they
    are."""

    tables: tuple[str, ...] = ()
    in_s: float | None = None
    in_s_low: float | None = None
    in_s_high: float | None = None
    rows: float | None = None
    rows_low: float | None = None
    rows_high: float | None = None
    by: str | None = None
    rows_by: str | None = None
    unknown: str | None = None


class PlannedPiece(Struct, frozen=True):
    """A piece of state under a budget: the chosen `mode`, the present one (`now`), bytes in the
    chosen mode and when stored in full, and why. `buffer` is how many of the best rows or values
    per group are stored where it is bounded."""

    name: str
    mode: str
    now: str
    bytes: int
    kept_bytes: int
    reason: str
    buffer: int | None = None


class PlanResult(Struct, frozen=True, kw_only=True):
    """What `maintain` would do with a query now, under its policy. `action` is exact, touch,
    recapture, none, capture (no sketch to maintain), or refused if it can have none (`hint` says
    what to do); `by` is what would compute it. Estimates are None without a recorded run.
    `next_change` is None without a sketch to maintain, `due` also if maintained at each commit.
    `state` has the pieces of state chosen under a budget; `next_expiry` is as in `status`."""

    query: str
    action: str = "none"
    by: str | None = None
    reason_code: str = SKETCH_NONE
    reason: str = SKETCH_NONE_REASON
    policy: str
    since: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    pending: tuple[PlannedChange, ...] = ()
    maintain_ms: float | None = None
    maintain_runs: int = 0
    recapture_ms: float | None = None
    recapture_runs: int = 0
    hint: str | None = None
    next_change: NextChange | None = None
    due: DueResult | None = None
    state: tuple[PlannedPiece, ...] = ()
    next_expiry: str | None = None


class SimulatedSetting(Struct, frozen=True, kw_only=True):
    """A budget with a trigger, and its figures over the replayed time. `disk_bytes` None stores all
    state, `trigger` None uses those of the queries. `steps` are queries maintained, `work_ms` their
    time; ages are of the oldest change in a step at its end: median, 99th percentile and maximum.
    `late` steps end after their bound. `reads` are expected reads of sides from files,
    `conversions` queries whose state changes its mode."""

    setting: str
    present: bool
    disk_bytes: int | None
    trigger: str | None
    runs: int
    steps: int
    work_ms: float
    age_s: float | None
    age_99_s: float | None
    age_worst_s: float | None
    late: int
    state_bytes: int
    over_budget: bool
    reads: float
    conversions: int


class RecordedRuns(Struct, frozen=True, kw_only=True):
    """Recorded runs from `since` on, compared with the model of the same time. Shares are the
    model's error: 0.1 is a tenth too much."""

    since: datetime
    runs: int
    steps: int
    work_ms: float
    model_runs: int
    model_steps: int
    model_work_ms: float
    runs_off: float
    steps_off: float
    work_off: float | None


class SimulateResult(Struct, frozen=True, kw_only=True):
    """What was replayed, and the figures of each setting, the present one first. `commits` are by
    table; `costs_by` is the source of a query's costs: `runs`, its `capture`, or `priors`.
    `recorded` is None without recorded runs."""

    source: str
    since: datetime
    until: datetime
    look_s: float
    commits: Mapping[str, int]
    rows: int
    costs_by: Mapping[str, str]
    settings: tuple[SimulatedSetting, ...]
    recorded: RecordedRuns | None = None


# `query`, `rewrite`, `changes`, `why` and data frames.


class ReuseCandidate(Struct, frozen=True):
    """A stored sketch, why it is used or not, and the `rows` of the files it keeps."""

    query: str
    allowed: bool
    chosen: bool
    reason: str
    sketches: tuple[SketchEntry, ...] = ()
    rows: int | None = None


class ReuseEntry(Struct, frozen=True):
    """The query whose sketch was used for another query, None for none, and why."""

    query: str | None
    reason: str
    candidates: tuple[ReuseCandidate, ...]


class RewriteResult(Struct, frozen=True, kw_only=True):
    """The query with its range predicates; `intervals` has their texts. `action`: how the sketch
    was maintained; `reuse` is set for a query with other constants. `unused_sketches`: why a table
    is read without its sketch. `runs_on_spark` is false for some queries that impctl supports."""

    query: str
    sql: str
    sketches: tuple[SketchEntry, ...]
    versions: Mapping[str, int]
    files_kept: int
    files_total: int
    intervals: tuple[str, ...]
    action: str = "none"
    reason: str = ""
    reuse: ReuseEntry | None = None
    unused_sketches: Mapping[str, str] = field(default_factory=dict)
    moments: Mapping[str, str] = field(default_factory=dict)
    runs_on_spark: bool = True


class QueryResult(ArrowAnswer, frozen=True, kw_only=True):
    """The result; `action`, `reuse` and `unused_sketches` are as for `rewrite`. `elapsed_ms` is the
    query alone, after `spark_start_ms`, which is 0 if Spark was running. `by`: what answered, and
    why (`by_reason`); by state, no file was read. `quicker`: what would have been faster."""

    query: str
    versions: Mapping[str, int]
    files_kept: int
    files_total: int
    elapsed_ms: float
    action: str = "none"
    reason: str = ""
    reuse: ReuseEntry | None = None
    spark_start_ms: float = 0.0
    unused_sketches: Mapping[str, str] = field(default_factory=dict)
    moments: Mapping[str, str] = field(default_factory=dict)
    by: str = "spark"
    by_reason: str = ""
    quicker: str = ""


class ChangesResult(ArrowAnswer, frozen=True, kw_only=True):
    """Rows inserted and deleted between versions; `since` is empty for a whole result. `by`: state
    (stored rows were maintained) or engine (results were compared); `by_reason` says why."""

    query: str
    since: Mapping[str, int]
    versions: Mapping[str, int]
    elapsed_ms: float = 0.0
    by: str
    by_reason: str = ""
    moments: Mapping[str, str] = field(default_factory=dict)


class WhyEntry(Struct, frozen=True):
    """A row of a table, by the columns that the query reads."""

    table: str
    row: Mapping[str, RowValue]


class WhyResult(Struct, frozen=True, kw_only=True):
    """Rows of tables that together derive a row of the result: the first `limit` of `row_count`.
    `claim`: smallest (no fewer rows derive it), minimal (no subset does), or group (all rows of its
    groups). `lineage`: the number of rows in any derivation. `by`: engine (read tables) or
    state."""

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


class WithoutResult(ArrowAnswer, frozen=True, kw_only=True):
    """Rows of the result that are inserted or deleted without the rows that satisfy a condition,
    with `_change` and `_copies`. `without`: the conditions by table; `removed`: how many rows
    satisfy them, of those read, or if `by` is state of those in the state."""

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


class TableFiles(Struct, frozen=True, kw_only=True):
    """What to read of one table; `path` is its folder or URI. `listing` has a row per file: `file`
    (absolute path or URI), `size`, `rows` (deleted ones too, NULL if not in the log), `deleted`
    (positions of deleted rows from 0, NULL for none), and for a partitioned table
    `partition_values`, a struct of typed values. `predicate` is SQL that DuckDB and Polars read,
    times in UTC; None for all rows. `names_in_files` is empty unless the table maps column names:
    then it has each column's name in the files, by its name in predicate and query.

    The rows of the table are those of the files without deleted ones, with the values of partition
    columns added, that satisfy the predicate. Over these rows the query gives its result; without
    the predicate it would see incomplete groups."""

    table: str
    path: str
    version: int
    files_total: int
    listing: pa.Table
    predicate: str | None
    names_in_files: Mapping[str, str]

    @property
    def files(self) -> tuple[str, ...]:
        """The files to read, in the order of the log."""
        return tuple(self.listing.column("file").to_pylist())

    @property
    def deleted(self) -> dict[str, pa.Array]:
        """Positions of deleted rows, by file; no file without any."""
        pairs = zip(self.files, self.listing.column("deleted"), strict=True)
        return {file: positions.values for file, positions in pairs if positions.is_valid}

    @property
    def deleted_rows(self) -> pa.Table:
        """The same as a table of `file` and `position`, for an anti-join."""
        import pyarrow as pa

        deleted = self.deleted
        files = [file for file, positions in deleted.items() for _ in range(len(positions))]
        positions = pa.chunked_array(list(deleted.values()), pa.int64())
        return pa.table({"file": pa.array(files, pa.string()), "position": positions})

    @property
    def partition_values(self) -> dict[str, dict[str, RowValue]]:
        """Values of the partition columns, by file; empty for an unpartitioned table."""
        if "partition_values" not in self.listing.column_names:
            return {file: {} for file in self.files}
        values = self.listing.column("partition_values").to_pylist()
        return dict(zip(self.files, values, strict=True))


class QueryFiles(Struct, frozen=True, kw_only=True):
    """The data files that a query needs of each table, for engines that read Parquet themselves;
    `action`, `reuse` and the like as for `rewrite`. `sql` is the query in Spark SQL with parameter
    values; ranges are the tables' predicates."""

    query: str
    sql: str
    tables: Mapping[str, TableFiles]
    action: str = "none"
    reason: str = ""
    reuse: ReuseEntry | None = None
    unused_sketches: Mapping[str, str] = field(default_factory=dict)
    moments: Mapping[str, str] = field(default_factory=dict)

    @property
    def versions(self) -> dict[str, int]:
        """The version of each table."""
        return {name: table.version for name, table in self.tables.items()}


# `status`, `gain` and `verify`.


class PendingEntry(Struct, frozen=True):
    """Commits to a table since the sketch's version, by the log. `rows` are those that maintenance
    reads: updated rows count twice, and so do all rows of a file that was rewritten without a
    change feed and without counts by the writer."""

    table: str
    since: int
    versions: int
    files: int | None
    rows: int | None
    bytes: int | None


class RunEntry(Struct, frozen=True):
    """A run; `at` is its start, `changes` the changed rows, None if it read whole tables."""

    action: str
    reason_code: str
    reason: str
    at: datetime
    elapsed_ms: float
    changes: int | None
    versions: Mapping[str, int]


class VerifiedEntry(Struct, frozen=True):
    """The last recorded verification: result, time and versions."""

    sound: bool
    slack: int
    at: datetime
    versions: Mapping[str, int]


class TreeRecord(Struct, frozen=True):
    """Work of a query's trees for all `changes` since the capture. `expected`: tuples touched per
    changed row, estimated at capture; None if the trees were requested."""

    changes: int
    touched: int
    flips: int
    pairs: int
    expected: float | None

    @property
    def touched_each(self) -> float | None:
        """Tuples touched per changed row; None without changes."""
        return self.touched / self.changes if self.changes else None


class FreshEntry(Struct, frozen=True):
    """Age in seconds of the oldest change missing from a sketch; 0 without any. `bound_s` is what
    `fresh_within` allows, None without it; `late`: it is exceeded."""

    bound_s: float | None
    age_s: float
    late: bool


class StatusResult(Struct, frozen=True, kw_only=True):
    """What the store has of a query; without `versions` it was never captured. `pending_versions`
    counts the table versions committed since, `pending` has their changes; `runs` are the latest,
    newest first; `verified` is None if the sketch was never verified. `materialized_reads` counts
    reads of a present or former materialized result. `provenance` is as in `explain`. `fresh` is
    None without a sketch, `trigger` is as written in the file. No row expires before `next_expiry`,
    an instant or `never`; None if none can."""

    query: str
    sketches: tuple[SketchEntry, ...] = ()
    versions: Mapping[str, int] = field(default_factory=dict)
    pending_versions: Mapping[str, int] = field(default_factory=dict)
    stale: bool = False
    mode: str | None = SKETCH_NONE
    policy: str
    state_bytes: int = 0
    last_action: str | None = None
    last_reason: str | None = None
    stale_reason: str | None = None
    ranges: tuple[RangesEntry, ...] = ()
    sketch_bytes: int = 0
    pending: tuple[PendingEntry, ...] = ()
    runs: tuple[RunEntry, ...] = ()
    verified: VerifiedEntry | None = None
    uses: int = 0
    last_use: datetime | None = None
    bytes_skipped: int = 0
    tree: TreeRecord | None = None
    moments: Mapping[str, str] = field(default_factory=dict)
    materialized: bool = False
    materialized_reads: int = 0
    provenance: str | None = None
    fresh: FreshEntry | None = None
    trigger: str | None = None
    next_expiry: str | None = None


class GainResult(Struct, frozen=True, kw_only=True):
    """Uses of one query's sketches since a moment, and the runs that maintained them. `files`,
    `rows` and `bytes` were read, `..._plain` would have been by the query's conditions alone; of
    `uses`, `used` used a sketch. `materialized_reads` counts reads of the materialized
    result, which read no file; they are no uses, but `last_use` covers both. `answers_bytes` is
    what they would read of the present tables. `upkeep_ms` is the time of captures and maintenance.
    `saved_ms` is an estimate: all bytes skipped, at Spark's read rate."""

    query: str
    since: datetime | None
    uses: int
    used: int
    last_use: datetime | None
    files: int
    files_plain: int
    rows: int
    rows_plain: int
    bytes: int
    bytes_plain: int
    query_ms: float
    upkeep_runs: int
    upkeep_ms: float
    saved_ms: float
    verdict: str
    materialized_reads: int = 0
    answers_bytes: int = 0
    hint: str = ""

    @property
    def bytes_skipped(self) -> int:
        return self.bytes_plain - self.bytes


class VerifyResult(Struct, frozen=True, kw_only=True):
    """A stored sketch compared with a recapture. `results_equal` is None if not requested, or if
    the query fails only with the sketch. `counts_only`: only row counts were compared, because a
    LIMIT without ORDER BY may select any rows. `answer_equal` is about the materialized result;
    None without one, or if results were not requested."""

    query: str
    table: str
    attribute: str
    total: int
    covers: bool
    slack: int
    missing: tuple[int, ...]
    extra: tuple[int, ...]
    results_equal: bool | None
    versions: Mapping[str, int]
    moments: Mapping[str, str] = field(default_factory=dict)
    counts_only: bool = False
    answer_equal: bool | None = None

    @property
    def is_sound(self) -> bool:
        """Whether no check failed."""
        return self.covers and self.results_equal is not False and self.answer_equal is not False


# How a run ends.

Result = (
    CheckResult
    | CaptureResult
    | ApplyResult
    | ClusterResult
    | GainResult
    | MaintainResult
    | PlanResult
    | DueResult
    | RewriteResult
    | QueryResult
    | ChangesResult
    | WhyResult
    | WithoutResult
    | StatusResult
    | ExplainResult
    | Finding
    | StartedResult
    | VerifyResult
    | GenerateResult
    | Record
    | RecordComparison
    | WrittenResult
    | GcResult
    | SimulateResult
)


class Failure(Struct, frozen=True):
    """What went wrong with one query (or update); None if it concerns the whole run."""

    query: str | None
    error: ImpctlError


class Outcome(Struct, frozen=True):
    """Results, warnings and failures of a run. `note` is a remark on the run, for people."""

    results: tuple[Result, ...] = ()
    warnings: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    note: str = ""


def failed(error: ImpctlError) -> Outcome:
    """The outcome of a run that failed as a whole."""
    return Outcome(failures=(Failure(None, error),))


# Which failure decides how a run ends.

GRAVITY = (5, 1, INTERRUPTED, 2, 3, 4, 7, 6)
"""Exit codes by severity: the run's is the first of these that occurs. An unsound sketch comes
first, failures that a retry may cure last."""


def most_severe(outcome: Outcome) -> Failure | None:
    """The failure that decides the exit code, if any."""
    return min(outcome.failures, key=lambda failure: _gravity(failure.error), default=None)


def for_report(outcome: Outcome) -> Outcome:
    """`outcome` with a failure for each unsound sketch: no run that shows one succeeds. Failures
    caused by the limit on open files say so."""
    failures = [Failure(failed.query, with_limit(failed.error)) for failed in outcome.failures]
    reported = {f.query for f in outcome.failures if isinstance(f.error, UnsoundSketchError)}
    for result in outcome.results:
        if isinstance(result, VerifyResult) and result.query not in reported:
            error = _unsoundness(result)
            failures += [] if error is None else [Failure(result.query, error)]
    return replace(outcome, failures=tuple(failures))


def _unsoundness(result: VerifyResult) -> UnsoundSketchError | None:
    if not result.covers:
        names = ("NULL" if f == result.total else str(f) for f in result.missing)
        message = (
            f"The sketch of query `{result.query}` is too small on "
            f"`{result.table}.{result.attribute}`; it lacks the ranges {', '.join(names)}"
        )
    elif result.results_equal is False:
        message = f"Query `{result.query}` has a different result with its sketch than without"
    elif result.answer_equal is False:
        message = (
            f"The materialized result of query `{result.query}` differs from the result of "
            "the query"
        )
    else:
        return None
    hint = "recapture it with `impctl capture`, and please report this"
    return UnsoundSketchError(message, hint=hint)


def _gravity(error: ImpctlError) -> int:
    return GRAVITY.index(error.exit_code) if error.exit_code in GRAVITY else 0


def problems_error(findings: Iterable[Finding]) -> ImpctlError | None:
    """The error of a run that found problems, with the most severe exit code; None without."""
    problems = [finding for finding in findings if finding.level is Level.PROBLEM]
    if not problems:
        return None
    worst = min(problems, key=lambda finding: GRAVITY.index(finding.exit_code))
    about = f"{worst.area} `{worst.subject}`" if worst.area != worst.subject else worst.area
    message = f"Found a problem with {about}"
    if len(problems) > 1:
        message = f"Found {len(problems)} problems; the most serious one is about {about}"
    return ProblemsFoundError(message, hint=worst.fix, exit_code=worst.exit_code)


def is_pending(outcome: Outcome) -> bool:
    """Whether a dry run found something to do."""
    return any(map(_is_to_do, outcome.results))


def _is_to_do(result: Result) -> bool:
    match result:
        case PlanResult():
            return result.action not in ("none", REFUSED)
        case DueResult():
            return result.due
        case MaintainResult():
            return result.dry_run and result.action != "none"
        case CaptureResult():
            return result.dry_run and result.stored in ("none", "stale", "uneven")
        case _:
            return False


# Metrics in Prometheus's text format (version 0.0.4). Law: one `# HELP` and `# TYPE` per name, with
# all its samples; counters end in `_total`; units are seconds and bytes. A failed query has
# `impctl_maintain_success` 0.


def maintain_metrics(outcome: Outcome, ended_at: float) -> str:
    """What a run of `maintain` did, per query, failed queries included."""
    results = [result for result in outcome.results if isinstance(result, MaintainResult)]
    success = {result.query: 1.0 for result in results}
    seconds = {result.query: result.elapsed_ms / 1000 for result in results}
    recaptured = {result.query: float(result.action == "recapture") for result in results}
    changes = {r.query: float(r.changes) for r in results if r.changes is not None}
    failed = {failure.query: 0.0 for failure in outcome.failures if failure.query is not None}
    ranges: dict[str, float] = {}
    for result in results:
        ranges[result.query] = ranges.get(result.query, 0.0) + result.total
    gauges = (
        ("maintain_success", "1 if the last run succeeded", success | failed),
        ("maintain_duration_seconds", "Duration of the last run", seconds),
        ("maintain_changes", "Changed rows of the last run, unless it was a recapture", changes),
        ("maintain_recaptured", "1 if the last run recaptured", recaptured),
        ("sketch_ranges", "Ranges in the query's sketches", ranges),
        ("maintain_failures", "Failures of the last run", {"": float(len(outcome.failures))}),
        ("maintain_timestamp_seconds", "End of the last run", {"": ended_at}),
    )
    return "".join(_metric(name, "gauge", meaning, samples) for name, meaning, samples in gauges)


def gain_metrics(outcome: Outcome) -> str:
    """What sketches skipped and cost, per query; all-time sums are counters."""
    results = [result for result in outcome.results if isinstance(result, GainResult)]
    is_whole = all(result.since is None for result in results)
    kind, end = ("counter", "_total") if is_whole else ("gauge", "")
    figures: tuple[tuple[str, str, Callable[[GainResult], float]], ...] = (
        ("uses", "Uses of the query", lambda r: r.uses),
        ("used", "Uses with its sketches", lambda r: r.used),
        (
            "materialized_reads",
            "Answers from the materialized result",
            lambda r: r.materialized_reads,
        ),
        ("skipped_files", "Files skipped", lambda r: r.files_plain - r.files),
        ("skipped_rows", "Rows in skipped files", lambda r: r.rows_plain - r.rows),
        ("skipped_bytes", "Bytes of skipped files", lambda r: r.bytes_skipped),
        ("read_bytes", "Bytes of files read", lambda r: r.bytes),
        ("upkeep_runs", "Captures and runs of maintain", lambda r: r.upkeep_runs),
        ("upkeep_seconds", "Time of captures and runs of maintain", lambda r: r.upkeep_ms / 1000),
    )
    last_uses = {r.query: r.last_use.timestamp() for r in results if r.last_use is not None}
    return "".join(
        _metric(f"{name}{end}", kind, meaning, {r.query: float(value(r)) for r in results})
        for name, meaning, value in figures
    ) + _metric("last_use_timestamp_seconds", "gauge", "Time of the last use", last_uses)


def _metric(name: str, kind: str, meaning: str, samples: Mapping[str, float]) -> str:
    """A metric with its samples by query; those of the whole run have an empty name."""
    lines = [f"# HELP impctl_{name} {meaning}", f"# TYPE impctl_{name} {kind}"]
    for query, value in samples.items():
        label = f'{{query="{_escaped(query)}"}}' if query else ""
        lines.append(f"impctl_{name}{label} {value!r}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
