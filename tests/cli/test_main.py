"""The console script as a process: help, version, speed, streams, exit codes, imported modules."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import arro3.core
import pyarrow as pa
import pytest
import typer
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace

from impctl import errors
from impctl.cli import signals
from impctl.cli.application import (
    COMMAND_GROUPS,
    COMMANDS,
    EXIT_CODES,
    OPTIONS,
    _Plain,
    build_app,
    commands_for,
    sections,
)
from impctl.cli.boundary import run
from impctl.cli.options import OPTION_GROUPS
from impctl.errors import (
    INTERRUPTED,
    ImpctlError,
    InterruptedRunError,
    LockHeldError,
    UnsoundSketchError,
)
from impctl.service.results import GRAVITY, Failure, Outcome
from impctl.service.settings import Policy
from tests.cli.conftest import Terminal
from tests.cli.examples import EXAMPLES
from tests.support.run_cli import Spoken, on_terminal, python

HEAVY = ("numpy", "pyarrow", "deltalake", "sqlglot", "pydantic", "pyspark", "rich", "yaml")
SCRIPT = [sys.executable, "-P", "-m", "impctl"]


def start(*words: str, **variables: str) -> Spoken:
    return python("-m", "impctl", *words, COLUMNS="80", **variables)


@pytest.mark.slow
def test_help_is_fast() -> None:
    """Compared with importing typer, so that the limit fits any machine."""
    loading = min(seconds_used(sys.executable, "-P", "-c", "import typer") for _ in range(2))
    for words in (["--help"], ["maintain", "-h"], ["--version"]):
        assert min(seconds_used(*SCRIPT, *words) for _ in range(2)) <= 5 * loading, words


def seconds_used(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_signals_are_handled_before_imports() -> None:
    """An earlier signal would end the process with a traceback and without JSON."""
    loaded = python("-c", "import sys; import impctl.cli.main; print(*sys.modules)").stdout.split()
    modules = {name for name in loaded if name.startswith("impctl.")}
    assert modules == {"impctl.version", "impctl.cli", "impctl.cli.main", "impctl.cli.signals"}
    assert not {"json", "msgspec", "typer"} & set(loaded)


def test_a_signal_during_imports_ends_with_the_interrupt_code() -> None:
    assert signals._INTERRUPTED == INTERRUPTED == InterruptedRunError("asked to end").exit_code


def test_help_lists_commands_and_exit_codes_in_80_columns(impctl) -> None:
    ran = start("--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert impctl().stdout == ran.stdout
    for command in COMMANDS:
        assert f"\n  {command} " in ran.stdout
    for code, meaning in EXIT_CODES:
        assert f"{code:>5}  {meaning}\n" in ran.stdout
    assert "..." not in ran.stdout.partition("\n")[2], "descriptions are not cut"
    assert max(map(len, ran.stdout.splitlines())) <= 80


def test_version_lists_components_without_starting_java(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    java.chmod(0o755)
    ran = start("--version", PATH=f"{tmp_path}:{os.environ['PATH']}", JAVA_HOME="")
    names = [line.split()[0] for line in ran.stdout.splitlines()]
    assert names == ["impctl", "pyspark", "deltalake", "pyarrow", "sqlglot", "java"]
    assert f"java {java} (PATH)" in ran.stdout
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("command", ["check", "status", "maintain"])
def test_the_default_workload_file_is_in_the_current_folder(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(build_app(), [command]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "There is no file `impctl.yaml` here (the default workload file)" in captured.err
    assert "`impctl init TABLE`" in " ".join(captured.err.split())
    (tmp_path / "impctl.yaml").write_text("version: 2\n")
    assert run(build_app(), [command]) == 2
    assert "impctl.yaml:1:10: `version` must be the number 1" in capsys.readouterr().err


def test_a_closed_pipe_is_no_error() -> None:
    for words, code in ((["--help"], 0), (["status", "no/such.yaml", "--json"], 2)):
        with subprocess.Popen(
            [*SCRIPT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == code


def test_streams_that_cannot_encode_a_name() -> None:
    ran = start("status", "grün.yaml", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert ran.returncode == 2
    assert "gr\\xfcn.yaml" in ran.stderr


def error_types(root: type[ImpctlError] = ImpctlError) -> list[type[ImpctlError]]:
    kinds = [kind for kind in root.__subclasses__() if kind.__module__ == errors.__name__]
    return [root] + [result for kind in kinds for result in error_types(kind)]


SPECIAL_ERRORS = {
    errors.WorkloadError,
    errors.QueriesFailedError,
    errors.ProblemsFoundError,
    errors.InvariantError,
}
"""Errors made of several errors, or with a fixed hint or exit code."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in error_types() if kind not in SPECIAL_ERRORS])
def test_every_error_has_an_exit_code(show, kind) -> None:
    ran = show(kind("It went wrong", hint="do better"), "maintain", "w.yaml")
    assert (ran.code, ran.stdout) == (kind.exit_code, "")
    assert ran.stderr == f"error: It went wrong [{kind.default_code}]\nhint: do better\n"
    assert kind.exit_code in dict(EXIT_CODES)
    assert kind.exit_code in GRAVITY


