"""Write the first workload file, for existing Delta tables or for a demo."""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from sqlglot.dialects.spark import Spark

from impctl.bench.data import orders_files
from impctl.data.schema import INTEGRAL, Column, Kind, quoted
from impctl.errors import ImpctlError, StorageError, TableError, UsageError, count_text, masked
from impctl.service.context import Reporter, open_context
from impctl.service.explain import check, schema_text
from impctl.service.output import check_output, write_whole
from impctl.service.partitions import is_partitionable
from impctl.service.results import CheckResult, Outcome, StartedResult
from impctl.service.settings import DEFAULT_FILE, Settings
from impctl.tables.sample import overlap
from impctl.tables.source import open_source
from impctl.tables.statistics import column_statistics, file_bounds
from impctl.tables.write.maintenance import create_laid_out_table
from impctl.workload.load import DEFAULT_STORE

if TYPE_CHECKING:
    from impctl.tables.snapshot import Snapshot, ValueBounds
    from impctl.types import ColumnName, TableName


# Law: nothing existing is overwritten unless requested. A file is put in place only after it was
# read back and its queries were found supported, so `check` accepts what `init` wrote.

_MOST_CANDIDATES = 4
_DEMO_FILES = 200
_OTHER_NAME = "give another name (`--out FILE`)"


def init(paths: Sequence[str], out: Path, reporter: Reporter, *, force: bool) -> Outcome:
    """Write the first workload file for these tables; the result names the next commands."""
    _refuse_existing(out, force=force)
    tables: list[FirstTable] = []
    for path in paths:
        reporter.step(f"reading the log of {masked(path)}")
        tables.append(_first_table(path, out, [table.name for table in tables]))
    if not any(table.group_by for table in tables):
        raise UsageError(
            "None of the tables has a column that can be split into ranges",
            hint="sketches need a column with a number, text, date or timestamp type",
        )
    # A store per file, so that two files in a folder never share one.
    store = DEFAULT_STORE if out.stem == DEFAULT_FILE.stem else f"{out.stem}{DEFAULT_STORE}"
    text = workload_text(_identifier(out.stem), tables, store)
    queries = _put(out, text, reporter, force=force)
    names = tuple(table.name for table in tables)
    file = shlex.quote(str(out))
    commands = tuple(f"impctl {verb} {file}" for verb in ("check", "explain", "doctor", "capture"))
    return Outcome((StartedResult(str(out), names, queries, commands),))


def init_demo(folder: Path, reporter: Reporter, *, force: bool) -> Outcome:
    """Write a table and a workload file to try out; `force` writes only the file of an older demo
    again."""
    out = folder / "demo.yaml"
    _refuse_existing(out, "give another folder", force=force)
    path = folder / "orders"
    if not (force and path.exists()):
        check_output(path)
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


def _first_table(path: str, out: Path, used: Sequence[TableName]) -> FirstTable:
    name = _free_name(_identifier(re.split(r"[/\\]", path.rstrip("/\\"))[-1]), used)
    try:
        snapshot = open_source(name, path).snapshot()
    except TableError as error:
        if error.code != "table_missing":
            raise
        hint = "give folders or URIs of Delta tables; relative paths start at the current folder"
        raise TableError(error.message, hint=hint, code=error.code) from error
    return FirstTable(name, _written_path(path, out), snapshot, promising(snapshot))


def _written_path(path: str, out: Path) -> str:
    """The path relative to the file's folder unless far away; URIs unchanged."""
    if "://" in path:
        return path
    relative = os.path.relpath(path, out.parent).replace(os.sep, "/")
    return os.path.abspath(path) if relative.startswith("../../") else relative


def _put(out: Path, text: str, reporter: Reporter, *, force: bool) -> tuple[str, ...]:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=out.parent) as draft:
            draft.write(text)
            draft.flush()
            queries = _checked(Path(draft.name), reporter)
        schema = out.with_name(SCHEMA_FILE)
        is_foreign = schema.exists() and '"urn:impctl:workload:' not in schema.read_text("utf-8")
        if is_foreign and not force:
            raise _existing(schema)
        write_whole(schema, schema_text())
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
    with open_context(Settings(draft), reporter) as ctx:
        outcome = check(ctx)
    for failure in outcome.failures:
        raise failure.error
    results = [result for result in outcome.results if isinstance(result, CheckResult)]
    for result in results:
        if not result.supported:
            raise ImpctlError(f"The example `{result.query}` gave a wrong result: {result.reason}")
    return tuple(result.query for result in results)


def _refuse_existing(out: Path, instead: str = _OTHER_NAME, *, force: bool) -> None:
    check_output(out)
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"A workload file contains its own name, so the name must be UTF-8: `{out}`",
            hint=instead,
            code="out_not_utf8",
        ) from None
    if out.exists() and not (force and out.is_file()):
        raise _existing(out, instead)


def _existing(file: Path, instead: str = _OTHER_NAME) -> UsageError:
    return UsageError(
        f"File `{file}` already exists",
        hint=f"{instead}, or overwrite the file with `--force`",
    )


