"""Bars on a terminal, and only there."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading

import pytest

from impctl.cli.job import Display, PulseReporter, reporting

PROGRAM = """
import os, sys, time
from impctl.cli.job import Display
from impctl.cli.job import reporting
with reporting(Display(), sys.stderr, os.environ, print) as reporter:
    reporter.step("capturing [q_top]", 1, 2)
    time.sleep(0.3)
print("done")
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1"}, {"FORCE_COLOR": "1", "TTY": "1"}])
def test_a_pipe_gets_no_bar_whatever_the_variables(variables: dict[str, str]) -> None:
    stream = io.StringIO()
    with reporting(Display(), stream, variables, print) as reporter:
        reporter.step("capturing", 1, 2)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("display", [Display(verbosity=-1), Display(json=True)])
def test_quiet_and_json_get_no_bar_on_a_terminal(display: Display) -> None:
    stream = Terminal()
    with reporting(display, stream, {}, print) as reporter:
        reporter.step("capturing", 1, 2)
    assert stream.getvalue() == ""


def test_a_dumb_terminal_gets_no_bar() -> None:
    stream = Terminal()
    with reporting(Display(), stream, {"TERM": "dumb"}, print) as reporter:
        reporter.step("capturing", 1, 2)
    assert stream.getvalue() == ""


def test_lines_with_verbose() -> None:
    stream = io.StringIO()
    with reporting(Display(verbosity=1), stream, {}, print) as reporter:
        reporter.step("capturing\x1b[2J", 1, 2)
        reporter.step("done")
    assert stream.getvalue() == "[1/2] capturing\\x1b[2J\ndone\n"


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    shown = on_terminal(PROGRAM)
    before, _, after = shown.partition("capturing [q_top]")
    assert after, shown
    assert "\x1b[2K" in after
    assert shown.endswith("done\r\n")


def test_a_bar_shows_the_item_its_number_and_the_time_left() -> None:
    items = """    for number in (1, 2, 3):
        reporter.step(f"maintaining q{number}", number, 3)
        time.sleep(0.3)
    reporter.step("starting Spark")
    time.sleep(0.3)
"""
    first = '    reporter.step("capturing [q_top]", 1, 2)\n    time.sleep(0.3)\n'
    shown = on_terminal(PROGRAM.replace(first, items))
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).split("\r")
    for item, place in (("maintaining q1", "1/3"), ("maintaining q3", "3/3")):
        assert any(item in line and place in line for line in lines), lines
    assert any("maintaining q2" in line and re.search(r"about \d+ s left", line) for line in lines)
    assert any("starting Spark" in line and "3/3" in line for line in lines)


def on_terminal(program: str) -> str:
    """What a program writes when both its streams are one terminal."""
    ours, theirs = pty.openpty()
    path = os.pathsep.join(sys.path)
    environment = {"TERM": "xterm", "PATH": os.environ["PATH"], "PYTHONPATH": path}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        while chunk := read_or_end(ours):
            shown += chunk
    os.close(ours)
    assert process.returncode == 0
    return shown.decode()


def read_or_end(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # how Linux says that the other end is closed
        return b""


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_long_run_with_lines_of_its_own_says_at_once_what_it_does(stream: io.StringIO) -> None:
    with reporting(Display(), stream, {}, print, has_lines=True, is_long=True) as reporter:
        reporter.step("following q_top\x1b[2J")
        assert stream.getvalue() == "following q_top\\x1b[2J\n"
        reporter.step("maintaining", 1, 2)
    assert stream.getvalue() == "following q_top\\x1b[2J\n"


@pytest.mark.parametrize("display", [Display(verbosity=-1), Display(json=True)])
def test_quiet_and_json_are_silent_however_long_it_takes(display: Display) -> None:
    stream = io.StringIO()
    with reporting(display, stream, {}, print, is_long=True) as reporter:
        reporter.step("measuring")
    assert stream.getvalue() == ""


def test_a_long_run_says_where_it_is_as_time_passes() -> None:
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


def test_a_pulse_that_nobody_reads_ends_nothing() -> None:
    stream = io.StringIO()
    stream.close()
    pulse = PulseReporter(stream, print)
    pulse.step("measuring")
    pulse.end()
