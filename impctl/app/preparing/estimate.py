"""What the sketch of each safe attribute would leave to read, foreseen from a sample of rows.

Law: an estimate decides which sketch is made, never what it holds. The query's own circuit runs
over windows of some files' rows, each with the weight of the rows it stands for, and tells which
of them are in the provenance; every candidate's ranges are then held against these and against the
statistics of all files. Source: Liu and Glavic, cost-based selection of provenance sketches, 2025,
who sample groups; here consecutive rows are drawn, which show how groups lie in files.
Out of scope: which candidates are safe (`safety.choose`), the draw (`tables.sample`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.app.preparing.drawn_groups import DrawnGroups, drawn_groups
from impctl.app.preparing.files_left import FilesLeft
from impctl.app.preparing.group_columns import group_columns
from impctl.app.preparing.partitions import partition_about, ranges_to_spare
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.explanations import ExpectedReading
from impctl.app.workbench.workbench import Workbench
from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.flows import BlockedError
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Ints, Vector, from_arrow
from impctl.errors import ImpctlError
from impctl.expr.nodes import And
from impctl.plan.nodes import (
    Plan,
    Scan,
    TopK,
    inputs_of,
    with_inputs,
)
from impctl.plan.properties import scan_conditions
from impctl.safety.choose import Option
from impctl.safety.judge import carried
from impctl.sketch.likelihood import chances, hits_between
from impctl.sketch.partition import BoundaryValue, RangePartition
from impctl.tables.prune import file_spans, prune_by_condition, rows_by_fragment
from impctl.tables.rows import read_rows
from impctl.tables.sample import FileSample, file_sample, mean_overlap
from impctl.tables.snapshot import ColumnBounds, DataFile
from impctl.tables.statistics import file_bounds, line_of
from impctl.types import ColumnName, TableName
from impctl.values import dataclass

LEAST_ROWS = 1_000_000
"""A smaller table is captured before an estimate of it would pay."""
_LEAST_FILES = 4
_SIDE_SHARE = 0.05
"""Other tables are read whole, where all of them are no more than this share of the large one."""
_BYTES_PER_PAIR = 20
"""State for the rows of a group in one range, as stored (measured: 19 to 25)."""
_ROW = " row"
"""No column of a table has this name, which starts with a blank."""
_NOT_CLUSTERED = 0.95
"""Where a file shares values with so many others, no sketch leaves one out."""
_VALUES = 2_500
"""Values of a candidate that its ranges are made of."""

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimates:
    """What is expected by table and attribute; of how many of the ranges that would be proposed one
    is to be made; `reason` says why nothing is expected, where that matters."""

    of: Mapping[tuple[TableName, ColumnName], ExpectedReading]
    reason: str = ""
    together: Mapping[tuple[TableName, ColumnName], int] = field(default_factory=dict)


NOTHING = Estimates({})


def estimates(
    desk: Workbench, prepared: PreparedQuery, options: Sequence[Option], *, every: bool
) -> Estimates:
    """What the sketches of these safe options would leave of the one large table.

    Unless of `every` one, options are left away once it is certain that they are not taken.
    """
    result = _large(desk, prepared, options)
    if isinstance(result, str):
        return Estimates({}, result)
    if result is None:
        return NOTHING
    try:
        return _Estimate(desk, prepared, *result).of_all(every=every)
    except BlockedError as blocked:
        return Estimates({}, f"no estimate: {blocked.message}")
    except ImpctlError as error:
        # Whatever stands in the way of reading a sample is told by the capture, with its hint.
        return Estimates({}, f"no estimate: {error.message}")


def _large(
    desk: Workbench, prepared: PreparedQuery, options: Sequence[Option]
) -> tuple[Scan, list[Option]] | str | None:
    """The access to estimate and its options; a text where that cannot be done, None if idle."""
    rows = {table: desk.tables.snapshot(table).likely_rows for table in prepared.tables}
    large = max(prepared.tables, key=lambda table: rows[table])
    own = [option for option in options if option.scan.table == large]
    if rows[large] < LEAST_ROWS or len({option.column for option in own}) < 2:
        return None
    if len(desk.tables.snapshot(large).files) < _LEAST_FILES:
        return None
    if sum(scan.table == large for scan in prepared.scans) > 1:
        return f"no estimate: table `{large}` is read more than once"
    if sum(rows[table] for table in prepared.tables if table != large) > _SIDE_SHARE * rows[large]:
        return "no estimate: more than one of its tables is large"
    return own[0].scan, own


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Groups that went through the circuit, which of their rows are in the provenance, the chance
    that such a one really is, and how many rows of the files each stands for."""

    drawn: DrawnGroups
    passing: Flags
    scale: float
    each: float

    @property
    def rows_of_provenance(self) -> float:
        """Rows in the provenance, in all files."""
        return float(self.drawn.weights[self.passing].sum()) * self.scale * self.each

    @property
    def fragments_at_most(self) -> tuple[float, float, float]:
        """A sketch has no more fragments than there are rows in the provenance: as many as were
        seen suggest, the fewest, and the most."""
        codes = self.drawn.codes
        of_a_group = self.drawn.standing / max(len(np.unique(codes)), 1)
        hits = float(len(np.unique(codes[self.passing])))
        each = float(self.drawn.weights[self.passing].sum()) / hits if hits else of_a_group
        fewest, most = hits_between(hits)
        result = [
            max(count * each * self.scale * self.each, 1.0)
            for count in (max(hits, 0.5), fewest, most)
        ]
        return result[0], result[1], result[2]


