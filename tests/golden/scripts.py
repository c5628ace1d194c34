"""The golden scripts: their steps and tables, commands that must fail, and `--help`."""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from json import loads
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import typer
import yaml
from deltalake import DeltaTable, write_deltalake
from msgspec import Struct, field

from impctl.cli.application import build_app
from impctl.service import init
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.golden.records import (
    HERE,
    ROOT,
    Output,
    Record,
    filtered,
    json_text,
    json_values,
    names_in,
    values,
    wording,
)
from tests.support.run_cli import ROWS, called

NOW = datetime(2024, 5, 17, 12, 0, tzinfo=UTC)
"""The current time of all scripts, in the past because `records` filters later years."""


class Worlds:
    """Create each folder once, below `root`, and later restore it from a copy.

    All folders are used at the same path, because a store identifies tables by their path.
    """

    def __init__(self, root: Path) -> None:
        self._work = root / "work"
        self._saved = root / "saved"

    def folder(self, world: str) -> Path:
        """The working folder with the tables of a world, and nothing else."""
        return self.prepared(world, lambda: _WORLDS[world](self._work))

    def prepared(self, name: str, prepare: Callable[[], object], base: str | None = None) -> Path:
        """The working folder of the world `base`, after `prepare` was called in it.

        `name` identifies the result, which is reused.
        """
        saved = self._saved / name
        if not saved.exists():
            if base is None:
                shutil.rmtree(self._work, ignore_errors=True)
                self._work.mkdir(parents=True)
            else:
                self.folder(base)
            with chdir(self._work):
                prepare()
            shutil.copytree(self._work, saved)
        shutil.rmtree(self._work, ignore_errors=True)
        shutil.copytree(saved, self._work)
        return self._work


# Tables -------------------------------------------------------------------------------------------


def _no_tables(folder: Path) -> None:
    """For scripts whose first commands create the tables."""


def _small(folder: Path) -> None:
    """The table of ten rows that many tests of the command line use."""
    create_table(str(folder / "t"), ROWS)


