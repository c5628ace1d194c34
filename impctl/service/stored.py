"""A stored query: what is kept beside its state, whether it is current, and its state restored."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from impctl.data.schema import Column, quoted
from impctl.errors import (
    HistoryGoneError,
    RecaptureNeededError,
    RetryableError,
    StateCorruptError,
    TableRecreatedError,
    UnsupportedError,
    masked,
)
from impctl.service.context import Context, build_mark
from impctl.service.results import SketchEntry, TreeRecord
from impctl.sql.names import SPARK_CATALOG, SPARK_SCHEMA, FullName
from impctl.sql.parameters import CURRENT_DATE, HOUR, NEVER, RUN_INSTANT, read_moment
from impctl.tables.log import FilesMark, commit_mark, files_mark
from impctl.tables.snapshot import schema_mark
from impctl.tables.source import refresh
from impctl.types import AccessId, ColumnName, QueryName, TableName, TableVersion
from impctl.version import is_stamped_alike, stamped
from impctl.workload.models import JoinStrategy, LineageMode, QuerySpec, Workload

if TYPE_CHECKING:
    from impctl.plan.nodes import Plan, Query
    from impctl.rules.finalize import AnswerPlan, FinalSteps
    from impctl.safety.judge import Verdict
    from impctl.service.pinned import PinnedTables
    from impctl.service.prepare import PreparedQuery
    from impctl.sketch.partition import RangePartition
    from impctl.store.records import (
        KeptVersion,
        StateChoiceBasis,
        StoredQuery,
        StoredSketch,
        StoreReader,
        TablePin,
    )

# How evenly the ranges of one partition are filled, as the store keeps it beside a query's state.
# Law: a plain record, so that what reads the store needs no context for it.


class RangeDepth(Struct, frozen=True):
    """How evenly one partition's ranges are filled. `at_capture` is the imbalance when the ranges
    were chosen, 0 for a table without rows."""

    table: TableName
    attribute: ColumnName
    ranges: int
    rows: int
    largest: int
    at_capture: float


# How an answer is made of its kept rows, stored beside them: told later without reading SQL. Law:
# it is that of the plan that the state was captured or carried on with, and is taken for the
# query's only by the very program that wrote it (`service.context`), and only where the tables'
# log entries are there to compare. All else that the reading of the query rests on is for whoever
# asks to compare: its definition, the release, the constants of the clock, the tables and their
# versions.


def result_bytes(store: StoreReader, query: QueryName) -> int:
    from impctl.compile.answers import ANSWER

    runs = store.run_refs(query)
    return sum(run.bytes for run in runs if run.arrangement.startswith(f"{ANSWER}."))


def ending_to_store(answer: AnswerPlan | None) -> tuple[Any, ...]:
    """The stored ending; nothing without a materialized result, or if it takes the SQL text."""
    from impctl.rules.finalize import written_ending

    mark = build_mark()
    if answer is None or not mark:
        return ()
    try:
        return (mark, written_ending(answer.ending))
    except TypeError:
        # A constant of a class that is not written: asking for the answer reads the SQL then.
        return ()


def has_ending(tables: PinnedTables, stored: StoredQuery) -> bool:
    """Whether this release stored the ending, and for these very tables."""
    mark, result = build_mark(), stored.state_meta.get("ending") or [""]
    return mark == result[0] != "" and are_entries_there(stored, tables)


def known_ending(tables: PinnedTables, stored: StoredQuery) -> FinalSteps | None:
    """How the answer is made of the stored rows; None if that takes the SQL text."""
    from impctl.rules.finalize import read_ending

    if not has_ending(tables, stored):
        return None
    try:
        return read_ending(stored.state_meta["ending"][1])
    except (ValueError, LookupError):
        return None


# What the store keeps beside a query's state, checked when it comes back. Law: text that was
# written by another run is outside text: a field that is missing, unknown or of the wrong type is
# a corrupt state, never a default.


class StateMeta(Struct, frozen=True):
    """`way` is why the query is maintained as it is; `counters` number an aggregate's groups.
    `circuit` identifies the circuit of the state, `answer` whether it has the rows of the query's
    answer, `template` the release that captured the sketch and the queries that may use it with
    other constants (empty in older sketches), `moments` the clock values of the query, `marks` the
    commit of each table and `files` its files. `unsure` counts groups kept because a sum of doubles
    was too close to decide: a source of slack. `distant` names join sides whose rows are not stored
    and that Spark reads, `from_files` those that the engine reads, and groupings whose groups are
    not stored; `read_rows` how many rows or groups each had when last filled or stored,
    `group_bytes` the size of such groups then. `buffers` are pieces of which only the best rows or
    values are stored, as was chosen; of these `group_bytes` is the full size; `buffer_groups`
    counts the groups of first rows that could be bounded. `side_reasons` say why each of these is
    read, bounded or stored, where some are not stored. `depths` say how evenly the ranges are
    filled, where counted. `ending` is how the answer is made of its rows, as of `service.stored`.
    `trees` names the join trees of the state, empty without; `estimate` is the expectation per
    changed row if they were chosen by cost: rows joined to it, tuples touched. `work` is what they
    have done since, for how many changes. `expires` is the next instant at which a row of a table
    with an expiry dies, as of `service.expiry`, empty if unknown. `provenance` says how functions
    of recursion are shipped, empty where none are kept."""

    way: str
    circuit: str
    answer: bool = False
    template: str = ""
    moments: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, FilesMark] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    unsure: int = 0
    distant: Sequence[str] = ()
    from_files: Sequence[str] = ()
    read_rows: Mapping[str, int] = field(default_factory=dict)
    group_bytes: Mapping[str, int] = field(default_factory=dict)
    buffers: Mapping[str, int] = field(default_factory=dict)
    buffer_groups: Mapping[str, int] = field(default_factory=dict)
    side_reasons: Mapping[str, str] = field(default_factory=dict)
    depths: Sequence[RangeDepth] = ()
    ending: Sequence[Any] = ()
    trees: str = ""
    estimate: Mapping[str, float] = field(default_factory=dict)
    work: Mapping[str, int] = field(default_factory=dict)
    expires: str = ""
    provenance: str = ""

    def as_stored(self) -> dict[str, Any]:
        """The value that `read` takes."""
        values = {name: getattr(self, name) for name in _CHECKS}
        result: dict[str, Any] = {
            name: dict(value)
            if isinstance(value, Mapping)
            else value
            if isinstance(value, str | int)
            else list(value)
            for name, value in values.items()
            if value or name not in _ONLY_WITH_CONTENT
        }
        result["files"] = {table: asdict(mark) for table, mark in self.files.items()}
        result["depths"] = [asdict(depth) for depth in self.depths]
        return result

    @property
    def layout(self) -> str:
        """The modes of the state; run times apply to one layout. Empty where everything is
        stored."""
        distant = [f"{side} by Spark" for side in self.distant]
        read = [f"{piece} read" for piece in self.from_files]
        bounded = [f"{piece} best {size}" for piece, size in self.buffers.items()]
        trees = [f"trees {self.trees}"] if self.trees else []
        return ", ".join(sorted([*distant, *read, *bounded, *trees]))

    def basis(self, pins: Sequence[TablePin]) -> dict[str, Any]:
        """What decides later whether a sketch stored with this is still valid. For tables with
        marked files the schema is marked too: it is that of the same version."""
        schemas = {
            pin.table: schema_mark(pin.schema_json) for pin in pins if pin.table in self.files
        }
        stored = self.as_stored()
        return {**{name: stored[name] for name in _OF_BASIS if name in stored}, "schemas": schemas}

    @classmethod
    def read(cls, query: str, stored: Mapping[str, Any]) -> Self:
        """The meta of a stored query; StateCorruptError for invalid content."""
        try:
            return cls(**{name: _CHECKS[name](value) for name, value in stored.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise StateCorruptError(
                f"The stored state of query `{query}` has a description that impctl did not write",
                hint="run `impctl capture` to start again",
            ) from error


def layout_of(stored: StoredQuery) -> str | None:
    """The layout of a stored query's state; None if its description cannot be read."""
    try:
        return StateMeta.read(stored.query, stored.state_meta).layout if stored.state_meta else ""
    except StateCorruptError:
        return None


