"""Advice about a captured sketch: whether it skips anything, and what would help; clustering."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.fill import RangeRows, counts_name
from impctl.errors import ImpctlError, StateCorruptError, UsageError, count_text
from impctl.service.context import Context, Isolated
from impctl.service.filters import Pruned, filters_of
from impctl.service.maintenance_plan import reopened
from impctl.service.output import held_signals
from impctl.service.partitions import is_partitionable
from impctl.service.prepare import PreparedQuery, prepare
from impctl.service.results import ClusteredSketch, ClusterResult, Failure, Outcome
from impctl.service.stored import is_captured_alike, stored_moments
from impctl.service.text import size_text
from impctl.sketch.boundaries import share_after
from impctl.sketch.sketch import BoundaryValue, RangePartition, exact_filter
from impctl.stopwatch import Stopwatch
from impctl.tables.sample import is_sorted, overlap
from impctl.tables.snapshot import Snapshot, bytes_of
from impctl.tables.statistics import file_bounds, likely_counts, prune
from impctl.tables.write.maintenance import (
    bytes_per_file,
    check_clusterable,
    cluster_table,
    clustered_by,
)
from impctl.workload.yaml import suggestion

if TYPE_CHECKING:
    from impctl.compile.buffers import Refilled
    from impctl.data.vector import Ints
    from impctl.service.pinned import PinnedTables
    from impctl.store.reader import StoreReader
    from impctl.store.records import RunRef, StoredQuery, StoredSketch
    from impctl.types import ColumnName, QueryName, TableName

# Buffers that hold more than the tables have, and what a bound would save. Law: by the store, the
# logs and the query planned with a bound; no data is read. A saving is named only for state that
# the bounded query could refill.

_SMALL = 1 << 20
"""Bytes of state below which no advice is given."""

_BUFFER = 1000
"""The buffer that the saving is computed for; 100 to 10,000 serve most queries."""


def state_warnings(ctx: Context, store: StoreReader, prepared: PreparedQuery) -> list[str]:
    """Warn if the stored state of the query is larger than its tables."""
    name = prepared.spec.name
    runs = store.run_refs(name)
    stored_bytes = sum(run.bytes for run in runs)
    size = sum(ctx.tables.snapshot(table).bytes for table in prepared.tables)
    if stored_bytes < _SMALL or stored_bytes <= size:
        return []
    message = (
        f"the state of query `{name}` takes {size_text(stored_bytes)}, more than the "
        f"{size_text(size)} of its tables"
    )
    saving = None if isinstance(prepared.spec.buffer, int) else _saving(ctx, store, prepared, runs)
    return [message if saving is None else f"{message}; {saving}"]


def _saving(
    ctx: Context, store: StoreReader, prepared: PreparedQuery, runs: Sequence[RunRef]
) -> str | None:
    """What `buffer` would save; None if no state can be bounded."""
    stored = store.load(prepared.spec.name)
    if stored is None:
        return None
    bounded = reopened(ctx, replace(prepared.spec, buffer=_BUFFER), stored)
    if bounded.plan.compiled is None:
        return None
    # Bounded pieces already keep fewer rows of each group.
    known = bounded.meta.buffers
    refills = [r for r in bounded.plan.compiled.refills if r.operator.piece not in known]
    saved, is_sure = _saved(refills, _by_piece(runs))
    if saved < _SMALL:
        return None
    about = "about" if is_sure else "up to"
    return (
        f"`buffer: {_BUFFER}` would save {about} {size_text(saved)}; impctl then "
        "rereads rows of the table when deletions exhaust a buffer"
    )


def _by_piece(runs: Sequence[RunRef]) -> Mapping[str, tuple[int, int]]:
    result: dict[str, tuple[int, int]] = {}
    for run in runs:
        rows, size = result.get(run.arrangement, (0, 0))
        result[run.arrangement] = (rows + run.rows, size + run.bytes)
    return result


def _saved(refills: Sequence[Refilled], pieces: Mapping[str, tuple[int, int]]) -> tuple[int, bool]:
    """Bytes saved, and whether that is certain: for keyed state the number of groups is unknown."""
    saved, is_sure = 0.0, True
    for refilled in refills:
        for keeper in refilled.operator.arrangements():
            rows, size = pieces.get(keeper.name, (0, 0))
            if rows > _BUFFER:
                saved += size * (1 - _BUFFER / rows)
                is_sure = is_sure and not refilled.keys
    return int(saved), is_sure


# Whether lineage of the answer alone is smaller. Law: by the stored sizes of pieces alone. If all
# rows of a fixpoint lead to the answer, its sketch is that of all derivations, and the state that
# traces them back is useless. Rows that changes cancelled count until runs are merged.

_NEARLY_ALL = 0.9
"""If so many rows lead to the answer, hardly a range can be skipped."""

_BACK, _USED, _ROWS = ".back.", ".used.", "rows"
"""Pieces of the backward state (`compile.fixpoint`): what follows back, what arrives above."""


class BackwardFixpoint(Struct, frozen=True):
    name: str
    rows: int
    led: int
    bytes: int

    @property
    def is_nearly_all(self) -> bool:
        return self.led >= _NEARLY_ALL * self.rows > 0

    @property
    def note(self) -> str:
        text = f"about {self.led:,} of its {self.rows:,} rows lead to the answer"
        if not self.is_nearly_all:
            return text
        return f"{text}, so `lineage: all` would need {size_text(self.bytes)} less state"


def backward_fixpoints(runs: Sequence[RunRef]) -> list[BackwardFixpoint]:
    sizes, result = _by_piece(runs), []
    for end in sorted(piece for piece in sizes if piece.endswith(_BACK + _ROWS)):
        name = end.removesuffix(_BACK + _ROWS)
        rows, _ = sizes.get(f"{name}.{_ROWS}", (0, 0))
        # One number represents values derived from no row.
        led = min(rows, max(0, sizes[end][0] - 1))
        pieces = (f"{name}{_BACK}", f"{name}{_USED}")
        stored_bytes = sum(size for piece, (_, size) in sizes.items() if piece.startswith(pieces))
        result.append(BackwardFixpoint(name, rows, led, stored_bytes))
    return result


def followed_warnings(query: QueryName, runs: Sequence[RunRef]) -> list[str]:
    """Warn if `lineage: answer` skips almost nothing and its state is large."""
    return [
        f"`lineage: answer` of query `{query}` skips almost nothing: {fixpoint.led:,} of "
        f"{fixpoint.rows:,} rows of its recursion lead to the answer. It needs "
        f"{size_text(fixpoint.bytes)} of the {size_text(sum(run.bytes for run in runs))} of "
        "state; `lineage: all` would need no such state and few more ranges"
        for fixpoint in backward_fixpoints(runs)
        if fixpoint.is_nearly_all and fixpoint.bytes >= _SMALL
    ]


# What clustering would do for a table's sketches. Law: by statistics and stored counts per range,
# without reading files. `cluster`, its dry run and advice all ask here, so that nothing is advised
# that `cluster` would not do.

_WORTH_IT = 0.8
"""A table is rewritten unasked only if at most this share of the sketches' bytes remains."""
_AS_FINE = 0.75
"""With this share of the expected files, a table does not get finer when rewritten."""
_MOST_COLUMNS = 4
"""With more columns, a Z-order hardly separates anything."""


