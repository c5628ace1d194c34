"""A stored query: the description of its state, its clock, and whether it is current."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, ValidationError, convert, field, json
from msgspec.structs import replace

from impctl.data.schema import quoted
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
from impctl.service.results import RangesEntry, SketchEntry, TreeRecord
from impctl.sql.names import SPARK_CATALOG, SPARK_SCHEMA, FullName
from impctl.sql.parameters import CURRENT_DATE, HOUR, NEVER, RUN_INSTANT, read_moment
from impctl.store.records import Count, plain
from impctl.tables.log import commit_mark
from impctl.tables.snapshot import FilesMark, schema_mark
from impctl.tables.source import refresh
from impctl.types import ColumnName, QueryName, TableName, TableVersion
from impctl.version import is_stamped_alike, stamped
from impctl.workload.models import JoinStrategy, LineageMode, QuerySpec, Workload

if TYPE_CHECKING:
    from impctl.compile.fill import RangeRows
    from impctl.rules.finalize import AnswerPlan, FinalSteps
    from impctl.service.pinned import PinnedTables
    from impctl.store.reader import StoreReader
    from impctl.store.records import (
        KeptVersion,
        StateChoiceBasis,
        StoredQuery,
        StoredSketch,
        TablePin,
    )


class RangeDepth(Struct, frozen=True, forbid_unknown_fields=True):
    """How evenly one partition's ranges are filled. `at_capture` is the imbalance when the ranges
    were chosen, 0 for a table without rows."""

    table: TableName
    attribute: ColumnName
    ranges: int
    rows: int
    largest: int
    at_capture: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.at_capture):
            raise ValueError("not finite")


# The final steps from the stored rows to the result (`ending`), stored so that no SQL is read. Law:
# only the program that wrote them uses them, and only if the tables' log entries can still be
# compared. Callers compare definition, release, clock constants, tables and versions.


def result_bytes(store: StoreReader, query: QueryName) -> int:
    from impctl.compile.answers import ANSWER

    runs = store.run_refs(query)
    return sum(run.bytes for run in runs if run.arrangement.startswith(f"{ANSWER}."))


def ending_to_store(answer: AnswerPlan | None) -> tuple[Any, ...]:
    """The stored ending; empty without a materialized result, or if it needs the SQL text."""
    from impctl.rules.finalize import written_ending

    mark = build_mark()
    if answer is None or not mark:
        return ()
    try:
        return (mark, written_ending(answer.ending))
    except TypeError:
        return ()  # It has a constant of a class that cannot be written.


def has_ending(tables: PinnedTables, stored: StoredQuery) -> bool:
    """Whether this program stored the ending and the log still has all stored versions: files alone
    do not show column names."""
    mark, marks = build_mark(), _marks(stored)
    ending = stored.state_meta.get("ending") or [""]
    return mark == ending[0] != "" and all(
        pin.table in marks and mark_at(tables, pin.table, pin.version) is not None
        for pin in stored.pins
    )


def known_ending(tables: PinnedTables, stored: StoredQuery) -> FinalSteps | None:
    """The final steps; None if they need the SQL text."""
    from impctl.rules.finalize import read_ending

    if not has_ending(tables, stored):
        return None
    try:
        return read_ending(stored.state_meta["ending"][1])
    except (ValueError, LookupError):
        return None


# The description beside a query's state. Law: another run wrote it, so a field that is unknown or
# has the wrong type is corruption. Empty fields are not stored.


class StateMeta(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """- `way`: why the query is maintained as it is. `circuit` identifies its circuit.
    - `answer`: whether the result is materialized; `ending`: the mark of the program, and how the
      result is computed from its rows.
    - `template`: the release of the capture, and which queries may use the sketch with other
      constants (empty in older sketches).
    - `moments`: the query's clock values; `expires`: the next instant at which a row of a table
      expires, empty if unknown.
    - By table, `marks`: the commit; `files`: the files.
    - `counters`: numbers of an aggregate's groups. `unsure`: groups kept because a sum of doubles
      was too close to decide, which is a source of slack.
    - `distant`: join sides that Spark reads; `from_files`: sides and groupings that the engine
      reads. `read_rows`: their rows or groups, `group_bytes`: the size of such groups, as of their
      last fill or store.
    - `buffers`: sizes of bounded pieces, whose full size is in `group_bytes`; `buffer_groups`:
      groups of first rows that could be bounded. `side_reasons`: why each piece is read, bounded or
      stored, if some are not stored.
    - `depths`: how evenly ranges are filled, where counted.
    - `trees`: the join trees; `estimate`: per changed row, rows joined and tuples touched, if
      chosen by cost; `work`: what they have done since, for how many changes.
    - `provenance`: how functions of recursion are shipped."""

    way: str
    circuit: str
    answer: bool = False
    template: str = ""
    moments: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, FilesMark] = field(default_factory=dict)
    counters: Mapping[str, Count] = field(default_factory=dict)
    unsure: Count = 0
    distant: tuple[str, ...] = ()
    from_files: tuple[str, ...] = ()
    read_rows: Mapping[str, Count] = field(default_factory=dict)
    group_bytes: Mapping[str, Count] = field(default_factory=dict)
    buffers: Mapping[str, Count] = field(default_factory=dict)
    buffer_groups: Mapping[str, Count] = field(default_factory=dict)
    side_reasons: Mapping[str, str] = field(default_factory=dict)
    depths: tuple[RangeDepth, ...] = ()
    ending: tuple[Any, ...] = ()
    trees: str = ""
    estimate: Mapping[str, float] = field(default_factory=dict)
    work: Mapping[str, Count] = field(default_factory=dict)
    expires: str = ""
    provenance: str = ""

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.estimate.values())):
            raise ValueError("not finite")
        if self.ending and not (len(self.ending) == 2 and isinstance(self.ending[0], str)):
            raise ValueError("not a mark with a value")

    def as_stored(self) -> dict[str, Any]:
        """The value that `read` takes: exactly what a later read of the store returns, so that a
        cached state is recognized as the stored one."""
        stored: dict[str, Any] = json.decode(json.encode(self, enc_hook=plain))
        return stored

    @property
    def layout(self) -> str:
        """The modes of the state, empty if everything is stored. Run times apply to one layout."""
        distant = [f"{side} by Spark" for side in self.distant]
        read = [f"{piece} read" for piece in self.from_files]
        bounded = [f"{piece} best {size}" for piece, size in self.buffers.items()]
        trees = [f"trees {self.trees}"] if self.trees else []
        return ", ".join(sorted([*distant, *read, *bounded, *trees]))

    def basis(self, pins: Sequence[TablePin]) -> dict[str, Any]:
        """What decides later whether a sketch stored with this is valid. Tables with marked files
        have a mark of the schema of the same version too."""
        schemas = {
            pin.table: schema_mark(pin.schema_json) for pin in pins if pin.table in self.files
        }
        stored = self.as_stored()
        return {**{name: stored[name] for name in _OF_BASIS if name in stored}, "schemas": schemas}

    @classmethod
    def read(cls, query: str, stored: Mapping[str, Any]) -> Self:
        """The meta of a stored query; StateCorruptError for invalid content."""
        try:
            return convert(stored, cls)
        except ValidationError as error:
            raise StateCorruptError(
                f"The stored state of query `{query}` has a description that impctl did not write",
                hint="run `impctl capture` to start again",
            ) from error


def tree_record(stored: StoredQuery) -> TreeRecord | None:
    """The trees' work for a stored query since its capture; None without trees."""
    meta = StateMeta.read(stored.query, stored.state_meta)
    if not meta.trees:
        return None
    done = {name: meta.work.get(name, 0) for name in ("changes", "touched", "flips", "pairs")}
    return TreeRecord(**done, expected=meta.estimate.get("touched"))


