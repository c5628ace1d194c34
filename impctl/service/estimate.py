"""Estimate from a sample what the sketch of each safe attribute would read.

Law: an estimate decides which sketch is made, never what it holds. The query's circuit runs over
windows of some files' rows, weighted by the rows that they represent, and says which are in the
provenance; candidates' ranges are compared with these and with the statistics of all files.
Source: Liu and Glavic, cost-based selection of provenance sketches, 2025, who sample groups;
consecutive rows show how groups lie in files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.compile.compile import compile_plan
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.keys import starts_in
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Ints, Vector, from_arrow
from impctl.errors import ImpctlError
from impctl.expr.nodes import And, ColumnRef, Expr
from impctl.plan.nodes import Aggregate, ComputedColumn, Plan, Project, Scan, TopK
from impctl.plan.properties import scan_conditions
from impctl.safety.judge import carried_verdict
from impctl.service.partitions import partition_about, ranges_to_spare
from impctl.service.results import ExpectedReading
from impctl.sketch.sketch import BoundaryValue, RangePartition
from impctl.tables.rows import read_rows
from impctl.tables.sample import FileSample, file_sample, mean_overlap
from impctl.tables.snapshot import ColumnBounds, DataFile
from impctl.tables.statistics import (
    FileSpans,
    file_bounds,
    file_spans,
    line_of,
    prune_by_condition,
    rows_by_range,
)
from impctl.types import AttributeId, ColumnName, TableName

if TYPE_CHECKING:
    from impctl.safety.choose import JudgedCandidate
    from impctl.service.context import Context
    from impctl.service.prepare import PreparedQuery
    from impctl.sketch.boundaries import Mixture


Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Groups = Mapping[ColumnName, ColumnBounds]

LEAST_ROWS = 1_000_000
"""A smaller table is captured faster than estimated."""
_LEAST_FILES = 4
_SIDE_SHARE = 0.05
"""Other tables are read whole if all of them are at most this share of the large one."""
_BYTES_PER_PAIR = 20
"""Stored bytes for a group's rows in one range (measured: 19 to 25)."""
_ROW = " row"
"""No column of a table has this name, as it starts with a blank."""
_NOT_CLUSTERED = 0.95
"""If a file shares values with so many others, no sketch skips one."""
_VALUES = 2_500
"""Values of a candidate from which its ranges are made."""


class SketchEstimates(Struct, frozen=True):
    """Expected readings by column, and proposed ranges to merge into one; `reason` if there are
    none."""

    of: Mapping[tuple[TableName, ColumnName], ExpectedReading]
    reason: str = ""
    together: Mapping[tuple[TableName, ColumnName], int] = field(default_factory=dict)


NOTHING = SketchEstimates({})


def estimates(
    ctx: Context, prepared: PreparedQuery, options: Sequence[JudgedCandidate], *, every: bool
) -> SketchEstimates:
    """Estimate the sketches of these safe options on the large table. Unless `every` one is wanted,
    options that are certain to lose are dropped early."""
    result = _large(ctx, prepared, options)
    if isinstance(result, str):
        return SketchEstimates({}, result)
    if result is None:
        return NOTHING
    try:
        return _Estimate(ctx, prepared, *result).of_all(every=every)
    except ImpctlError as error:
        # The capture reports whatever prevents compiling the query or reading a sample.
        return SketchEstimates({}, f"no estimate: {error.message}")


def _large(
    ctx: Context, prepared: PreparedQuery, options: Sequence[JudgedCandidate]
) -> tuple[Scan, list[JudgedCandidate]] | str | None:
    """The access to estimate and its options; a text if impossible, None if unnecessary."""
    rows = {table: ctx.tables.snapshot(table).likely_rows for table in prepared.tables}
    large = max(prepared.tables, key=lambda table: rows[table])
    of_table = [option for option in options if option.scan.table == large]
    if rows[large] < LEAST_ROWS or len({option.column for option in of_table}) < 2:
        return None
    if len(ctx.tables.snapshot(large).files) < _LEAST_FILES:
        return None
    if sum(scan.table == large for scan in prepared.scans) > 1:
        return f"no estimate: table `{large}` is read more than once"
    if sum(rows[table] for table in prepared.tables if table != large) > _SIDE_SHARE * rows[large]:
        return "no estimate: more than one of its tables is large"
    return of_table[0].scan, of_table