class StoredSketchUse(Struct, frozen=True, eq=False):
    """A sketch with its query, and the table's rows in each of its ranges."""

    prepared: PreparedQuery
    sketch: StoredSketch
    sketches: tuple[StoredSketch, ...]
    rows: Ints

    def left(self, ctx: Context) -> Pruned:
        versions = ctx.tables.versions_of(self.prepared.tables)
        return filters_of(ctx.tables, self.prepared, self.sketches, versions)


class ClusterForecast(Struct, frozen=True):
    """A table in the order of `columns`, and what each sketch would then read. `obstacle` says why
    nothing is gained, or is empty; with `is_done` the files have that order already."""

    columns: tuple[ColumnName, ...]
    files: int
    sketches: tuple[ClusteredSketch, ...]
    obstacle: str
    is_done: bool

    @property
    def share(self) -> float:
        now = sum(sketch.bytes for sketch in self.sketches)
        return sum(sketch.bytes_expected for sketch in self.sketches) / now if now else 1.0


def sketch_uses(
    ctx: Context, store: StoreReader | None, failures: list[Failure]
) -> dict[TableName, list[StoredSketchUse]]:
    """The sketches stored for the file's current queries, by table."""
    result: dict[TableName, list[StoredSketchUse]] = {}
    if store is None:
        return result
    for spec in ctx.sketched(None):
        with Isolated(failures, spec):
            stored = store.load(spec.name)
            if stored is None or not is_captured_alike(ctx, spec, stored):
                continue
            prepared = prepare(ctx, spec, stored_moments(stored))
            for sketch in stored.sketches:
                rows = _rows_per_range(ctx.tables.snapshot(sketch.table), store, stored, sketch)
                use = StoredSketchUse(prepared, sketch, stored.sketches, rows)
                result.setdefault(sketch.table, []).append(use)
    return result