def test_gravity_ranks_every_exit_code_once() -> None:
    assert sorted(GRAVITY) == sorted(code for code, _ in EXIT_CODES if code)


def test_an_unexpected_error_is_one_line_with_an_optional_trace(show) -> None:
    error = ZeroDivisionError("division by zero")
    ran = show(error, "maintain", "w.yaml")
    assert (ran.code, ran.stdout) == (1, "")
    assert ran.stderr == (
        "error: Unexpected error, ZeroDivisionError: division by zero [unexpected]\nhint: run the "
        "command again with `-vv` to see the trace, and report this bug\n"
    )
    stderr = show(error, "maintain", "w.yaml", "-vv").stderr
    trace, _, rest = stderr.partition("\nZeroDivisionError: division by zero\n")
    assert trace.startswith("Traceback (most recent call last):\n")
    assert "error: Unexpected error, ZeroDivisionError" in rest
    assert "Traceback" not in show(error, "maintain", "w.yaml", "-v").stderr


def test_an_interrupt_ends_with_130_and_closes_the_context(fake, show) -> None:
    ran = show(KeyboardInterrupt(), "capture", "w.yaml")
    assert (ran.code, ran.stdout) == (130, "")
    assert ran.stderr.startswith("error: Interrupted [interrupted]\n")
    assert fake.closed == 1


def test_other_queries_are_shown_with_a_failure(show) -> None:
    failure = Failure("q_two", LockHeldError("The store is locked"))
    ran = show(Outcome((EXAMPLES["maintain"],), (), (failure,)), "maintain", "w.yaml")
    assert ran.code == 6
    assert ran.stdout.startswith("q_top: exact")
    assert ran.stderr == (
        "error: `q_two`: The store is locked [lock_held]\n1 of 2 queries failed: `q_two`\n"
    )


@pytest.mark.parametrize(
    ("covers", "equal", "code"),
    [(True, None, 0), (True, True, 0), (True, False, 5), (False, None, 5), (False, False, 5)],
)
def test_an_unsound_sketch_is_always_an_error(show, covers, equal, code: int) -> None:
    missing = () if covers else (1, 2)
    result = replace(EXAMPLES["verify"], covers=covers, missing=missing, results_equal=equal)
    ran = show(result, "verify", "w.yaml")
    assert ran.code == code
    assert ("NOT SOUND" in ran.stdout) is (code == 5)
    assert ran.stderr.startswith("error: ") is (code == 5)


def test_an_unsound_sketch_is_reported_once(show) -> None:
    result = replace(EXAMPLES["verify"], covers=False, missing=(1,), results_equal=None)
    failure = Failure("q_top", UnsoundSketchError("too small"))
    ran = show(Outcome((result,), (), (failure,)), "verify", "w.yaml")
    assert (ran.code, ran.stderr) == (5, "error: `q_top`: too small [sketch_unsound]\n")


