"""What is run: scripts of commands, one after the other, and single commands that must fail.

A script runs twice over the same tables: as text and as `--json`. Commands run in this process,
without a terminal, in a folder that holds the workload files, and with no variable of impctl's but
those that the script sets.
"""

from __future__ import annotations

import gc
import io
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import typer
import yaml

from impctl.cli.application import build_app, commands_for
from impctl.cli.boundary import run
from tests.golden.transcript import (
    HERE,
    ROOT,
    Printed,
    document_values,
    filtered,
    names_in,
    pretty,
    values,
    wording,
)
from tests.golden.worlds import Worlds, change, lock_held

COLUMNS = 80
"""Width of help, and of steps that ask for it. Other text goes to a pipe, where a sentence is one
line: where lines of 80 columns end depends on the length of the times in them."""
_FOREIGN = ("IMPCTL_", "SPARK_", "AWS_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM")
_OF_SPARK = (
    "SPARK_REMOTE",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_SUBMIT_OPTS",
    "SPARK_HOME",
)


@dataclass(frozen=True)
class Step:
    """One of: a command to run, a file to show that a command wrote, a change of the folder."""

    name: str
    run: str = ""
    show: str = ""
    change: Mapping[str, Any] = field(default_factory=dict)
    only: str = "text and json"
    """`text` or `json` of a command that runs in one of these forms alone and changes nothing."""
    columns: int | None = None


@dataclass(frozen=True)
class Script:
    """Steps over the tables of a world, with workload files beside them."""

    name: str
    steps: tuple[Step, ...]
    world: str
    files: tuple[str, ...]
    variables: Mapping[str, str]
    spark: bool


@dataclass(frozen=True)
class Case:
    """A command that must fail, in a folder that was changed before."""

    name: str
    run: str
    world: str
    setup: tuple[str, ...]
    change: Mapping[str, Any]
    lock: str | None


@dataclass(frozen=True)
class Record:
    """What is recorded of a script or of all cases: values by name, and wording."""

    values: dict[str, Any]
    wording: str


def scripts() -> tuple[Script, ...]:
    """Those of the folder `scripts`."""
    return tuple(map(_script, sorted((HERE / "scripts").glob("*.yaml"))))


def bad_inputs() -> tuple[Case, ...]:
    """Those of `bad-inputs.yaml`."""
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


def play(script: Script, worlds: Worlds) -> Record:
    """Run a script as text and as JSON."""
    found: dict[str, dict[str, Any]] = {step.name: {} for step in script.steps if not step.change}
    texts: dict[str, list[str]] = {name: [] for name in found}
    for form in ("text", "json"):
        folder = worlds.folder(script.world)
        for file in script.files:
            shutil.copy(ROOT / file, folder)
        with _entered(folder, script.variables, spark=script.spark):
            for step in script.steps:
                if step.change:
                    change(step.change)
                elif form not in step.only:
                    continue
                elif step.show:
                    shown, text = _shown(step.show)
                    found[step.name][form] = shown
                    texts[step.name] += [text] if form == "text" else []
                else:
                    flag = " --json" if form == "json" else ""
                    printed = printed_by(step.run + flag, step.columns)
                    told = "".join(chain(*texts.values()))
                    found[step.name][form] = values(printed)
                    texts[step.name].append(wording(printed, told))
    return Record(found, _wording_of(texts))


def fail(cases: Sequence[Case], worlds: Worlds) -> Record:
    """Run every case as text and as JSON."""
    found: dict[str, Any] = {}
    texts: dict[str, list[str]] = {}
    for case in cases:
        with _entered(_folder_of(case, worlds), {}):
            change(case.change)
            with nullcontext() if case.lock is None else lock_held(case.lock):
                text, as_json = printed_by(case.run), printed_by(f"{case.run} --json")
            found[case.name] = {"text": values(text), "json": _failure(as_json)}
            texts[case.name] = [wording(text)]
    return Record(found, _wording_of(texts))


def help_record() -> Record:
    """`--help` of every command: what there is to write, and the text."""
    group: Any = typer.main.get_command(build_app())
    context = group.context_class(group, info_name="impctl")
    found: dict[str, Any] = {"impctl": _command_values(group, context)}
    texts = {"impctl": [wording(printed_by("--help", COLUMNS))]}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found[name] = _command_values(command, context)
        texts[name] = [wording(printed_by(f"{name} --help", COLUMNS))]
    return Record(found, _wording_of(texts))


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
    """Of an option what is not simply no: other spellings, choices, default, variable."""
    described = getattr(param, "type_descriptor", None) or param.type
    choices = getattr(described, "choices", None) or ()
    found = {
        "also": sorted(set(param.opts) - {max(param.opts, key=len)}),
        "choices": [str(getattr(choice, "value", choice)) for choice in choices],
        "default": _default(param),
        "variable": param.envvar,
        "repeated": param.multiple,
        "values": param.nargs if param.nargs != 1 else None,
        "flag": bool(param.is_flag),
    }
    return {key: value for key, value in found.items() if value not in (None, False, [], "", ())}


