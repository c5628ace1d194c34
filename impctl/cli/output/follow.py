"""One line on stdout per run of `maintain --follow`, for people or as JSON.

Law: a line is whole and flushed before the next run begins; a JSON line is the envelope of
`docs/json.md` with the run beside it. Warnings and failures stand in the line, not on stderr.
Out of scope: how one command shows its outcome (`cli.output.text`).
"""

from __future__ import annotations

from typing import TextIO

from impctl.cli.output.json import JsonOutput
from impctl.cli.output.protocol import show
from impctl.cli.output.wording import mode_text
from impctl.errors import count_text
from impctl.service.outcome import gravest
from impctl.service.results import FollowedRun, MaintainResult, Outcome
from impctl.service.text import duration_text, plain


def json_line(outcome: Outcome, run: FollowedRun, stdout: TextIO) -> None:
    """The run as one JSON document."""
    output = JsonOutput("maintain", stdout, run)
    for result in outcome.results:
        show(output, result)
    output.end(outcome.warnings, outcome.failures, gravest(outcome))
    stdout.flush()


def text_line(outcome: Outcome, run: FollowedRun, stdout: TextIO) -> None:
    """The run as one line of text."""
    stdout.write(_text(outcome, run) + "\n")
    stdout.flush()


def _text(outcome: Outcome, run: FollowedRun) -> str:
    done = {r.query: r for r in outcome.results if isinstance(r, MaintainResult)}
    parts = [_done_text(result) for result in done.values()]
    parts += [
        f"{'run' if failure.query is None else failure.query} failed: {failure.error.message} "
        f"[{failure.error.code}]"
        for failure in outcome.failures
    ]
    parts += [f"warning: {text}" for text in outcome.warnings]
    if run.late_ms:
        parts.append(f"late by {duration_text(run.late_ms)}")
    if run.retry_ms is not None:
        parts.append(f"retry in {duration_text(run.retry_ms)}")
    line = f"{run.started_at} run {run.number}, {duration_text(run.elapsed_ms)}: {'; '.join(parts)}"
    return " ".join(plain(line).split())


def _done_text(result: MaintainResult) -> str:
    if result.changes is None:
        return f"{result.query} recapture [{result.reason_code}]"
    return f"{result.query} {mode_text(result.action)}, {count_text(result.changes, 'change')}"