_OF_BASIS = ("circuit", "answer", "template", "moments", "marks", "files")


# The clock constants of a stored sketch. Law: a sketch is used only with its values, which are
# compared without reading SQL. The instant at which rows are live never goes back; it may advance
# while no row expires.


def stored_moments(stored: StoredQuery) -> Mapping[str, str]:
    """The values by name; empty for a query that does not use the clock."""
    moments: Mapping[str, str] = stored.state_meta.get("moments", {})
    return moments


def moved_moments(ctx: Context, stored: StoredQuery) -> Mapping[str, tuple[str, str]]:
    """Changed clock constants, with the sketch's value and the present one. The instant of the run
    counts only if a row may have expired since, or the clock was set back. As with versions, a run
    advances to what another process has reached meanwhile."""
    moments = stored_moments(stored)
    if RUN_INSTANT in moments and read_moment(moments[RUN_INSTANT]) > ctx.clock.value(RUN_INSTANT):
        ctx.refresh_clock()
    moved = {}
    for name, stored_text in moments.items():
        follows = None
        if name.startswith(":"):
            # The default of a moving parameter has the type of its earlier value.
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
    """The instant of a sketch, for reading its query if nothing has changed."""
    moments = stored_moments(stored)
    return {RUN_INSTANT: moments[RUN_INSTANT]} if RUN_INSTANT in moments else {}


def expires(stored: StoredQuery) -> str:
    """The stored next instant at which a row expires; `NEVER`, or empty if unknown or none does."""
    return str(stored.state_meta.get("expires", ""))


def check_clock(ctx: Context, stored: StoredQuery) -> None:
    """UnsupportedError for a sketch of a later instant: expired rows are gone."""
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


