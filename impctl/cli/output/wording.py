"""How fragments, versions, counts and user text read in a line of text.

Out of scope: whole lines (`cli.output.text`), sizes, durations and what keeps text from driving a
terminal (`app.results.amounts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from impctl.app.results.amounts import CONTROL, number_text, plain, size_text
from impctl.app.results.explanations import ExpectedReading
from impctl.app.results.results import LeftEntry, RangesEntry, SketchEntry, VerifyResult
from impctl.plural import count_text

_SHOWN_RUNS = 6


def plain_sql(text: str) -> str:
    """The same of SQL, in the escapes that Spark reads in a literal, so that it can be copied."""
    return CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def fragments_text(fragments: Sequence[int], total: int) -> str:
    """`{0-2, 7}` out of `total` ranges; long lists are cut, with the number of ranges left out.

    The fragment of NULL is named and not counted.
    """
    runs: list[list[int]] = []
    counted = sorted(fragment for fragment in fragments if fragment != total)
    for fragment in counted:
        if runs and runs[-1][1] == fragment - 1:
            runs[-1][1] = fragment
        else:
            runs.append([fragment, fragment])
    words = [_run_text(first, last) for first, last in runs[:_SHOWN_RUNS]]
    left = sum(last - first + 1 for first, last in runs[_SHOWN_RUNS:])
    words += ["NULL"] if total in fragments else []
    words += [f"and {left:,} more"] if left else []
    return "{" + ", ".join(words) + "}"


def _run_text(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}, {last}" if last == first + 1 else f"{first}-{last}"


def sketch_text(sketch: SketchEntry) -> str:
    """`sales.price 2 of 4 {2, 3}`; with NULL that counts on both sides, `3 of 5 {2, 3, NULL}`."""
    total = sketch.total + (sketch.total in sketch.fragments)
    shown = fragments_text(sketch.fragments, sketch.total)
    return plain(f"{sketch.table}.{sketch.attribute} {len(sketch.fragments)} of {total} {shown}")


def sketches_text(sketches: Sequence[SketchEntry]) -> str:
    """All sketches of a query on one line."""
    return "; ".join(sketch_text(sketch) for sketch in sketches) or "no sketch"


def left_text(entry: LeftEntry) -> str:
    """Files and bytes that are left to read, and whether that was foreseen."""
    said = f"reads {entry.files:,} of {count_text(entry.files_total, 'file')} of {entry.table}"
    said += f", {size_text(entry.bytes)} of {size_text(entry.bytes_total)}"
    return plain(said if entry.expected is None else f"{said}; {expected_text(entry.expected)}")


def expected_text(expected: ExpectedReading) -> str:
    """What was foreseen, and how surely."""
    between = f"{expected.files_low:,} to {expected.files_high:,}"
    return f"foreseen {count_text(expected.files, 'file')} ({between})"


def results_text(result: VerifyResult) -> str:
    """Whether the answers with and without the sketch were equal, where that was asked."""
    if result.results_equal is None:
        return ""
    said = ", results equal" if result.results_equal else ", results differ"
    if result.answer_equal is not None:
        said += ", kept answer equal" if result.answer_equal else ", kept answer differs"
    return f"{said} (only counted: a LIMIT without ORDER BY)" if result.counts_only else said


def ranges_text(entry: RangesEntry) -> str:
    """How even the ranges are, now and when they were chosen."""
    if not entry.rows:
        return plain(f"ranges of {entry.table}.{entry.attribute}: no rows")
    now, before = number_text(entry.imbalance), number_text(entry.at_capture)
    return plain(
        f"ranges of {entry.table}.{entry.attribute}: the largest holds {now} times the mean,"
        f" {before} times when they were chosen"
    )


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
    found = ", ".join(one(table, version) for table, version in versions.items())
    return plain(f"{found} ({told})" if told else found)


def carried_text(changes: int | None) -> str:
    """The changed rows carried on; a recapture reads whole tables instead."""
    return "whole tables" if changes is None else count_text(changes, "change")


def pending_text(changes: int | None) -> str:
    """What would be carried on, after the rest; of nothing for a recapture."""
    return "" if changes is None else f", {count_text(changes, 'change')}"


def expiry_text(instant: str) -> str:
    """When the next row expires, as `status` tells it."""
    return "no row that is there" if instant == "never" else f"no row before {instant}"
