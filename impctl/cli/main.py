"""The entry point of the console script.

Law: signals are handled before anything else is loaded, so that a command reports an interruption
while it loads, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.cli.signals import exit_answer, exit_on_signal, ignoring, take_signals


def main() -> None:
    """Run the command that the process was started with, and exit with its code."""
    import atexit
    import gc
    import os
    import sys

    # Loaded modules stay, so that looking for garbage in them only takes time. A process that runs
    # for days uses the usual thresholds.
    if "--follow" not in sys.argv:
        gc.set_threshold(200_000, 20, 50)
    atexit.register(gc.freeze)
    words = sys.argv[1:]
    handled = take_signals(exit_answer(words, os.environ))
    atexit.register(ignoring, handled)  # the first to be registered is the last to run
    code = _done(words)
    exit_on_signal(code)
    sys.exit(code)


def _done(words: Sequence[str]) -> int:
    import os

    from impctl.cli.process import open_streams

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
        return INTERRUPTED  # while the outcome was shown, which took long
