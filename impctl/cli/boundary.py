"""Where a command ends: its job is run, and an exception becomes a message and an exit code.

Law: only this module catches everything. The exit code of a run is that of its most severe failure:
`impctl.errors` has the codes, `service.results` their order. `cli.signals` and `cli.main` end a
process that is interrupted while it loads or after its output. Stdout has results only, and in JSON
mode one complete document.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import typer
from msgspec.structs import replace

from impctl.cli.application import PENDING
from impctl.cli.job import Job
from impctl.cli.options import COMPLETION_VARIABLE
from impctl.cli.process import Display, discard_output, lost_messages
from impctl.cli.signals import DROPPED_HINT, INTERRUPTED_MESSAGE, delay_interrupts, raise_on_signal
from impctl.errors import (
    ImpctlError,
    InterruptedRunError,
    OutputFailedError,
    UsageError,
    is_panic,
    masked,
    unexpected,
)

if TYPE_CHECKING:
    from impctl.cli.job import Show
    from impctl.cli.output.outcome import JsonOutput, TextOutput
    from impctl.service.results import Outcome, Result

_CLICK_USAGE_ERROR = typer.BadParameter.mro()[1]
"""The parser's usage error, which Typer does not export."""


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Parse `arguments`, run the command and show its outcome; return the exit code."""
    command = typer.main.get_command(app)
    try:
        parsed = command.main(list(arguments), prog_name="impctl", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return _fail(arguments, _interrupted())
    except ImpctlError as error:
        return _fail(arguments, error)
    except SystemExit as end:
        if COMPLETION_VARIABLE in os.environ and isinstance(end.code, int):
            return end.code  # tells fish whether there are words, or files to complete
        # The parser exits with 1 if nobody reads the help.
        return _after_broken_pipe(0) if end.code == 1 else 0
    except Exception as error:  # noqa: BLE001  # the boundary
        if isinstance(error, _CLICK_USAGE_ERROR):
            return _fail(arguments, _usage_error(error))
        return _fail(arguments, unexpected(error))
    if isinstance(parsed, Job):
        return execute(parsed)
    return _flushed(arguments, parsed if isinstance(parsed, int) else 0)


def execute(job: Job) -> int:
    """Run `job` and show its outcome; return the exit code."""
    from impctl.service.results import failed

    output = _output(job.command, job.display)
    shown: list[Result] = []

    def show_now(result: Result, progress: str) -> None:
        # The end of the run reports that nobody reads, or that stdout accepts no more.
        with suppress(BrokenPipeError, OutputFailedError):
            if output.finished(result, progress):
                sys.stdout.flush()
                shown.append(result)

    try:
        raise_on_signal()
        outcome = _outcome(job, show_now)
        delay_interrupts()
    except KeyboardInterrupt:
        outcome = failed(_interrupted())
    if outcome is None:
        return _flushed((job.command,), 0)
    return _present(output, job.display, outcome, shown, detailed=job.detailed)


def _outcome(job: Job, show_now: Show) -> Outcome | str | None:
    """Run the job. Errors become an outcome, except KeyboardInterrupt, which is raised."""
    from impctl.cli.job import reporting
    from impctl.service.results import failed

    if job.display.verbosity < 2:
        # What libraries log becomes an error with its trace anyway.
        logging.disable(logging.CRITICAL)
    progress = reporting(
        job.display, sys.stderr, os.environ, show_now, has_lines=job.has_lines, is_long=job.is_long
    )
    try:
        with warnings.catch_warnings(), progress as reporter:
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
            return job.work(reporter)
    except ImpctlError as error:
        return failed(error)
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        return failed(unexpected(error))


def _present(
    output: JsonOutput | TextOutput,
    display: Display,
    outcome: Outcome | str,
    shown: Sequence[Result] = (),
    *,
    detailed: bool = False,
) -> int:
    """Show the results that are not in `shown`, and the end; return the exit code."""
    from impctl.service.results import Failure, Outcome, for_report, is_pending, most_severe
    from impctl.service.text import plain

    text = outcome if isinstance(outcome, str) else None
    report = Outcome() if isinstance(outcome, str) else for_report(outcome)
    if (lost := lost_messages()) is not None:
        report = replace(report, failures=(*report.failures, Failure(None, lost)))
    decisive = most_severe(report)
    code = 0 if decisive is None else decisive.error.exit_code
    if decisive is None and detailed and is_pending(report):
        code = PENDING
    for failure in report.failures if display.verbosity >= 2 else ():
        trace = "".join(traceback.format_exception(failure.error))
        sys.stderr.write(plain(masked(trace)))
    try:
        if text is not None:
            output.document(text)
        for result in report.results:
            if not any(result is other for other in shown):
                output.show(result)
        output.end(report, decisive)
        sys.stdout.flush()
    except BrokenPipeError:
        return _after_broken_pipe(code)
    except OutputFailedError as error:
        return _report_on_stderr(report, error)
    lost = lost_messages()
    return code if lost is None or decisive is not None else lost.exit_code


def _report_on_stderr(outcome: Outcome, error: OutputFailedError) -> int:
    """Report all failures on stderr, in JSON mode too, because stdout does not accept them."""
    from impctl.service.results import Failure, most_severe

    discard_output(sys.stdout.fileno())
    failures = outcome.failures
    if not any(isinstance(failure.error, OutputFailedError) for failure in failures):
        failures = (*failures, Failure(None, error))
    outcome = replace(outcome, failures=failures, note="")
    decisive = most_severe(outcome)
    _output(None, Display()).end(outcome, decisive)
    return error.exit_code if decisive is None else decisive.error.exit_code


def _output(command: str | None, display: Display) -> JsonOutput | TextOutput:
    if display.json:
        from impctl.cli.output.outcome import JsonOutput

        return JsonOutput(command, sys.stdout)
    from impctl.cli.output.outcome import TextOutput

    return TextOutput(sys.stdout, sys.stderr, display)


def _fail(arguments: Sequence[str], error: ImpctlError) -> int:
    """Report an error from before there was a job; guess the display from the arguments."""
    from impctl.service.results import failed

    words = [word for word in arguments if not word.startswith("-")]
    display = Display(json="--json" in arguments)
    output = _output(words[0] if words else None, display)
    return _present(output, display, failed(error))


def _usage_error(error: Exception) -> UsageError:
    """A UsageError for the parser's error, with a pointer to the help."""
    message = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
    message = re.sub(r"\n\t?", " ", message.replace("Value error, ", ""))
    message = re.sub(r"'([^']*)'", r"`\1`", message)
    context = getattr(error, "ctx", None)
    path = "impctl" if context is None else context.command_path
    return UsageError(message, hint=f"see `{path} --help`")


def _interrupted() -> InterruptedRunError:
    return InterruptedRunError(INTERRUPTED_MESSAGE, hint=DROPPED_HINT)


def _flushed(arguments: Sequence[str], code: int) -> int:
    """Flush output that was printed directly."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _after_broken_pipe(code)
    except OutputFailedError as error:
        return _fail(arguments, error)
    lost = lost_messages()
    return code if lost is None or code else lost.exit_code


def _after_broken_pipe(code: int) -> int:
    """Keep the interpreter's exit silent: it is no failure if the reader is gone."""
    discard_output(sys.stdout.fileno())
    return code
