"""Bars on a terminal, and only there."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest

from impctl.cli.job import Display
from impctl.cli.progress import reporting

PROGRAM = """
import os, sys, time
from impctl.cli.job import Display
from impctl.cli.progress import reporting
with reporting(Display(), sys.stderr, os.environ) as reporter:
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
    with reporting(Display(), stream, variables) as reporter:
        reporter.step("capturing", 1, 2)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("display", [Display(verbosity=-1), Display(json=True)])
def test_quiet_and_json_get_no_bar_on_a_terminal(display: Display) -> None:
    stream = Terminal()
    with reporting(display, stream, {}) as reporter:
        reporter.step("capturing", 1, 2)
    assert stream.getvalue() == ""


def test_a_dumb_terminal_gets_no_bar() -> None:
    stream = Terminal()
    with reporting(Display(), stream, {"TERM": "dumb"}) as reporter:
        reporter.step("capturing", 1, 2)
    assert stream.getvalue() == ""


def test_lines_with_verbose() -> None:
    stream = io.StringIO()
    with reporting(Display(verbosity=1), stream, {}) as reporter:
        reporter.step("capturing\x1b[2J", 1, 2)
        reporter.step("done")
    assert stream.getvalue() == "[1/2] capturing\\x1b[2J\ndone\n"


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    shown = on_terminal(PROGRAM)
    before, _, after = shown.partition("capturing [q_top]")
    assert after, shown
    assert "\x1b[2K" in after
    assert shown.endswith("done\r\n")


def on_terminal(program: str) -> str:
    """What a program writes when both its streams are one terminal."""
    ours, theirs = pty.openpty()
    environment = {"TERM": "xterm", "PATH": os.environ["PATH"]}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=theirs, stderr=theirs, env=environment
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