def _identifier(text: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")[:100] or "table"
    return plain if not plain[0].isdigit() else f"t_{plain}"


def _free_name(name: TableName, used: Sequence[TableName]) -> TableName:
    lowered = {candidate.lower() for candidate in used}
    tries = (name, *(f"{name}_{number}" for number in range(2, len(used) + 3)))
    return next(candidate for candidate in tries if candidate.lower() not in lowered)


# The workload of `impctl init --demo`: needs no network and no Spark. The queries are those of
# `make demo` (`workloads/orders.yaml`).

DEMO_QUERIES = ("best_days", "large_orders", "best_customers")
DEMO_ROWS = 1_000_000

DEMO_TEXT = """\
# yaml-language-server: $schema=impctl.schema.json
# A million order lines in 200 files, appended by time, and three queries of a dashboard.
#
# The first two need few files, because day and order_id rise with time. The third one needs every
# file: its customers order all the time, so that only its materialized result makes it faster.
version: 1
name: demo
tables:
  orders: {path: orders}
queries:
  best_days:
    sql: |
      SELECT day, SUM(quantity * price) AS revenue FROM orders
      GROUP BY day ORDER BY revenue DESC, day LIMIT 20
    answer: true                       # keep the result as well: a materialized result
    policy: auto                       # or incremental, strict, full
  large_orders:
    sql: |
      SELECT order_id, SUM(quantity * price) AS total FROM orders
      GROUP BY order_id HAVING SUM(quantity * price) > 5000
    answer: true
  best_customers:
    sql: |
      SELECT customer_id, SUM(quantity * price) AS spent FROM orders
      GROUP BY customer_id ORDER BY spent DESC, customer_id LIMIT 10
    answer: true
updates:
  # One large order on a new day, to try `impctl apply` with; real tables have their own writers.
  - name: one-order
    insert:
      table: orders
      rows:
        - order_id: 90000001
          line: 1
          day: 2026-10-01
          customer_id: 7
          product_id: 1
          quantity: 900
          price: 499.00
  - {name: cancelled, delete: {table: orders, where: "order_id = 90000001"}}
store: .impctl
spark: {master: "local[2]", conf: {spark.driver.memory: 1g}}
"""


# Columns that promise a useful sketch, by file statistics alone. Law: reads no data file. More
# distinct values make finer ranges; a column that separates the files lets readers skip them. Wrong
# guesses cost only speed.

_FEWEST_VALUES = 4
"""Columns with fewer distinct values cannot be cut finely enough to skip much."""
_OF_A_GROUP = 20
"""Average rows per group of a typical grouping column; keys have fewer."""
_COUNTABLE = INTEGRAL | {Kind.DATE}
_RANGES = ((100_000, 1000), (1_000, 100))
"""Pairs of rows and the ranges requested from that many on."""
_FEW_RANGES = 16


class Promise(Struct, frozen=True):
    """A column worth trying: distinct values at most, and the share of files that a value is
    in."""

    column: Column
    values: int | None
    overlap: float
    ranges: int


def promising(snapshot: Snapshot) -> tuple[Promise, ...]:
    """A few columns, best first; those with few values only if all have few."""
    columns = [
        column
        for column in snapshot.schema
        if is_partitionable(column) and column.name not in snapshot.columns.opaque
    ]
    result = []
    for column in columns:
        filled = [bounds for bounds in file_bounds(snapshot, column.name) if not bounds.is_all_null]
        values = _values_at_most(snapshot, column, filled)
        rows = _RANGES[0][0] if snapshot.rows is None else snapshot.rows
        ranges = next((ranges for least, ranges in _RANGES if rows >= least), _FEW_RANGES)
        if values is not None:
            ranges = max(2, min(ranges, values))
        result.append(Promise(column, values, overlap(snapshot, column.name), ranges))
    rich = [
        promise for promise in result if promise.values is None or promise.values >= _FEWEST_VALUES
    ]
    return tuple(sorted(rich or result, key=_order)[:_MOST_CANDIDATES])


def _order(promise: Promise) -> tuple[float, bool, int]:
    """Separate files first, then known counts, then many values."""
    return (round(promise.overlap, 2), promise.values is None, -(promise.values or 0))


def _values_at_most(snapshot: Snapshot, column: Column, filled: list[ValueBounds]) -> int | None:
    if not filled:
        return 0
    statistics = column_statistics(snapshot, column.name)
    low, high = statistics.minimum, statistics.maximum
    if low is None or high is None:
        return None
    if low == high:
        return 1
    if column.name in snapshot.partition_columns:
        return len({bounds_of_file.minimum for bounds_of_file in filled})
    if column.type.kind not in _COUNTABLE:
        return None
    apart = int(high) - int(low) + 1
    return apart if snapshot.rows is None else min(apart, snapshot.rows)


# The text of the file. Law: it loads, whatever the names of tables and columns: names and paths are
# quoted where YAML or SQL could misread them, and `$` in values is doubled.

_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./-]*[A-Za-z_/][A-Za-z0-9_./-]*")
_PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_SQL_WORDS = frozenset(word for entry in Spark.Tokenizer.KEYWORDS for word in entry.upper().split())
SCHEMA_FILE = "impctl.schema.json"