def test_warnings_of_libraries_are_hidden_by_default(impctl, fake, monkeypatch) -> None:
    def warn(*args: object, **kwargs: object) -> Outcome:
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return Outcome((EXAMPLES["status"],))

    monkeypatch.setattr(sys.modules["impctl.service.status"], "status", warn)
    monkeypatch.setattr(sys, "warnoptions", [])
    ran = impctl("status", "w.yaml")
    assert (ran.code, ran.stderr) == (0, "")


def test_a_panic_of_a_native_library_is_an_error(show) -> None:
    """A real panic, of the library that Delta's file entries use."""
    with pytest.raises(BaseException, match="offset") as caught:
        arro3.core.Array.from_arrow(pa.array([1, 2, 3])).slice(5, 10)
    assert not isinstance(caught.value, Exception)
    ran = show(caught.value, "maintain", "w.yaml", "--json")
    assert (ran.code, ran.stderr) == (1, "")
    error = json.loads(ran.stdout)["error"]
    assert error["code"] == "library_panicked"
    assert error["message"].startswith("A native library failed: the offset of")


WORKLOAD = """
version: 1
tables: {t: {path: t}}
partitions: {t: {a: {boundaries: [2, 4, 6]}}}
queries:
  q: {sql: "SELECT a, SUM(b) AS total FROM t GROUP BY a HAVING SUM(b) > 10", sketch: {t: a}}
"""
MODULES_SCRIPT = """
import atexit, os, sys
os.dup2(int(sys.argv[1]), 3)
atexit.register(lambda: os.write(3, "\\n".join(sys.modules).encode()))
from impctl.cli.main import main
for command in sys.argv[2:]:
    sys.argv[1:] = command.split()
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, command
"""
UNUSED_MODULES = {"pandas", "pydantic", "rich", "pyspark", "duckdb", "pyarrow.dataset"}
"""Modules that maintaining without Spark and without a printed table never loads."""


def rows(*pairs: tuple[int, int]) -> pa.Table:
    return pa.table({"a": [a for a, _ in pairs], "b": [b for _, b in pairs]})


def write_captured(folder: Path, workload: str = WORKLOAD) -> Path:
    write_deltalake(
        folder / "t",
        rows((1, 20), (3, 5), (5, 30)),
        configuration={"delta.enableChangeDataFeed": "true"},
    )
    (folder / "impctl.yaml").write_text(workload)
    assert run(build_app(), ["capture", str(folder / "impctl.yaml"), "--quiet"]) == 0
    return folder


def modules_after(folder: Path, *commands: str) -> set[str]:
    """The modules that are loaded after these commands, all of which must succeed."""
    read, write = os.pipe()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("IMPCTL_")}
    ran = subprocess.Popen(
        [sys.executable, "-P", "-c", MODULES_SCRIPT, str(write), *commands],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[write],
    )
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        modules = pipe.read().decode()
    _, complaints = ran.communicate()
    assert ran.returncode == 0, complaints.decode()
    return set(modules.split())


ENGINE = ("impctl.engine", "impctl.compile")


def test_runs_without_work_load_neither_parser_nor_engine(
    tmp_path: Path,
) -> None:
    late = "  late: {sql: SELECT a FROM u WHERE b > 1, sketch: {u: a}, trigger: {rows: 9}}\n"
    write_deltalake(tmp_path / "u", rows((1, 2), (3, 4)))
    write_captured(tmp_path, WORKLOAD.replace("path: t}", "path: t}, u: {path: u}") + late)
    write_deltalake(tmp_path / "u", rows((3, 50)), mode="append")
    commands = ("maintain --query q", "maintain --query q --json", "status")
    loaded = modules_after(tmp_path, *commands, "maintain --due", "plan --due")
    assert "deltalake" in loaded
    assert loaded & {*UNUSED_MODULES, "sqlglot", "pyarrow.compute", "pyarrow.fs"} == set()
    assert not [name for name in loaded if name.startswith(ENGINE)]


