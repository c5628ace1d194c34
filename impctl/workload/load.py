"""Reading a workload file: bytes to a `Workload`, or one error that lists every problem."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from impctl.errors import Location, UsageError, WorkloadError
from impctl.types import Secrets
from impctl.workload.models import DEFAULT_FILE, SparkSpec, Workload, store_path_problem
from impctl.workload.sections import (
    is_name,
    read_budget,
    read_defaults,
    read_limits,
    read_partitions,
    read_path,
    read_queries,
    read_tables,
    read_updates,
    read_views,
    resolve_path,
)
from impctl.workload.yaml import FileReading, Lines, YamlFault, compose, inside

if TYPE_CHECKING:
    from yaml.nodes import Node

# The names in a workload file, quickly and whatever else is wrong with it: for completion. Law:
# checks nothing and resolves no variable; a file that cannot be read has no names. Only names
# that could stand on a command line as they are come out.

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LARGEST = 1 << 20


def names_in(file: Path, section: str) -> tuple[str, ...]:
    """Names of the queries, tables or updates (`section`) of the file, in its order."""
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return ()
        result = yaml.load(file.read_bytes(), _LOADER)[section]
    except (OSError, ValueError, TypeError, KeyError, RecursionError, yaml.YAMLError):
        return ()
    names = list(result) if isinstance(result, dict) else []
    if isinstance(result, list):
        names = [entry.get("name") for entry in result if isinstance(entry, dict)]
    return tuple(name for name in names if isinstance(name, str) and is_name(name))


# Reading a workload file: bytes to a `Workload`, or one error that lists every problem. Law: no
# table, no SQL and no file named inside is opened; the environment comes as an argument. A file
# that is not YAML has one problem; anything else wrong is found in the same pass.

MAX_BYTES = 1 << 20
"""Maximum size of a workload file; thousands of rows belong in their own file."""

DEFAULT_STORE = ".impctl"

REQUIRED = ("tables", "queries")
OPTIONAL = (
    *("name", "catalog", "schema", "credentials", "views", "defaults", "partitions", "updates"),
    *("store", "budget", "limits", "spark"),
)
"""The sections of a workload besides `version`."""


def load_workload(path: Path, env: Mapping[str, str]) -> Workload:
    """The workload in the file `path`, with variables from `env`."""
    return workload_of(path, read_text(path), env)


def workload_of(path: Path, text: str, env: Mapping[str, str]) -> Workload:
    """The workload of the file `path`, from the text read from it."""
    reading, root = _document_of(path, text, env)
    workload = None if root is None else _read_root(path, root, reading)
    if workload is None or reading.problems:
        raise all_problems(path, reading)
    return workload


def load_spark_profile(path: Path, env: Mapping[str, str]) -> SparkSpec:
    """Spark settings from a separate file that holds the content of `spark:`."""
    reading, root = open_document(path, env)
    spark = None if root is None else _read_spark(root, "`spark`", reading)
    if spark is None or reading.problems:
        raise all_problems(path, reading)
    return spark


def open_document(path: Path, env: Mapping[str, str]) -> tuple[FileReading, Node | None]:
    """The root node of a YAML file; None, with a problem reported, if there is none."""
    return _document_of(path, read_text(path), env)


def _document_of(path: Path, text: str, env: Mapping[str, str]) -> tuple[FileReading, Node | None]:
    reading = FileReading(Lines(str(path), text), env)
    try:
        root = compose(text)
    except YamlFault as fault:
        reading.report_index(fault.index, fault.message, fault.hint)
        return reading, None
    if root is None:
        reading.report_index(0, "The file is empty", "start with `version: 1`")
    return reading, root


def read_file(path: Path, most: int) -> bytes:
    """The content of a file, at most `most` + 1 bytes: devices have no end."""
    with path.open("rb") as file:
        return file.read(most + 1)


def read_text(path: Path) -> str:
    """The text of the file; UsageError if there is none."""
    try:
        data = read_file(path, MAX_BYTES)
    except FileNotFoundError:
        raise _not_found(path) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "bad path"
        raise UsageError(
            f"File `{path}` cannot be read: {reason}",
            code="workload_unreadable",
            hint="give the path of a YAML file that you can read",
        ) from None
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"File `{path}` is too large: more than {MAX_BYTES} bytes",
            code="workload_too_large",
            hint="put rows to insert into a Parquet file and refer to it with `file:`",
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


def _not_found(path: Path) -> UsageError:
    if path == DEFAULT_FILE:
        return UsageError(
            f"There is no file `{path}` here (the default workload file)",
            code="workload_not_found",
            hint="give the path of your workload file, or create one with `impctl init TABLE`",
        )
    hint = "check the path; `impctl check --schema` shows what a workload file contains"
    if not path.suffix and DEFAULT_FILE.is_file():
        hint = (
            f"the first argument is the workload file (default: `{DEFAULT_FILE}`); to select a "
            f"query, use `--query {path}`"
        )
    return UsageError(f"There is no file `{path}`", code="workload_not_found", hint=hint)


def all_problems(path: Path, reading: FileReading) -> WorkloadError:
    """The error that lists the problems of a pass over the file."""
    problems = reading.problems
    count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    return WorkloadError(f"File `{path}` has {count}", problems)


def _read_root(path: Path, root: Node, reading: FileReading) -> Workload | None:
    fields = reading.record(root, "the workload file", ("version", *REQUIRED), OPTIONAL)
    if fields is None:
        return None
    check_version(fields.get("version"), reading)
    return read_workload(fields, path, path.parent.resolve(), reading)


def read_workload(
    fields: Mapping[str, Node], path: Path, base: Path, reading: FileReading
) -> Workload | None:
    """The workload in the sections `REQUIRED` and `OPTIONAL`, its paths relative to `base`."""
    declared, tables = read_tables(fields, base, reading)
    views = read_views(fields.get("views"), declared, reading)
    partitions = read_partitions(fields.get("partitions"), declared, reading)
    defaults = read_defaults(fields.get("defaults"), reading)
    queries = read_queries(fields.get("queries"), declared, defaults, reading)
    updates = read_updates(fields.get("updates"), declared, base, reading)
    name = reading.text(fields["name"], "`name`") if "name" in fields else path.stem
    store: str | None = resolve_path(base, DEFAULT_STORE)
    if "store" in fields:
        store = _read_store(fields["store"], base, reading)
    spark: SparkSpec | None = SparkSpec(None, Secrets())
    if "spark" in fields:
        spark = _read_spark(fields["spark"], "`spark`", reading)
    if name is None or store is None or spark is None or declared is None:
        return None
    return Workload(
        name=name,
        file=str(path),
        tables=tables,
        names=declared.names,
        views=views,
        partitions=partitions,
        queries=queries,
        updates=updates,
        store=store,
        spark=spark,
        budget=read_budget(fields.get("budget"), reading),
        limits=read_limits(fields.get("limits"), reading),
    )


_SPARK_NAMES = """
    cores.max default.parallelism driver.cores driver.extraClassPath driver.extraJavaOptions
    driver.host driver.maxResultSize driver.memory driver.memoryOverhead
    dynamicAllocation.enabled dynamicAllocation.maxExecutors dynamicAllocation.minExecutors
    eventLog.dir eventLog.enabled executor.cores executor.extraClassPath
    executor.extraJavaOptions executor.instances executor.memory executor.memoryOverhead
    jars jars.excludes jars.ivy jars.packages jars.repositories kryoserializer.buffer.max
    local.dir master memory.fraction memory.offHeap.enabled memory.offHeap.size serializer
    sql.adaptive.coalescePartitions.enabled sql.adaptive.enabled sql.adaptive.skewJoin.enabled
    sql.ansi.enabled sql.autoBroadcastJoinThreshold sql.broadcastTimeout sql.caseSensitive
    sql.catalogImplementation sql.extensions sql.files.maxPartitionBytes sql.session.timeZone
    sql.shuffle.partitions sql.sources.partitionOverwriteMode sql.timestampType
    sql.warehouse.dir ui.enabled ui.port
