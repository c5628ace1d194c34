"""A whole run as text or as JSON."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TextIO

import msgspec

from impctl.cli.output.render import mode_text, render, render_total
from impctl.cli.output.text import Text
from impctl.cli.process import width_for, wrapped
from impctl.errors import Location, WorkloadError, count_text
from impctl.service.results import (
    SCHEMA_VERSION,
    ArrowAnswer,
    Failure,
    FollowedRun,
    MaintainResult,
    Outcome,
    Result,
)
from impctl.service.text import Json, duration_text, number_or_name, plain

# One JSON document on stdout per run, in the envelope that `docs/json.md` describes. Law: the
# document is written once, at the end, whatever happened. It is strict JSON: numbers that JSON
# lacks are the texts "NaN", "Infinity" and "-Infinity", decimals are texts with all digits, dates
# and times ISO 8601, binary values hexadecimal.

_OURS = (datetime, date, Decimal, bytes)
"""Types that msgspec would write in another form."""


class JsonOutput:
    """Collects results and prints the envelope at the end; `run` is one of several runs of a
    process."""

    def __init__(self, command: str | None, stdout: TextIO, run: FollowedRun | None = None) -> None:
        self._command = command
        self._run = run
        self._stdout = stdout
        self._results: list[Json] = []

    def show(self, result: Result) -> None:
        self._results.append(to_json(result))

    def finished(self, result: Result, progress: str) -> bool:
        return False

    def document(self, text: str) -> None:
        """Add a JSON text as the only result."""
        self._results.append(json.loads(text))

    def end(self, outcome: Outcome, decisive: Failure | None) -> None:
        envelope: dict[str, Json] = {
            "schema_version": SCHEMA_VERSION,
            "command": self._command,
            "ok": decisive is None,
            "results": self._results,
            "warnings": list(outcome.warnings),
            "error": None if decisive is None else _failure(decisive, outcome.failures),
        }
        if self._run is not None:
            envelope["run"] = to_json(self._run)
        self._stdout.write(json.dumps(envelope, allow_nan=False) + "\n")


def to_json(value: object) -> Json:
    """Convert a result, or any value in one, to JSON. In a result with rows, `columns`, `rows` and
    `row_count` replace the Arrow table."""
    if not isinstance(value, ArrowAnswer):
        return _strict(
            msgspec.to_builtins(value, builtin_types=_OURS, str_keys=True, enc_hook=_plain)
        )
    from impctl.service.formats import json_rows

    names = [name for name in value.__struct_fields__ if name not in ("query", "answer")]
    return {
        "query": to_json(getattr(value, "query", None)),
        "columns": list(value.columns),
        "rows": [] if value.written is not None else json_rows(value.shown),
        "row_count": value.row_count,
        **{name: to_json(getattr(value, name)) for name in names},
    }


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"A result holds a value of type `{type(value).__name__}`")


def _strict(value: Any) -> Json:
    """Replace what JSON lacks."""
    match value:
        case float():
            return number_or_name(value)
        case dict():
            return {key: _strict(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_strict(inner) for inner in value]
        case Decimal():
            return format(value, "f") if value.is_finite() else str(value)
        case date():
            return value.isoformat()
        case bytes():
            return value.hex()
    result: Json = value
    return result


def _failure(failure: Failure, all_failures: Sequence[Failure] = ()) -> Json:
    """A failure; the one that decides the exit code lists all if there are several."""
    error = failure.error
    entry: dict[str, Json] = {"code": error.code, "message": error.message, "hint": error.hint}
    if error.location is not None:
        entry["location"] = to_json(error.location)
    if failure.query is not None:
        entry["query"] = failure.query
    if isinstance(error, WorkloadError):
        names = ("message", "hint", "location")
        entry["problems"] = [
            {name: to_json(getattr(problem, name)) for name in names} for problem in error.problems
        ]
    if len(all_failures) > 1:
        entry["failures"] = [_failure(each) for each in all_failures]
    return entry


# A whole run as text: its results as they come, then warnings and failures. Law: remarks on the run
# go to stderr. A message begins with its position as `file:line:column`, which editors and
# terminals can open, and ends with its code; every problem of a workload file has a separate line.
# What several queries share is reported once.


class TextOutput(Text):
    """Prints each result as it comes, and the end of the run."""

    def show(self, result: Result) -> None:
        render(result, self)

    def finished(self, result: Result, progress: str) -> bool:
        """Show a result and the progress while the run continues; return whether it was shown."""
        self.progress = f"; {progress}" if progress else ""
        self.show(result)
        self.progress = ""
        return True

    def end(self, outcome: Outcome, decisive: Failure | None) -> None:
        """Print the note and warnings (unless quiet) and every failure on stderr."""
        if len(self.gains) > 1:
            render_total(self.gains, self)
        self.stdout.flush()
        if outcome.note:
            self.note(outcome.note)
        head = self.marked("warning", "33", self.stderr)
        for warning in grouped_by_cause(outcome.warnings):
            for line in self._message(f"{head}: {plain(warning)}"):
                self.note(line)
        for text in failure_lines(outcome.failures, self._mark_message):
            for line in self._message(text):
                self.stderr.write(line + "\n")
        self._summary(outcome.failures)

    def _summary(self, failures: tuple[Failure, ...]) -> None:
        """Sum up the queries of a run, and those that failed, if it had several."""
        words = [word for word in self.words.values() if word]
        if len(words) > 1:
            counts = "; ".join(f"{n:,} {word}" for word, n in Counter(words).most_common())
            self.note(f"{count_text(len(words), 'query', 'queries')}: {counts}")
        failed = dict.fromkeys(f.query for f in failures if f.query is not None)
        total = len(self.words.keys() | failed.keys())
        if failed and total > 1:
            names = ", ".join(f"`{name}`" for name in failed)
            self.stderr.write(plain(f"{len(failed)} of {total} queries failed: {names}\n"))

    def _message(self, text: str) -> list[str]:
        """Wrap a text of stderr without control characters; further lines are indented more."""
        indent = text[: len(text) - len(text.lstrip(" "))]
        width = width_for(os.environ, self.stderr)
        return wrapped(text[len(indent) :], width, indent, indent + "  ")

    def _mark_message(self, word: str, colour: str) -> str:
        return self.marked(word, colour, self.stderr)


def run_line(outcome: Outcome, run: FollowedRun) -> str:
    """One run of `maintain --follow`, with its warnings and failures, as one line."""
    done = {r.query: r for r in outcome.results if isinstance(r, MaintainResult)}
    parts = [
        f"{result.query} recapture [{result.reason_code}]"
        if result.changes is None
        else f"{result.query} {mode_text(result.action)}, {count_text(result.changes, 'change')}"
        for result in done.values()
    ]
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


_QUERY = re.compile(r"[Qq]uery `([^`]*)`")
_NUMBER = re.compile(r"(?<![\w`.@-])\d+(?:,\d{3})*(?:\.\d+)?%?(?![\w`@])")
"""A number that is not part of a name, a version or a path."""
_SHOWN = 5
"""Queries named in a warning that several share."""

Mark = Callable[[str, str], str]
"""Colours a word if colour is on."""


def failure_lines(failures: Iterable[Failure], mark: Mark) -> list[str]:
    """Render failures; equal failures of several queries are one."""
    alike: dict[tuple[object, ...], list[Failure]] = {}
    for failure in failures:
        error = failure.error
        is_problems = isinstance(error, WorkloadError)
        key = (error.code, error.message, error.hint, error.location, is_problems and id(error))
        alike.setdefault(key, []).append(failure)
    return [line for same in alike.values() for line in _lines(same, mark)]


def _lines(same: Sequence[Failure], mark: Mark) -> list[str]:
    """Render failures that differ at most in their query."""
    error = same[0].error
    head, hint = mark("error", "31"), mark("hint", "36")
    if isinstance(error, WorkloadError) and error.problems:
        lines = [f"{head}: {plain(error.message)} [{error.code}]"]
        for problem in error.problems:
            lines.append(f"  {_placed(problem.message, problem.location)}")
            if problem.hint is not None:
                lines.append(f"    {hint}: {plain(problem.hint)}")
        return lines
    lines = [f"{head}: {_placed(_with_queries(same), error.location)} [{error.code}]"]
    return lines if error.hint is None else [*lines, f"{hint}: {plain(error.hint)}"]


def _with_queries(same: Sequence[Failure]) -> str:
    """The message, after the queries unless it names the only one."""
    message = same[0].error.message
    names = dict.fromkeys(f"`{failure.query}`" for failure in same if failure.query is not None)
    if not names or (len(names) == 1 and next(iter(names)) in message):
        return message
    return f"{', '.join(names)}: {message}"


def _placed(message: str, location: Location | None) -> str:
    return plain(message if location is None else f"{location}: {message}")


def grouped_by_cause(warnings: Iterable[str]) -> list[str]:
    """Merge warnings that differ only in the query they name and in numbers."""
    alike: dict[str, list[str]] = {}
    for warning in dict.fromkeys(warnings):
        named = set(_QUERY.findall(warning))
        key = _NUMBER.sub("#", _QUERY.sub("each query", warning)) if len(named) == 1 else warning
        alike.setdefault(key, []).append(warning)
    return [same[0] if len(same) == 1 else _as_one(same) for same in alike.values()]


def _as_one(same: Sequence[str]) -> str:
    """`18 queries (a, b, ..): the sketch of each query holds 90 to 95 of 96 ranges`."""
    names = [f"`{match[1]}`" for match in map(_QUERY.search, same) if match is not None]
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    texts = [_QUERY.sub("each query", warning) for warning in same]
    numbers = iter(zip(*map(_NUMBER.findall, texts), strict=True))
    text = _NUMBER.sub(lambda _: _span(next(numbers)), texts[0])
    return f"{len(same)} queries ({shown}): {text}"


def _span(numbers: Sequence[str]) -> str:
    result = sorted(set(numbers), key=lambda text: float(text.replace(",", "").rstrip("%")))
    return result[0] if len(result) == 1 else f"{result[0]} to {result[-1]}"
