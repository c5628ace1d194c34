"""Measure the figures of a workload into a record."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from impctl.bench.record import UNSTEADY, Cell, Chart, Figure, Label, Record, RecordKind
from impctl.bench.timing import describe_machine, noise_of, yardstick
from impctl.data.schema import name_parts
from impctl.errors import ImpctlError, StorageError, UnsoundSketchError, UsageError
from impctl.measure.files import check_outputs, write_outputs
from impctl.measure.kinds import (
    MeasuredCase,
    measure_capture,
    measure_maintain,
    measure_query,
    measure_ways,
)
from impctl.measure.scratch import folder_beside
from impctl.service.context import Context, Isolated, Reporter, master_of
from impctl.service.prepare import prepare
from impctl.service.results import Failure, Outcome
from impctl.spark.session import find_java, shown
from impctl.stopwatch import Stopwatch
from impctl.store.disk import BENCH_SCRATCH, scratch_folder
from impctl.workload.models import LineageMode, PartitionSpec, QuerySpec
from impctl.workload.yaml import suggestion

if TYPE_CHECKING:
    from impctl.service.settings import MeasureRequest
    from impctl.types import QueryName


class PlannedFigure(Struct, frozen=True):
    """A figure with its cases, each with its fingerprint and the cells that measuring it yields."""

    figure: Figure
    cases: tuple[tuple[MeasuredCase, str, Iterator[Cell]], ...]


class PlannedRun(Struct, frozen=True):
    """A run that is ready to start: `record` has everything but what is measured. The noise of the
    machine is measured in `folder`."""

    ctx: Context
    figures: tuple[PlannedFigure, ...]
    record: Record
    folder: Path


# Fingerprints of cases: what the labels omit. Law: cells of a figure with equal labels have equal
# fingerprints exactly if query, partition, options and data were equal; repetitions, machine and
# file names do not count. Options shown in labels are omitted, so that another size changes no
# other cell.


def fingerprint(
    case: MeasuredCase,
    measure: str,
    options: Mapping[str, object] | None = None,
    data: Sequence[Mapping[str, object]] = (),
) -> str:
    """The fingerprint of a case: `data` is how its tables were generated."""
    query = case.query
    facts = {
        "measure": measure,
        "options": options or {},
        "query": _query_facts(query),
        "partitions": [
            [part.table, part.column, part.boundaries, part.ranges]
            for part in case.ctx.workload.partitions
            if _is_of(part, query)
        ],
        "data": list(data),
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _query_facts(query: QuerySpec) -> dict[str, object]:
    facts: dict[str, object] = {
        "sql": " ".join(query.sql.split()),
        "sketch": dict(query.sketch),
        "params": dict(query.params),
        "settings": [query.policy, query.maintain, query.join, query.buffer],
    }
    # Records from before the setting have the same fingerprint.
    return facts if query.lineage is LineageMode.ALL else {**facts, "lineage": query.lineage}


def _is_of(partition: PartitionSpec, query: QuerySpec) -> bool:
    """Whether the query may have its sketch on this partition."""
    if query.sketch:
        return query.sketch.get(partition.table) == partition.column
    own_name = name_parts(partition.table) or (partition.table,)
    return own_name[-1].lower() in words_of(query.sql)


def words_of(sql: str) -> frozenset[str]:
    """The words of a text in lower case, which include the tables it reads."""
    return frozenset(re.findall(r"\w+", sql.lower()))


# Law: every requested query is a case of every figure, at the full size of its tables; nothing is
# generated. Without sizes of a change there are both rows and shares of the table, so that a
# break-even is shown for small and large tables.

_CHANGES = (10, 100, 1000)
_SHARES = (0.01, 0.1)
REPEAT = 3
"""Runs of each measurement: a small workload then takes about a minute."""

SEED = 1

FIGURES = (
    Figure(
        "changes",
        "Size of a change",
        "Updating a sketch after a change of its table, by maintaining it and by recapturing it. "
        "The rows of a change are sampled from the table.",
        Chart("changes", ("maintain_ms", "recapture_ms"), ("query",), ("x", "y")),
    ),
    Figure(
        "skipping",
        "What a sketch saves",
        "The query without its sketch and with it, and the rows that remain to read with the "
        "sketch.",
        Chart("query", ("plain_ms", "sketch_ms", "rows_share")),
    ),
    Figure(
        "capture",
        "First capture",
        "Capturing sketch and state once, compared with the query and with a recapture of the "
        "sketch alone.",
        Chart("query", ("plain_ms", "recapture_ms", "capture_ms")),
    ),
    Figure(
        "ways",
        "Ways to the answer",
        "The same answer from the materialized result, by impctl's engine, by DuckDB and by Spark, "
        "in one warm process. Speed-ups are against Spark over all files.",
        Chart("way", ("files_count", "wall_ms", "cpu_ms"), ("query",), ("y",)),
    ),
)


def run_workload(
    ctx: Context,
    request: MeasureRequest,
    queries: Sequence[QueryName] | None,
    *,
    delta_rows: Sequence[int],
) -> Outcome:
    """Measure an open workload; the yardstick runs on the disk of its tables. `delta_rows`, if
    given, are all the sizes of a change."""
    check_outputs(request, ctx.reserved)
    sizes = (delta_rows, ()) if delta_rows else (_CHANGES, _SHARES)
    measures: Mapping[str, tuple[str, Callable[[MeasuredCase], Iterator[Cell]]]] = {
        "changes": ("maintain", lambda case: measure_maintain(case, *sizes)),
        "skipping": ("query", measure_query),
        "capture": ("capture", measure_capture),
        "ways": ("ways", measure_ways),
    }
    repeat = REPEAT if request.repeat is None else request.repeat
    case_of = partial(MeasuredCase, ctx=ctx, repeat=repeat, seed=SEED)
    specs = ctx.sketched(queries)
    figures = []
    for figure in chosen_figures({figure.name: figure for figure in FIGURES}, request.only):
        name, measure = measures[figure.name]
        cases = [
            case_of(figure=figure.name, query=spec, labels={"query": spec.name}) for spec in specs
        ]
        planned = tuple((case, fingerprint(case, name), measure(case)) for case in cases)
        figures.append(PlannedFigure(figure, planned))
    record = Record(
        suite=ctx.workload.name,
        title=f"Workload {ctx.workload.name}",
        scale=1.0,
        repeat=repeat,
        seed=SEED,
        kind=RecordKind.WORKLOAD,
    )
    with scratch_folder(BENCH_SCRATCH, folder_beside(ctx, ctx.workload.tables)) as folder:
        run = PlannedRun(ctx, tuple(figures), record, folder)
        return measured(run, request, ctx.reporter)


T = TypeVar("T")


def chosen_figures(figures: Mapping[str, T], names: Sequence[str]) -> tuple[T, ...]:
    """The figures with these names, or all without names; UsageError for an unknown one."""
    for name in names:
        if name not in figures:
            raise UsageError(
                f"There is no figure `{name}`",
                code="figure_unknown",
                hint=suggestion(name, list(figures), "the figures"),
            )
    return tuple(figures[name] for name in dict.fromkeys(names or figures))


# The machine, the versions and Spark's setup. Law: only settings that affect Spark's speed are
# recorded, since others may hold secrets.

_SETTINGS = ("spark.driver.memory", "spark.sql.shuffle.partitions")


def machine_facts(ctx: Context) -> dict[str, str]:
    """Describe the machine, with `java` and `spark`: its master, memory and shuffle partitions."""
    facts = describe_machine()
    # Where nothing needs Spark no Java is needed either.
    with suppress(UsageError):
        facts["java"] = str(find_java(os.environ).version)
    spec = ctx.spark_spec
    settings = [
        f"{name.removeprefix('spark.')} {spec.conf[name]}"
        for name in _SETTINGS
        if name in spec.conf
    ]
    facts["spark"] = ", ".join([shown(master_of(spec.master)), *settings])
    return facts


# Law: a case that fails is named in `failures` and among the run's failures; its cells so far are
# kept and the others continue. A sketch too small, or a result that differs, fails the run. The
# yardstick is timed before every figure and at the end. Output files have every finished cell, so
# an interrupt keeps those.


def measured(run: PlannedRun, request: MeasureRequest, reporter: Reporter) -> Outcome:
    """Measure a planned run; write the requested files after every cell."""
    failures: list[Failure] = []
    unwritten: StorageError | None = None
    for record in _records(run, failures, reporter):
        # After every cell: an interrupt costs the one at hand, not hours.
        try:
            written, unwritten = write_outputs(request, record), None
        except StorageError as error:
            # Measuring continues, and the results are shown in any case.
            written, unwritten = (), error
    warnings = []
    if unwritten is not None:
        failures.append(Failure(None, unwritten))
    if record.noise >= UNSTEADY:
        warnings.append(
            f"the machine was busy: equal work took at most {record.noise:.0%} longer; for exact "
            "times, measure again on an idle machine"
        )
    return Outcome((record, *written), tuple(warnings), tuple(failures))


def _records(run: PlannedRun, failures: list[Failure], reporter: Reporter) -> Iterator[Record]:
    """Measure figure by figure; yield the record so far after every cell, finally the whole."""
    run.folder.mkdir(parents=True, exist_ok=True)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    record = replace(run.record, started=started, machine=machine_facts(run.ctx))
    watch = Stopwatch()

    def so_far(**measured: object) -> Record:
        messages = tuple(failure.error.message for failure in failures)
        elapsed_s = round(watch.ms / 1000, 1)
        return replace(record, elapsed_s=elapsed_s, failures=messages, **measured)

    medians = [yardstick(run.folder)]
    for number, figure in enumerate(run.figures, start=1):
        name = figure.figure.name
        reporter.step(f"figure {name}", number, len(run.figures))
        tables = {**record.tables, **_table_rows(run.ctx, figure)}
        record = so_far(figures=(*record.figures, figure.figure), tables=tables)
        for cell in _cells(run, figure, failures):
            record = so_far(cells=(*record.cells, cell))
            yield record
        medians.append(yardstick(run.folder))
        noise = {**record.figure_noise, name: noise_of(medians[-2:])}
        record = so_far(noise=noise_of(medians), figure_noise=noise)
        yield record


def _table_rows(ctx: Context, figure: PlannedFigure) -> dict[str, int]:
    """The rows of every table that the figure's queries read."""
    sizes = {}
    for case, _, _ in figure.cases:
        # What is wrong with a query or its tables is reported when it is measured.
        with suppress(Exception):
            for table in prepare(ctx, case.query).tables:
                rows = ctx.tables.snapshot(table).rows
                if rows is not None:
                    sizes[table] = rows
    return sizes