"""
_SPARK_SETTINGS = {f"spark.{name}".lower(): f"spark.{name}" for name in _SPARK_NAMES.split()}
"""Common settings, for suggestions on a misspelled one."""
_ALIKE = 0.93


def _read_store(node: Node, base: Path, reading: FileReading) -> str | None:
    store = read_path(node, "`store`", base, reading)
    written = reading.text(node, "`store`") if store is not None else None
    wrong = None if written is None else store_path_problem(written)
    if wrong is not None:
        reading.report(node, wrong[0], wrong[1])
        return None
    return store


def check_version(node: Node | None, reading: FileReading) -> None:
    """Report a problem if the version of the file format is unknown."""
    cell = reading.cell(node, "`version`", "the number 1")
    if node is None or cell is None:
        return
    if isinstance(cell.value, bool) or not isinstance(cell.value, int) or cell.value != 1:
        reading.report(node, "`version` must be the number 1", "write `version: 1`")


def _read_spark(node: Node, path: str, reading: FileReading) -> SparkSpec | None:
    fields = reading.record(node, path, (), ("master", "conf"))
    if fields is None:
        return None
    master = reading.text(fields.get("master"), inside(path, "master"))
    where = inside(path, "conf")
    conf = reading.settings(fields.get("conf"), where) or {}
    for name in conf:
        close = get_close_matches(name.lower(), _SPARK_SETTINGS, 1, _ALIKE)
        if close and _SPARK_SETTINGS[close[0]] != name:
            reading.report(
                fields["conf"],
                f"Spark has no setting `{name}`, and would ignore it",
                f"did you mean `{_SPARK_SETTINGS[close[0]]}`?",
            )
    return SparkSpec(master, Secrets(conf))