class _SampleRun(Struct, frozen=True, eq=False):
    """Groups after the circuit: which rows are in the provenance, the probability that they are,
    and how many rows of the files each represents."""

    drawn: DrawnGroups
    passing: Flags
    scale: float
    rows_per_weight: float

    @property
    def rows_of_provenance(self) -> float:
        return float(self.drawn.weights[self.passing].sum()) * self.scale * self.rows_per_weight

    @property
    def ranges_at_most(self) -> tuple[float, float, float]:
        """Most ranges a sketch can have, one per row of the provenance: likely, least and most."""
        from impctl.sketch.boundaries import hits_between

        codes = self.drawn.codes
        of_a_group = self.drawn.standing / max(len(np.unique(codes)), 1)
        hits = float(len(np.unique(codes[self.passing])))
        rows_per_hit = float(self.drawn.weights[self.passing].sum()) / hits if hits else of_a_group
        fewest, most = hits_between(hits)
        result = [
            max(count * rows_per_hit * self.scale * self.rows_per_weight, 1.0)
            for count in (max(hits, 0.5), fewest, most)
        ]
        return result[0], result[1], result[2]


class _Estimate(Struct, frozen=True, dict=True):
    """One query over one large table, and its safe attributes."""

    ctx: Context
    prepared: PreparedQuery
    scan: Scan
    options: Sequence[JudgedCandidate]

    @cached_property
    def files(self) -> Sequence[DataFile]:
        snapshot = self.ctx.tables.snapshot(self.scan.table)
        conditions = scan_conditions(self.prepared.root).get(self.scan.access, ())
        if not conditions:
            return snapshot.files
        names = {attribute.id: attribute.name for attribute in self.scan.attributes}
        return prune_by_condition(snapshot, And(tuple(conditions)), names)

    def of_all(self, *, every: bool) -> SketchEstimates:
        self.ctx.reporter.step(
            f"estimating what remains to read with sketches of {self.scan.table}"
        )
        groups = self._groups
        columns = [option.column for option in self.options]
        bounds = {name: self._bounds(name) for name in {*groups, *columns}}
        overlaps = {name: mean_overlap(result) for name, result in bounds.items()}
        if all(overlaps[name] >= _NOT_CLUSTERED * len(self.files) for name in columns):
            everything = self._reading(FilesLeft.all_of(len(self.files)))
            return SketchEstimates({(self.scan.table, name): everything for name in columns})
        along = min(groups or columns, key=overlaps.__getitem__)
        read = dict.fromkeys([*(a.name for a in self.scan.attributes), *columns])
        snapshot = self.ctx.tables.snapshot(self.scan.table)
        sample = file_sample(snapshot, self.files, list(read), bounds[along])
        shared = {name: bounds[name] for name in groups}
        numbers = [a.name for a in self.scan.attributes if a.type is not None and a.type.is_numeric]
        measures = [name for name in numbers if name not in shared]
        drawn = drawn_groups(sample, shared, along, measures)
        run = self._run(drawn, sample.total)
        result: dict[ColumnName, FilesLeft] = {}
        # The column that was drawn along shows best where provenance is: it goes first.
        for name in sorted(columns, key=lambda name: name != along):
            if along not in result:
                result[name] = self._files_left(name, sample, run, bounds[name], overlaps[name])
                continue
            holding = self._holding(result[along].likely, run)
            is_settled = along in groups and name not in groups
            if is_settled and not every and result[along].is_as_good_as(holding, self._sizes):
                continue
            left = self._files_left(name, sample, run, bounds[name], overlaps[name])
            result[name] = left.at_least(holding)
        return SketchEstimates(
            {(self.scan.table, name): self._reading(left) for name, left in result.items()},
            together={(self.scan.table, name): left.together for name, left in result.items()},
        )

    def _holding(self, left: Floats, run: _SampleRun) -> Floats:
        """Probability that each file holds provenance, with its rows spread over possible files."""
        rows = left * self._rows
        spread = rows / max(float(rows.sum()), 1e-9) * run.rows_of_provenance
        return left * -np.expm1(-spread)

    def _bounds(self, name: ColumnName) -> ColumnBounds:
        snapshot = self.ctx.tables.snapshot(self.scan.table)
        result = file_bounds(snapshot, name)
        if len(self.files) == len(result):
            return result
        places = {uri: index for index, uri in enumerate(snapshot.uris)}
        return result.take(np.array([places[file.uri] for file in self.files], dtype=np.int64))

    def _run(self, drawn: DrawnGroups, total: float) -> _SampleRun:
        """Run the circuit over the groups."""
        rows, standing = drawn.rows, drawn.standing / max(total, 1.0)
        root, scale = _scaled(self.prepared.core, min(standing, 1.0))
        count, rows_per_weight = len(rows), total / max(drawn.standing, 1.0)
        if not count:
            return _SampleRun(drawn, np.zeros(0, dtype=np.bool_), 1.0, rows_per_weight)
        # Every row of the large table is a range.
        numbers = RangePartition(self.scan.table, _ROW, LONG, tuple(range(1, count)))
        option = self.options[0]
        core = replace(self.prepared.query, root=self.prepared.core)
        verdict = carried_verdict(option.verdict, core, {self.scan.access: option.column})
        barriers = verdict.barrier_positions
        compiled = compile_plan(root, {self.scan.access: numbers}, {}, barriers=barriers)
        session = MaintainedQuery(compiled)
        session.count(session.circuit.start())
        session.circuit.fill(True)
        for table in self.prepared.tables:
            if table != self.scan.table:
                other = read_rows(
                    self.ctx.tables.snapshot(table), session.compiled.columns_of(table)
                )
                session.step({table: TableChange(other, np.ones(len(other), dtype=np.int64))})
        numbered = rows.append_column(_ROW, pa.array(np.arange(count)))
        session.step({self.scan.table: TableChange(numbered, drawn.weights)})
        passing = np.zeros(count + 1, dtype=np.bool_)
        passing[list(session.ranges()[self.scan.access].ids)] = True
        return _SampleRun(drawn, passing[:count], scale, rows_per_weight)

    def _files_left(
        self,
        name: ColumnName,
        sample: FileSample,
        run: _SampleRun,
        bounds: ColumnBounds,
        overlapping: float,
    ) -> FilesLeft:
        """Which files a sketch of one attribute would read."""
        from impctl.sketch.boundaries import chances

        rows, codes, passing = run.drawn.rows, run.drawn.codes, run.passing
        column = from_arrow(rows.column(name), sample.snapshot.readable(name).type)
        holding = _files_holding(bounds, column.take(np.flatnonzero(passing)))
        if holding >= _NOT_CLUSTERED * len(bounds):
            return FilesLeft.all_of(len(bounds))
        values = _some_values(sample.rows.column(name), sample.snapshot.readable(name).type)
        partition = partition_about(self.ctx, self.scan.table, name, values, bounds, overlapping)
        spans = file_spans(partition, bounds)
        ranges = partition.range_ids_of(column)
        counted = np.bincount(ranges, weights=run.drawn.weights, minlength=partition.size)
        seen_rows: Floats = counted.astype(np.float64)
        # Rows of a group come together or not at all, so groups are counted, not rows.
        groups = _count_by(ranges, codes, partition.size)
        hits = _count_by(ranges[passing], codes[passing], partition.size)
        rows_of_range = np.maximum(rows_by_range(partition, sample.files, bounds), seen_rows)
        result = chances(rows_of_range, seen_rows, groups, hits, run.drawn.blurred)
        ends = zip((result.likely, result.low, result.high), run.ranges_at_most, strict=True)
        mixtures = [mixture.at_most(most, run.scale) for mixture, most in ends]
        most_together = ranges_to_spare(self.ctx, self.scan.table, name, partition.ranges)
        left = FilesLeft.of(spans, mixtures, result.off, most_together)
        is_kept = name not in self._groups and bool(self._groups)
        share = float(groups.sum()) / max(len(rows), 1) if is_kept else 0.0
        return replace(left, pairs=share * sample.total)

    @cached_property
    def _rows(self) -> Floats:
        return np.array([file.rows or 1 for file in self.files], dtype=np.float64)

    @cached_property
    def _sizes(self) -> Floats:
        return np.array([file.size for file in self.files], dtype=np.float64)

    @cached_property
    def _groups(self) -> list[ColumnName]:
        return group_columns(self.prepared.core, self.scan)

    def _reading(self, left: FilesLeft) -> ExpectedReading:
        count, fewest, most = left.between()
        return ExpectedReading(
            files=round(count),
            files_low=max(0, math.floor(fewest)),
            files_high=min(len(self.files), math.ceil(most)),
            files_total=len(self.ctx.tables.snapshot(self.scan.table).files),
            rows=round(float((left.likely * self._rows).sum())),
            bytes=round(float((left.likely * self._sizes).sum())),
            upkeep=round(left.pairs * _BYTES_PER_PAIR),
        )


