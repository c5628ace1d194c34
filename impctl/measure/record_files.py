"""Records as files: written after a run, and read to compare two runs or to write a page.

Law: a file is written whole or not at all; whether it can be is tried before anything is measured,
and the trial leaves what stands there as it is. A device, a pipe or a link stays one: the text goes
through it. The command line also takes from here the words that show a record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import ENOTDIR
from pathlib import Path
from typing import TYPE_CHECKING

from impctl.bench.compare import compare_records
from impctl.bench.quantity import metric_text as metric_text
from impctl.bench.quantity import plain_name as plain_name
from impctl.bench.record import Record, record_from_json, record_to_json
from impctl.bench.summary import FigureTable as FigureTable
from impctl.bench.summary import figure_tables as figure_tables
from impctl.errors import StorageError, UnsoundSketchError, UsageError
from impctl.service.context import Reporter
from impctl.service.output import try_output, write_whole
from impctl.service.results import Failure, Outcome, WrittenResult
from impctl.workload.load import read_file

if TYPE_CHECKING:
    from impctl.service.settings import MeasureRequest


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
        # A file where a folder should be: the system says that it exists.
        reason = os.strerror(ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
        raise StorageError(
            f"The {kind} could not be written to `{path}`: {reason}",
            hint="name a file in a folder with write access",
        ) from error
