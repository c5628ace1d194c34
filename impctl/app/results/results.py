"""Frozen records of what a use case did: all that the command line ever shows.

Law: a record holds plain values only, so that text and JSON say the same; durations are
milliseconds, fragments are numbers from 0 to `total` - 1, and `total` itself is the fragment of
NULL. Field names are the keys of the JSON document and change only with `SCHEMA_VERSION`.
Out of scope: what `check`, `explain` and `plan` say (`app.results.explanations`), how a run ends
(`app.results.ending`), how it looks (`cli.output.text`, `cli.output.json`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime

from impctl.app.results.answer import ArrowAnswer
from impctl.app.results.answer import RowValue as RowValue
from impctl.app.results.changed import ChangesResult
from impctl.app.results.clustered import ClusterResult
from impctl.app.results.collected import GcResult
from impctl.app.results.due import DueResult, FreshEntry
from impctl.app.results.explanations import (
    CandidateEntry,
    CheckResult,
    ExpectedReading,
    ExplainResult,
)
from impctl.app.results.findings import Finding
from impctl.app.results.foreseen import PlanResult, ReadEntry
from impctl.app.results.gained import GainResult
from impctl.app.results.made import GenerateResult, WrittenResult
from impctl.app.results.past_runs import PendingEntry, RunEntry, VerifiedEntry
from impctl.app.results.simulated import SimulateResult
from impctl.app.results.started import StartedResult
from impctl.app.results.tree_work import TreeRecord, TreeWork
from impctl.app.results.why import WhyResult, WithoutResult
from impctl.bench.compare import RecordComparison as RecordComparison
from impctl.bench.record import Record as Record
from impctl.bench.record import RecordKind as RecordKind
from impctl.errors import ImpctlError
from impctl.values import dataclass

SCHEMA_VERSION = 1

ANSWER_SAME, ANSWER_OPEN = "no", "maybe"
"""Whether a query's answer has changed, as far as maintaining its sketch tells."""

NOT_USED = "not_used"
"""Action of a query that was to be read without a sketch."""

NO_SKETCH = "no_sketch"
"""Action of a query that is read without a sketch because there is none for it now."""


@dataclass(frozen=True, slots=True)
class SketchEntry:
    """The fragments a sketch holds, out of `total` range fragments."""

    table: str
    attribute: str
    fragments: tuple[int, ...]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftEntry:
    """What a query reads of a table through its sketch and its own conditions.

    `expected` is what was foreseen of the attribute when it was chosen, None where nothing was.
    """

    table: str
    files: int
    files_total: int
    bytes: int
    bytes_total: int
    expected: ExpectedReading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesEntry:
    """How evenly the ranges of a sketch are filled, rows with NULL left out.

    `imbalance` is the largest range over the mean, 0 without rows; `at_capture` what it was when
    the ranges were chosen. `drifted` ranges have become more uneven than the run's threshold, and
    `hint` says what to do.
    """

    table: str
    attribute: str
    ranges: int
    rows: int
    largest: int
    imbalance: float
    at_capture: float
    drifted: bool
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureResult:
    """A sketch found; `action` is capture, rebalance, or none (a dry run, or nothing to do).

    `moments`, here as in others, are the constants of the clock in the query, with their values.

    A dry run (`foreseen`) says who would find it (`by`), what it would read, and what is `stored`
    now: none, stale or current (of ranges: uneven or even).
    """

    query: str
    action: str
    sketches: tuple[SketchEntry, ...]
    versions: Mapping[str, int]
    mode: str
    elapsed_ms: float
    spark_ms: float
    """Time in Spark; 0 where the engine captured by itself."""
    engine_ms: float
    considered: tuple[CandidateEntry, ...] = ()
    left: tuple[LeftEntry, ...] = ()
    assumptions: tuple[str, ...] = ()
    reason: str = ""
    """What became of ranges and state, where ranges were to be evened out."""
    foreseen: bool = False
    by: str | None = None
    reads: tuple[ReadEntry, ...] = ()
    stored: str | None = None
    moments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    """One update batch; `version` is the one that it made, None where nothing was committed.

    With `already_applied` an earlier run made that version, and this one did nothing. A dry run
    gives the `foreseen_version` that its `statement` would make, and counts the rows of an insert;
    a delete or update that finds no row makes no version.
    """

    name: str
    table: str
    version: int | None = None
    inserted: int = 0
    deleted: int = 0
    updated: int = 0
    statement: str = ""
    foreseen_version: int | None = None
    already_applied: bool = False