def test_maintain_loads_no_unused_modules(tmp_path: Path) -> None:
    write_captured(tmp_path)
    write_deltalake(tmp_path / "t", rows((3, 50)), mode="append")
    DeltaTable(tmp_path / "t").delete("a = 1")
    loaded = modules_after(tmp_path, "maintain")
    assert "impctl.engine.aggregate" in loaded
    assert loaded & UNUSED_MODULES == set()


def test_only_the_used_command_is_built() -> None:
    (registered,) = build_app(commands_for(["status", "w.yaml"])).registered_commands
    assert registered.name == "status"


def test_materialized_results_load_no_parser_or_circuits(tmp_path: Path) -> None:
    write_captured(tmp_path, WORKLOAD.replace("sketch: {t: a}", "sketch: {t: a}, answer: true"))
    loaded = modules_after(tmp_path, "query")
    assert "impctl.engine.result_rows" in loaded
    assert loaded & {*UNUSED_MODULES, "sqlglot", "impctl.compile.compile"} == set()


PANEL = re.compile(r"^╭─ (.*?) ─+╮$", re.MULTILINE)
HEADING = re.compile(r"^(?!Usage)(\S.*):$", re.MULTILINE)
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def help_contexts() -> Iterator[tuple[str, Any, Any]]:
    root: Any = typer.main.get_command(build_app())
    context = root.context_class(root, info_name="impctl")
    yield "impctl", root, context
    for name, command in root.commands.items():
        yield name, command, command.context_class(command, info_name=name, parent=context)


HELP_COMMANDS = {name: (command, context) for name, command, context in help_contexts()}


def groups_of(name: str) -> list[str]:
    return [title for part in sections(*HELP_COMMANDS[name]) for title, _ in part]


def test_the_groups_of_commands() -> None:
    assert sorted(chain.from_iterable(COMMAND_GROUPS.values())) == sorted(COMMANDS)
    assert groups_of("impctl") == [*COMMAND_GROUPS, OPTIONS]


@pytest.mark.parametrize("name", HELP_COMMANDS)
def test_every_help_entry_has_one_group_and_a_text(name: str) -> None:
    command, context = HELP_COMMANDS[name]
    commands, options = sections(command, context)
    names = [entry for _, rows in options for entry, _ in rows]
    params = command.get_params(context)
    assert len(names) == len(set(names)) == len(params)
    assert all(len(text) > 10 for _, rows in [*commands, *options] for _, text in rows)
    groups = groups_of(name)
    assert groups == sorted(groups, key=[*COMMAND_GROUPS, *OPTION_GROUPS, OPTIONS].index)
    ungrouped = [param.name for param in params if not param.rich_help_panel] if options else []
    assert name == "impctl" or ungrouped == ["help"]


@pytest.mark.parametrize("name", HELP_COMMANDS)
def test_help_texts_name_choices_and_defaults(name: str) -> None:
    command, _ = HELP_COMMANDS[name]
    for param in command.params:
        descriptor = getattr(param, "type_descriptor", None) or param.type
        for choice in getattr(descriptor, "choices", None) or ():
            assert re.search(rf"\b{getattr(choice, 'value', choice)}\b", param.help), param.name
        default = getattr(param.default, "value", param.default)
        if isinstance(default, str | int) and default not in (True, False, 0):
            assert f"Default: {default}." in param.help, param.name


def test_a_pipe_gets_plain_headings_despite_forced_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert run(build_app(), ["maintain", "--help"]) == 0
    output = capsys.readouterr().out
    assert output.isascii()
    assert "\x1b" not in output
    assert HEADING.findall(output) == groups_of("maintain")


