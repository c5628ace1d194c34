"""The entry point of the console script.

Law: signals are taken before anything else is loaded, so that a command which is told to end while
it still loads says so as it does later. Whether another process does the command's work is asked
before what does it is loaded.
Out of scope: what the commands are (`cli.application`), running one (`cli.boundary`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from impctl.cli.interrupt import answer_for, ignoring, take_signals, told

if TYPE_CHECKING:
    import typer


def main() -> None:
    """Run the command that the process was started with, and end with its exit code."""
    import atexit
    import gc
    import os
    import sys

    # What a process loads stays: to look for garbage in it, also at the end, only takes time. One
    # that goes on for days looks as often as any other.
    if "--follow" not in sys.argv:
        gc.set_threshold(50_000, 20, 50)
    atexit.register(gc.freeze)
    words = sys.argv[1:]
    taken = take_signals(answer_for(words, os.environ))
    atexit.register(ignoring, taken)  # the first to be registered is the last to run
    code = None
    if "IMPCTL_SOCKET" in os.environ or any(word.startswith("--socket") for word in words):
        from impctl.cli.socket.asking import answered_elsewhere

        code = answered_elsewhere(words, os.environ)
    if code is None:
        code = done(words)
    told(code)
    sys.exit(code)


def done(words: Sequence[str], app: typer.Typer | None = None) -> int:
    """The exit code of the command, done by this process; signals are taken already."""
    import os

    from impctl.cli.streams import open_streams

    open_streams()
    from impctl.cli.application import COMMANDS, build_app, commands_for
    from impctl.cli.boundary import run
    from impctl.cli.completion import COMPLETION_VARIABLE
    from impctl.errors import INTERRUPTED
    from impctl.unneeded import hide_pandas

    hide_pandas()
    try:
        if app is None:
            is_completing = COMPLETION_VARIABLE in os.environ
            app = build_app(COMMANDS if is_completing else commands_for(words))
        return run(app, words)
    except KeyboardInterrupt:
        return INTERRUPTED  # while the outcome was being shown, for long