def _shops(folder: Path) -> None:
    """Forty sales in four files, eight shops, a network of nine links, and twelve visits."""
    numbers = range(1, 41)
    sales = pa.table(
        {
            "id": list(numbers),
            "shop": [n * 7 % 8 for n in numbers],
            "brand": ["abcd"[n // 3 % 4] for n in numbers],
            "price": [n * 13 % 50 for n in numbers],
        }
    )
    _in_files(folder / "sales", sales, 10)
    cities = ["Graz", "Linz", "Wien", "Graz", "Linz", "Wien", "Graz", "Wels"]
    create_table(str(folder / "shops"), pa.table({"shop": list(range(8)), "city": cities}))
    links = ["AB", "BC", "CA", "CB", "CD", "DE", "XY", "YX", "YZ"]
    lengths = [7, 3, 9, 3, 4, 6, 2, 2, 5]
    ends = {"src": [link[0] for link in links], "dst": [link[1] for link in links]}
    _in_files(folder / "links", pa.table({**ends, "km": lengths}), 6)
    visits = {
        "shop": [n % 5 for n in range(12)],
        "day": [date(2024, 5, 17) - timedelta(days=n // 4) for n in range(12)],
        "seen_at": [NOW - timedelta(minutes=7 * n) for n in range(12)],
    }
    create_table(str(folder / "visits"), pa.table(visits))


def _in_files(path: Path, rows: pa.Table, size: int) -> None:
    """A table of several commits, each with a file of `size` rows."""
    create_table(str(path), rows.slice(0, size))
    for start in range(size, len(rows), size):
        write_deltalake(str(path), rows.slice(start, size), mode="append")


def _crimes(folder: Path) -> None:
    """The table of `workloads/crimes.yaml` and a day of changes, with synthetic incidents."""
    kinds = ["THEFT", "BATTERY", "HOMICIDE", "ARSON", "NON-CRIMINAL"]

    def incidents(first: int, count: int) -> pa.Table:
        numbers = range(first, first + count)
        return pa.table(
            {
                "Date": [NOW + timedelta(minutes=n) for n in numbers],
                "Block": [f"{n % (60 if n % 2 else 4):03}XX W 7TH ST" for n in numbers],
                "Primary Type": [kinds[n % 13 % 5] for n in numbers],
                "Arrest": [n % 13 % 4 == 2 for n in numbers],
                "Community Area": [71 if n % 10 < 8 else n % 77 for n in numbers],
            }
        )

    create_table(str(folder / "crimes"), incidents(0, 6500))
    (folder / "crimes-batches").mkdir()
    pq.write_table(incidents(6500, 20), folder / "crimes-batches" / "day-1.parquet")


_WORLDS: dict[str, Callable[[Path], None]] = {
    "empty": _no_tables,
    "small": _small,
    "shops": _shops,
    "crimes": _crimes,
}


# Changes ------------------------------------------------------------------------------------------


def change(entries: Mapping[str, Any]) -> None:
    """Change the current folder, one verb with its argument after another."""
    for verb, argument in entries.items():
        _CHANGES[verb](argument)


@contextmanager
def lock_held(store: str) -> Iterator[None]:
    """Hold the writer's lock of a store, as another process would."""
    with Store.open(Path(store)) as opened, opened.lock(5.0, "another command"):
        yield


def _edit(replacements: Mapping[str, str]) -> None:
    """Replace texts in the workload file, each of which occurs there once."""
    (file,) = Path().glob("*.yaml")
    text = file.read_text(encoding="utf-8")
    for old, new in replacements.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")


def _sql(queries: Mapping[str, str]) -> None:
    """Replace the SQL of queries in the workload file."""
    (file,) = Path().glob("*.yaml")
    text = file.read_text(encoding="utf-8")
    for name, sql in queries.items():
        before, line, after = text.partition(f"\n  {name}:\n    sql: ")
        assert line, name
        text = f"{before}{line}{sql}\n{after.partition(chr(10))[2]}"
    file.write_text(text, encoding="utf-8")


def _write(files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())


def _remove(pattern: str) -> None:
    paths = list(Path().glob(pattern))
    assert paths, pattern
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _create(tables: Mapping[str, Mapping[str, list[Any]]]) -> None:
    """Create tables with these columns, in place of existing ones."""
    for name, columns in tables.items():
        shutil.rmtree(name, ignore_errors=True)
        create_table(name, pa.table(columns))


def _append(tables: Mapping[str, Mapping[str, list[Any]]]) -> None:
    for name, columns in tables.items():
        write_deltalake(name, pa.table(columns), mode="append")


def _overwrite(tables: Mapping[str, Mapping[str, list[Any]]]) -> None:
    """Replace the rows and columns of tables, as a new version."""
    for name, columns in tables.items():
        write_deltalake(name, pa.table(columns), mode="overwrite", schema_mode="overwrite")


def _delete(tables: Mapping[str, str]) -> None:
    for name, condition in tables.items():
        DeltaTable(name).delete(condition)


def _vacuum(name: str) -> None:
    """Remove every data file that the latest version of a table does not need."""
    needed = set(DeltaTable(name).file_uris())
    for file in Path(name).glob("**/*.parquet"):
        if str(file.resolve()) not in needed:
            file.unlink()


def _log(tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Add a version to the log of a table that consists of this one action."""
    for name, action in tables.items():
        log = Path(name) / "_delta_log"
        version = len(list(log.glob("*.json")))
        (log / f"{version:020d}.json").write_text(json.dumps(action), encoding="utf-8")


def _catalog(statement: str) -> None:
    """Run an SQL statement on the catalog of the store."""
    connection = sqlite3.connect(".impctl/catalog.sqlite")
    connection.execute(statement)
    connection.commit()
    connection.close()


def _corrupt_state(_: object) -> None:
    """Flip a byte in the middle of all stored state."""
    connection = sqlite3.connect(".impctl/catalog.sqlite")
    contents = connection.execute("SELECT DISTINCT content FROM run").fetchall()
    assert contents
    for (content,) in contents:
        spoiled = bytearray(content)
        spoiled[len(spoiled) // 2] ^= 0xFF
        connection.execute("UPDATE run SET content = ? WHERE content = ?", (spoiled, content))
    connection.commit()
    connection.close()


def _java(home: str) -> None:
    """Create a folder like a Java home, so that `doctor` reports the same everywhere."""
    java = Path(home) / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    (Path(home) / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.4"\n')


_CHANGES: dict[str, Callable[[Any], object]] = {
    "edit": _edit,
    "sql": _sql,
    "write": _write,
    "remove": _remove,
    "create": _create,
    "append": _append,
    "overwrite": _overwrite,
    "delete": _delete,
    "vacuum": _vacuum,
    "log": _log,
    "catalog": _catalog,
    "spoil_state": _corrupt_state,
    "java": _java,
    "open_to_all": lambda path: Path(path).chmod(0o777),
    "folder": lambda path: Path(path).mkdir(),
}


BAD_INPUTS, HELP = "bad-inputs", "help"
_COLUMNS = 80
"""Width of `--help`, and of steps that ask for it. Other text is written as to a pipe, one sentence
per line: in 80 columns, line breaks would depend on the length of numbers."""
_OUTSIDE = ("IMPCTL_", "SPARK_", "AWS_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM")
_WHERE_SPARK_IS = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_SUBMIT_OPTS", "SPARK_HOME")


class Step(Struct, frozen=True):
    """A command to run, a file to show that a command wrote, or a change of the folder."""

    name: str
    run: str = ""
    show: str = ""
    change: Mapping[str, Any] = field(default_factory=dict)
    only: str = "text and json"
    """`text` or `json` for a command that runs in one form only and changes nothing."""
    columns: int | None = None


class Script(Struct, frozen=True):
    """Steps over the tables of a world; `files` are copied to the same folder."""

    name: str
    steps: tuple[Step, ...]
    world: str = "empty"
    files: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    spark: bool = False
    needs: tuple[str, ...] = ()
    """Optional packages without which the script cannot run."""


class Case(Struct, frozen=True):
    """A command that must fail, after the commands of `setup` and a change of the folder."""

    name: str
    run: str
    world: str
    setup: tuple[str, ...]
    change: Mapping[str, Any]
    lock: str | None
    """A store that is locked by another process."""


def names(*, spark: bool) -> list[str]:
    """The names of all records that need Spark, or of the others."""
    result = [script.name for script in scripts() if script.spark == spark]
    return result if spark else [*result, BAD_INPUTS, HELP]


def record_of(name: str, worlds: Worlds) -> Record:
    """Run everything that belongs to a record."""
    if name == HELP:
        return _help_record()
    if name == BAD_INPUTS:
        return _bad_input_record(bad_inputs(), worlds)
    return _script_record(script_named(name), worlds)


def scripts() -> tuple[Script, ...]:
    """The scripts in `scripts/`."""
    return tuple(map(_script, sorted((HERE / "scripts").glob("*.yaml"))))


def script_named(name: str) -> Script:
    """The script of this name."""
    return _script(HERE / "scripts" / f"{name}.yaml")


def bad_inputs() -> tuple[Case, ...]:
    """The cases in `bad-inputs.yaml`."""
    return tuple(
        Case(
            name=name,
            run=entry.pop("run"),
            world=group["world"],
            setup=tuple(group.get("setup", ())),
            lock=entry.pop("lock", None),
            change=entry,
        )
        for group in _yaml(HERE / "bad-inputs.yaml")
        for name, entry in group["cases"].items()
    )


def _script(file: Path) -> Script:
    entries = _yaml(file)
    steps = tuple(
        Step(name, run=step) if isinstance(step, str) else Step(name, **step)
        for name, step in entries.pop("steps").items()
    )
    lists = {key: tuple(entries.pop(key, ())) for key in ("files", "needs")}
    return Script(file.stem, steps, **lists, **entries)


def _yaml(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


# Running ------------------------------------------------------------------------------------------


def _script_record(script: Script, worlds: Worlds) -> Record:
    recorded = [step.name for step in script.steps if not step.change]
    all_values: dict[str, dict[str, Any]] = {name: {} for name in recorded}
    texts: dict[str, list[str]] = {name: [] for name in recorded}
    for form in ("text", "json"):
        folder = worlds.folder(script.world)
        for file in script.files:
            shutil.copy(ROOT / file, folder)
        with _inside(folder, script.variables, spark=script.spark):
            for step in script.steps:
                if step.change:
                    change(step.change)
                elif form in step.only:
                    known = "".join(chain(*texts.values()))
                    step_values, text = _step_record(step, form, known)
                    all_values[step.name][form] = step_values
                    texts[step.name].append(text)
    return Record(all_values, _sections(texts))


def _step_record(step: Step, form: str, known: str) -> tuple[Any, str]:
    if step.show:
        shown_values, text = _shown(step.show)
        return shown_values, text if form == "text" else ""
    output = _output_of(step.run + (" --json" if form == "json" else ""), step.columns)
    return values(output), wording(output, known)


def _output_of(command: str, columns: int | None = None) -> Output:
    """Run a command in the current folder."""
    words = shlex.split(command)
    width = {} if columns is None else {"COLUMNS": str(columns)}
    with mock.patch.dict(os.environ, width):
        completed = called(*words)
    return Output(words, completed.returncode, completed.stdout, completed.stderr)


@contextmanager
def _inside(folder: Path, variables: Mapping[str, str], *, spark: bool = False) -> Iterator[None]:
    """Work in a folder, without outside variables that affect the output.

    Without Spark there is no Java either, so that a command cannot start Spark unnoticed.
    """
    kept = _WHERE_SPARK_IS if spark else ()
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(_OUTSIDE)
    }
    environment = {**inherited, **({} if spark else {"JAVA_HOME": "absent"}), **variables}
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 20, 50)  # as the console script does
    # `impctl gc` looks for files of other processes in the folder for temporary files.
    temporary = folder.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    try:
        with (
            chdir(folder),
            mock.patch.dict(os.environ, environment, clear=True),
            mock.patch.object(tempfile, "tempdir", str(temporary)),
            mock.patch.object(init, "DEMO_ROWS", 2_000),  # nothing that is recorded depends on it
        ):
            yield
    finally:
        gc.set_threshold(*thresholds)


def _shown(pattern: str) -> tuple[Any, str]:
    """The values and the text of the one file that matches a pattern."""
    (file,) = Path().glob(pattern)
    heading = f"$ cat {file}\n"
    if file.suffix == ".parquet":
        table = pq.read_table(file)
        rows = [[str(value) for value in row.values()] for row in table.to_pylist()]
        return {"file": str(file), "columns": table.column_names, "rows": rows}, heading
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        content = json_values(loads(text), (file.stem,))
        return {"file": str(file), "content": content}, f"{heading}{json_text(content)}\n"
    if file.suffix in (".csv", ".jsonl"):
        return {"file": str(file), "lines": text.splitlines()}, heading + text
    if file.suffix == ".prom":
        comments = [line for line in text.splitlines() if line.startswith("#")]
        metrics = sorted({line.split()[2] for line in comments})
        return {"file": str(file), "metrics": metrics}, "\n".join([heading, *comments, ""])
    return {"file": str(file)}, heading + filtered(text)


def _sections(texts: Mapping[str, Sequence[str]]) -> str:
    """Texts by name as one file."""
    return "\n\n".join(
        f"# {name}\n\n" + "\n".join(filter(None, parts)) for name, parts in texts.items()
    )


# Bad inputs ---------------------------------------------------------------------------------------


def _bad_input_record(cases: Sequence[Case], worlds: Worlds) -> Record:
    all_values: dict[str, Any] = {}
    texts: dict[str, list[str]] = {}
    for case in cases:
        with _inside(_folder_of(case, worlds), {}):
            change(case.change)
            with nullcontext() if case.lock is None else lock_held(case.lock):
                text, as_json = _output_of(case.run), _output_of(f"{case.run} --json")
            all_values[case.name] = {"text": values(text), "json": _failure_values(as_json)}
            texts[case.name] = [wording(text)]
    return Record(all_values, _sections(texts))


def _folder_of(case: Case, worlds: Worlds) -> Path:
    """A folder with the workload, after the commands of the setup."""

    def prepare() -> None:
        shutil.copy(HERE / "workloads" / f"{case.world}.yaml", ".")
        with _inside(Path(), {}):
            for command in case.setup:
                output = _output_of(command)
                assert output.code == 0, output

    name = f"{case.world} after {' and '.join(case.setup) or 'nothing'}"
    return worlds.prepared(name, prepare, base=case.world)


def _failure_values(output: Output) -> dict[str, Any]:
    """Codes, locations and the names in messages, and the number of results."""
    (document,) = output.documents
    error = document["error"]
    return {
        "exit": output.code,
        "errors": [_error_values(one) for one in error.get("failures", [error])],
        "results": len(document["results"]),
        "warnings": len(document["warnings"]),
        "stderr": bool(output.stderr),
    }


def _error_values(error: Mapping[str, Any]) -> dict[str, Any]:
    prose = ("message", "hint")
    result = {key: json_values(part) for key, part in error.items() if key not in prose}
    result["names"] = names_in(error["message"])
    if "problems" in error:
        result["problems"] = [_error_values(problem) for problem in error["problems"]]
    return result


# Help ---------------------------------------------------------------------------------------------


def _help_record() -> Record:
    """Arguments and options of every command, and the text of `--help`."""
    group: Any = typer.main.get_command(build_app())
    context = group.context_class(group, info_name="impctl")
    all_values = {"impctl": _command_values(group, context)}
    texts = {"impctl": [wording(_output_of("--help", _COLUMNS))]}
    for name in group.list_commands(context):
        all_values[name] = _command_values(group.get_command(context, name), context)
        texts[name] = [wording(_output_of(f"{name} --help", _COLUMNS))]
    return Record(all_values, _sections(texts))


def _command_values(command: Any, context: Any) -> dict[str, Any]:
    params = command.get_params(context)
    return {
        "arguments": [param.name for param in params if param.param_type_name == "argument"],
        "options": {
            max(param.opts, key=len): _option_values(param)
            for param in params
            if param.param_type_name == "option"
        },
    }


def _option_values(param: Any) -> dict[str, Any]:
    """The properties that distinguish an option from one that takes one text."""
    described = getattr(param, "type_descriptor", None) or param.type
    choices = getattr(described, "choices", None) or ()
    properties = {
        "also": sorted(set(param.opts) - {max(param.opts, key=len)}),
        "choices": [str(getattr(choice, "value", choice)) for choice in choices],
        "default": _default(param),
        "variable": param.envvar,
        "repeated": param.multiple,
        "values": None if param.nargs == 1 else param.nargs,
        "flag": bool(param.is_flag),
    }
    return {key: value for key, value in properties.items() if value not in (None, False, [], "")}


def _default(param: Any) -> str:
    """The default of the parser, else the number or file name that the help text states."""
    value = getattr(param.default, "value", param.default)
    if isinstance(value, str | int | float) and not isinstance(value, bool) and not param.count:
        return str(value)
    return " or ".join(re.findall(r"[Dd]efault:? ([\w/-]*[\d.][\w/]+|\d+)", param.help or ""))
