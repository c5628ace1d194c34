"""Reading a workload file: bytes to a `Workload`, or one error that lists every problem.

Law: no table, no SQL and no file named inside is opened; the environment comes as an argument.
A file that is not YAML has one problem; anything else wrong is found in the same pass.
Out of scope: settings beside the file (`app`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from yaml.nodes import Node

from impctl.errors import Location, Problem, UsageError, WorkloadError
from impctl.workload.models import SparkSpec, TableSpec, Workload
from impctl.workload.partitions import read_partitions
from impctl.workload.paths import resolve_path
from impctl.workload.positions import Lines, YamlFault, compose
from impctl.workload.queries import read_queries
from impctl.workload.reading import Entry, Reading, shown
from impctl.workload.updates import read_updates

MAX_BYTES = 1 << 20
"""Size of a workload file; rows by the thousand belong in a file of their own."""

TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REQUIRED = ("version", "tables", "queries")
_OPTIONAL = ("name", "partitions", "updates", "store", "spark")


def load_workload(path: Path, env: Mapping[str, str]) -> Workload:
    """The workload in the file `path`, variables resolved from `env`."""
    reading, root = open_document(path, env)
    workload = None if root is None else _read_root(path, root, reading)
    if workload is None or reading.problems:
        raise _all_problems(path, reading.problems)
    return workload


def load_spark_profile(path: Path, env: Mapping[str, str]) -> SparkSpec:
    """Spark settings from a file of their own: what would stand under `spark:`."""
    reading, root = open_document(path, env)
    spark = None if root is None else _read_spark(root, "the profile", reading)
    if spark is None or reading.problems:
        raise _all_problems(path, reading.problems)
    return spark


def open_document(path: Path, env: Mapping[str, str]) -> tuple[Reading, Node | None]:
    """The root node of a YAML file; None, with the problem noted, where there is none."""
    text = _read_text(path)
    reading = Reading(Lines(str(path), text), env)
    try:
        root = compose(text)
    except YamlFault as fault:
        place = reading.lines.at(fault.index)
        reading.problems.append(Problem(fault.message, place, fault.hint))
        return reading, None
    if root is None:
        message, hint = "The file is empty", "start from `impctl init`"
        reading.problems.append(Problem(message, Location(str(path), 1, 1), hint))
    return reading, root


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"There is no file `{path}`",
            code="workload_not_found",
            hint="check the path, or write a first workload file with `impctl init`",
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "bad path"
        raise UsageError(
            f"File `{path}` cannot be read: {reason}",
            code="workload_unreadable",
            hint="give the path of a YAML file that you may read",
        ) from None
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"File `{path}` is too large: {len(data)} bytes, at most {MAX_BYTES} are read",
            code="workload_too_large",
            hint="put rows to insert into a Parquet file and name it with `file:`",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"File `{path}` is not UTF-8 text: see line {line}",
            code="workload_encoding",
            hint="save the file as UTF-8",
            location=Location(str(path), line, 1),
        ) from None


def _all_problems(path: Path, problems: list[Problem]) -> WorkloadError:
    def place(problem: Problem) -> tuple[int, int]:
        at = problem.location
        return (0, 0) if at is None else (at.line, at.column)

    ordered = sorted(problems, key=place)
    count = "a problem" if len(ordered) == 1 else f"{len(ordered)} problems"
    return WorkloadError(f"File `{path}` has {count}", ordered)


def _read_root(path: Path, root: Node, reading: Reading) -> Workload | None:
    base = path.parent.resolve()
    fields = reading.record(root, "the workload file", (), (*_REQUIRED, *_OPTIONAL))
    if fields is None:
        return None
    for key in _REQUIRED:
        if key not in fields:
            reading.report(root, f"Key `{key}` is missing in the workload file", f"add `{key}:`")
    if "version" in fields:
        _check_version(fields["version"].value, reading)
    tables: dict[str, TableSpec] = {}
    declared: list[str] = []
    if "tables" in fields:
        declared, tables = _read_tables(fields["tables"], base, reading)
    elif "queries" not in fields:
        return None
    queries = partitions = updates = None
    if "partitions" in fields:
        partitions = read_partitions(fields["partitions"].value, declared, reading)
    if "queries" in fields:
        queries = read_queries(fields["queries"].value, declared, reading)
    if "updates" in fields:
        updates = read_updates(fields["updates"].value, declared, base, reading)
    name = reading.text(fields["name"].value, "`name`") if "name" in fields else path.stem
    store = reading.text(fields["store"].value, "`store`") if "store" in fields else ".impctl"
    spark: SparkSpec | None = SparkSpec(None, {})
    if "spark" in fields:
        spark = _read_spark(fields["spark"].value, "`spark`", reading)
    if name is None or store is None or spark is None:
        return None
    return Workload(
        name=name,
        file=str(path),
        tables=tables,
        partitions=partitions or (),
        queries=queries or {},
        updates=updates or (),
        store=resolve_path(base, store),
        spark=spark,
    )


def _check_version(node: Node, reading: Reading) -> None:
    cell = reading.cell(node, "`version`", "the number 1")
    if cell is not None and (cell.value != 1 or not isinstance(cell.value, int)):
        reading.report(node, "`version` must be the number 1", "write `version: 1`")


def _read_tables(
    entry: Entry, base: Path, reading: Reading
) -> tuple[list[str], dict[str, TableSpec]]:
    """Names as declared, also of tables with a problem, and the tables that could be read."""
    entries = reading.entries(entry.value, "`tables`")
    if entries is not None and not entries:
        reading.report(entry.value, "`tables` is empty", "name at least one Delta table")
    found: dict[str, TableSpec] = {}
    seen: dict[str, str] = {}
    for name, inner in (entries or {}).items():
        if len(name) > 128 or TABLE_NAME.fullmatch(name) is None:
            reading.report(
                inner.key,
                f"{shown(name)} cannot name a table",
                "use letters, digits and `_`, not a digit first; `path` may be anything",
            )
        elif name.lower() in seen:
            reading.report(
                inner.key,
                f"Tables {shown(seen[name.lower()])} and {shown(name)} have the same name",
                "rename one; Spark does not tell upper from lower case in names",
            )
        seen.setdefault(name.lower(), name)
        fields = reading.record(inner.value, f"`tables.{name}`", ("path",), ("storage_options",))
        if fields is None:
            continue
        path = reading.text(fields["path"].value, f"`tables.{name}.path`")
        options: dict[str, str] | None = {}
        if "storage_options" in fields:
            where = f"`tables.{name}.storage_options`"
            options = reading.texts(fields["storage_options"].value, where)
        if path is not None and options is not None:
            found[name] = TableSpec(name, resolve_path(base, path), options, reading.at(inner.key))
    return list(entries or {}), found


def _read_spark(node: Node, path: str, reading: Reading) -> SparkSpec | None:
    fields = reading.record(node, path, (), ("master", "conf"))
    if fields is None:
        return None
    master: str | None = None
    conf: dict[str, str] | None = {}
    prefix = "`spark." if path == "`spark`" else "`"
    if "master" in fields:
        master = reading.text(fields["master"].value, f"{prefix}master`")
    if "conf" in fields:
        conf = reading.texts(fields["conf"].value, f"{prefix}conf`")
    return None if conf is None else SparkSpec(master, conf)