# Whether a stored sketch matches the workload file and its tables. Law: content hashes, versions
# and table identities decide, without reading SQL, so that a run with nothing to do ends at once.
# The `definition` covers the query, its parameters, the requested sketch, its candidate partitions
# and the tables' paths. Another release may read the SQL or capture differently, so its sketches
# are recaptured.

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
    if not is_of_this_release(stored.state_meta):
        raise RecaptureNeededError(
            f"The sketch of query `{spec.name}` was captured by another release of impctl, "
            "which may interpret the query differently",
            code="engine_changed",
            hint=f"run `impctl capture {ctx.workload.file} --query {spec.name}`",
        )


def is_captured_alike(ctx: Context, spec: QuerySpec, stored: StoredQuery) -> bool:
    """Whether this release captured the stored sketch for the present workload file."""
    return is_of_this_release(stored.state_meta) and is_defined_alike(ctx, spec, stored)


def is_of_this_release(described: Mapping[str, Any]) -> bool:
    """Whether this release captured the sketch, by its description or basis."""
    return is_stamped_alike(str(described.get("template", "")), stamped(""))


def is_defined_alike(ctx: Context, spec: QuerySpec, stored: StoredQuery) -> bool:
    """Whether the stored sketch has the present workload file's definition."""
    return stored.fingerprint == definition(ctx, spec, tuple(stored.versions))


def definition(ctx: Context, spec: QuerySpec, tables: Sequence[TableName]) -> str:
    """Hash of everything that identifies the query of a stored sketch; it reads `tables`. Spark's
    SQL settings count, because some expressions depend on the session's time zone. A newly signed
    URI refers to the same table."""
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
    """The tables of names that may occur in the text, except a table's plain name. A name can occur
    only if its last word does."""
    names, text = workload.names, sql.lower()
    result = []
    for full, table in names.tables.items():
        is_plain = full == (SPARK_CATALOG, SPARK_SCHEMA, table.lower())
        if not is_plain and ("`" in full[-1] or full[-1] in text):
            result.append((".".join(map(quoted, full)), table))
    return sorted(result)


def catch_up(tables: PinnedTables, stored: StoredQuery) -> None:
    """Pin tables again if another process has advanced the sketch past the pinned version: they
    would look re-created. To be called before anything is computed from pinned versions."""
    for pin in stored.pins:
        source = tables.source(pin.table)
        if source.version < pin.version and source.table_id == pin.table_id:
            tables.repin(pin.table)


def commit_marks(
    tables: PinnedTables, versions: Mapping[TableName, TableVersion]
) -> dict[str, str]:
    """A mark of each table's log entry at a version, for tables whose log can be read. A restored
    backup has the same identity and version numbers, but other log entries."""
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


def is_up_to_date(ctx: Context, spec: QuerySpec, stored: StoredQuery) -> bool:
    """Whether the sketch is that of the present workload file, tables and clock."""
    return (
        is_captured_alike(ctx, spec, stored)
        and is_current(stored, ctx.tables)
        and not moved_moments(ctx, stored)
    )


def moved_meanwhile(query: QueryName) -> RetryableError:
    return RetryableError(
        f"Another process changed the sketch of query `{query}` at the same time",
        code="sketch_moved",
        hint="run the command again",
    )


def check_pins(stored: StoredQuery, tables: PinnedTables) -> None:
    """TableRecreatedError if a pinned table was re-created, replaced or restored to an earlier
    version; HistoryGoneError if that cannot be determined. A table past a missing log entry is
    compared by its files when its change is read (`tables.changes`)."""
    for pin in stored.pins:
        source = tables.source(pin.table)
        is_other = source.table_id != pin.table_id or source.version < pin.version
        is_same = None if is_other else _is_same(stored, tables, pin.table)
        if is_other or is_same is False:
            raise TableRecreatedError(
                f"Table `{pin.table}` at {source.path} is not the one the sketch was captured from",
                hint="run `impctl capture` to start again from the new table",
            )
        if is_same is None and not (
            source.version > pin.version and _files_digest(stored, pin.table)
        ):
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
        source, digest = tables.source(pin.table), _files_digest(stored, pin.table)
        mark, now = _marks(stored).get(pin.table), tables.mark(pin.table)
        has_entry = mark is not None and now is not None
        snapshot = tables.snapshot(pin.table)
        is_other = (has_entry and mark != now) or source.table_id != pin.table_id
        if digest is not None and not is_other:
            is_other = snapshot.mark.digest != digest
        if digest is not None and not has_entry and not is_other:
            # Files alone do not show column names.
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
                or now.snapshot(source.version).mark.digest
                != tables.snapshot(pin.table).mark.digest
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
    """Whether the table at the stored version is that of the sketch: by the log's entry, or without
    it by the files of a table still at that version; None if unknown."""
    version, mark = stored.versions[table], _marks(stored).get(table)
    now = None if mark is None else mark_at(tables, table, version)
    if now is not None:
        return now == mark
    digest = _files_digest(stored, table)
    if digest is None or tables.source(table).version != version:
        return None
    return tables.snapshot(table).mark.digest == digest