@pytest.fixture
def terminal_help(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The help for a terminal, without a process and a real terminal."""

    def call(*words: str, **variables: str) -> str:
        for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm", "COLUMNS": "80", **variables}.items():
            monkeypatch.setenv(name, value)
        terminal = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            assert run(build_app(), [*words, "--help"]) == 0
        return terminal.getvalue()

    return call


@pytest.mark.parametrize("columns", [40, 80, 140, 200])
@pytest.mark.parametrize("words", [(), ("maintain",)], ids=" ".join)
def test_panels_have_the_width_of_the_terminal(terminal_help, words, columns: int) -> None:
    text = ESCAPE.sub("", terminal_help(*words, COLUMNS=str(columns)))
    assert PANEL.findall(text) == groups_of(words[0] if words else "impctl")
    widths = {len(line) for line in text.splitlines() if line.startswith(("╭", "│", "╰"))}
    assert widths == {min(columns, 140)}


def test_help_has_the_same_words_in_terminal_and_pipe(impctl) -> None:
    piped = re.sub(HEADING, r"\1", impctl("query", "--help").stdout)
    output = on_terminal("-m", "impctl", "query", "--help", columns=100)
    drawn = ESCAPE.sub("", output.replace("\r\n", "\n"))
    assert {len(line) for line in drawn.splitlines() if line.startswith("│")} == {100}
    assert re.sub(r"[╭╮╰╯│─]", " ", drawn).split() == piped.split()


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_escape_codes_can_be_turned_off(terminal_help, variables: dict[str, str]) -> None:
    text = terminal_help("status", **variables)
    assert "\x1b" not in text
    result = HEADING.findall(text) if "TERM" in variables else PANEL.findall(text)
    assert result == groups_of("status")


def test_help_text_has_the_default_colour(terminal_help) -> None:
    """Bold is used, but neither dim text nor backgrounds; only borders have a colour."""
    text = terminal_help("status")
    codes = set(chain.from_iterable(c[2:-1].split(";") for c in ESCAPE.findall(text)))
    assert codes == {"0", "1", "39", "36"}
    coloured = re.findall(r"\x1b\[36m([^\x1b]*)", text)
    assert not [part for part in coloured if re.search(r"\w", part)]


def test_help_in_a_pipe_loads_no_large_modules(tmp_path: Path) -> None:
    assert modules_after(tmp_path, "--help", "maintain --help").isdisjoint((*HEAVY, "markdown_it"))


# Plain values that skip Typer's check are the same as with the check.


def flags(command: str) -> list[Any]:
    # Tests share `get_command`, and a flag that used Typer's check once always uses it.
    group: Any = typer.main.get_group(build_app([command]))
    context = typer.Context(group)
    parsed = group.commands[command]
    return [*group.get_params(context), *parsed.get_params(typer.Context(parsed))]


def coerced(param: Any, value: Any, flag: Any, context: Any) -> Any:
    """The coerced value with its type, or the error."""
    try:
        result = param.coerce(value, flag, context)
    except Exception as error:  # noqa: BLE001  # any error, to compare it with Typer's
        return type(error), str(error)
    return type(result), result


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_flags_are_coerced_like_typer(command: str, tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("x")
    values = [None, "", "text", "3", "-1", 0, 5, -1, 1.5, True, [], ["a", "b"], ("a",), [1]]
    values += [str(file), file, str(tmp_path), str(tmp_path / "none"), "-", Policy.AUTO, "auto"]
    values += ["AUTO", "csv", "never"]
    coercion = pytest.importorskip("typer._coercion", reason="other versions of Typer differ")
    checked = 0
    for flag in flags(command):
        assert isinstance(flag._runtime_param, _Plain)
        context = typer.Context(typer.main.get_command(build_app([command])))
        typers = coercion.build_runtime_param(flag.type_descriptor)
        for value in values:
            result, expected = (
                coerced(param, value, flag, context) for param in (_Plain(flag), typers)
            )
            assert result == expected, (flag.name, value)
            checked += 1
    assert checked >= len(values)


def test_an_unreadable_file_is_refused_like_typer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("x")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    flag = next(flag for flag in flags("check") if flag.name == "workload")
    context = typer.Context(typer.main.get_command(build_app(["check"])))
    with pytest.raises(typer.BadParameter, match="is not readable"):
        _Plain(flag).coerce(str(file), flag, context)