def _rows_per_range(
    snapshot: Snapshot, store: StoreReader, stored: StoredQuery, sketch: StoredSketch
) -> Ints:
    """Rows per range, by the state's counts if they can be separated, else by the log."""
    partition = sketch.partition
    others = {other.partition for other in stored.sketches} - {partition}
    # Counts of two partitions of one attribute have names that do not distinguish them.
    name = (partition.table, partition.attribute)
    if all((other.table, other.attribute) != name for other in others):
        counted = RangeRows([partition])
        # Damaged state does not prevent clustering; `maintain` and `doctor` report it.
        with suppress(StateCorruptError):
            counted.load(store.load_runs(stored.query, counts_name(partition)))
        counts = counted.counts(partition)
        if counts.any():
            return counts
    return likely_counts(snapshot, partition)


def sketched_most(snapshot: Snapshot, uses: Sequence[StoredSketchUse]) -> tuple[ColumnName, ...]:
    """The attributes sketched most often, without partition columns."""
    attributes = [use.sketch.attribute for use in uses]
    able = [name for name in attributes if name not in snapshot.partition_columns]
    often = sorted(dict.fromkeys(able), key=lambda name: -able.count(name))
    return tuple(often[:_MOST_COLUMNS])


def cluster_forecast(
    ctx: Context, table: TableName, columns: Sequence[ColumnName], uses: Sequence[StoredSketchUse]
) -> ClusterForecast:
    snapshot = ctx.tables.snapshot(table)
    files = max(1, round(snapshot.bytes / bytes_per_file(snapshot)))
    sketches = tuple(_expected(ctx, use, columns, files) for use in uses)
    result = ClusterForecast(tuple(columns), files, sketches, "", is_done=False)
    if _is_done(ctx, snapshot, columns, files):
        order = "order" if len(columns) == 1 else "Z-order"
        by = ", ".join(f"`{name}`" for name in columns)
        as_now = tuple(
            replace(entry, files_expected=entry.files, bytes_expected=entry.bytes)
            for entry in sketches
        )
        obstacle = f"its files are already in the {order} of {by}"
        return replace(result, sketches=as_now, obstacle=obstacle, is_done=True)
    if result.share <= _WORTH_IT:
        return result
    obstacle = "its sketches would skip hardly more than they do now"
    if files == 1:
        obstacle += ", because all of it fits into one file"
    return replace(result, obstacle=obstacle)


def _is_done(ctx: Context, snapshot: Snapshot, columns: Sequence[ColumnName], files: int) -> bool:
    """Whether a rewrite in this order would change nothing relevant."""
    if set(clustered_by(ctx.tables.source(snapshot.table))) == set(columns):
        return True
    is_fine = len(snapshot.files) >= _AS_FINE * files
    return len(columns) == 1 and is_fine and is_sorted(snapshot, columns[0])


def _expected(
    ctx: Context, use: StoredSketchUse, columns: Sequence[ColumnName], files: int
) -> ClusteredSketch:
    """What the sketch reads now, and would read in the new order."""
    sketch = use.sketch
    left = use.left(ctx).files[sketch.table]
    snapshot = ctx.tables.snapshot(sketch.table)
    now, total = bytes_of(left), snapshot.bytes
    share = min(1.0, now / max(total, 1))
    if sketch.attribute in columns:
        after = share_after(sketch.ranges, sketch.partition, use.rows, files, columns)
        share = min(share, after)
    elif share < 1:
        # A new file takes its rows from as many old ones as share values of the columns.
        mixed = max(overlap(snapshot, name) for name in columns) * len(snapshot.files)
        share = 1 - (1 - share) ** max(mixed, 1.0)
    return ClusteredSketch(
        query=use.prepared.spec.name,
        attribute=sketch.attribute,
        files=len(left),
        bytes=now,
        files_expected=int(np.ceil(round(share * files, 6))),
        bytes_expected=round(share * total),
    )