@dataclass(frozen=True)
class _Estimate:
    """One query over one large table, and the attributes of it that would be safe."""

    desk: Workbench
    prepared: PreparedQuery
    scan: Scan
    options: Sequence[Option]

    @cached_property
    def files(self) -> Sequence[DataFile]:
        """The files that the query's own conditions leave."""
        snapshot = self.desk.tables.snapshot(self.scan.table)
        conditions = scan_conditions(self.prepared.root).get(self.scan.access, ())
        if not conditions:
            return snapshot.files
        names = {attribute.id: attribute.name for attribute in self.scan.attributes}
        return prune_by_condition(snapshot, And(tuple(conditions)), names)

    def of_all(self, *, every: bool) -> Estimates:
        """What each option is expected to leave."""
        self.desk.reporter.step(
            f"estimating what remains to read with sketches of {self.scan.table}"
        )
        groups = self._groups
        columns = [option.column for option in self.options]
        bounds = {name: self._bounds(name) for name in {*groups, *columns}}
        overlaps = {name: mean_overlap(result) for name, result in bounds.items()}
        if all(self._is_mixed(overlaps[name]) for name in columns):
            everything = self._reading(FilesLeft.all_of(len(self.files)))
            return Estimates({(self.scan.table, name): everything for name in columns})
        along = min(groups or columns, key=overlaps.__getitem__)
        read = dict.fromkeys([*(a.name for a in self.scan.attributes), *columns])
        snapshot = self.desk.tables.snapshot(self.scan.table)
        sample = file_sample(snapshot, self.files, list(read), bounds[along])
        run = self._run(sample, {name: bounds[name] for name in groups}, along)
        result: dict[ColumnName, FilesLeft] = {}
        # The column that the draw went along tells best where provenance lies: it goes first.
        for name in sorted(columns, key=lambda name: name != along):
            if along not in result:
                result[name] = self._left(name, sample, run, bounds[name], overlaps[name])
                continue
            holding = self._holding(result[along].likely, run)
            is_settled = along in groups and name not in groups
            if is_settled and not every and result[along].is_as_good_as(holding, self._sizes):
                continue
            left = self._left(name, sample, run, bounds[name], overlaps[name])
            result[name] = left.at_least(holding)
        return Estimates(
            {(self.scan.table, name): self._reading(left) for name, left in result.items()},
            together={(self.scan.table, name): left.together for name, left in result.items()},
        )

    def _holding(self, left: Floats, run: _Run) -> Floats:
        """Chance of each file to hold rows of the provenance, which every sketch then leaves: as
        many as there are, spread over the files that may hold some."""
        rows = left * np.array([file.rows or 1 for file in self.files], dtype=np.float64)
        spread = rows / max(float(rows.sum()), 1e-9) * run.rows_of_provenance
        return left * -np.expm1(-spread)

    def _is_mixed(self, overlapping: float) -> bool:
        """Whether a file shares values with so many others that no sketch leaves one out."""
        return overlapping >= _NOT_CLUSTERED * len(self.files)

    def _bounds(self, name: ColumnName) -> ColumnBounds:
        """Bounds of a column in the files there are to read."""
        snapshot = self.desk.tables.snapshot(self.scan.table)
        result = file_bounds(snapshot, name)
        if len(self.files) == len(result):
            return result
        places = {uri: at for at, uri in enumerate(snapshot.uris)}
        return result.take(np.array([places[file.uri] for file in self.files], dtype=np.int64))

    def _run(
        self, sample: FileSample, groups: Mapping[ColumnName, ColumnBounds], along: str
    ) -> _Run:
        """The rows that go through the circuit, and which of them come out."""
        numbers = [a.name for a in self.scan.attributes if a.type is not None and a.type.is_numeric]
        measures = [name for name in numbers if name not in groups]
        drawn = drawn_groups(sample, groups, along, measures)
        passing, scale = self._passing(drawn, sample.total)
        return _Run(drawn, passing, scale, sample.total / max(drawn.standing, 1.0))

    def _passing(self, drawn: DrawnGroups, total: float) -> tuple[Flags, float]:
        """Which rows are in the provenance, and the chance that such a one really is."""
        rows, standing = drawn.rows, drawn.standing / max(total, 1.0)
        root, scale = _scaled(self.prepared.core, min(standing, 1.0))
        count = len(rows)
        if not count:
            return np.zeros(0, dtype=np.bool_), 1.0
        numbers = RangePartition(self.scan.table, _ROW, LONG, tuple(range(1, count)))
        session = MaintainedQuery(self._compiled(root, numbers))
        session.count(session.circuit.start())
        session.circuit.fill(True)
        for table in self.prepared.tables:
            if table != self.scan.table:
                other = read_rows(
                    self.desk.tables.snapshot(table), session.compiled.columns_of(table)
                )
                session.step({table: TableChange(other, np.ones(len(other), dtype=np.int64))})
        numbered = rows.append_column(_ROW, pa.array(np.arange(count)))
        session.step({self.scan.table: TableChange(numbered, drawn.weights)})
        passing = np.zeros(count + 1, dtype=np.bool_)
        passing[list(session.fragments()[self.scan.access].ids)] = True
        return passing[:count], scale

    def _compiled(self, root: Plan, numbers: RangePartition) -> Compiled:
        """The core's circuit with every row of the large table for itself."""
        option = self.options[0]
        core = replace(self.prepared.query, root=self.prepared.core)
        verdict = carried(option.verdict, core, {self.scan.access: option.column})
        return compile_plan(
            root, {self.scan.access: numbers}, {}, barriers=verdict.barrier_positions
        )

    def _left(
        self,
        name: ColumnName,
        sample: FileSample,
        run: _Run,
        bounds: ColumnBounds,
        overlapping: float,
    ) -> FilesLeft:
        """Which files a sketch of one attribute would leave."""
        rows, codes, passing = run.drawn.rows, run.drawn.codes, run.passing
        column = from_arrow(rows.column(name), sample.snapshot.readable(name).type)
        if _held_by(bounds, column.take(np.flatnonzero(passing))) >= _NOT_CLUSTERED * len(bounds):
            return FilesLeft.all_of(len(bounds))
        values = _some_values(sample.rows.column(name), sample.snapshot.readable(name).type)
        partition = partition_about(self.desk, self.scan.table, name, values, bounds, overlapping)
        spans = file_spans(partition, bounds)
        fragments = partition.fragments_of(column)
        counted = np.bincount(fragments, weights=run.drawn.weights, minlength=partition.size)
        seen: Floats = counted.astype(np.float64)
        # Rows of a group come together or not at all, so groups are counted, not rows.
        groups = _count_by(fragments, codes, partition.size)
        hits = _count_by(fragments[passing], codes[passing], partition.size)
        whole = np.maximum(rows_by_fragment(partition, sample.files, bounds), seen)
        result = chances(whole, seen, groups, hits, run.drawn.blurred)
        ends = zip((result.likely, result.low, result.high), run.fragments_at_most, strict=True)
        mixtures = [mixture.at_most(most, run.scale) for mixture, most in ends]
        most_together = ranges_to_spare(self.desk, self.scan.table, name, partition.ranges)
        left = FilesLeft.of(spans, mixtures, result.off, most_together)
        is_kept = name not in self._groups and bool(self._groups)
        share = float(groups.sum()) / max(len(rows), 1) if is_kept else 0.0
        return replace(left, pairs=share * sample.total)

    @cached_property
    def _sizes(self) -> Floats:
        return np.array([file.size for file in self.files], dtype=np.float64)

    @cached_property
    def _groups(self) -> list[ColumnName]:
        return group_columns(self.prepared.core, self.scan)

    def _reading(self, left: FilesLeft) -> ExpectedReading:
        """Files, rows and bytes."""
        rows = np.array([file.rows or 1 for file in self.files], dtype=np.float64)
        count, fewest, most = left.between()
        return ExpectedReading(
            files=round(count),
            files_low=max(0, math.floor(fewest)),
            files_high=min(len(self.files), math.ceil(most)),
            files_total=len(self.desk.tables.snapshot(self.scan.table).files),
            rows=round(float((left.likely * rows).sum())),
            bytes=round(float((left.likely * self._sizes).sum())),
            upkeep=round(left.pairs * _BYTES_PER_PAIR),
        )


