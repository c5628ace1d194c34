"""Following processes, progress bars, and control characters in names."""

from __future__ import annotations

import io
import json
import re
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import typer

from impctl.cli import job
from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.cli.job import PulseReporter, Stopping, reporting, until_asked, write_document
from impctl.cli.options import seconds
from impctl.cli.output.outcome import run_line
from impctl.cli.process import Display
from impctl.errors import LockHeldError, SchemaChangedError
from impctl.service.results import Failure, FollowedRun, MaintainResult, Outcome
from impctl.tables.write.maintenance import create_table
from tests.cli.conftest import Terminal
from tests.crash.processes import some_rows
from tests.support.run_cli import on_terminal, python

RUN = FollowedRun(3, "2026-01-02T03:04:05.678Z", 12.34, 6, 1500.0)


def test_durations() -> None:
    texts = {"500ms": 0.5, "5s": 5, "0.2": 0.2, "2m": 120, "1h": 3600}
    assert {text: seconds(text) for text in texts} == texts
    for text in ("", "0", "0s", "-1s", "5 weeks", "s", "nan", "1e3", "9" * 20):
        with pytest.raises(typer.BadParameter):
            seconds(text)


def outcome() -> Outcome:
    done = MaintainResult(query="q", table="t", action="exact", changes=7)
    failed = (
        Failure("p", SchemaChangedError("Column `x`\nchanged")),
        Failure(None, LockHeldError("Store is locked")),
    )
    return Outcome((done,), ("slow",), failed)


def test_text_of_a_run_is_one_line() -> None:
    assert run_line(outcome(), RUN) == (
        "2026-01-02T03:04:05.678Z run 3, 12.3 ms: q exact, 7 changes; p failed: Column `x` changed "
        "[schema_changed]; run failed: Store is locked [lock_held]; warning: slow; "
        "retry in 1.5 s"
    )


def test_json_of_a_run_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    write_document("maintain", outcome(), RUN)
    (line,) = capsys.readouterr().out.splitlines()
    document = json.loads(line)
    assert (document["command"], document["ok"]) == ("maintain", False)
    assert document["run"] == {
        "number": 3,
        "started_at": "2026-01-02T03:04:05.678Z",
        "elapsed_ms": 12.34,
        "exit_code": 6,
        "retry_ms": 1500.0,
        "late_ms": None,
    }
    assert document["error"]["failures"][0]["code"] == "schema_changed"


def written_by_job(monkeypatch: pytest.MonkeyPatch, signal_number: int | None) -> list[str]:
    """Output of a job with results a, b and c; after a, it gets a signal or loses its reader."""
    written: list[str] = []
    monkeypatch.setattr(job, "discard_output", lambda number: written.append("given up"))

    def write(result: str, run: FollowedRun) -> None:
        if signal_number is None and written:
            raise BrokenPipeError
        written.append(result)

    def watch(stop: Stopping, show: Callable[[str, FollowedRun], None]) -> None:
        for result in "abc":
            if stop.is_asked:
                return
            show(result, RUN)
            if signal_number is not None:
                signal.raise_signal(signal_number)

    try:
        until_asked(watch, write)
    except KeyboardInterrupt:
        written.append("interrupted")
    return written


@pytest.mark.usefixtures("heard_signals")
def test_a_signal_ends_following(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written_by_job(monkeypatch, signal.SIGTERM) == ["a"]
    assert written_by_job(monkeypatch, signal.SIGINT) == ["a", "interrupted"]


def test_following_ends_without_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written_by_job(monkeypatch, None) == ["a", "given up"]


@pytest.mark.parametrize(
    ("signal_number", "returns"), [(signal.SIGTERM, True), (signal.SIGINT, False), (None, False)]
)
@pytest.mark.usefixtures("heard_signals")
def test_the_signal_decides_how_following_ends(signal_number: int | None, returns: bool) -> None:
    def watch(stop: Stopping, show: Callable[[str, FollowedRun], None]) -> None:
        if signal_number is None:
            raise KeyboardInterrupt
        signal.raise_signal(signal_number)
        signal.raise_signal(signal_number)

    with nullcontext() if returns else pytest.raises(KeyboardInterrupt):
        until_asked(watch, lambda result, run: None)


PROGRAM = """
import os, sys, time
from impctl.cli.job import reporting
from impctl.cli.process import Display
with reporting(Display(), sys.stderr, os.environ, print) as reporter:
    reporter.step("capturing [q_top]", 1, 2)
    time.sleep(0.3)
print("done")
"""


@pytest.mark.parametrize(
    ("stream", "display", "variables"),
    [
        (io.StringIO(), Display(), {}),
        (io.StringIO(), Display(), {"FORCE_COLOR": "1"}),
        (io.StringIO(), Display(), {"FORCE_COLOR": "1", "TTY": "1"}),
        (Terminal(), Display(verbosity=-1), {}),
        (Terminal(), Display(json=True), {}),
        (Terminal(), Display(), {"TERM": "dumb"}),
    ],
)
def test_no_bar_in_a_pipe_or_if_turned_off(
    stream: io.StringIO, display: Display, variables: dict[str, str]
) -> None:
    with reporting(display, stream, variables, print) as reporter:
        reporter.step("capturing", 1, 2)
    assert stream.getvalue() == ""


def test_verbose_steps_are_lines() -> None:
    stream = io.StringIO()
    with reporting(Display(verbosity=1), stream, {}, print) as reporter:
        reporter.step("capturing\x1b[2J", 1, 2)
        reporter.step("done")
    assert stream.getvalue() == "[1/2] capturing\\x1b[2J\ndone\n"


def test_a_terminal_gets_a_bar_that_disappears() -> None:
    output = on_terminal("-c", PROGRAM)
    before, _, after = output.partition("capturing [q_top]")
    assert after, output
    assert "\x1b[2K" in after
    assert output.endswith("done\r\n")


def test_a_bar_shows_item_number_and_time_left() -> None:
    items = """    for number in (1, 2, 3):
        reporter.step(f"maintaining q{number}", number, 3)
        time.sleep(0.3)
    reporter.step("starting Spark")
    time.sleep(0.3)
"""
    first = '    reporter.step("capturing [q_top]", 1, 2)\n    time.sleep(0.3)\n'
    output = on_terminal("-c", PROGRAM.replace(first, items))
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output).split("\r")
    for item, progress in (("maintaining q1", "1/3"), ("maintaining q3", "3/3")):
        assert any(item in line and progress in line for line in lines), lines
    assert any("maintaining q2" in line and re.search(r"about \d+ s left", line) for line in lines)
    assert any("starting Spark" in line and "3/3" in line for line in lines)


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_long_run_with_line_output_reports_its_first_step(stream: io.StringIO) -> None:
    with reporting(Display(), stream, {}, print, has_lines=True, is_long=True) as reporter:
        reporter.step("following q_top\x1b[2J")
        assert stream.getvalue() == "following q_top\\x1b[2J\n"
        reporter.step("maintaining", 1, 2)
    assert stream.getvalue() == "following q_top\\x1b[2J\n"


