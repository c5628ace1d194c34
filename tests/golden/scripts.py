"""What is run, and its record: scripts of commands, commands that must fail, and `--help`.

A script runs twice over the same tables, once as text and once with `--json`. Commands run in this
process, without a terminal, in a folder of their own, and without environment variables that would
change their output, except those that the script sets.
"""

from __future__ import annotations

import gc
import io
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from itertools import chain
from json import loads
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import typer
import yaml

from impctl.cli.application import build_app, commands_for
from impctl.cli.boundary import run
from tests.golden.records import HERE, Record, json_text
from tests.golden.transcript import ROOT, Output, filtered, json_values, names_in, values, wording
from tests.golden.worlds import Worlds, change, lock_held

BAD_INPUTS, HELP = "bad-inputs", "help"
_COLUMNS = 80
"""Width of `--help`, and of steps that ask for it. Other text is written as into a pipe, where each
sentence is one line: in 80 columns, line breaks would depend on how long a number is."""
_OUTSIDE = ("IMPCTL_", "SPARK_", "AWS_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM")
_WHERE_SPARK_IS = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_SUBMIT_OPTS", "SPARK_HOME")


@dataclass(frozen=True)
class Step:
    """A command to run, a file to show that a command wrote, or a change of the folder."""

    name: str
    run: str = ""
    show: str = ""
    change: Mapping[str, Any] = field(default_factory=dict)
    only: str = "text and json"
    """`text` or `json` for a command that runs in one form only; such a command changes nothing."""
    columns: int | None = None


@dataclass(frozen=True)
class Script:
    """Steps over the tables of a world; `files` are copied beside these."""

    name: str
    steps: tuple[Step, ...]
    world: str = "empty"
    files: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    spark: bool = False
    needs: tuple[str, ...] = ()
    """Optional packages without which the script cannot run."""


@dataclass(frozen=True)
class Case:
    """A command that must fail, after the commands of `setup` and a change of the folder."""

    name: str
    run: str
    world: str
    setup: tuple[str, ...]
    change: Mapping[str, Any]
    lock: str | None
    """A store that is locked by another process."""


def names(*, spark: bool) -> list[str]:
    """The names of all records, of those that need Spark or of the others."""
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
    stdout, stderr = io.StringIO(), io.StringIO()
    with mock.patch.dict(os.environ, width), redirect_stdout(stdout), redirect_stderr(stderr):
        code = run(build_app(commands_for(words)), words)
    return Output(words, code, stdout.getvalue(), stderr.getvalue())


@contextmanager
def _inside(folder: Path, variables: Mapping[str, str], *, spark: bool = False) -> Iterator[None]:
    """Work in a folder, without variables from outside that change what is printed.

    Without Spark there is no Java either, so that a command cannot start Spark unnoticed.
    """
    kept = _WHERE_SPARK_IS if spark else ()
    outside = {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(_OUTSIDE)
    }
    environment = {**outside, **({} if spark else {"JAVA_HOME": "absent"}), **variables}
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)  # as the console script does
    # `impctl gc` looks for what runs of other processes left in the folder for temporary files.
    temporary = folder.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    try:
        with (
            chdir(folder),
            mock.patch.dict(os.environ, environment, clear=True),
            mock.patch.object(tempfile, "tempdir", str(temporary)),
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
    """Codes, locations and the names in messages; how much succeeded all the same."""
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
    """What distinguishes an option from one that takes a text once."""
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