class ClusterForecasts:
    def __init__(self, ctx: Context, store: StoreReader | None) -> None:
        self._ctx = ctx
        self._store = store
        self._uses: dict[TableName, list[StoredSketchUse]] | None = None
        self._made: dict[TableName, ClusterForecast | None] = {}

    def of(self, table: TableName) -> ClusterForecast | None:
        """The forecast of `cluster` for all sketches of the table; None if there is none."""
        if self._uses is None:
            self._uses = sketch_uses(self._ctx, self._store, [])
        if table not in self._made:
            self._made[table] = self._forecast(table, self._uses.get(table, []))
        return self._made[table]

    def alone(self, query: QueryName, sketch: StoredSketch) -> ClusteredSketch | None:
        """The forecast for ordering by one of several sketches' attributes; None if useless."""
        table_forecast, uses = self.of(sketch.table), (self._uses or {}).get(sketch.table, [])
        key = (query, sketch.attribute)
        own_uses = [use for use in uses if (use.prepared.spec.name, use.sketch.attribute) == key]
        if table_forecast is None or len(own_uses) in (0, len(uses)):
            return None
        forecast = self._forecast(sketch.table, own_uses)
        return None if forecast is None or forecast.obstacle else forecast.sketches[0]

    def _forecast(
        self, table: TableName, uses: Sequence[StoredSketchUse]
    ) -> ClusterForecast | None:
        try:
            columns = sketched_most(self._ctx.tables.snapshot(table), uses)
            return cluster_forecast(self._ctx, table, columns, uses) if columns else None
        except ImpctlError:
            return None


# Rewriting tables' files so that stored sketches skip files. Law: only on request. Rows stay the
# same, in one commit that says so, so sketches stay right and no query is recaptured. Expectations
# are reported before, results afterwards. A table that no sketch gains from is not rewritten unless
# named, and never one that has that order already.


def cluster(
    ctx: Context, tables: Sequence[TableName], by: Sequence[ColumnName], *, may_lose: bool = False
) -> Outcome:
    """Cluster the named tables, or those whose sketches gain from it. An order that makes more
    sketches read more than less is refused unless `may_lose`."""
    requested = _requested(ctx, tables, by)
    results: list[ClusterResult] = []
    failures: list[Failure] = []
    uses = sketch_uses(ctx, ctx.reading_store(), failures)
    for table in requested or tuple(uses):
        try:
            used = uses.get(table, [])
            results.append(_clustered(ctx, table, by, used, bool(requested), may_lose=may_lose))
        except ImpctlError as error:
            failures.append(Failure(None, error))
    warning = (
        f"no sketch is stored for any query of {ctx.workload.file}, so there is "
        "nothing to cluster by; run `impctl capture` first, or give `--table` and `--by`"
    )
    return Outcome(tuple(results), () if requested or uses else (warning,), tuple(failures))


def _requested(
    ctx: Context, tables: Sequence[TableName], by: Sequence[ColumnName]
) -> tuple[TableName, ...]:
    """The named tables; UsageError for an unknown one."""
    known, result = ctx.workload.tables, []
    for written in tables:
        table = ctx.workload.names.called(written)
        if table is None:
            raise UsageError(
                f"Table `{written}` is not in {ctx.workload.file}",
                code="cluster_table_unknown",
                hint=suggestion(written, list(known), "the file has"),
            )
        result.append(table)
    if by and len(tables) != 1:
        raise UsageError(
            "`--by` takes columns of one table", hint="name that table with `--table` too"
        )
    return tuple(dict.fromkeys(result))


