"""How sketches, versions, counts and failures read in a line of text.

Law: a place comes first as `file:line:column`, which editors and terminals can open; every problem
of a workload file has its own line; the code in brackets leads to the page of reason codes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from impctl.errors import Location, WorkloadError, count_text
from impctl.service.results import (
    NO_SKETCH,
    NOT_USED,
    SKETCH_NONE_REASON,
    ExpectedReading,
    Failure,
    LeftEntry,
    QueryResult,
    RangesEntry,
    ReuseEntry,
    RewriteResult,
    SketchEntry,
    VerifyResult,
)
from impctl.service.text import CONTROL, number_text, plain, size_text


def plain_sql(text: str) -> str:
    """Replace control characters by escapes that Spark reads in a literal, so that SQL can be
    copied."""
    return CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def mode_text(mode: str) -> str:
    """A mode or action in words: `touch` is conservative maintenance."""
    return "conservative" if mode == "touch" else mode


def sketch_text(sketch: SketchEntry) -> str:
    """`sales.price 2 of 4 ranges`; the range of NULL counts on both sides: `3 of 5 ranges`."""
    total = sketch.total + (sketch.total in sketch.ranges)
    held = f"{len(sketch.ranges):,} of {count_text(total, 'range')}"
    return plain(f"{sketch.table}.{sketch.attribute} {held}")


def sketches_text(sketches: Sequence[SketchEntry]) -> str:
    """All sketches of a query on one line."""
    return "; ".join(sketch_text(sketch) for sketch in sketches) or "no sketch"


def left_text(entry: LeftEntry) -> str:
    """Files and bytes that remain to read."""
    files = f"{entry.files:,} of {count_text(entry.files_total, 'file')} of {entry.table}"
    return plain(f"reads {files}, {size_text(entry.bytes)} of {size_text(entry.bytes_total)}")


def expected_text(expected: ExpectedReading) -> str:
    """The files to read: measured, or an estimate with its range."""
    said = f"{expected.files:,} of {count_text(expected.files_total, 'file')}"
    if expected.is_measured:
        return f"reads {said}"
    said = f"estimate: {said}"
    if expected.files_low == expected.files_high:
        return said
    return f"{said} ({expected.files_low:,} to {expected.files_high:,})"


def results_text(result: VerifyResult) -> str:
    """Whether results with and without the sketch are equal, if they were compared."""
    if result.results_equal is None:
        return ""
    text = ", results equal" if result.results_equal else ", results differ"
    if result.answer_equal is not None:
        text += f", materialized result {'equal' if result.answer_equal else 'differs'}"
    if result.counts_only:
        text += " (only the number of rows: LIMIT without ORDER BY)"
    return text


def assumed_text(assumption: str) -> str:
    """An assumption of the sketch's safety, such as "`sales.price` >= 0"."""
    return f"assumes {assumption} (re-checked on every change)"


def ranges_text(entry: RangesEntry) -> str:
    """The skew of the ranges, now and at capture: rows of the largest over the mean."""
    skew = "no rows"
    if entry.rows:
        skew = f"skew {number_text(entry.imbalance)} ({number_text(entry.at_capture)} at capture)"
    return plain(f"ranges of {entry.table}.{entry.attribute}: {skew}")