def _held_by(bounds: ColumnBounds, values: Vector) -> float:
    """How many files may hold one of these values."""
    line = line_of(bounds)
    if line is None:
        return float(len(bounds)) if len(values) else 0.0
    places = np.sort(line.places_of(values))
    lows, ends = line.spans(bounds.filled)
    return float((np.searchsorted(places, ends) > np.searchsorted(places, lows)).sum())


def _count_by(fragments: npt.NDArray[np.int32], codes: Ints, size: int) -> Floats:
    """How many groups some rows of each fragment are of; shape (size,)."""
    if len(codes) == int(codes.max(initial=-1)) + 1 and (np.diff(codes) == 1).all():
        return np.bincount(fragments, minlength=size).astype(np.float64)
    pairs = np.unique(codes * size + fragments)
    return np.bincount(pairs % size, minlength=size).astype(np.float64)


def _some_values(column: pa.ChunkedArray, kind: SqlType) -> list[BoundaryValue]:
    """Values at even steps that are neither NULL nor NaN."""
    step = max(1, len(column) // _VALUES)
    vector = from_arrow(column.take(pa.array(np.arange(0, len(column), step))), kind)
    live = vector.take(np.flatnonzero(vector.validity()))
    values = live.values.to_pylist() if live.is_textual else live.values.tolist()
    return [value for value in values if value == value]


def _scaled(root: Plan, standing: float) -> tuple[Plan, float]:
    """The plan with each limit as the share of the groups at hand makes it, and what is too many.

    The first 10 of all groups are the first one of a tenth of them.
    """
    scale = 1.0
    if isinstance(root, TopK) and root.rank is None and root.count is not None:
        wanted = root.count * standing
        count = max(1, round(wanted))
        scale = min(1.0, wanted / count)
        root = replace(root, count=count, offset=round(root.offset * standing))
    below = [_scaled(child, standing) for child in inputs_of(root)]
    for _, factor in below:
        scale *= factor
    return with_inputs(root, tuple(plan for plan, _ in below)), scale