def _marks(stored: StoredQuery) -> Mapping[TableName, str]:
    marks: Mapping[TableName, str] = stored.state_meta.get("marks", {})
    return marks


def _files_digest(stored: StoredQuery, table: TableName) -> str | None:
    files: Mapping[TableName, Mapping[str, str]] = stored.state_meta.get("files", {})
    return files[table]["digest"] if table in files else None


def mark_at(tables: PinnedTables, table: TableName, version: TableVersion) -> str | None:
    """The mark of the table's log entry at a version. That of the pinned version was taken when it
    was pinned, since the log may have been replaced."""
    source = tables.source(table)
    mark = tables.mark(table) if source.version == version else None
    return commit_mark(source, version) if mark is None else mark


# Balance of ranges, by stored counts. Law: imbalance is the rows of the largest range over the
# mean, without NULL's range, which cannot be split. Ranges have drifted if it is several times what
# it was at their choice, so that one heavy value is not reported forever. Drift costs only speed.

REBALANCE_HINT = "run `impctl capture --rebalance`"


def depths(counted: RangeRows, before: Sequence[RangeDepth] = ()) -> tuple[RangeDepth, ...]:
    """Describe the counts of ranges; without `before`, the ranges have just been chosen."""
    chosen = {(depth.table, depth.attribute): depth.at_capture for depth in before}
    result = []
    for partition in counted.partitions:
        table, attribute = partition.table, partition.attribute
        ranges = counted.counts(partition)[:-1]
        total, largest = int(ranges.sum()), int(ranges.max())
        depth = RangeDepth(table, attribute, len(ranges), total, largest, 0.0)
        at_capture = chosen.get((table, attribute), imbalance(depth))
        result.append(replace(depth, at_capture=at_capture))
    return tuple(result)


def imbalance(depth: RangeDepth) -> float:
    return depth.largest * depth.ranges / depth.rows if depth.rows else 0.0


def ranges_entries(ctx: Context, stored: StoredQuery) -> tuple[RangesEntry, ...]:
    """Entries for the ranges of a query; empty where they are not counted."""
    threshold = ctx.settings.imbalance
    entries = []
    for kept in stored.state_meta.get("depths", ()):
        depth = RangeDepth(**kept)
        if depth.at_capture == 0 and depth.ranges == 1:
            # Ranges chosen over an empty table are one, which holds everything from then on.
            drifted = depth.rows > 0
        else:
            drifted = imbalance(depth) > threshold * max(depth.at_capture, 1.0)
        hint = None
        if drifted:
            hint = REBALANCE_HINT
            if has_own_boundaries(ctx, depth.table, depth.attribute):
                hint = (
                    f"the workload file sets the `boundaries` of `{depth.table}."
                    f"{depth.attribute}`; change them there and capture again"
                )
        entry = RangesEntry(**kept, imbalance=imbalance(depth), drifted=drifted, hint=hint)
        entries.append(entry)
    return tuple(entries)


def ranges_entry(
    ctx: Context, stored: StoredQuery, table: TableName, attribute: ColumnName
) -> RangesEntry | None:
    """The entry of one sketch, if its ranges are counted."""
    result = ranges_entries(ctx, stored)
    return next((e for e in result if (e.table, e.attribute) == (table, attribute)), None)


def has_own_boundaries(ctx: Context, table: TableName, attribute: ColumnName) -> bool:
    return any(
        part.table == table
        and part.column.lower() == attribute.lower()
        and part.boundaries is not None
        for part in ctx.workload.partitions
    )


# Smaller parts of results.


def sketch_entry(sketch: StoredSketch) -> SketchEntry:
    return SketchEntry(sketch.table, sketch.attribute, sketch.ranges.ids, sketch.partition.ranges)


def provenance_kept(spec: QuerySpec, stored: str) -> str | None:
    """How provenance is kept by absorption: as in the state, or given up."""
    return None if spec.provenance is None else stored or "given_up"


def has_new_requirements(
    basis: StateChoiceBasis | None, budget: int, pins: Mapping[QueryName, str]
) -> bool:
    """Whether the workload differs from the one of the last choice, if any."""
    return basis is None or basis.budget != budget or dict(basis.pins) != dict(pins)


def pins_of(specs: Iterable[QuerySpec]) -> dict[QueryName, str]:
    """What queries specify about their state, if anything."""
    return {spec.name: str(spec.state) for spec in specs if spec.state is not None}