def _clustered(
    ctx: Context,
    table: TableName,
    by: Sequence[ColumnName],
    uses: Sequence[StoredSketchUse],
    is_named: bool,
    *,
    may_lose: bool,
) -> ClusterResult:
    snapshot = ctx.tables.snapshot(table)
    columns = _columns(snapshot, by, uses)
    forecast = cluster_forecast(ctx, table, columns, uses)
    order = "sorted by" if len(columns) == 1 else "in Z-order of"
    names = ", ".join(f"`{name}`" for name in columns)
    result = ClusterResult(
        table=table,
        action="none",
        by=columns,
        reason=f"{order} {names}, in about {forecast.files:,} files",
        files=len(snapshot.files),
        bytes=snapshot.bytes,
        sketches=forecast.sketches,
        dry_run=ctx.settings.dry_run,
    )
    if is_named:
        check_clusterable(snapshot, columns)
    if forecast.is_done or (forecast.obstacle and not is_named):
        return replace(result, reason=forecast.obstacle)
    check_clusterable(snapshot, columns)
    if ctx.settings.dry_run:
        return result
    if not may_lose and len(result.losers) > len(result.winners):
        raise _loses(result)
    ctx.reporter.finished(replace(result, dry_run=True), 1, 1)
    ctx.reporter.step(f"clustering {table} by {', '.join(columns)}")
    watch = Stopwatch()
    with held_signals():
        version = cluster_table(ctx.tables.source(table), columns)
        ctx.tables.repin(table)
    sketches = []
    for use, expected in zip(uses, forecast.sketches, strict=True):
        left = use.left(ctx).files[use.sketch.table]
        sketches.append(replace(expected, files_after=len(left), bytes_after=bytes_of(left)))
    return replace(
        result,
        action="cluster",
        version=version,
        files_after=len(ctx.tables.snapshot(table).files),
        elapsed_ms=watch.ms,
        sketches=tuple(sketches),
    )


def _loses(result: ClusterResult) -> UsageError:
    names = ", ".join(f"`{loser.query}`" for loser in result.losers)
    return UsageError(
        f"Clustering table `{result.table}` by "
        f"{', '.join(f'`{name}`' for name in result.by)} would rewrite "
        f"{size_text(result.bytes)}, and {len(result.losers)} of "
        f"{count_text(len(result.sketches), 'sketch', 'sketches')} would read more "
        f"files than now: {names}",
        hint="choose other columns (`--dry-run` shows what each sketch would read), or add `--yes`",
        code="cluster_loses",
    )


def _columns(
    snapshot: Snapshot, by: Sequence[ColumnName], uses: Sequence[StoredSketchUse]
) -> tuple[ColumnName, ...]:
    if not by:
        often = sketched_most(snapshot, uses)
        if often:
            return often
        raise UsageError(
            f"No column is known to cluster table `{snapshot.table}` by",
            hint="name one with `--by`, or capture a query of the table first",
        )
    result = []
    for name in by:
        column = snapshot.schema.find(name)
        if column is None or not is_partitionable(column):
            names = [c.name for c in snapshot.schema if is_partitionable(c)]
            raise UsageError(
                f"Table `{snapshot.table}` has no column `{name}` that it can be clustered by",
                hint=suggestion(name, names, "it has"),
                code="column_unknown",
            )
        result.append(column.name)
    return tuple(dict.fromkeys(result))


# Whether a sketch skips anything. Law: by the snapshot's statistics alone. A sketch of nearly all
# ranges saves nothing; one of few ranges saves only if their rows lie together in few files.
# Clustering is advised only if `cluster` would do it.

_USEFUL_SHARE = 0.75
"""A sketch that keeps more than this share of ranges or files is not worth using."""

_SPREAD = 0.5
"""If each file spans more than this share of the ranges, the table is not clustered by them."""

_SMALL_SHARE, _MANY_SMALL = 0.001, 10
"""A file is small with less than this share of the rows; so many of them are reported."""

_ROWS_WORTH_ADVICE = 100_000
"""A smaller table is read in no time, whatever its order."""


_EVERY_ROW = (
    "every row counts for this query, so no sketch can skip any; `answer: true` "
    "materializes its result"
)


class Advice(Struct, frozen=True):
    message: str
    fix: str


def warnings_of(
    tables: PinnedTables,
    forecasts: ClusterForecasts,
    query: QueryName,
    sketches: Sequence[StoredSketch],
    *,
    counts_every_row: bool = False,
) -> list[str]:
    """Warn of each sketch that skips almost nothing, as all do if the query `counts_every_row`."""
    result = advice_of(tables, forecasts, query, sketches)
    if counts_every_row:
        result = [replace(advice, fix=_EVERY_ROW) for advice in result]
    return [f"{advice.message}; {advice.fix}" for advice in result]


def advice_of(
    tables: PinnedTables,
    forecasts: ClusterForecasts,
    query: QueryName,
    sketches: Sequence[StoredSketch],
) -> list[Advice]:
    """Advice on sketches that skip almost nothing, and on small files."""
    result = [_advice(tables, forecasts, query, sketch) for sketch in sketches]
    return list(dict.fromkeys(advice for advice in result if advice is not None))


