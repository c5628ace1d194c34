"""Records as files: written after a run, read to compare two runs.

Law: a file is written whole or not at all. Out of scope: what is in it (`bench.record_json`).
"""

from __future__ import annotations

import os
from pathlib import Path

from impctl.app.reporter import Reporter
from impctl.app.results import Failure, Outcome, WrittenResult
from impctl.app.settings import SuiteRequest
from impctl.bench.compare import compare_records
from impctl.bench.record import Record
from impctl.bench.record_json import record_from_json, record_to_json
from impctl.errors import StorageError, UnsoundSketchError, UsageError


def write_kept(request: SuiteRequest, record: Record) -> tuple[WrittenResult, ...]:
    """Write the record and its report where they were asked for."""
    written: list[WrittenResult] = []
    if request.out is not None:
        written.append(_written("record", request.out, record_to_json(record)))
    if request.report is not None:
        from impctl.bench.report import render_report

        written.append(_written("report", request.report, render_report(record)))
    return tuple(written)


def compare_files(old: Path, new: Path, reporter: Reporter) -> Outcome:
    """What changed from one record to the other; wrong cells of the new one are a failure."""
    found = compare_records(_read(old), _read(new))
    if not found.wrong:
        return Outcome((found,))
    text = f"Record `{new}` holds cells whose check failed: {len(found.wrong)}"
    hint = "no number of it counts before that is mended; please report it, with suite and seed"
    return Outcome((found,), (), (Failure(None, UnsoundSketchError(text, hint=hint)),))


def report_file(file: Path, target: Path, reporter: Reporter) -> Outcome:
    """The report of a record that was written before."""
    from impctl.bench.report import render_report

    return Outcome((_written("report", target, render_report(_read(file))),))


def _read(file: Path) -> Record:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(
            f"Record `{file}` cannot be read: {reason}",
            code="record_unreadable",
            hint="give a file that `impctl bench SUITE --out FILE` wrote",
        ) from None
    return record_from_json(text, str(file))


def _written(kind: str, path: Path, text: str) -> WrittenResult:
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StorageError(
            f"The {kind} could not be written to `{path}`: {error.strerror}",
            hint="name a file in a folder that you may write",
        ) from error
    return WrittenResult(kind, str(path))
