"""Text on the two streams: results with `render`, rows in their format, then warnings and failures.

Law: results go to stdout, everything else to stderr. Control characters of user text are escaped.
Sentences are as wide as the terminal and whole in a pipe; a command or a statement is never broken.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from io import StringIO, TextIOWrapper
from typing import TYPE_CHECKING, TextIO

from impctl.cli.output.render import mode_text, render, render_total
from impctl.cli.streams import columns_of, has_colour, width_for, wrapped
from impctl.errors import Location, WorkloadError, count_text
from impctl.service.results import Failure, MaintainResult
from impctl.service.text import RowsFormat, duration_text, plain

if TYPE_CHECKING:
    from impctl.cli.job import Display
    from impctl.service.answer import ArrowAnswer
    from impctl.service.formats import TextColumn
    from impctl.service.results import FollowedRun, GainResult, Outcome, Result


class TextOutput:
    """Prints each result as it comes, through the methods below."""

    def __init__(self, stdout: TextIO, stderr: TextIO, display: Display) -> None:
        self.stdout = stdout
        self.quiet = display.verbosity < 0
        self.heading = ""
        """The subject of the findings printed last."""
        self.place = ""
        """The progress of the run, shown after the time of a result."""
        self.gains: list[GainResult] = []
        self._stderr = stderr
        self._display = display
        self._has_names = False
        self._words: dict[str, str] = {}
        """The queries processed, with a word for the line that sums up, or none."""

    def show(self, result: Result) -> None:
        render(result, self)

    def finished(self, result: Result, place: str) -> bool:
        """Show a result and the progress while the run continues; return whether it was shown."""
        self.place = f"; {place}" if place else ""
        self.show(result)
        self.place = ""
        return True

    def document(self, text: str) -> None:
        """Print a text that is a whole document, unchanged."""
        self.stdout.write(text.rstrip("\n") + "\n")

    def end(self, outcome: Outcome, decisive: Failure | None) -> None:
        """Print the note and warnings (unless quiet) and every failure on stderr."""
        if len(self.gains) > 1:
            render_total(self.gains, self)
        self.stdout.flush()
        if outcome.note:
            self.note(outcome.note)
        head = self.marked("warning", "33", self._stderr)
        for warning in grouped_by_cause(outcome.warnings):
            for line in self._message(f"{head}: {plain(warning)}"):
                self.note(line)
        for text in failure_lines(outcome.failures, self._mark_message):
            for line in self._message(text):
                self._stderr.write(line + "\n")
        self._summary(outcome.failures)

    def _summary(self, failures: tuple[Failure, ...]) -> None:
        """Sum up the queries of a run, and those that failed, if it had several."""
        words = [word for word in self._words.values() if word]
        if len(words) > 1:
            counts = "; ".join(f"{n:,} {word}" for word, n in Counter(words).most_common())
            self.note(f"{count_text(len(words), 'query', 'queries')}: {counts}")
        failed = dict.fromkeys(f.query for f in failures if f.query is not None)
        total = len(self._words.keys() | failed.keys())
        if failed and total > 1:
            names = ", ".join(f"`{name}`" for name in failed)
            self._stderr.write(plain(f"{len(failed)} of {total} queries failed: {names}\n"))

    # What functions of `render` call.

    def name(self, query: str, word: str = "", *, is_idle: bool = False) -> None:
        """Count a query as processed. Of several sketches of it, an idle one does not give the
        word."""
        if query not in self._words or (word and not is_idle):
            self._words[query] = word

    def line(self, text: str, first: str = "", rest: str | None = None) -> None:
        """Print a sentence after `first`; further lines begin with `rest`, or indented more."""
        for line in self.wrapped(text, first, f"{first}  " if rest is None else rest):
            self.stdout.write(line + "\n")

    def detail(self, text: str) -> None:
        """Print an indented sentence, if there is one."""
        if text:
            self.line(text, "  ")

    def raw(self, text: str) -> None:
        """Print a line that is not wrapped."""
        self.stdout.write(plain(text) + "\n")

    def whole(self, text: str) -> None:
        """Print a command or statement on a line of its own: wrapped, it could not be copied."""
        self.raw("  " + text)

    def wrapped(self, text: str, first: str, rest: str) -> list[str]:
        return wrapped(plain(text), self.width, first, rest)

    @property
    def width(self) -> int | None:
        """Columns of a line on stdout; None if lines are not wrapped."""
        return width_for(os.environ, self.stdout)

    def remark(self, text: str, indent: str = "  ") -> None:
        """Print a sentence about the result on stderr, unless quiet."""
        for line in wrapped(
            plain(text), width_for(os.environ, self._stderr), indent, indent + "  "
        ):
            self.note(line)

    def note(self, line: str) -> None:
        """Print a line on stderr, unless quiet."""
        if not self.quiet:
            self._stderr.write(line + "\n")

    def marked(self, word: str, colour: str, stream: TextIO) -> str:
        """Colour the word, an ANSI number, if the stream has colour."""
        return f"\x1b[{colour}m{word}\x1b[0m" if has_colour(stream, os.environ) else word

    def rows(self, result: ArrowAnswer) -> None:
        """Print the rows and nothing else, unless they went to a file. What programs read is UTF-8
        whatever the locale, and escaped only for a terminal. A CSV has its names once."""
        if result.written is not None:
            return
        from impctl.service.formats import text_columns, text_of

        rows_format, stdout = self._display.rows_format, self.stdout
        if rows_format is RowsFormat.TABLE:
            width = columns_of(os.environ, stdout)
            for line in table_lines(text_columns(result.shown, " "), width):
                stdout.write(line + "\n")
            return
        is_terminal = stdout.isatty()
        if isinstance(stdout, TextIOWrapper):
            stdout.reconfigure(encoding="utf-8")
        escape_formulas = self._display.escape_formulas
        pieces = text_of(result.shown, rows_format, escape_formulas=escape_formulas)
        if self._has_names and rows_format is RowsFormat.CSV:
            next(pieces)
        self._has_names = True
        for text in pieces:
            stdout.write(plain(text) if is_terminal else text)

    def _message(self, text: str) -> list[str]:
        """Wrap a text of stderr without control characters; further lines are indented more."""
        indent = text[: len(text) - len(text.lstrip(" "))]
        width = width_for(os.environ, self._stderr)
        return wrapped(text[len(indent) :], width, indent, indent + "  ")

    def _mark_message(self, word: str, colour: str) -> str:
        return self.marked(word, colour, self._stderr)


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


# Failures and warnings. Law: a place comes first as `file:line:column`, which editors and terminals
# can open; every problem of a workload file has its own line; the code in brackets leads to the
# page of codes. What several queries share is reported once.

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


# Rows as a table of text. Law: no value is cut. A value that does not fit a terminal is wrapped in
# its cell; in a pipe or a file each row is one line. Both ways of drawing give the same table where
# nothing is wrapped.

NARROWEST_TABLE = 80
_ANY = 1_000_000_000
"""Wider than any table."""
_GAP, _RULE = "   ", "\N{BOX DRAWINGS LIGHT HORIZONTAL}"


def table_lines(columns: Sequence[TextColumn], width: int | None = None) -> list[str]:
    """Render a table, numbers to the right; at most `width` columns, but 80 if that is less.
    Without a width it is as wide as its rows."""
    shown = [
        [plain(column.name), *("NULL" if text is None else plain(text) for text in column.texts)]
        for column in columns
    ]
    widest = _ANY if width is None else max(NARROWEST_TABLE, width)
    lines = _narrow(shown, [column.is_number for column in columns], widest)
    return _drawn_by_rich(columns, shown, widest) if lines is None else lines


def _narrow(
    shown: Sequence[Sequence[str]], is_number: Sequence[bool], widest: int
) -> list[str] | None:
    """The lines if everything fits and each character is one column wide; else None."""
    widths = [max(map(len, texts)) for texts in shown]
    total = sum(widths) + len(_GAP) * (len(widths) - 1)
    if not widths or total > widest or not all(map(_is_simple, shown)):
        return None
    cells = [
        [text.rjust(width) if right else text.ljust(width) for text in texts]
        for texts, width, right in zip(shown, widths, is_number, strict=True)
    ]
    lines = [_GAP.join(row).rstrip() for row in zip(*cells, strict=True)]
    return [lines[0], _RULE * total, *lines[1:]]


def _is_simple(texts: Sequence[str]) -> bool:
    return all(t.isascii() and t.isprintable() and t == t.strip() != "" for t in texts)


def _drawn_by_rich(
    columns: Sequence[TextColumn], shown: Sequence[Sequence[str]], widest: int
) -> list[str]:
    # Rich takes longer to load than many a command that prints no table.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, safe_box=True, show_edge=False)
    for column, texts in zip(columns, shown, strict=True):
        justify = "right" if column.is_number else "left"
        table.add_column(Text(texts[0]), justify=justify, overflow="fold")  # type: ignore[arg-type]  # one of its two words
    for row in zip(*(texts[1:] for texts in shown), strict=True):
        table.add_row(*map(Text, row))
    page = StringIO()
    Console(file=page, color_system=None, force_terminal=False, width=widest).print(table)
    return [line.rstrip() for line in page.getvalue().splitlines()]
