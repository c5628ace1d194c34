"""Files that `bench` reads and writes: records, reports, example data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from impctl.bench.data import (
    SYNTHETIC_SCHEMA,
    orders_files,
    refreshes,
    running_example_table,
    split_last_days,
    synthetic_batches,
)
from impctl.bench.quantity import metric_text as metric_text
from impctl.bench.quantity import plain_name as plain_name
from impctl.bench.record import Record, compare_records, record_from_json, record_to_json
from impctl.bench.summary import FigureTable as FigureTable
from impctl.bench.summary import figure_tables as figure_tables
from impctl.errors import UnsoundSketchError, UsageError
from impctl.service.context import Reporter
from impctl.service.output import check_output, not_written, try_output, write_whole
from impctl.service.results import Failure, GenerateResult, Outcome, WrittenResult
from impctl.service.settings import Example, GenerateRequest
from impctl.tables.write.maintenance import create_laid_out_table, create_table
from impctl.workload.load import read_file

if TYPE_CHECKING:
    from impctl.service.settings import MeasureRequest


# Records as files: written after a run, and read to compare two runs or to write a page. Law: a
# file is written whole or not at all; whether it can be is tried before anything is measured, and
# the trial leaves what stands there as it is. A device, a pipe or a link stays one: the text goes
# through it. The command line also takes from here the words that show a record.

_MOST_BYTES = 256 << 20
"""Maximum size of a record to read."""


def check_outputs(request: MeasureRequest, reserved: Mapping[str, str]) -> None:
    """Raise StorageError if a requested file could not be written. Raise UsageError if both are the
    same file, or if the package that renders reports is missing."""
    requested = {"record": request.out, "report": request.report}
    paths = {kind: path for kind, path in requested.items() if path is not None}
    if len({path.absolute() for path in paths.values()}) < len(paths):
        raise UsageError(
            f"`--out` and `--report` name the same file: {request.out}",
            hint="give two different files",
        )
    if request.report is not None:
        from impctl.bench.report import check_templates

        check_templates()
    for kind, path in paths.items():
        with _reporting_failure(kind, path):
            try_output(path, reserved)


def write_outputs(request: MeasureRequest, record: Record) -> tuple[WrittenResult, ...]:
    """Write the record and its report, if requested."""
    written: list[WrittenResult] = []
    if request.out is not None:
        written.append(_written("record", request.out, record_to_json(record)))
    if request.report is not None:
        from impctl.bench.report import render_report

        written.append(_written("report", request.report, render_report(record)))
    return tuple(written)


def compare_files(old: Path, new: Path, reporter: Reporter) -> Outcome:
    """Compare two records; cells of the new one with a failed check are a failure."""
    result = compare_records(_read_record(old), _read_record(new))
    if not result.wrong:
        return Outcome((result,))
    text = f"Record `{new}` has cells whose check failed: {len(result.wrong)}"
    hint = "its figures are not reliable until this is fixed; please report it, with the record"
    return Outcome((result,), (), (Failure(None, UnsoundSketchError(text, hint=hint)),))


def report_file(file: Path, target: Path, reporter: Reporter) -> Outcome:
    """Write the report of a record."""
    from impctl.bench.report import render_report

    return Outcome((_written("report", target, render_report(_read_record(file))),))


def _read_record(file: Path) -> Record:
    try:
        data = read_file(file, _MOST_BYTES)
        text = "" if len(data) > _MOST_BYTES else data.decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(
            f"Record `{file}` cannot be read: {reason}",
            code="record_unreadable",
            hint="give a file that `impctl bench WORKLOAD --out FILE` wrote",
        ) from None
    return record_from_json(text, str(file))


def _written(kind: str, path: Path, text: str) -> WrittenResult:
    with _reporting_failure(kind, path):
        write_whole(path, text)
    return WrittenResult(kind, str(path))


@contextmanager
def _reporting_failure(kind: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise not_written(f"The {kind}", path, error) from error


# Write the tables that the shipped workloads and benchmarks read. Law: only new tables are written,
# below the requested folder; equal requests give equal rows.

DEFAULT_ROWS = 1_000_000
DEFAULT_GROUPS = 5_000
ORDERS_ROWS = 5_000_000
CRIMES_DAYS = 30
"""Last days of the crimes data that become batches."""

_ROW_BYTES = 80
_FILES = 16
_SMALLEST_FILE = 1 << 20
_TPCH_FILE = 64 << 20

_ORDERS_FILE = 5_000
"""Rows per file of orders: small files, as a stream of appends writes them."""

_NAMES = {
    Example.RUNNING: "sales",
    Example.SYNTHETIC: "synthetic",
    Example.CRIMES: "crimes",
    Example.ORDERS: "orders",
}
_TPCH = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")


def generate(request: GenerateRequest, reporter: Reporter) -> Outcome:
    """Write the tables of the request; return one result each."""
    check_output(request.folder)
    if request.example is Example.TPCH:
        return _tpch(request, reporter)
    name = _NAMES[request.example] if request.table is None else request.table
    path = request.folder / name
    reporter.step(f"writing {path}")
    match request.example:
        case Example.RUNNING:
            rows = _create(path, running_example_table())
        case Example.SYNTHETIC:
            rows = _synthetic(path, request)
        case Example.ORDERS:
            rows = ORDERS_ROWS if request.rows is None else request.rows
            orders = orders_files(rows, max(rows // _ORDERS_FILE, 1), request.seed)
            rows = create_laid_out_table(str(path), orders)
        case _:
            rows = _crimes(path, request)
    return Outcome((GenerateResult(name, str(path), rows, 0),))


def _tpch(request: GenerateRequest, reporter: Reporter) -> Outcome:
    """Write the TPC-H tables from Parquet files of a TPC-H generator."""
    source = request.source
    files = {} if source is None else {name: source / f"{name}.parquet" for name in _TPCH}
    if not files or not all(file.is_file() for file in files.values()):
        raise UsageError(
            "The TPC-H tables need the folder with the source Parquet files",
            hint="run `tpchgen-cli parquet -s 1 --output-dir DIR`, then give `--source DIR`",
        )
    results = []
    for name, file in files.items():
        path = request.folder / name
        reporter.step(f"writing {path}")
        with pq.ParquetFile(file) as parquet:
            rows = parquet.metadata.num_rows
            reader = pa.RecordBatchReader.from_batches(parquet.schema_arrow, parquet.iter_batches())
            create_table(str(path), reader, file_bytes=_TPCH_FILE)
        results.append(GenerateResult(name, str(path), rows, 0))
    reporter.step("writing refreshes")
    _refreshes(request.folder / "refresh", files, request.seed)
    return Outcome(tuple(results))


def _refreshes(folder: Path, files: Mapping[str, Path], seed: int) -> None:
    """Write new orders and their line items, as files for `apply`."""
    folder.mkdir(parents=True, exist_ok=True)

    def lineitem_of(keys: Sequence[int]) -> pa.Table:
        return _read(files["lineitem"], filters=[("l_orderkey", "in", list(keys))])

    for refresh in refreshes(_read(files["orders"]), lineitem_of, seed=seed):
        pq.write_table(refresh.orders, folder / f"orders-{refresh.size}.parquet")
        pq.write_table(refresh.lineitem, folder / f"lineitem-{refresh.size}.parquet")


def _read(file: Path, filters: list[tuple[str, str, list[int]]] | None = None) -> pa.Table:
    """Read the rows with plain strings: Arrow cannot filter string views."""
    schema = pa.schema(
        pa.field(field.name, pa.string() if pa.types.is_string_view(field.type) else field.type)
        for field in pq.read_schema(file)
    )
    return pq.read_table(file, schema=schema, filters=filters)


def _create(path: Path, table: pa.Table) -> int:
    create_table(str(path), table)
    return int(table.num_rows)


def _synthetic(path: Path, request: GenerateRequest) -> int:
    rows = DEFAULT_ROWS if request.rows is None else request.rows
    groups = DEFAULT_GROUPS if request.groups is None else request.groups
    batches = synthetic_batches(rows, groups, request.seed, sorted_by_a=request.sort_rows)
    reader = pa.RecordBatchReader.from_batches(SYNTHETIC_SCHEMA, batches)
    # About sixteen files, so that skipping some can be seen on a small table too.
    create_table(str(path), reader, file_bytes=max(rows * _ROW_BYTES // _FILES, _SMALLEST_FILE))
    return rows


def _crimes(path: Path, request: GenerateRequest) -> int:
    if request.source is None:
        raise UsageError(
            "The crimes table needs its source Parquet file",
            hint="give `--source FILE` or set IMPCTL_CRIMES; `workloads/crimes.yaml` names the "
            "file",
        )
    if not request.source.is_file():
        raise UsageError(
            f"The crimes file does not exist: {request.source}",
            hint="correct `--source` or IMPCTL_CRIMES",
        )
    base, days = split_last_days(pq.read_table(request.source), "Date", CRIMES_DAYS)
    folder = path.parent / f"{path.name}-batches"
    folder.mkdir(parents=True, exist_ok=True)
    for number, day in enumerate(days, start=1):
        pq.write_table(day, folder / f"day-{number}.parquet")
    return _create(path, base)
