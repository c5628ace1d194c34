"""What clustering a table does, or would do, as lines of text.

Law: what was expected stands beside what came. Out of scope: JSON (`cli.output.json`).
"""

from __future__ import annotations

from impctl.errors import count_text
from impctl.service.results import ClusteredSketch, ClusterResult
from impctl.service.text import duration_text, plain, size_text


def cluster_lines(result: ClusterResult) -> list[str]:
    """The table first, then a line per sketch."""
    if result.action == "cluster":
        head = (
            f"{result.table}: version {result.version}, {result.reason}: {result.files:,} files"
            f" before, {result.files_after:,} now, {duration_text(result.elapsed_ms)}"
        )
    elif result.foreseen:
        head = (
            f"{result.table}: would be {result.reason}, {result.files:,} now; all "
            f"{size_text(result.bytes)} would be rewritten"
        )
        if not result.reason.startswith(("sorted", "in Z-order")):
            head = f"{result.table}: would not change: {result.reason}"
    else:
        head = f"{result.table}: not changed: {result.reason}"
    lines = [plain(head), *(_sketch_text(entry) for entry in result.sketches)]
    if result.action != "cluster" and result.losers:
        names = ", ".join(one.query for one in result.losers)
        lines.append(plain(f"sketches that would read more than now: {names}"))
    return lines


def _sketch_text(entry: ClusteredSketch) -> str:
    left = f"{count_text(entry.files, 'file')}, {size_text(entry.bytes)}"
    said = f"{entry.query} reads {left} through its sketch on {entry.attribute}"
    then = (entry.files_expected, entry.bytes_expected)
    expected = f"{count_text(then[0], 'file')}, {size_text(then[1])}"
    if entry.files_after is None and then == (entry.files, entry.bytes):
        return plain(said)
    if entry.files_after is None or entry.bytes_after is None:
        return plain(f"{said}; expected after: {expected}")
    came = f"{count_text(entry.files_after, 'file')}, {size_text(entry.bytes_after)}"
    return plain(f"{said} before, {came} now (expected {expected})")
