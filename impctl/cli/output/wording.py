"""How sketches, versions, counts and user text read in a line of text.

Out of scope: whole lines (`cli.output.text`), sizes, durations and what keeps text from driving a
terminal (`service.text`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from impctl.errors import count_text
from impctl.service.results import (
    ExpectedReading,
    LeftEntry,
    RangesEntry,
    SketchEntry,
    VerifyResult,
)
from impctl.service.text import CONTROL, number_text, plain, size_text


def plain_sql(text: str) -> str:
    """The same of SQL, in the escapes that Spark reads in a literal, so that it can be copied."""
    return CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def mode_text(mode: str) -> str:
    """A way to maintain, or what a run did, in words: `touch` is conservative maintenance."""
    return "conservative" if mode == "touch" else mode


def sketch_text(sketch: SketchEntry) -> str:
    """`sales.price 2 of 4 ranges`; the range of NULL counts on both sides: `3 of 5 ranges`."""
    total = sketch.total + (sketch.total in sketch.fragments)
    held = f"{len(sketch.fragments):,} of {count_text(total, 'range')}"
    return plain(f"{sketch.table}.{sketch.attribute} {held}")


def sketches_text(sketches: Sequence[SketchEntry]) -> str:
    """All sketches of a query on one line."""
    return "; ".join(sketch_text(sketch) for sketch in sketches) or "no sketch"


def left_text(entry: LeftEntry) -> str:
    """Files and bytes that remain to read."""
    said = f"reads {entry.files:,} of {count_text(entry.files_total, 'file')} of {entry.table}"
    said += f", {size_text(entry.bytes)} of {size_text(entry.bytes_total)}"
    return plain(said)


def expected_text(expected: ExpectedReading) -> str:
    """The files to read: measured, or an estimate with its range where it has one."""
    said = f"{expected.files:,} of {count_text(expected.files_total, 'file')}"
    if expected.is_measured:
        return f"reads {said}"
    said = f"estimate: {said}"
    if expected.files_low == expected.files_high:
        return said
    return f"{said} ({expected.files_low:,} to {expected.files_high:,})"


def results_text(result: VerifyResult) -> str:
    """Whether the answers with and without the sketch were equal, where that was asked."""
    if result.results_equal is None:
        return ""
    said = ", results equal" if result.results_equal else ", results differ"
    if result.answer_equal is not None:
        said += (
            ", materialized result equal"
            if result.answer_equal
            else ", materialized result differs"
        )
    return (
        f"{said} (only the number of rows: LIMIT without ORDER BY)" if result.counts_only else said
    )


def assumed_text(assumption: str) -> str:
    """What the sketch is safe under, such as "`sales.price` >= 0"."""
    return f"assumes {assumption} (re-checked on every change)"


def ranges_text(entry: RangesEntry) -> str:
    """How uneven the ranges are, now and at capture: rows of the largest over the mean."""
    if not entry.rows:
        return plain(f"ranges of {entry.table}.{entry.attribute}: no rows")
    now, before = number_text(entry.imbalance), number_text(entry.at_capture)
    return plain(f"ranges of {entry.table}.{entry.attribute}: skew {now} ({before} at capture)")


def versions_text(
    versions: Mapping[str, int],
    since: Mapping[str, int] | None = None,
    moments: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """`sales@1`, or `sales@0..1` for the way from one version to another.

    After it the values of the clock: `sales@1 (current_date = 2026-11-25)`.
    """

    def one(table: str, version: int) -> str:
        start = version if since is None else since.get(table, version)
        return f"{table}@{version}" if start == version else f"{table}@{start}..{version}"

    told = ", ".join(f"{name} = {value}" for name, value in moments.items())
    result = ", ".join(one(table, version) for table, version in versions.items())
    return plain(f"{result} ({told})" if told else result)


def at_text(versions: Mapping[str, int], moments: Mapping[str, str]) -> str:
    """`version 3 of sales`, of several tables each, and the values of the current time."""
    result = ", ".join(f"version {version} of {table}" for table, version in versions.items())
    told = ", ".join(f"{name} = {value}" for name, value in moments.items())
    return plain(f"{result} ({told})" if told else result)


def carried_text(changes: int | None) -> str:
    """The changed rows processed; a recapture reads whole tables instead."""
    return "whole tables" if changes is None else count_text(changes, "change")


def pending_text(changes: int | None) -> str:
    """What would be processed, after the rest; nothing for a recapture."""
    return "" if changes is None else f", {count_text(changes, 'change')}"


def expiry_text(instant: str) -> str:
    """When the next row expires."""
    return "none of the present rows" if instant == "never" else f"no row before {instant}"
