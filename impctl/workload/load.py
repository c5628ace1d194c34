"""Reading a workload file: bytes to a `Workload`, or one error that lists every problem."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from impctl.errors import Location, UsageError, WorkloadError
from impctl.workload.models import DEFAULT_FILE, QuerySettings, SparkSpec, Workload, WorkloadFile
from impctl.workload.sections import (
    is_name,
    read_partitions,
    read_queries,
    read_record,
    read_struct,
    read_tables,
    read_updates,
    read_views,
    resolve_path,
)
from impctl.workload.yaml import FileReading, Lines, YamlFault, compose

if TYPE_CHECKING:
    from yaml.nodes import Node

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_BYTES = 1 << 20
"""Maximum size of a workload file; thousands of rows belong in their own file."""


def names_in(file: Path, section: str) -> tuple[str, ...]:
    """Valid names of queries, tables or updates (`section`), in file order, for completion. Checks
    nothing and resolves no variable; a file that cannot be read has no names."""
    try:
        if not file.is_file() or file.stat().st_size > MAX_BYTES:
            return ()
        result = yaml.load(file.read_bytes(), _LOADER)[section]
    except (OSError, ValueError, TypeError, KeyError, RecursionError, yaml.YAMLError):
        return ()
    names = list(result) if isinstance(result, dict) else []
    if isinstance(result, list):
        names = [entry.get("name") for entry in result if isinstance(entry, dict)]
    return tuple(name for name in names if isinstance(name, str) and is_name(name))


# Law: no table and no file named inside is opened. A file that is not YAML has one problem; all
# other problems are reported together.

DEFAULT_STORE = ".impctl"

_SECTIONS = ("tables", "views", "defaults", "partitions", "queries", "updates")
"""Sections that depend on each other, read in this order."""


def load_workload(path: Path, env: Mapping[str, str]) -> Workload:
    """The workload in the file `path`, with variables from `env`."""
    return workload_of(path, read_text(path), env)


def workload_of(path: Path, text: str, env: Mapping[str, str]) -> Workload:
    """The workload of the file `path`, from the text read from it."""
    reading, root = open_document(path, text, env)
    workload = None
    if root is not None:
        base, what = path.parent.resolve(), "the workload file"
        workload = read_workload(WorkloadFile, root, what, path, base, reading)
    if workload is None or reading.problems:
        raise all_problems(path, reading)
    return workload


def load_spark_profile(path: Path, env: Mapping[str, str]) -> SparkSpec:
    """Spark settings from a separate file that holds the content of `spark:`."""
    reading, root = open_document(path, read_text(path), env)
    spark = None if root is None else read_struct(SparkSpec, root, "`spark`", reading)
    if spark is None or reading.problems:
        raise all_problems(path, reading)
    return spark


def open_document(path: Path, text: str, env: Mapping[str, str]) -> tuple[FileReading, Node | None]:
    """The root node of the text of a file; None, with a problem reported, if there is none."""
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


def read_workload(
    model: type[Workload],
    node: Node | None,
    where: str,
    path: Path,
    base: Path,
    reading: FileReading,
) -> Workload | None:
    """The workload at `node` with the keys of `model`, its paths relative to the folder `base`."""
    reading.base = base
    root = read_record(model, node, where, reading, later=_SECTIONS)
    if root is None:
        return None
    nodes, values = root.nodes, root.values
    tables = read_tables(root, reading)
    record = read_record(QuerySettings, nodes.get("defaults"), "`defaults`", reading)
    defaults = {} if record is None else record.values
    values |= {
        "tables": tables,
        "names": reading.names,
        "views": read_views(nodes.get("views"), reading),
        "partitions": read_partitions(nodes.get("partitions"), reading),
        "defaults": QuerySettings(**defaults),
        "queries": read_queries(nodes.get("queries"), defaults, reading),
        "updates": read_updates(nodes.get("updates"), reading),
    }
    store = resolve_path(base, DEFAULT_STORE)
    return Workload(**{"file": str(path), "name": path.stem, "store": store, **values})
