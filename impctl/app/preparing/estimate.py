"""What the sketch of each safe attribute would leave to read, foreseen from a sample of rows.

Law: an estimate decides which sketch is made, never what it holds. The query's own circuit runs
over windows of some files' rows, each with the weight of the rows it stands for, and tells which
of them are in the provenance; every candidate's ranges are then held against these and against the
statistics of all files. Source: Liu and Glavic, cost-based selection of provenance sketches, 2025,
who sample groups; here consecutive rows are drawn, which show how groups lie in files.
Out of scope: which candidates are safe (`plan.safety.choose`), the draw (`tables.file_sample`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.aliases import AttributeId, ColumnName, TableName
from impctl.app.preparing.partitions import partition_about
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.explanations import ExpectedReading
from impctl.app.workbench.workbench import Workbench
from impctl.circuits.compile import Compiled, compile_plan
from impctl.circuits.flows import BlockedError
from impctl.circuits.session import MaintainedQuery, TableChange
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Ints, from_arrow
from impctl.errors import ImpctlError
from impctl.expr.nodes import And, ColumnRef, Expr
from impctl.plan.nodes import (
    Aggregate,
    ComputedColumn,
    Plan,
    Project,
    Scan,
    TopK,
    inputs_of,
    nodes_of,
    with_inputs,
)
from impctl.plan.safety.choose import Option
from impctl.plan.safety.verdict import carried
from impctl.plan.scan_conditions import scan_conditions
from impctl.sketch.chances import chances, rate_where_not_zero, wilson
from impctl.sketch.partition import BoundaryValue, RangePartition
from impctl.tables.bounds import ColumnBounds
from impctl.tables.file_sample import FileSample, file_sample
from impctl.tables.file_spans import file_spans, rows_by_fragment
from impctl.tables.overlap import mean_overlap
from impctl.tables.prune_condition import prune_by_condition
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import DataFile
from impctl.tables.statistics import file_bounds

LEAST_ROWS = 1_000_000
"""A smaller table is captured before an estimate of it would pay."""
_LEAST_FILES = 4
_SIDE_SHARE = 0.05
"""Other tables are read whole, where all of them are no more than this share of the large one."""
_ROW = " row"
"""No column of a table has this name, which starts with a blank."""
_MIXED = np.uint64(0x9E37_79B9_7F4A_7C15)
_SEED = 20_261_124
_NOT_CLUSTERED = 0.95
"""Where a file shares values with so many others, no sketch leaves one out."""
_VALUES = 5_000
"""Values of a candidate that its ranges are made of."""

Codes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimates:
    """What is expected by table and attribute; `reason` says why nothing is, where that matters."""

    of: Mapping[tuple[TableName, ColumnName], ExpectedReading]
    reason: str = ""


NOTHING = Estimates({})


def estimates(desk: Workbench, prepared: PreparedQuery, options: Sequence[Option]) -> Estimates:
    """What the sketches of these safe options would leave of the one large table."""
    found = _large(desk, prepared, options)
    if isinstance(found, str):
        return Estimates({}, found)
    if found is None:
        return NOTHING
    try:
        return Estimates(_Estimate(desk, prepared, *found).of_all())
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
    """Rows of whole groups, their groups, which of them are in the provenance, the chance that
    such a one really is, and how many rows of the files each stands for."""

    rows: pa.Table
    codes: Codes
    passing: Flags
    scale: float
    each: float


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

    def of_all(self) -> dict[tuple[TableName, ColumnName], ExpectedReading]:
        """What each option is expected to leave."""
        self.desk.reporter.step(f"estimating what sketches of {self.scan.table} would leave")
        groups = _shared_by_groups(self.prepared.core, self.scan)
        columns = [option.column for option in self.options]
        bounds = {name: self._bounds(name) for name in {*groups, *columns}}
        overlaps = {name: mean_overlap(found) for name, found in bounds.items()}
        if all(overlaps[name] >= _NOT_CLUSTERED * len(self.files) for name in columns):
            return {}
        along = min(groups or columns, key=overlaps.__getitem__)
        read = dict.fromkeys([*(a.name for a in self.scan.attributes), *columns])
        snapshot = self.desk.tables.snapshot(self.scan.table)
        sample = file_sample(snapshot, self.files, list(read), bounds[along])
        run = self._run(sample, {name: bounds[name] for name in groups})
        return {
            (self.scan.table, name): self._expected(name, sample, run, bounds[name], overlaps[name])
            for name in columns
        }

    def _bounds(self, name: ColumnName) -> ColumnBounds:
        """Bounds of a column in the files there are to read."""
        snapshot = self.desk.tables.snapshot(self.scan.table)
        found = file_bounds(snapshot, name)
        if len(self.files) == len(found):
            return found
        places = {uri: at for at, uri in enumerate(snapshot.uris)}
        return found.take(np.array([places[file.uri] for file in self.files], dtype=np.int64))

    def _run(self, sample: FileSample, groups: Mapping[ColumnName, ColumnBounds]) -> _Run:
        """The rows that go through the circuit, and which of them come out."""
        codes = _group_codes(sample.rows, groups)
        share = _seen_again(codes) if groups else 1.0
        wanted = 1.0 + (sample.weights(groups) - 1.0) * share
        # A row has a whole number of copies: the next one above as often as makes them right.
        weights = np.floor(wanted + np.random.default_rng(_SEED).random(len(wanted)))
        whole = np.ones(len(weights), dtype=np.bool_)
        for name, bounds in groups.items():
            whole &= ~sample.cut(name, bounds)
        kept = np.flatnonzero(whole)
        rows = sample.rows.take(pa.array(kept))
        passing, scale = self._passing(rows, weights[kept].astype(np.int64), sample.total)
        return _Run(rows, codes[kept], passing, scale, sample.total / max(len(rows), 1))

    def _passing(self, rows: pa.Table, weights: Ints, total: float) -> tuple[Flags, float]:
        """Which rows are in the provenance, and the chance that such a one really is."""
        standing = float(weights.sum()) / max(total, 1.0)
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
        session.step({self.scan.table: TableChange(numbered, weights)})
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

    def _expected(
        self,
        name: ColumnName,
        sample: FileSample,
        run: _Run,
        bounds: ColumnBounds,
        overlapping: float,
    ) -> ExpectedReading:
        """What a sketch of one attribute would leave of all files."""
        if overlapping >= _NOT_CLUSTERED * len(bounds) and run.passing.any():
            return _reading(np.ones(len(sample.files)), sample)
        values = _some_values(sample.rows.column(name), sample.snapshot.readable(name).type)
        partition = partition_about(self.desk, self.scan.table, name, values, bounds, overlapping)
        spans = file_spans(partition, bounds)
        fragments = partition.fragments_of(from_arrow(run.rows.column(name), partition.type))
        seen = np.bincount(fragments, minlength=partition.size).astype(np.float64)
        # Rows of a group come together or not at all, so groups are counted, not rows.
        groups = _count_by(fragments, run.codes, partition.size)
        hits = _count_by(fragments[run.passing], run.codes[run.passing], partition.size)
        whole = np.maximum(rows_by_fragment(partition, sample.files, bounds), seen)
        found = chances(whole, seen, groups, hits) * run.scale
        # A sketch has no more fragments than there are rows in the provenance.
        most = max(float(run.passing.sum()) * run.scale * run.each, 1.0)
        found *= min(1.0, most / max(float(found.sum()), 1e-9))
        return _reading(spans.chances(found), sample)


def _reading(left: Floats, sample: FileSample) -> ExpectedReading:
    """Files, rows and bytes, where each file is left with some chance."""
    count = len(left)
    low, high = wilson(float(left.mean()) if count else 0.0, len(sample.windows))
    rows = np.array([file.rows or 1 for file in sample.files], dtype=np.float64)
    sizes = np.array([file.size for file in sample.files], dtype=np.float64)
    return ExpectedReading(
        files=round(float(left.sum())),
        files_low=round(low * count),
        files_high=round(high * count),
        files_total=len(sample.snapshot.files),
        rows=round(float((left * rows).sum())),
        bytes=round(float((left * sizes).sum())),
    )


def _shared_by_groups(root: Plan, scan: Scan) -> list[ColumnName]:
    """Columns of the access that all rows of a group have in common, at every grouping."""
    names = {attribute.id: attribute.name for attribute in scan.attributes}
    renamed = {
        column.attribute.id: column.expr for node in nodes_of(root) for column in _columns(node)
    }
    shared: set[AttributeId] | None = None
    for node in nodes_of(root):
        if isinstance(node, Aggregate) and node.keys:
            found = {_origin(key.expr, renamed) for key in node.keys}
            shared = found if shared is None else shared & found
    return [names[identity] for identity in sorted(shared or ()) if identity in names]


def _columns(node: Plan) -> Sequence[ComputedColumn]:
    if isinstance(node, Aggregate):
        return node.keys
    return node.outputs if isinstance(node, Project) else ()


def _origin(expr: Expr, renamed: Mapping[AttributeId, Expr]) -> AttributeId:
    """The column that an expression is, whatever it is called on the way; empty for any other."""
    while isinstance(expr, ColumnRef):
        below = renamed.get(expr.id)
        if below is None or below == expr:
            return expr.id
        expr = below
    return ""


def _group_codes(rows: pa.Table, groups: Iterable[ColumnName]) -> Codes:
    """A number per row that tells its group; without a column to group by, one for each row."""
    codes = np.zeros(len(rows), dtype=np.uint64)
    columns = list(groups)
    for name in columns:
        own = rows.column(name).combine_chunks().dictionary_encode().indices.fill_null(0)
        codes = codes * _MIXED + own.to_numpy(zero_copy_only=False).astype(np.uint64)
    return codes if columns else np.arange(len(rows), dtype=np.uint64)


def _count_by(fragments: npt.NDArray[np.int32], codes: Codes, size: int) -> Floats:
    """How many groups some rows of each fragment are of; shape (size,)."""
    order = np.lexsort((codes, fragments))
    ordered, own = fragments[order], codes[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (ordered[1:] != ordered[:-1]) | (own[1:] != own[:-1])
    return np.bincount(ordered[is_first], minlength=size).astype(np.float64)


def _seen_again(codes: Codes) -> float:
    """How many of a group's rows that were not drawn there are, over what those drawn suggest.

    A group of one row is drawn whole or not at all: that one of twenty rows was drawn says nothing
    of nineteen others. By the rows per group drawn, as a Poisson number that is not zero.
    """
    mean = len(codes) / max(len(np.unique(codes)), 1)
    return rate_where_not_zero(mean) / max(mean, 1.0)


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