def _default(param: Any) -> str:
    """The default that the parser has, else what the text says, if it is a number or a name."""
    value = getattr(param.default, "value", param.default)
    if isinstance(value, str | int | float) and not isinstance(value, bool) and not param.count:
        return str(value)
    return " or ".join(_DEFAULT.findall(param.help or ""))


_DEFAULT = re.compile(r"[Dd]efault:? ([\w/-]*[\d.][\w/]+|\d+)")


def printed_by(command: str, columns: int | None = None) -> Printed:
    """What the words of a command print in the current folder."""
    words = shlex.split(command)
    width = {} if columns is None else {"COLUMNS": str(columns)}
    stdout, stderr = io.StringIO(), io.StringIO()
    with mock.patch.dict(os.environ, width), redirect_stdout(stdout), redirect_stderr(stderr):
        code = run(build_app(commands_for(words)), words)
    return Printed(words, code, stdout.getvalue(), stderr.getvalue())


def _failure(printed: Printed) -> dict[str, Any]:
    """Of a failure: its codes, where it is, and what its messages name."""
    document = json.loads(printed.stdout)
    errors = document["error"].get("failures", [document["error"]])
    return {
        "exit": printed.code,
        "errors": [_error(error) for error in errors],
        "results": len(document["results"]),
        "warnings": len(document["warnings"]),
        "stderr": bool(printed.stderr),
    }


def _error(error: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: document_values(part) for key, part in error.items() if key not in _PROSE}
    found["names"] = names_in(error["message"])
    if "problems" in error:
        found["problems"] = [_error(problem) for problem in error["problems"]]
    return found


_PROSE = ("message", "hint")


def _wording_of(texts: Mapping[str, Sequence[str]]) -> str:
    parts = [f"# {name}\n\n" + "\n".join(filter(None, texts[name])) for name in texts]
    return "\n\n".join(parts)


def _folder_of(case: Case, worlds: Worlds) -> Path:
    """A folder with the workload file, after the commands of the setup."""

    def prepare() -> None:
        shutil.copy(HERE / "workloads" / f"{case.world}.yaml", ".")
        with _entered(Path(), {}):
            for command in case.setup:
                printed = printed_by(command)
                assert printed.code == 0, printed

    name = f"{case.world} after {' and '.join(case.setup) or 'nothing'}"
    return worlds.prepared(name, prepare, base=case.world)


@contextmanager
def _entered(folder: Path, variables: Mapping[str, str], *, spark: bool = False) -> Iterator[None]:
    """Be in the folder, with none of the variables that change what is printed but these."""
    kept = _OF_SPARK if spark else ()
    own = {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(_FOREIGN)
    }
    environment = {**own, **({} if spark else {"JAVA_HOME": "absent"}), **variables}
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)  # as the console script does
    try:
        with chdir(folder), mock.patch.dict(os.environ, environment, clear=True):
            yield
    finally:
        gc.set_threshold(*thresholds)


def _shown(pattern: str) -> tuple[Any, str]:
    """The values and the text of a file that a command wrote."""
    (file,) = Path().glob(pattern)
    heading = f"$ cat {file}\n"
    if file.suffix == ".parquet":
        table = pq.read_table(file)
        rows = [[str(value) for value in row.values()] for row in table.to_pylist()]
        return {"file": str(file), "columns": table.column_names, "rows": rows}, heading
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        document = document_values(json.loads(text), (file.stem,))
        return {"file": str(file), "content": document}, heading + pretty(document) + "\n"
    if file.suffix in (".csv", ".jsonl"):
        return {"file": str(file), "lines": text.splitlines()}, heading + text
    if file.suffix == ".prom":
        names = sorted({line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")})
        comments = [line for line in text.splitlines() if line.startswith("#")]
        return {"file": str(file), "metrics": names}, heading + "\n".join(comments) + "\n"
    return {"file": str(file)}, heading + filtered(text)


def _script(file: Path) -> Script:
    entries = _yaml(file)
    steps = [
        Step(name, run=what) if isinstance(what, str) else Step(name, **what)
        for name, what in entries["steps"].items()
    ]
    return Script(
        name=file.stem,
        steps=tuple(steps),
        world=entries.get("world", "empty"),
        files=tuple(entries.get("files", ())),
        variables=entries.get("variables", {}),
        spark=entries.get("spark", False),
    )


def _yaml(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))