class FirstTable(Struct, frozen=True):
    """A table of the file; `candidates` are columns to cut into ranges."""

    name: TableName
    path: str
    snapshot: Snapshot
    candidates: tuple[Promise, ...]

    @property
    def group_by(self) -> ColumnName | None:
        """The column that its example query groups by: one whose values repeat, or likely do.
        Without `${` in its name, which Spark would substitute in a query's text."""
        named = [promise for promise in self.candidates if "${" not in promise.column.name]
        rows = self.snapshot.rows or 0
        repeated = [p for p in named if p.values is not None and p.values * _OF_A_GROUP <= rows]
        texts = [promise for promise in named if promise.column.type.kind is Kind.STRING]
        return next((p.column.name for p in (*repeated, *texts, *named)), None)

    @property
    def measure(self) -> ColumnName | None:
        """A column that its example query sums: an amount, not a key."""
        excluded = {*self.snapshot.columns.opaque, *self.snapshot.partition_columns}
        left = [column for column in self.snapshot.schema if column.name not in excluded]
        named = [column for column in left if "${" not in column.name]
        kinds = (Kind.DECIMAL, Kind.DOUBLE, Kind.FLOAT)
        return next((c.name for kind in kinds for c in named if c.type.kind is kind), None)


def workload_text(name: str, tables: Sequence[FirstTable], store: str) -> str:
    """The whole file; `store` is a folder beside it."""
    return "\n".join(
        [
            f"# yaml-language-server: $schema={SCHEMA_FILE}",
            "# Next: `impctl check`, then `capture`. `impctl check --schema` lists all keys.",
            "version: 1",
            f"name: {_yaml(name)}",
            "tables:",
            *(line for table in tables for line in _table(table)),
            "# Columns that sketches can split into ranges of about equally many rows. Instead of",
            "# `ranges`, you can give `boundaries: [100, 200]`. A query uses a safe column.",
            "partitions:",
            *(line for table in tables for line in _partitions(table)),
            "queries:",
            "  # Examples; add your own here: groups with HAVING or a top-k save most.",
            *(line for table in tables for line in _query(table)),
            "# Folder of sketches and state, relative to this file.",
            f"store: {_yaml(store)}",
            "# Spark starts only if the engine cannot do the work.",
            "spark:",
            '  master: "local[*]"',
            "  # conf: {spark.driver.memory: 4g}",
            "",
        ]
    )


def _table(table: FirstTable) -> Iterator[str]:
    snapshot = table.snapshot
    rows = "unknown rows" if snapshot.rows is None else count_text(snapshot.rows, "row")
    feed = "on" if snapshot.has_change_feed else "off (so changes cost more)"
    files = count_text(len(snapshot.files), "file")
    yield f"  # version {snapshot.version}: {rows} in {files}; change feed {feed}"
    # A URI was read with the credentials of the surroundings; the file has to say so.
    result = ", credentials: ambient" if "://" in table.path else ""
    yield f"  {_key(table.name)}: {{path: {_yaml(table.path)}{result}}}"


def _partitions(table: FirstTable) -> Iterator[str]:
    if not table.candidates:
        yield f"  # {table.name}: no column can be split into ranges"
        return
    yield f"  {_key(table.name)}:"
    for promise in table.candidates:
        remark = str(promise.column.type)
        if promise.values is not None:
            remark += f", at most {promise.values:,} values"
        if len(table.snapshot.files) > 1 and promise.overlap < 1:
            remark += f"; about {promise.overlap:.0%} of the files may contain a given value"
        yield f"    {_key(promise.column.name)}: {{ranges: {promise.ranges}}}  # {remark}"


def _query(table: FirstTable) -> Iterator[str]:
    if table.group_by is None:
        return
    column = _sql(table.group_by)
    name, call = "row_count", "COUNT(*)"
    if table.measure is not None:
        name, call = "total", f"SUM({_sql(table.measure)})"
    yield f"  top_of_{table.name}:"
    yield "    sql: |"
    yield f"      SELECT {column}, {call} AS {name} FROM {_sql(table.name)}"
    yield f"      GROUP BY {column} ORDER BY {name} DESC, {column} LIMIT 10"
    yield "    answer: true        # keep the result too: `query` then takes milliseconds"
    yield "    policy: auto        # or incremental, strict, full"
    yield "    maintain: lazy      # or eager: a sketch for every version"


def _yaml(text: str) -> str:
    """A YAML scalar that is read as this very text."""
    return _key(text.replace("$", "$$"))


def _key(text: str) -> str:
    """A YAML key that is read as this very text; keys hold no variables."""
    if _PLAIN_PATH.fullmatch(text) and text.lower() not in _YAML_WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)


def _sql(name: str) -> str:
    """A name in SQL, quoted unless it must be a name anyway."""
    if _PLAIN_NAME.fullmatch(name) and name.upper() not in _SQL_WORDS:
        return name
    return quoted(name).replace("$", "$$")