def _advice(
    tables: PinnedTables, forecasts: ClusterForecasts, query: QueryName, sketch: StoredSketch
) -> Advice | None:
    ranges = sketch.partition.ranges
    in_sketch = sum(range_id < ranges for range_id in sketch.ranges.ids)
    name = f"the sketch of query `{query}` on `{sketch.table}.{sketch.attribute}`"
    if in_sketch > _USEFUL_SHARE * ranges:
        message = (
            f"{name} covers {in_sketch} of {count_text(ranges, 'range')} and skips almost nothing"
        )
        return Advice(message, "use more ranges or another attribute")
    snapshot = tables.snapshot(sketch.table)
    span, files = _span(snapshot, sketch), len(snapshot.files)
    if span is not None:
        return Advice(
            f"{name} skips almost no files: a typical file of the table spans {span:.0%} of "
            "the ranges",
            _order_fix(forecasts, query, sketch, snapshot.bytes),
        )
    small = _small_and_wide(snapshot, sketch)
    if small < _MANY_SMALL or small * 2 < files:
        return None
    forecast = forecasts.of(sketch.table)
    merges = "OPTIMIZE" if forecast is None or forecast.obstacle else "`impctl cluster` or OPTIMIZE"
    return Advice(
        f"{name} skips none of the {small} small files (of {files}): each spans most of "
        "the ranges, which is usual after many small commits",
        f"{merges} would merge them",
    )


def _order_fix(
    forecasts: ClusterForecasts, query: QueryName, sketch: StoredSketch, total: int
) -> str:
    forecast = forecasts.of(sketch.table)
    if forecast is None:
        return "use another attribute"
    by = ", ".join(f"`{name}`" for name in forecast.columns)
    key = (query, sketch.attribute)
    uses = (use for use in forecast.sketches if (use.query, use.attribute) == key)
    expected = next((use for use in uses if use.bytes_expected < use.bytes), None)
    if expected is not None and not forecast.obstacle:
        return (
            f"`impctl cluster` would order the table's files by {by} and leave about "
            f"{expected.bytes_expected / max(total, 1):.1%} of them to read"
        )
    alone = forecasts.alone(query, sketch)
    if alone is not None:
        return (
            "one order for all sketches of the table does not help; `impctl cluster "
            f"--table {sketch.table} --by {sketch.attribute}` helps this one and would "
            f"leave about {alone.bytes_expected / max(total, 1):.1%} to read"
        )
    if forecast.obstacle:
        return f"clustering the table would not help: {forecast.obstacle}"
    return (
        f"use another attribute: the order that helps other sketches, by {by}, does not "
        "help this one"
    )


def _small_and_wide(snapshot: Snapshot, sketch: StoredSketch) -> int:
    partition, few = sketch.partition, (snapshot.rows or 0) * _SMALL_SHARE
    return sum(
        bounds.rows is not None
        and bounds.rows < few
        and bounds.minimum is not None
        and bounds.maximum is not None
        and _spanned(bounds.minimum, bounds.maximum, partition) > _SPREAD * partition.ranges
        for bounds in file_bounds(snapshot, partition.attribute)
    )


def _span(snapshot: Snapshot, sketch: StoredSketch) -> float | None:
    """Share of ranges the median file spans; None if files are skipped or sorting won't help."""
    files, partition = snapshot.files, sketch.partition
    is_small = snapshot.rows is not None and snapshot.rows < _ROWS_WORTH_ADVICE
    files_kept = prune(snapshot, [exact_filter(sketch.ranges, partition)])
    if is_small or len(files_kept) <= _USEFUL_SHARE * len(files):
        return None
    shares = [
        _spanned(bounds.minimum, bounds.maximum, partition) / partition.ranges
        for bounds in file_bounds(snapshot, partition.attribute)
        if bounds.minimum is not None and bounds.maximum is not None
    ]
    share = statistics.median(shares) if shares else 0.0
    return share if share > _SPREAD + 1 / len(files) else None


def _spanned(low: BoundaryValue, high: BoundaryValue, partition: RangePartition) -> int:
    """Ranges of the values from `low` to `high`."""
    first, last = (bisect_right(partition.boundaries, value) for value in (low, high))
    return last - first + 1