@pytest.mark.parametrize("display", [Display(verbosity=-1), Display(json=True)])
def test_long_runs_are_silent_with_quiet_and_json(display: Display) -> None:
    stream = io.StringIO()
    with reporting(display, stream, {}, print, is_long=True) as reporter:
        reporter.step("measuring")
    assert stream.getvalue() == ""


def test_a_long_run_repeats_its_current_step() -> None:
    written = threading.Event()

    class Watched(io.StringIO):
        def write(self, text: str) -> int:
            if "[1/2] figure changes" in text:
                written.set()
            return super().write(text)

    stream = Watched()
    pulse = PulseReporter(stream, print, every=0.01)
    pulse.step("measuring shop.yaml")
    pulse.step("figure changes", 1, 2)
    assert written.wait(10)
    pulse.end()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "measuring shop.yaml"
    assert re.fullmatch(r"after \S+ ms: \[1/2\] figure changes", lines[-1])
    before = stream.getvalue()
    pulse.step("more")
    assert stream.getvalue() == before


def test_a_pulse_ignores_a_closed_stream() -> None:
    stream = io.StringIO()
    stream.close()
    pulse = PulseReporter(stream, print)
    pulse.step("measuring")
    pulse.end()


BIDI = "\u202e\u2066\u200f\u061c"
ESCAPE = "\x1b"

COLUMN = f"g{BIDI}"
WORKLOAD = """\
version: 1
tables:
  t: {path: t}
partitions:
  t: {"COLUMN": {ranges: 4}}
queries:
  q:
    sql: "SELECT `COLUMN`, COUNT(*) AS n FROM t WHERE 'COLUMN \\e[31m' <> x
      GROUP BY `COLUMN` HAVING COUNT(*) > 2"
    sketch: {t: "COLUMN"}
""".replace("COLUMN", "g\\u202e\\u2066\\u200f\\u061c").replace("<> x", "<> 'a'")


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driven")
    create_table(str(folder / "t"), some_rows(60, 1).rename_columns([COLUMN, "x"]))
    file = folder / "w.yaml"
    file.write_text(WORKLOAD)
    assert run(build_app(), ["capture", str(file), "--quiet"]) == 0
    return file


def output_on_terminal(*arguments: object) -> str:
    """All that a real terminal gets, without a progress bar because of TERM."""
    return on_terminal("-m", "impctl", *arguments, TERM="dumb")


COMMAND_LINES: tuple[tuple[str, ...], ...] = (
    *(("capture",), ("check",), ("explain",), ("plan",), ("status", "-v"), ("doctor",), ("gc",)),
    *(("rewrite",), ("rewrite", "--query", f"no{BIDI}{ESCAPE}[2J")),
    *(("capture", "-vv", "--query", f"no{BIDI}{ESCAPE}[2J"), (f"no{BIDI}{ESCAPE}[2J",)),
)
RUN_COMMANDS = """
import json, sys
from contextlib import suppress
from impctl.cli.main import main

workload, commands = sys.argv[1:]
for command, *rest in json.loads(commands):
    sys.argv[1:] = [command, workload, *rest]
    with suppress(SystemExit):
        main()
    print("END OF COMMAND", flush=True)
"""


@pytest.mark.slow
def test_no_output_controls_the_terminal(workload: Path) -> None:
    """One process on the terminal runs all commands."""
    remaining = on_terminal("-c", RUN_COMMANDS, workload, json.dumps(COMMAND_LINES), TERM="dumb")
    for command, *rest in COMMAND_LINES:
        output, end, remaining = remaining.partition("END OF COMMAND\r\n")
        assert output, (command, rest)
        assert end
        assert not [character for character in BIDI + ESCAPE if character in output], repr(output)
        if command in ("check", "explain", "status", "rewrite"):
            assert "u202e" in output


@pytest.mark.slow
def test_sql_is_exact_in_a_pipe_and_escaped_on_a_terminal(workload: Path) -> None:
    piped = python("-m", "impctl", "rewrite", workload)
    assert f"{BIDI} {ESCAPE}[31m" in piped.stdout
    assert "\\u202e\\u2066\\u200f\\u061c \\u001b[31m" in output_on_terminal("rewrite", workload)
