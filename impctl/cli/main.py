"""The entry point of the console script.

Law: signals are handled before anything else is loaded, so that a command which is interrupted
while it loads reports that as it does later.
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.cli.interrupt import exit_answer, exit_on_signal, ignoring, take_signals


def main() -> None:
    """Run the command that the process was started with, and exit with its code."""
    import atexit
    import gc
    import os
    import sys

    # What a process loads stays: to look for garbage in it, also at the end, only takes time. One
    # that goes on for days looks as often as any other.
    if "--follow" not in sys.argv:
        gc.set_threshold(200_000, 20, 50)
    atexit.register(gc.freeze)
    words = sys.argv[1:]
    taken = take_signals(exit_answer(words, os.environ))
    atexit.register(ignoring, taken)  # the first to be registered is the last to run
    code = _done(words)
    exit_on_signal(code)
    sys.exit(code)


def _done(words: Sequence[str]) -> int:
    import os

    from impctl.cli.streams import open_streams

    open_streams()
    from impctl.cli.application import COMMANDS, build_app, commands_for
    from impctl.cli.boundary import run
    from impctl.cli.options import COMPLETION_VARIABLE
    from impctl.errors import INTERRUPTED
    from impctl.unneeded import disable_pandas

    disable_pandas()
    try:
        is_completing = COMPLETION_VARIABLE in os.environ
        return run(build_app(COMMANDS if is_completing else commands_for(words)), words)
    except KeyboardInterrupt:
        return INTERRUPTED  # while the outcome was being shown, for long