@dataclass(frozen=True, slots=True)
class MaintainStep:
    """One step of a run: the versions it reached and what it cost."""

    action: str
    versions: Mapping[str, int]
    added: tuple[int, ...]
    removed: tuple[int, ...]
    changes: int | None
    elapsed_ms: float
    answer_changed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainResult:
    """One sketch of `total` ranges brought up to date; `action` is exact, touch, recapture or none.

    `since` are the versions the run started from, `versions` those it reached; `steps` has an
    entry per version passed where the query is maintained eagerly. `foreseen` marks a dry run: the
    action is what would be taken, the new sketch was not computed. `refilled_groups` counts groups
    whose bounded buffer was filled again, from `refilled_rows` rows of the table. `changes` are
    the changed rows that were carried on; None for a recapture, which reads tables, not changes.
    """

    query: str
    table: str
    attribute: str
    total: int
    action: str
    reason_code: str
    reason: str
    since: Mapping[str, int]
    versions: Mapping[str, int]
    added: tuple[int, ...]
    removed: tuple[int, ...]
    changes: int | None
    elapsed_ms: float
    read_ms: float
    engine_ms: float
    commit_ms: float
    steps: tuple[MaintainStep, ...] = ()
    foreseen: bool = False
    ranges: RangesEntry | None = None
    """How even the sketch's ranges are now; None where that is not counted."""
    refilled_groups: int = 0
    refilled_rows: int = 0
    tree: TreeWork | None = None
    answer_changed: str | None = None
    """`no` where the query's answer is surely what it was, else `maybe`; None in a dry run."""
    moments: Mapping[str, str] = field(default_factory=dict)
    change_files: tuple[str, ...] = ()
    """Files written of what came and went of the answer, one per step (`--changes`)."""


@dataclass(frozen=True, slots=True)
class ReuseCandidate:
    """A stored sketch looked at, and why (not) used; `rows` of the files it leaves to read."""

    query: str
    allowed: bool
    chosen: bool
    reason: str
    sketches: tuple[SketchEntry, ...] = ()
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class ReuseEntry:
    """Which query's sketch was used for another query, and why; `query` None is none."""

    query: str | None
    reason: str
    candidates: tuple[ReuseCandidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteResult:
    """The query with its range predicates; `intervals` are those predicates, one text each.

    `action`: how the sketch was maintained first; `reuse` is set for constants of its own;
    `left_away` is as for `query`. Not everything that impctl reads `runs_on_spark`.
    """

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
    left_away: Mapping[str, str] = field(default_factory=dict)
    moments: Mapping[str, str] = field(default_factory=dict)
    runs_on_spark: bool = True


@dataclass(frozen=True, kw_only=True)
class QueryResult(ArrowAnswer):
    """The answer; `action` and `reuse` are as for `rewrite`. Its JSON has rows in place of Arrow.

    `left_away`: why a table was read without its sketch, though there is one. `elapsed_ms` is the
    query alone; `spark_start_ms` came before it, 0 where Spark was running. `by`: who answered,
    `by_reason` why; by state no file was read. `quicker` says who else would have been so.
    """

    query: str
    versions: Mapping[str, int]
    files_kept: int
    files_total: int
    elapsed_ms: float
    action: str = "none"
    reason: str = ""
    reuse: ReuseEntry | None = None
    spark_start_ms: float = 0.0
    left_away: Mapping[str, str] = field(default_factory=dict)
    moments: Mapping[str, str] = field(default_factory=dict)
    by: str = "spark"
    by_reason: str = ""
    quicker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusResult:
    """What the store knows of a query; without `versions` it was never captured.

    `pending_versions` counts the table versions committed since, `pending` what is in them;
    `runs` are the latest, newest first; `verified` is None where nobody verified the sketch.
    `kept_answers` counts those told from kept rows, of a query that has such or had. `provenance`
    is as of `explain`.
    """

    query: str
    sketches: tuple[SketchEntry, ...]
    versions: Mapping[str, int]
    pending_versions: Mapping[str, int]
    stale: bool
    mode: str | None
    policy: str
    state_bytes: int
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
    bytes_left_out: int = 0
    tree: TreeRecord | None = None
    moments: Mapping[str, str] = field(default_factory=dict)
    keeps_answer: bool = False
    kept_answers: int = 0
    provenance: str | None = None
    fresh: FreshEntry | None = None
    """How old what is pending is; None without a sketch, or where the logs do not tell."""
    trigger: str | None = None
    """When it is maintained, as the file says it; None where that says nothing."""
    next_expiry: str | None = None
    """No row expires before this instant, or `never`; None where none can, or nobody looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """A stored sketch against recapture; `results_equal` is None where it was not asked for,
    or where only the sketch makes the query fail.

    `counts_only` says that only the numbers of rows were compared, because a LIMIT without ORDER BY
    leaves any of more rows. `answer_equal` is about the rows of the answer that are kept, None
    where none are, or results were not asked for.
    """

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
        """Whether nothing that was looked at is wrong."""
        return self.covers and self.results_equal is not False and self.answer_equal is not False


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


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with one query (or update); None where it concerns the whole run."""

    query: str | None
    error: ImpctlError


@dataclass(frozen=True, slots=True)
class Outcome:
    """All of a run: what was done, what to know, and what failed without hiding the rest."""

    results: tuple[Result, ...] = ()
    warnings: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    note: str = ""
    """What to know of the run itself, for people."""
