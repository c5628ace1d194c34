"""One call of the command line on input nobody meant, and what is asked of it whatever it gets.

Law: it ends in time, with a documented exit code and one JSON document; what fails has a code, a
message on one line and a hint, and is never an error nobody raised on purpose.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from impctl.cli.application import EXIT_CODES
from tests.support.run_cli import Cli, Ran

SECONDS = 60.0
"""Of one call; hundreds of times what any of them takes."""

CODES = {code for code, _ in EXIT_CODES} - {1}


class OverTimeError(BaseException):
    """Not an Exception, so that nothing on the way takes it for an error of its own."""


@contextmanager
def in_time(what: str, seconds: float = SECONDS) -> Iterator[None]:
    """The block, ended by OverTimeError where it takes longer."""

    def end(number: int, frame: FrameType | None) -> None:
        raise OverTimeError(what)

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_told(ran: Ran, what: str) -> Ran:
    """The call answered, or failed as errors of impctl do."""
    assert ran.code in CODES, (what, ran.document)
    assert ran.document["ok"] == (ran.code == 0), (what, ran.document)
    if ran.code:
        error = ran.error
        assert error["code"] != "unexpected", (what, error)
        assert error["message"].strip(), (what, error)
        assert "\n" not in error["message"], (what, error)
        # Of several problems each has the hint; where YAML itself fails there is one too.
        assert error["hint"], (what, error)
    return ran


def told(cli: Cli, command: str, *arguments: str, what: str = "") -> Ran:
    """`command` in time, answered or refused in words."""
    what = f"{command}: {what}"
    with in_time(what):
        ran = cli(command, *arguments)
    return check_told(ran, what)