def _files_holding(bounds: ColumnBounds, values: Vector) -> float:
    """How many files may hold one of these values."""
    line = line_of(bounds)
    if line is None:
        return float(len(bounds)) if len(values) else 0.0
    places = np.sort(line.places_of(values))
    lows, ends = line.spans(bounds.filled)
    return float((np.searchsorted(places, ends) > np.searchsorted(places, lows)).sum())


def _count_by(ranges: npt.NDArray[np.int32], codes: Ints, size: int) -> Floats:
    """How many groups have rows in each range; shape (size,)."""
    if len(codes) == int(codes.max(initial=-1)) + 1 and (np.diff(codes) == 1).all():
        return np.bincount(ranges, minlength=size).astype(np.float64)
    pairs = np.unique(codes * size + ranges)
    return np.bincount(pairs % size, minlength=size).astype(np.float64)


def _some_values(column: pa.ChunkedArray, kind: SqlType) -> list[BoundaryValue]:
    step = max(1, len(column) // _VALUES)
    vector = from_arrow(column.take(pa.array(np.arange(0, len(column), step))), kind)
    live = vector.take(np.flatnonzero(vector.validity()))
    values = live.values.to_pylist() if live.is_textual else live.values.tolist()
    return [value for value in values if value == value]


def _scaled(root: Plan, standing: float) -> tuple[Plan, float]:
    """Scale each limit to the share of sampled groups; also returns by how much limits stay too
    large. The first 10 of all groups are the first one of a tenth of them."""
    scale = 1.0
    if isinstance(root, TopK) and root.rank is None and root.count is not None:
        expected = root.count * standing
        count = max(1, round(expected))
        scale = min(1.0, expected / count)
        root = replace(root, count=count, offset=round(root.offset * standing))
    below = [_scaled(child, standing) for child in root.inputs]
    for _, factor in below:
        scale *= factor
    return root.with_inputs(tuple(plan for plan, _ in below)), scale


_DEVIATIONS = 1.645
"""Deviations of an interval with nine of ten values."""
ALIKE = 1.1
"""Estimates within this share are equal; then the simpler sketch wins."""
_AS_GOOD = 1.01
"""Fewer ranges may read so many times the files of the finest ranges."""


class FilesLeft(Struct, frozen=True, eq=False):
    """Probability that each file is read (likely, least, most) by the share of groups in the
    provenance, and the files by which its borders may be off. Fewer ranges than proposed are used
    if they keep hardly more bytes than they save."""

    likely: Floats
    low: Floats
    high: Floats
    off: float
    pairs: float = 0.0
    """Pairs of group and range whose rows the state counts."""
    together: int = 1
    """Proposed ranges that are merged into one."""

    @classmethod
    def of(cls, spans: FileSpans, ends: Sequence[Mixture], off: float, most_together: int) -> Self:
        """Compute this from ranges' chances, with as few ranges as keep almost the same files."""
        likely, low, high = ends
        left = spans.left(likely)
        together = 1
        while together * 2 <= most_together:
            coarser = spans.merged(together * 2).left(likely.merged(together * 2))
            if float(coarser.sum()) > _AS_GOOD * float(left.sum()):
                break
            together *= 2
        return cls(left, spans.left(low), spans.left(high), off * len(left), together=together)

    @classmethod
    def all_of(cls, count: int) -> Self:
        return cls(np.ones(count), np.ones(count), np.ones(count), 0.0)

    def at_least(self, floor: Floats) -> FilesLeft:
        """The same with a minimum probability for each file."""
        return replace(
            self, likely=np.maximum(self.likely, floor), high=np.maximum(self.high, floor)
        )

    def is_as_good_as(self, least: Floats, sizes: Floats) -> bool:
        return float((self.likely * sizes).sum()) <= ALIKE * float((least * sizes).sum())

    def between(self) -> tuple[float, float, float]:
        """Expected files, and the bounds of nine in ten cases."""
        count = float(self.likely.sum())
        by_chance = float((self.likely * (1.0 - self.likely)).sum())
        spread = _DEVIATIONS * math.sqrt(self.off * self.off + by_chance)
        fewest, most = float(self.low.sum()), float(self.high.sum())
        return count, min(count, fewest) - spread, max(count, most) + spread


# Groups of a sample, made as whole as possible before a query runs over them. A group within one
# window is taken as it is; one that a window cuts is omitted. For a group larger than a window, or
# scattered, the drawn rows represent all that statistics show; neighboring groups are pooled, the
# more the less they differ, so that they vary like whole groups (small area estimation: Fay and
# Herriot, 1979).

_SEED = 20_261_124
_IN_FILES = 3.0
"""Files that may hold a clustered value: its own, and those it extends into."""
_FEW = 3
_COUNTED = 2.0
"""Rows per group from which they show how much group sizes differ."""
_BY_CHANCE = 2.0
"""Deviations by which groups may differ more than rows by chance."""
_LEAST_SPARE = 30
"""Rows beyond one per group from which they show how much rows of a group differ."""


class DrawnGroups(Struct, frozen=True, eq=False):
    """Rows, the group number of each, and how many rows of the files each represents."""

    rows: pa.Table
    codes: Ints
    weights: Ints
    blurred: float = 0.0
    """The share of rows whose groups were sampled in part."""

    @property
    def standing(self) -> float:
        return float(self.weights.sum())


def drawn_groups(
    sample: FileSample, groups: Groups, along: ColumnName, measures: Sequence[ColumnName]
) -> DrawnGroups:
    """The groups of a sample, by the columns that are equal within a group, with their bounds.
    Windows were drawn along the column `along`; `measures` are numbers to be summed."""
    rows, count = sample.rows, len(sample.rows)
    if not groups:
        return DrawnGroups(rows, np.arange(count), np.ones(count, dtype=np.int64))
    ranks = {name: _ranks(rows, name) for name in groups}
    codes = _combined(list(ranks.values()))
    kept, weights = np.ones(count, dtype=np.bool_), np.full(count, np.nan)
    rows_held = sample.held(along, groups[along]) if along in groups else None
    if rows_held is not None and count:
        kept, weights = _adjacent_groups(ranks[along], sample.window_of, *rows_held)
    is_part = np.isnan(weights) | (weights > 1.0)
    apart = np.flatnonzero(kept & np.isnan(weights))
    if len(apart):
        density = float(sample.weights(groups)[apart].mean())
        names = sorted(groups, key=lambda name: name != along)
        ordered = apart[np.lexsort([ranks[name][apart] for name in reversed(names)])]
        source, is_whole, weights[apart] = _scattered_groups(
            rows, ordered, starts_in(codes[ordered]), density, measures
        )
        for name in names:
            position, values = rows.schema.get_field_index(name), rows.column(name)
            rows = rows.set_column(position, name, values.take(pa.array(source)))
        codes, kept[ordered] = codes[source], is_whole
    chosen = np.flatnonzero(kept)
    # A row has a whole number of copies: rounded up as often as makes the mean right.
    fractions = np.random.default_rng(_SEED).random(len(chosen))
    return DrawnGroups(
        rows.take(pa.array(chosen)),
        codes[chosen],
        np.floor(weights[chosen] + fractions).astype(np.int64),
        float(is_part[chosen].mean()) if len(chosen) else 0.0,
    )


def _adjacent_groups(
    values: Ints, windows: Ints, total: Floats, files: Floats
) -> tuple[Flags, Floats]:
    """Rows to keep and the weight of each; NaN where the group's rows are scattered. `values` and
    `windows`, in ascending order, have codes of the rows; `total` rows in so many `files` have the
    value of each."""
    # A run has the rows of one value in one window; runs are ordered by window.
    both = windows * (int(values.max(initial=0)) + 1) + values
    order = np.argsort(both, kind="stable")
    begin = np.flatnonzero(starts_in(both[order]))
    end = np.append(begin[1:], len(order))
    first, last, rows = order[begin], order[end - 1], end - begin
    run_of_row = np.empty(len(order), dtype=np.int64)
    run_of_row[order] = np.repeat(np.arange(len(begin)), rows)
    # Windows without rows have no runs: number the others densely.
    is_new = starts_in(windows[first])
    starts, window = np.flatnonzero(is_new), np.cumsum(is_new) - 1
    values_in = np.diff(np.append(starts, len(window)))
    start_of_window = np.flatnonzero(starts_in(windows))
    end_of_window = np.append(start_of_window[1:], len(windows))
    # Rows from the first to the last of each run, with others between them: at most, by window.
    spread = last - first + 1
    reach = np.maximum.reduceat(spread, starts)
    is_sorted = np.logical_and.reduceat(spread == rows, starts)
    in_few = np.nan_to_num(files[first], nan=_IN_FILES) <= _IN_FILES
    is_short = is_sorted | (reach * 5 <= (end_of_window - start_of_window) * 2)
    is_fine = np.logical_and.reduceat(in_few, starts) & (values_in >= _FEW) & is_short
    is_coarse = ~is_fine & (values_in <= _FEW) & np.isfinite(total[first][starts])
    # No row of a run is outside the window if both window ends are far enough.
    missing = np.where(is_sorted[window], 0, reach[window] - spread)
    is_whole = first - start_of_window[window] > missing
    is_whole &= end_of_window[window] - 1 - last > missing
    is_largest = rows == np.maximum.reduceat(rows, starts)[window]
    kept = np.where(is_fine[window], is_whole, ~is_coarse[window] | is_largest)
    with np.errstate(invalid="ignore"):
        weights = np.maximum(total[first] / rows, 1.0)
    weights = np.where(is_fine[window], 1.0, np.where(is_coarse[window], weights, np.nan))
    return kept[run_of_row], weights[run_of_row]


def _scattered_groups(
    rows: pa.Table, ordered: Ints, is_first: Flags, density: float, measures: Sequence[ColumnName]
) -> tuple[Ints, Flags, float]:
    """Merge neighboring groups. `ordered` has the positions of their rows by group, `is_first`
    where a group begins; a row represents `density` rows. The result is, for each of `rows`, the
    one whose group it takes, which is that of the first in a merged group; which of the ordered
    ones are kept, as the last merged group is not full; and the weight of these."""
    from impctl.sketch.boundaries import rate_where_not_zero

    group = np.cumsum(is_first) - 1
    mean = len(group) / (int(group[-1]) + 1)
    # A group of one row is drawn whole or not at all: that one of twenty rows was drawn says
    # nothing of nineteen others. By rows per group drawn, as a Poisson number not zero.
    again = rate_where_not_zero(mean) / max(mean, 1.0)
    # Groups that each sampled group represents on average.
    weight = max(density * again, 1.0)
    together = _groups_to_merge(rows, ordered, group, weight, measures)
    merged = np.floor(group / together).astype(np.int64)
    starts = starts_in(merged)
    source = np.arange(len(rows))
    source[ordered] = ordered[starts][np.cumsum(starts) - 1]
    kept = (merged < merged[-1]) | (together <= 1.0) | (merged[-1] == 0)
    return source, kept, weight / together


def _groups_to_merge(
    rows: pa.Table, ordered: Ints, group: Ints, weight: float, measures: Sequence[ColumnName]
) -> float:
    """How many groups to merge so that the result varies between groups as it does for whole
    groups: all parts of one if they differ by chance alone, one if rows within a group are
    alike. A mean of `n` rows of `k` groups has a variance of `(b + v / n) / k`, that of a whole
    group of `w n` rows `b + v / (w n)`, for a variance `v` within and `b` between groups; the
    rows show `F` of both, `1 + n b / v`."""
    sizes = np.bincount(group).astype(np.float64)
    spare = len(group) - len(sizes)
    result = [_ratio_to_chance(sizes)] if sizes.mean() > _COUNTED else []
    for name in measures if spare >= _LEAST_SPARE else ():
        column = pc.cast(rows.column(name).take(pa.array(ordered)), pa.float64(), safe=False)
        numbers = column.combine_chunks().fill_null(0.0).to_numpy(zero_copy_only=False)
        numbers = np.where(np.isfinite(numbers), numbers, 0.0)
        means = np.bincount(group, weights=numbers) / sizes
        within = float(((numbers - means[group]) ** 2).sum()) / spare
        # Between adjacent groups: a trend over many neighbours is no difference between two.
        apart = (means[1:] - means[:-1]) ** 2 / (1.0 / sizes[1:] + 1.0 / sizes[:-1])
        result.append(float(apart.mean()) / within if within > 0 and len(apart) else 1.0)
    by_chance = 1.0 + _BY_CHANCE * math.sqrt(2.0 / max(len(sizes), 1))
    most = max(result, default=1.0)
    ratio = 1.0 if most <= by_chance else most
    return max(1.0, ratio / (ratio - 1.0 + 1.0 / weight))


def _ratio_to_chance(sizes: Floats) -> float:
    """How much sizes of adjacent groups differ, relative to chance."""
    a, b = sizes[1:], sizes[:-1]
    return float(((a - b) ** 2).mean() / max((a + b).mean(), 1e-9)) if len(a) else 1.0


def _ranks(rows: pa.Table, name: ColumnName) -> Ints:
    """The rank of each row's value among those of the column, NULL last."""
    result = rows.column(name).combine_chunks().dictionary_encode()
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    count = len(result.dictionary)
    ranks = np.full(count + 1, count)
    ranks[np.asarray(pc.array_sort_indices(result.dictionary))] = np.arange(count)
    codes = result.indices.fill_null(count).to_numpy(zero_copy_only=False)
    return np.asarray(ranks[codes])


def _combined(columns: Sequence[Ints]) -> Ints:
    result = columns[0]
    for codes_of_column in columns[1:]:
        both = result * (int(codes_of_column.max(initial=0)) + 1) + codes_of_column
        result = np.unique(both, return_inverse=True)[1].astype(np.int64)
    return result


# Columns common to all rows of a result row's group. Law: such a column is a key of every grouping
# of the plan, whatever its name on the way.


def group_columns(root: Plan, scan: Scan) -> list[ColumnName]:
    """Columns of the access that are equal within each group, at every grouping."""
    names = {attribute.id: attribute.name for attribute in scan.attributes}
    renamed = {
        column.attribute.id: column.expr for node in root.walk() for column in _columns(node)
    }
    shared: set[AttributeId] | None = None
    for node in root.walk():
        if isinstance(node, Aggregate) and node.keys:
            result = {_origin(key.expr, renamed) for key in node.keys}
            shared = result if shared is None else shared & result
    return [names[identity] for identity in sorted(shared or ()) if identity in names]


def _columns(node: Plan) -> Sequence[ComputedColumn]:
    if isinstance(node, Aggregate):
        return node.keys
    return node.outputs if isinstance(node, Project) else ()


def _origin(expr: Expr, renamed: Mapping[AttributeId, Expr]) -> AttributeId:
    while isinstance(expr, ColumnRef):
        below = renamed.get(expr.id)
        if below is None or below == expr:
            return expr.id
        expr = below
    return ""