def versions_text(
    versions: Mapping[str, int],
    since: Mapping[str, int] | None = None,
    moments: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """`sales@1`, or `sales@0..1` for a change of versions, then the values of the clock: `sales@1
    (current_date = 2026-11-25)`."""

    def one(table: str, version: int) -> str:
        start = version if since is None else since.get(table, version)
        return f"{table}@{version}" if start == version else f"{table}@{start}..{version}"

    texts = ", ".join(one(table, version) for table, version in versions.items())
    return _with_moments(texts, moments)


def at_text(versions: Mapping[str, int], moments: Mapping[str, str]) -> str:
    """`version 3 of sales` for each table, then the values of the clock."""
    texts = ", ".join(f"version {version} of {table}" for table, version in versions.items())
    return _with_moments(texts, moments)


def _with_moments(text: str, moments: Mapping[str, str]) -> str:
    values = ", ".join(f"{name} = {value}" for name, value in moments.items())
    return plain(f"{text} ({values})" if values else text)


def carried_text(changes: int | None) -> str:
    """The changed rows processed; a recapture reads whole tables instead."""
    return "whole tables" if changes is None else count_text(changes, "change")


def pending_text(changes: int | None) -> str:
    """The changes to process, as a suffix; empty for a recapture."""
    return "" if changes is None else f", {count_text(changes, 'change')}"


def expiry_text(instant: str) -> str:
    return "none of the present rows" if instant == "never" else f"no row before {instant}"


# What is said of the sketches that a query or a text used: whose, and what became of them before.
# Law: sentences without indent or line breaks, each of one thing.


def used_lines(result: QueryResult | RewriteResult) -> Iterator[str]:
    """What answered and why, which sketch was used, how it was maintained, and which cost more than
    it saves."""
    if isinstance(result, QueryResult) and result.by != "state" and result.by_reason:
        who = "the engine" if result.by == "engine" else "Spark"
        yield f"answered by {who}: {result.by_reason}"
        if result.quicker:
            yield f"faster alternative: {result.quicker}"
    if isinstance(result, RewriteResult) and not result.runs_on_spark:
        yield "for DuckDB, PostgreSQL or SQLite: Spark does not support WITH RECURSIVE with UNION"
    for table, reason in result.left_away.items():
        which = f" of `{table}`" if len(result.versions) > 1 else ""
        yield f"sketch{which} not used: {reason} (force with `--sketch always`)"
    if result.reuse is not None:
        yield from _reuse(result.reuse)
        if result.reuse.query is None:
            return
    if result.action == NOT_USED:
        yield "no sketch was requested"
    elif result.action == NO_SKETCH:
        # A warning says so, unless the workload file excludes sketches.
        if result.reason == SKETCH_NONE_REASON:
            yield f"no sketch: {result.reason}"
    elif result.action == "none":
        if not result.left_away:
            yield "sketch was up to date"
    elif result.action == "kept":
        yield "used the sketch stored for these versions; nothing was maintained"
    else:
        yield f"sketch maintained first ({mode_text(result.action)}): {result.reason}"


def _reuse(reuse: ReuseEntry) -> Iterator[str]:
    """The sketch reused for a query with other constants, and those that were not used."""
    if reuse.query is None:
        yield f"no sketch: {reuse.reason}"
    for entry in reuse.candidates:
        which = sketches_text(entry.sketches) if entry.sketches else ""
        use = f"({which})" if entry.chosen else "not used"
        yield f"sketch of `{entry.query}` {use}: {entry.reason}"


_QUERY = re.compile(r"[Qq]uery `([^`]*)`")
_NUMBER = re.compile(r"(?<![\w`.@-])\d+(?:,\d{3})*(?:\.\d+)?%?(?![\w`@])")
"""A number that is not part of a name, a version or a path."""
_SHOWN = 5
"""Queries named in a warning that several share."""

Mark = Callable[[str, str], str]
"""Colours a word if colour is on."""


def failure_lines(failures: Iterable[Failure], mark: Mark) -> list[str]:
    """Render failures for stderr; equal failures of several queries are reported once."""
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
    head = mark("error", "31")
    if isinstance(error, WorkloadError) and error.problems:
        lines = [f"{head}: {plain(error.message)} [{error.code}]"]
        for problem in error.problems:
            lines.append(f"  {_placed(problem.message, problem.location)}")
            if problem.hint is not None:
                lines.append(f"    {mark('hint', '36')}: {plain(problem.hint)}")
        return lines
    lines = [f"{head}: {_placed(_with_queries(same), error.location)} [{error.code}]"]
    if error.hint is not None:
        lines.append(f"{mark('hint', '36')}: {plain(error.hint)}")
    return lines


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
    texts = [_QUERY.sub("each query", one) for one in same]
    numbers = iter(zip(*map(_NUMBER.findall, texts), strict=True))
    text = _NUMBER.sub(lambda _: _span(next(numbers)), texts[0])
    return f"{len(same)} queries ({shown}): {text}"


def _span(numbers: Sequence[str]) -> str:
    result = sorted(set(numbers), key=lambda text: float(text.replace(",", "").rstrip("%")))
    return result[0] if len(result) == 1 else f"{result[0]} to {result[-1]}"


def summary_line(failed: Sequence[str], total: int) -> str:
    names = ", ".join(f"`{name}`" for name in failed)
    return plain(f"{len(failed)} of {total} queries failed: {names}")


def _with_queries(same: Sequence[Failure]) -> str:
    """The message, after the queries unless it names the only one."""
    message = same[0].error.message
    names = dict.fromkeys(f"`{failure.query}`" for failure in same if failure.query is not None)
    if not names or (len(names) == 1 and next(iter(names)) in message):
        return message
    return f"{', '.join(names)}: {message}"


def _placed(message: str, location: Location | None) -> str:
    return plain(message if location is None else f"{location}: {message}")
