"""Use case: write a first workload file, for Delta tables that are there or for a demo.

Law: nothing that is there is overwritten unless asked for; a file is put in place only after it was
read back and its queries were found supported, so what `init` wrote passes `check`.
Out of scope: the text (`app.starting.text`), which columns (`app.starting.promising_columns`).
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from impctl.app.check import check, schema_text
from impctl.app.results.explanations import CheckResult
from impctl.app.results.results import Outcome
from impctl.app.results.started import StartedResult
from impctl.app.starting.demo import DEMO_QUERIES, DEMO_ROWS, DEMO_TEXT
from impctl.app.starting.promising_columns import Promise, group_column, measure_column, promising
from impctl.app.starting.text import SCHEMA_FILE, FirstTable, ProposedColumn, workload_text
from impctl.app.workbench.output import check_output, write_whole
from impctl.app.workbench.reporter import Reporter
from impctl.app.workbench.settings import DEFAULT_FILE, InitRequest, Settings
from impctl.app.workbench.workbench import open_workbench
from impctl.bench.orders import orders_files
from impctl.errors import ImpctlError, StorageError, TableError, UsageError, count_text, masked
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import open_source
from impctl.tables.write.maintenance import create_laid_out_table
from impctl.types import TableName
from impctl.workload.load import DEFAULT_STORE

_MOST_CANDIDATES = 4
_DEMO_FILES = 200


def init(request: InitRequest, reporter: Reporter) -> Outcome:
    """Write the file; one result that says what to run next."""
    if request.demo is not None:
        return _demo(request.demo, reporter, force=request.force)
    out = DEFAULT_FILE if request.out is None else request.out
    _refuse_existing(out, force=request.force)
    tables: list[FirstTable] = []
    for path in request.tables:
        reporter.step(f"reading the log of {masked(path)}")
        tables.append(_table(path, out, [table.name for table in tables]))
    if not any(table.group_by for table in tables):
        raise UsageError(
            "None of the tables has a column that can be split into ranges",
            hint="sketches need a column with a number, text, date or timestamp type",
        )
    text = workload_text(_identifier(out.stem), tables, _store_of(out))
    queries = _put(out, text, reporter, force=request.force)
    names = tuple(table.name for table in tables)
    file = shlex.quote(str(out))
    commands = tuple(f"impctl {verb} {file}" for verb in ("check", "explain", "doctor", "capture"))
    return Outcome((StartedResult(str(out), names, queries, commands),))


def _demo(folder: Path, reporter: Reporter, *, force: bool) -> Outcome:
    out = folder / "demo.yaml"
    _refuse_existing(out, force=force)
    path = folder / "orders"
    check_output(path)
    if not (force and path.exists()):
        reporter.step(f"writing {path}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_written(folder, error) from error
        create_laid_out_table(str(path), orders_files(DEMO_ROWS, _DEMO_FILES, seed=1))
    _put(out, DEMO_TEXT, reporter, force=force)
    file = shlex.quote(str(out))
    commands = (
        f"impctl explain {file}",
        f"impctl capture {file}",
        f"impctl query {file} --query large_orders",
        f"impctl apply {file} one-order",
        f"impctl changes {file} --query large_orders",
        f"impctl maintain {file}",
        f"impctl gain {file}",
        f"impctl verify {file} --results",
    )
    return Outcome((StartedResult(str(out), ("orders",), DEMO_QUERIES, commands),))


def _table(path: str, out: Path, taken: Sequence[TableName]) -> FirstTable:
    name = _free_name(_identifier(re.split(r"[/\\]", path.rstrip("/\\"))[-1]), taken)
    try:
        snapshot = open_source(name, path).snapshot()
    except TableError as error:
        if error.code != "table_missing":
            raise
        hint = "give folders or URIs of Delta tables; relative paths start at the current folder"
        raise TableError(error.message, hint=hint, code=error.code) from error
    result = promising(snapshot, _MOST_CANDIDATES)
    candidates = [
        ProposedColumn(one.column.name, one.ranges, _remark(one, len(snapshot.files)))
        for one in result
    ]
    return FirstTable(
        name,
        _written_path(path, out),
        _described(snapshot),
        candidates,
        group_column(snapshot, result),
        measure_column(snapshot),
    )


def _described(snapshot: Snapshot) -> str:
    rows = "unknown rows" if snapshot.rows is None else count_text(snapshot.rows, "row")
    feed = "on" if snapshot.has_change_feed else "off (so changes cost more)"
    files = count_text(len(snapshot.files), "file")
    return f"version {snapshot.version}: {rows} in {files}; change feed {feed}"


def _remark(one: Promise, files: int) -> str:
    values = "" if one.values is None else f", at most {one.values:,} values"
    apart = (
        f"; a value occurs in about {one.overlap:.0%} of the files"
        if files > 1 and one.overlap < 1
        else ""
    )
    return f"{one.column.type}{values}{apart}"


def _written_path(path: str, out: Path) -> str:
    """The path as the file names it: relative to its folder unless far away, URIs as they are."""
    if "://" in path:
        return path
    relative = os.path.relpath(path, out.parent).replace(os.sep, "/")
    return os.path.abspath(path) if relative.startswith("../../") else relative


def _put(out: Path, text: str, reporter: Reporter, *, force: bool) -> tuple[str, ...]:
    """Write file and schema once they pass; the names of the queries."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=out.parent) as draft:
            draft.write(text)
            draft.flush()
            queries = _checked(Path(draft.name), reporter)
        _write_schema(out.with_name(SCHEMA_FILE), force=force)
        write_whole(out, text)
    except OSError as error:
        raise _not_written(out, error) from error
    return queries


def _not_written(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"`{path}` cannot be written: {error.strerror}",
        hint="check that the folder exists and that you have write access",
    )


def _checked(draft: Path, reporter: Reporter) -> tuple[str, ...]:
    """The queries of the draft, all found supported."""
    with open_workbench(Settings(draft), reporter) as desk:
        outcome = check(desk)
    for failure in outcome.failures:
        raise failure.error
    results = [result for result in outcome.results if isinstance(result, CheckResult)]
    for result in results:
        if not result.supported:
            raise ImpctlError(f"The example `{result.query}` gave a wrong result: {result.reason}")
    return tuple(result.query for result in results)


def _write_schema(file: Path, *, force: bool) -> None:
    text = schema_text()
    if file.exists() and not force and '"urn:impctl:workload:' not in file.read_text("utf-8"):
        raise _existing(file)
    write_whole(file, text)


def _store_of(out: Path) -> str:
    """A store of the file's own, so that two files in one folder never share one."""
    return DEFAULT_STORE if out.stem == DEFAULT_FILE.stem else f"{out.stem}{DEFAULT_STORE}"


def _refuse_existing(out: Path, *, force: bool) -> None:
    check_output(out)
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"A workload file contains its own name, so the name must be UTF-8: `{out}`",
            hint="give another name (`--out FILE`)",
            code="out_not_utf8",
        ) from None
    if out.exists() and not (force and out.is_file()):
        raise _existing(out)


def _existing(file: Path) -> UsageError:
    return UsageError(
        f"File `{file}` already exists",
        hint="give another name (`--out FILE`), or overwrite it with `--force`",
    )


def _identifier(text: str) -> str:
    """The nearest thing to `text` that can name a table."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")[:100] or "table"
    return plain if not plain[0].isdigit() else f"t_{plain}"


def _free_name(name: TableName, taken: Sequence[TableName]) -> TableName:
    lowered = {one.lower() for one in taken}
    tries = (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3)))
    return next(one for one in tries if one.lower() not in lowered)