def tree_record(stored: StoredQuery) -> TreeRecord | None:
    """The trees' work for a stored query since its capture; None without trees."""
    meta = StateMeta.read(stored.query, stored.state_meta)
    if not meta.trees:
        return None
    done = {name: meta.work.get(name, 0) for name in ("changes", "touched", "flips", "pairs")}
    return TreeRecord(**done, expected=meta.estimate.get("touched"))


_OF_BASIS = ("circuit", "answer", "template", "moments", "marks", "files")
_ONLY_WITH_CONTENT = frozenset(
    (
        *("from_files", "read_rows", "group_bytes", "buffers", "buffer_groups", "side_reasons"),
        *("trees", "estimate", "work", "expires", "provenance"),
    )
)
"""Fields that are not stored while empty."""


def _exact(kind: type, problem: str) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(problem)
        return value

    return checked


_text = _exact(str, "not a text")
_flag = _exact(bool, "neither true nor false")
_whole = _exact(int, "not a whole number")


def _count(value: Any) -> int:
    if _whole(value) < 0:
        raise ValueError("below zero")
    return int(value)


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError("not a number")
    return float(value)


def _by_name(check: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    def checked(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise TypeError("not an object")
        return {_text(name): check(item) for name, item in value.items()}

    return checked


def _each(check: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def checked(value: Any) -> list[Any]:
        if type(value) is not list:
            raise TypeError("not a list")
        return [check(item) for item in value]

    return checked


def _files_mark(value: Any) -> FilesMark:
    _exactly(FilesMark, value)
    rows = value["rows"]
    return FilesMark(_text(value["digest"]), None if rows is None else _whole(rows))


def _mark_and_value(value: Any) -> list[Any]:
    """A text and its mark, checked on use; or nothing."""
    if type(value) is not list or len(value) not in (0, 2):
        raise TypeError("not a mark with a value")
    return [_text(value[0]), value[1]] if value else []


def _depth(value: Any) -> RangeDepth:
    _exactly(RangeDepth, value)
    return RangeDepth(
        table=_text(value["table"]),
        attribute=_text(value["attribute"]),
        ranges=_whole(value["ranges"]),
        rows=_whole(value["rows"]),
        largest=_whole(value["largest"]),
        at_capture=_number(value["at_capture"]),
    )


def _exactly(record: type[FilesMark] | type[RangeDepth], value: Any) -> None:
    if type(value) is not dict or value.keys() != set(record.__struct_fields__):
        raise TypeError("not a record of the expected form")


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "way": _text,
    "circuit": _text,
    "answer": _flag,
    "template": _text,
    "moments": _by_name(_text),
    "marks": _by_name(_text),
    "files": _by_name(_files_mark),
    "counters": _by_name(_count),
    "unsure": _count,
    "distant": _each(_text),
    "from_files": _each(_text),
    "read_rows": _by_name(_count),
    "group_bytes": _by_name(_count),
    "buffers": _by_name(_count),
    "buffer_groups": _by_name(_count),
    "side_reasons": _by_name(_text),
    "depths": _each(_depth),
    "ending": _mark_and_value,
    "trees": _text,
    "estimate": _by_name(_number),
    "work": _by_name(_count),
    "expires": _text,
    "provenance": _text,
}
"""The check of each field; other names are rejected."""


# The plan by which a query's sketches are kept: whose lineage they hold. Law: it yields the
# query's rows on every database, and its lineage suffices for the query's answer: by default it
# is the query's own plan, where witnesses are asked for (`lineage: witness`) the one in which
# what one row decides has that row's lineage only; where the answer's alone is (`lineage:
# answer`), rows of recursions that it does not stem from have none. Engine, Spark and
# verification keep sketches by the same one. Queries themselves never run by it.


class MaterializedPlan(Struct, frozen=True):
    """The query with the captured plan, the verdict on it, and its core (0008). `notes` say what
    the nodes of the query's own plan store, by their position."""

    query: Query
    verdict: Verdict
    core: Plan
    notes: Mapping[int, str]

    def core_verdict(
        self, verdict: Verdict, partitions: Mapping[AccessId, RangePartition]
    ) -> Verdict:
        """The query's verdict for the core."""
        from impctl.safety.judge import carried_verdict

        sketched = {access: partition.attribute for access, partition in partitions.items()}
        return carried_verdict(verdict, replace(self.query, root=self.core), sketched)

    @property
    def has_witnesses(self) -> bool:
        """Whether the lineage is a choice: an unchanged row may become decisive."""
        from impctl.plan.nodes import Fixpoint, Witness, nodes_of

        nodes = nodes_of(self.query.root)
        return any(isinstance(n, Witness) or (isinstance(n, Fixpoint) and n.chooses) for n in nodes)


def answer_verdict(
    prepared: PreparedQuery,
    answer: AnswerPlan,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
) -> Verdict:
    from impctl.safety.judge import carried_verdict

    sketched = {access: partition.attribute for access, partition in partitions.items()}
    return carried_verdict(verdict, replace(prepared.planned, root=answer.kept), sketched)


def kept_plan(
    prepared: PreparedQuery, verdict: Verdict, partitions: Mapping[AccessId, RangePartition]
) -> MaterializedPlan:
    """The plan that maintains sketches of these partitions, under the query's verdict."""
    from impctl.plan.lineage import answer_notes
    from impctl.rules.optimize import core_of
    from impctl.rules.witnesses import witnessed
    from impctl.safety.judge import carried_verdict
    from impctl.service.choose import sketched_nodes

    if prepared.spec.lineage is LineageMode.ALL:
        return MaterializedPlan(prepared.planned, verdict, prepared.core, {})
    if prepared.spec.lineage is LineageMode.ANSWER:
        # Its plan says so by itself (`service.prepare`).
        sketched = {access: partition.attribute for access, partition in partitions.items()}
        barriers, _ = sketched_nodes(prepared, verdict, sketched)
        notes = answer_notes(prepared.root, barriers)
        return MaterializedPlan(prepared.planned, verdict, prepared.core, notes)
    columns = {a: Column(p.attribute, p.type) for a, p in partitions.items()}
    result = witnessed(prepared.planned, verdict, columns)
    sketched = {access: column.name for access, column in columns.items()}
    of_kept = carried_verdict(verdict, result.query, sketched)
    core = core_of(result.query.root)
    return MaterializedPlan(result.query, of_kept, core, result.notes)


# The constants of the clock that a stored sketch stands for, and whether the clock moved on. Law:
# told from what is stored beside the sketch, without reading SQL; a sketch is only used with the
# values it stands for. The instant at which rows are live never goes back, and it may go on
# unnoticed as long as no row expires.


def stored_moments(stored: StoredQuery) -> Mapping[str, str]:
    """The values by name; none for a query that does not use the clock."""
    result: Mapping[str, str] = stored.state_meta.get("moments", {})
    return result


def moved_moments(ctx: Context, stored: StoredQuery) -> Mapping[str, tuple[str, str]]:
    """Changed clock constants, with the sketch's value and the present one. The instant of the run
    itself counts only where a row may have expired since, or the clock went back: as with versions,
    a run goes on to what another process has reached meanwhile."""
    moments = stored_moments(stored)
    if RUN_INSTANT in moments and read_moment(moments[RUN_INSTANT]) > ctx.clock.value(RUN_INSTANT):
        ctx.look_at_clock_again()
    moved = {}
    for name, stored_text in moments.items():
        follows = None
        if name.startswith(":"):
            # A moving parameter's default, from the value that it had.
            is_hour = isinstance(read_moment(stored_text), datetime)
            follows = HOUR if is_hour else CURRENT_DATE
        text = ctx.clock.text(name, follows)
        if text != stored_text:
            moved[name] = (stored_text, text)
    if RUN_INSTANT in moved:
        before, now = map(read_moment, moved[RUN_INSTANT])
        until = expires(stored)
        is_before = until == NEVER or (until != "" and now < read_moment(until))
        # The same rows are live at both instants.
        if before <= now and is_before and is_current(stored, ctx.tables):
            del moved[RUN_INSTANT]
    return moved


def still(stored: StoredQuery) -> Mapping[str, str]:
    """The instant of a sketch, to read its query with if nothing has moved."""
    moments = stored_moments(stored)
    return {RUN_INSTANT: moments[RUN_INSTANT]} if RUN_INSTANT in moments else {}


def expires(stored: StoredQuery) -> str:
    """The stored next instant at which a row expires; `NEVER`, or empty if unknown or none does."""
    return str(stored.state_meta.get("expires", ""))


def check_clock(ctx: Context, stored: StoredQuery) -> None:
    """UnsupportedError for a sketch of a later instant: expired rows do not come back."""
    before = stored_moments(stored).get(RUN_INSTANT)
    if before is not None and read_moment(before) > ctx.clock.value(RUN_INSTANT):
        raise UnsupportedError(
            f"The current time is {ctx.clock.text(RUN_INSTANT)}, but the sketch of query "
            f"`{stored.query}` is already valid at {before}",
            code="clock_went_back",
            hint="correct the system clock, `--now` or IMPCTL_NOW; to start again at an earlier "
            "time, run `impctl capture`",
        )


def moved_text(moved: Mapping[str, tuple[str, str]]) -> str:
    texts = []
    for name, (old, new) in moved.items():
        if name != RUN_INSTANT:
            texts.append(f"{name} changed from {old} to {new}")
        elif read_moment(new) < read_moment(old):
            texts.append(f"the current time went back from {old} to {new}")
        else:
            texts.append(f"rows may have expired between {old} and {new}")
    return " and ".join(texts)


# Whether a stored sketch was captured for what the workload file says now, by this release. Law:
# told from content hashes alone, without reading SQL, so that a run with nothing to do ends at
# once. `definition` changes whenever the query, its parameters, the sketch asked for, its
# candidate partitions or the tables' paths change. Another release of impctl may read the same
# SQL otherwise, or capture otherwise; so what it captured is captured again.

_TUNING = frozenset({"spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"})
"""SQL settings that change how fast a query runs, never what it means."""


def stored_query(ctx: Context, store: StoreReader | None, spec: QuerySpec) -> StoredQuery:
    """The stored state of a query; RecaptureNeededError without one."""
    stored = None if store is None else store.load(spec.name)
    if stored is None:
        raise RecaptureNeededError(
            f"Query `{spec.name}` has not been captured",
            code="not_captured",
            hint=f"run `impctl capture {ctx.workload.file} --query {spec.name}`",
        )
    return stored


def check_definition(ctx: Context, spec: QuerySpec, stored: StoredQuery) -> None:
    """RecaptureNeededError for a sketch of another definition or another release."""
    if not is_defined_alike(ctx, spec, stored):
        raise RecaptureNeededError(
            f"Query `{spec.name}`, its partitions or its settings changed since the capture",
            code="definition_changed",
            hint=f"run `impctl capture {ctx.workload.file} --query {spec.name}`; if another "
            "file has a query with this name in the same store, give one of them a "
            "separate `store`",
        )
    if not is_of_this_release(stored):
        raise RecaptureNeededError(
            f"The sketch of query `{spec.name}` was captured by another release of impctl, "
            "which may interpret the query differently",
            code="engine_changed",
            hint=f"run `impctl capture {ctx.workload.file} --query {spec.name}`",
        )


def is_captured_alike(ctx: Context, spec: QuerySpec, stored: StoredQuery) -> bool:
    """Whether this release captured the stored sketch for the present workload file."""
    return is_of_this_release(stored) and is_defined_alike(ctx, spec, stored)


def is_of_this_release(stored: StoredQuery) -> bool:
    """Whether this release captured the stored sketch."""
    return is_stamp_of_this_release(stored.state_meta)


def is_stamp_of_this_release(described: Mapping[str, Any]) -> bool:
    """Whether this release wrote the stamp of a stored sketch."""
    return is_stamped_alike(str(described.get("template", "")), stamped(""))


def is_defined_alike(ctx: Context, spec: QuerySpec, stored: StoredQuery) -> bool:
    """Whether the stored sketch has the present workload file's definition."""
    return stored.fingerprint == definition(ctx, spec, tuple(stored.versions))


def definition(ctx: Context, spec: QuerySpec, tables: Sequence[TableName]) -> str:
    """Content hash of everything that identifies the query of a stored sketch. `tables` are those
    the query reads. Spark's SQL settings count, because the session's time zone decides what some
    expressions mean. A newly signed URI names the same table."""
    partitions = [
        (part.table, part.column, part.boundaries, part.ranges)
        for part in ctx.workload.partitions
        if part.table in tables
    ]
    known = ctx.workload.tables
    paths = [(name, masked(known[name].path) if name in known else None) for name in sorted(tables)]
    sketch = sorted(spec.sketch.items())
    settings = sorted(
        (name, value)
        for name, value in ctx.spark_spec.conf.items()
        if name.startswith("spark.sql.") and name not in _TUNING
    )
    params = sorted((name, type(value).__name__, str(value)) for name, value in spec.params.items())
    text = repr((spec.sql, sketch, partitions, paths, settings, *((params,) if params else ())))
    views = _views_in(spec.sql, ctx.workload)
    if views:
        text += f" views {views}"
    named = _names_in("\n".join((spec.sql, *(sql for _, sql in views))), ctx.workload)
    if named:
        names = ctx.workload.names
        text += f" names {(names.catalog, names.schema)} {named}"
    if spec.join is not JoinStrategy.AUTO:
        text += spec.join
    if spec.buffer is not None:
        text += f" buffer {spec.buffer}"
    if spec.moves:
        text += f" moves {sorted(spec.moves.items())}"
    if spec.lineage is not LineageMode.ALL:
        text += f" lineage {spec.lineage}"
    if spec.answer:
        text += " answer"
    if spec.provenance is not None:
        text += f" provenance {spec.provenance.ship} {spec.provenance.nodes}"
    expiries = [(name, known[name].expiry) for name in sorted(tables) if name in known]
    lives = [(name, how.column.lower(), how.after) for name, how in expiries if how is not None]
    text += f" expiry {lives}" if lives else ""
    return hashlib.sha256(text.encode()).hexdigest()


def _views_in(sql: str, workload: Workload) -> list[tuple[FullName, str]]:
    """The views that may occur in the text, directly or through others."""
    result: dict[FullName, str] = {}
    texts = [sql.lower()]
    while texts:
        text = texts.pop()
        for full, view in workload.views.items():
            if full not in result and ("`" in full[-1] or full[-1] in text):
                result[full] = view.sql
                texts.append(view.sql.lower())
    return sorted(result.items())


def _names_in(sql: str, workload: Workload) -> list[tuple[str, TableName]]:
    """Meanings of names that may occur in the text, except a table's plain name. A name whose last
    word is not in the text does not occur."""
    names, text = workload.names, sql.lower()
    result = []
    for full, table in names.tables.items():
        is_plain = full == (SPARK_CATALOG, SPARK_SCHEMA, table.lower())
        if not is_plain and ("`" in full[-1] or full[-1] in text):
            result.append((".".join(map(quoted, full)), table))
    return sorted(result)


# How a stored sketch stands to the workload file and its tables: the same, current, or neither.
# Law: told from content hashes, versions and table identities alone, without reading SQL, so that
# a run with nothing to do ends at once. `definition` changes whenever the query, its parameters,
# the sketch asked for, its candidate partitions or the tables' paths change. Another release of
# impctl may read the same SQL otherwise, or capture otherwise; so what it captured is captured
# again.


def catch_up(tables: PinnedTables, stored: StoredQuery) -> None:
    """Pin tables again that another process has maintained the sketch past: they grew after this
    run pinned them, and would look re-created. To be called before anything is computed from the
    pinned versions."""
    for pin in stored.pins:
        source = tables.source(pin.table)
        if source.version < pin.version and source.table_id == pin.table_id:
            tables.repin(pin.table)


def commit_marks(
    tables: PinnedTables, versions: Mapping[TableName, TableVersion]
) -> dict[str, str]:
    """A mark of each table's log entry at a version, for tables whose log can be read. A backup
    restored over a table keeps identity and version numbers; its log entries differ."""
    marks = {t: commit_mark(tables.source(t), version) for t, version in versions.items()}
    return {table: mark for table, mark in marks.items() if mark is not None}


def is_current(stored: StoredQuery, tables: PinnedTables) -> bool:
    """Whether the sketch is at the pinned versions of the same tables."""
    return all(
        tables.source(pin.table).version == pin.version
        and tables.source(pin.table).table_id == pin.table_id
        and _is_same(stored, tables, pin.table)
        for pin in stored.pins
    )


def moved_meanwhile(query: QueryName) -> RetryableError:
    return RetryableError(
        f"Another process changed the sketch of query `{query}` at the same time",
        code="sketch_moved",
        hint="run the command again",
    )


def are_entries_there(stored: StoredQuery, tables: PinnedTables) -> bool:
    """Whether the log still has all stored versions; files alone do not show column names."""
    marks = _marks(stored)
    return all(
        pin.table in marks and mark_at(tables, pin.table, pin.version) is not None
        for pin in stored.pins
    )


def check_pins(stored: StoredQuery, tables: PinnedTables) -> None:
    """TableRecreatedError where a pinned table was re-created, replaced or restored to an earlier
    version, or where nothing is left that could tell. A table that has moved past a missing log
    entry is compared with its files when its change is read (`tables.changes`)."""
    for pin in stored.pins:
        source = tables.source(pin.table)
        is_other = source.table_id != pin.table_id or source.version < pin.version
        is_same = None if is_other else _is_same(stored, tables, pin.table)
        if is_other or is_same is False:
            raise TableRecreatedError(
                f"Table `{pin.table}` at {source.path} is not the one the sketch was captured from",
                hint="run `impctl capture` to start again from the new table",
            )
        if is_same is None and not (source.version > pin.version and _held(stored, pin.table)):
            raise _unproven(pin, "run `impctl capture`; later runs compare the files")


def _unproven(pin: TablePin, hint: str) -> HistoryGoneError:
    return HistoryGoneError(
        f"The log entry of version {pin.version} of table `{pin.table}` was removed, and the store "
        "has no fingerprint of its files, so the table may be another one",
        code="version_unproven",
        hint=hint,
    )


def check_marked(stored: StoredQuery, tables: PinnedTables) -> None:
    """TableRecreatedError unless a pinned table equals that of a stored sketch, by all marks: the
    log's entry, and the files as built from the log now. HistoryGoneError if neither is left."""
    for pin in stored.pins:
        source, digest = tables.source(pin.table), _held(stored, pin.table)
        mark, now = _marks(stored).get(pin.table), tables.mark(pin.table)
        has_entry = mark is not None and now is not None
        snapshot = tables.snapshot(pin.table)
        is_other = (has_entry and mark != now) or source.table_id != pin.table_id
        if digest is not None and not is_other:
            is_other = files_mark(snapshot).digest != digest
        if digest is not None and not has_entry and not is_other:
            # Files alone do not tell what their columns are called.
            schemas: Mapping[TableName, str] = stored.state_meta.get("schemas", {})
            is_other = schemas.get(pin.table) != schema_mark(snapshot.schema_json)
        if is_other:
            raise TableRecreatedError(
                f"Version {pin.version} of table `{pin.table}` at {source.path} is not the one "
                "that the stored sketch was captured at",
                hint="the table was replaced, or its log was altered",
            )
        if digest is None and not has_entry:
            hint = "the store has fingerprints of the last version of each run"
            raise _unproven(pin, hint)


def may_be_marked(kept: KeptVersion, tables: PinnedTables) -> bool:
    """Whether `check_marked` may accept a stored version, by the log's entries alone."""
    marks: Mapping[TableName, str] = kept.basis.get("marks", {})
    files: Mapping[TableName, object] = kept.basis.get("files", {})
    for table, version in kept.versions.items():
        now = commit_mark(tables.source(table), version)
        is_unmarked = now is None or table not in marks
        if table not in files if is_unmarked else now != marks[table]:
            return False
    return True


def check_not_replaced_meanwhile(stored: StoredQuery, tables: PinnedTables) -> None:
    """RetryableError where a pinned table was replaced while this run read it. To be called after
    all reads and before any write: the rows read may be the other table's. If the log's entry of
    the stored version cannot be marked, the table is opened again to compare its files."""
    for pin in stored.pins:
        source = tables.source(pin.table)
        is_marked = pin.table in _marks(stored) and commit_mark(source, pin.version) is not None
        is_other = _is_same(stored, tables, pin.table) is False
        if not is_other and not is_marked:
            now = refresh(source)
            is_other = (
                now.table_id != source.table_id
                or now.version < source.version
                or files_mark(now.snapshot(source.version)).digest
                != files_mark(tables.snapshot(pin.table)).digest
            )
        if is_other:
            raise replaced_meanwhile(pin.table)
        check_pinned_commit(tables, pin.table)


def check_pinned_commit(tables: PinnedTables, table: TableName) -> None:
    """RetryableError where the log's entry of a pinned version has changed."""
    mark, source = tables.mark(table), tables.source(table)
    if mark is not None and commit_mark(source, source.version) not in (mark, None):
        raise replaced_meanwhile(table)


def replaced_meanwhile(table: TableName) -> RetryableError:
    return RetryableError(
        f"Another table replaced table `{table}` while it was being read",
        code="table_replaced_meanwhile",
        hint="run the command again; it starts with the new table",
    )


def _is_same(stored: StoredQuery, tables: PinnedTables, table: TableName) -> bool | None:
    """Whether the table at the stored version is that of the sketch: by the log's entry of that
    version, or where it is gone by the files, if the table is still at it; None if unknown."""
    version, mark = stored.versions[table], _marks(stored).get(table)
    now = None if mark is None else mark_at(tables, table, version)
    if now is not None:
        return now == mark
    digest = _held(stored, table)
    if digest is None or tables.source(table).version != version:
        return None
    return files_mark(tables.snapshot(table)).digest == digest


def _marks(stored: StoredQuery) -> Mapping[TableName, str]:
    result: Mapping[TableName, str] = stored.state_meta.get("marks", {})
    return result


def _held(stored: StoredQuery, table: TableName) -> str | None:
    result: Mapping[TableName, Mapping[str, str]] = stored.state_meta.get("files", {})
    return result[table]["digest"] if table in result else None


def mark_at(tables: PinnedTables, table: TableName, version: TableVersion) -> str | None:
    """The mark of the table's log entry at a version; the pinned one's is that when it was pinned,
    since another log, not the one to be read, may be there by now."""
    source = tables.source(table)
    taken = tables.mark(table) if source.version == version else None
    return commit_mark(source, version) if taken is None else taken


# Stored sketches as results show them. Law: shows what is stored, computes nothing.


def sketch_entry(sketch: StoredSketch) -> SketchEntry:
    return SketchEntry(sketch.table, sketch.attribute, sketch.ranges.ids, sketch.partition.ranges)


def provenance_kept(spec: QuerySpec, kept: str) -> str | None:
    """How a recursion is kept by absorption: `kept` as of the state, or given up."""
    return None if spec.provenance is None else kept or "given_up"


def has_new_requirements(
    made_by: StateChoiceBasis | None, budget: int, pins: Mapping[QueryName, str]
) -> bool:
    """Whether the workload differs from the one of the last choice, if any."""
    return made_by is None or made_by.budget != budget or dict(made_by.pins) != dict(pins)


def pins_of(specs: Iterable[QuerySpec]) -> dict[QueryName, str]:
    """What queries specify about their state, if anything."""
    return {spec.name: str(spec.state) for spec in specs if spec.state is not None}
