"""Measure `memory`: bytes of state per operator, of sketch and ranges, of a process that maintains.

Options: `changes`, rows inserted before each cell, one size after the other; `ranges`, numbers of
equi-depth ranges in place of those of the file; `process` (default true), whether a fresh
`impctl maintain` is started for its peak memory.

Law: state is what a process holds after it took the stored state up and maintained it by the
change. What an operator holds is a metric named after it (`aggregate_bytes`, `join_bytes`, ...);
`state_bytes` is all of it, `stored_bytes` its files. Sketches are checked against recapture.
Out of scope: the process (`fresh_process`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.figures import SuiteCase
from benchmarks.fresh_process import maintain_afresh
from benchmarks.update_stream import UpdateStream, pool_of
from impctl.bench.record import Cell, Label
from impctl.measure.kinds import single
from impctl.measure.scratch import MeasuredQuery, captured, changed_table, scratch_copy
from impctl.service.context import Context
from impctl.service.prepare import prepare
from impctl.sketch.sketch import RangePartition
from impctl.workload.models import PartitionSpec


class _Options(Struct, frozen=True):
    changes: tuple[int, ...]
    ranges: tuple[int, ...]
    process: bool
    key: str


def measure_memory(case: SuiteCase) -> Iterator[Cell]:
    """A cell per number of ranges and size of change."""
    case.only("changes", "ranges", "process", "key")
    options = _Options(
        case.whole_numbers("changes", (1000,)),
        case.whole_numbers("ranges"),
        case.flag("process", True),
        case.key(),
    )
    return _cells(case, options)


def _cells(case: SuiteCase, options: _Options) -> Iterator[Cell]:
    for ranges in options.ranges or (None,):
        ctx = case.ctx if ranges is None else _with_ranges(case, ranges)
        yield from _grown(case, ctx, options, ranges)


def _with_ranges(case: SuiteCase, ranges: int) -> Context:
    """The suite's workbench with so many ranges on every attribute that has a partition."""
    ctx, spec = case.ctx, case.query
    parts = [replace(part, boundaries=None, ranges=ranges) for part in ctx.workload.partitions]
    known = {(part.table, part.column) for part in parts}
    parts += [
        PartitionSpec(table, column, None, ranges, spec.location)
        for table, column in spec.sketch.items()
        if (table, column) not in known
    ]
    workload = replace(ctx.workload, partitions=tuple(parts))
    return Context(ctx.settings, workload, ctx.reporter)


def _grown(case: SuiteCase, ctx: Context, options: _Options, ranges: int | None) -> Iterator[Cell]:
    """The cells of one partition: the table grows by every change."""
    spec = case.query
    tables = prepare(ctx, spec).tables
    changed = changed_table(ctx.tables, tables)
    pool = pool_of(ctx.tables, changed, options.key, case.seed)
    with scratch_copy(ctx, tables) as scratch:
        with scratch.writing("bench"):
            follower = captured(scratch, spec)
        stream = UpdateStream(scratch.tables, pool, case.seed)
        for size in options.changes:
            case.step(f"memory after {size} changes")
            stream.insert(size)
            peak = None
            if options.process:
                peak = maintain_afresh(scratch, spec).peak_bytes
                for table in tables:
                    scratch.tables.advance(table)
                follower = MeasuredQuery(scratch, prepare(scratch, spec))
            else:
                with scratch.writing("bench"):
                    follower.follow()
            yield _cell(case, follower, size, ranges, peak)


def _cell(
    case: SuiteCase, follower: MeasuredQuery, size: int, ranges: int | None, peak: int | None
) -> Cell:
    values: dict[str, float] = {**operator_bytes(follower), **_sketch_bytes(follower)}
    stored = follower.scratch.store().run_refs(case.query.name)
    values["stored_bytes"] = sum(run.bytes for run in stored)
    if peak is not None:
        values["process_bytes"] = peak
    labels: dict[str, Label] = {"changes": size}
    if ranges is not None:
        labels["ranges"] = ranges
    ranges_in_use = sum(sketch.partition.ranges for sketch in follower.state.stored.sketches)
    return case.cell(
        single(values), labels, checked=follower.checked(), note=f"{ranges_in_use} ranges in use"
    )


def operator_bytes(follower: MeasuredQuery) -> dict[str, int]:
    """Bytes of keyed state by kind of operator, and all of them together."""
    session = follower.state.session
    result: dict[str, int] = {}
    if session is not None:
        seen: set[str] = set()
        for operator in (*session.circuit, session.merge):
            name = f"{type(operator).__name__.lower()}_bytes"
            # A keeper that several share is held once.
            keepers = [keeper for keeper in operator.arrangements() if keeper.name not in seen]
            seen |= {keeper.name for keeper in keepers}
            size = sum(keeper.bytes_held for keeper in keepers)
            if size:
                result[name] = result.get(name, 0) + size
        result["range_rows_bytes"] = sum(
            keeper.bytes_held for keeper in session.range_rows.arrangements()
        )
    return {**result, "state_bytes": follower.state_bytes}


def _sketch_bytes(follower: MeasuredQuery) -> dict[str, int]:
    sketches = follower.state.stored.sketches
    return {
        "sketch_bytes": sum(len(sketch.ranges.to_bytes()) for sketch in sketches),
        "ranges_bytes": sum(_bytes_of(sketch.partition) for sketch in sketches),
    }


def _bytes_of(partition: RangePartition) -> int:
    """The boundaries as they are held, every value with its object."""
    return sys.getsizeof(partition.boundaries) + sum(map(sys.getsizeof, partition.boundaries))