def _cells(run: PlannedRun, figure: PlannedFigure, failures: list[Failure]) -> Iterator[Cell]:
    """Yield every cell as soon as it is measured and judged."""
    for case, mark, cells in figure.cases:
        failed: list[Failure] = []
        with Isolated(failed, case.query):
            for cell in cells:
                failures += [
                    _failure(case, error, cell.labels) for error in _unsound(run, case, cell)
                ]
                yield replace(cell, fingerprint=mark)
        failures += [_failure(case, failure.error, case.labels) for failure in failed]


def _unsound(run: PlannedRun, case: MeasuredCase, cell: Cell) -> Iterator[ImpctlError]:
    name, hint = case.query.name, f"please report this, with the {run.record.kind} and its seed"
    if cell.covers is False:
        text = f"The maintained sketch of query `{name}` is too small"
        yield UnsoundSketchError(text, hint=hint)
    if cell.equal is False:
        text = f"Query `{name}` has a different result with its sketch than without"
        yield UnsoundSketchError(text, hint=hint)


def _failure(case: MeasuredCase, error: ImpctlError, labels: Mapping[str, Label]) -> Failure:
    settings = ", ".join(f"{name} {value}" for name, value in labels.items())
    text = f"Figure `{case.figure}`, {settings}: {error.message}"
    return Failure(case.query.name, error.saying(text))
