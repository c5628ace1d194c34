"""What is said of the sketches that a query or a text used: whose, and what became of them before.

Law: sentences without indent or line breaks, each of one thing.
Out of scope: where they are printed (`cli.output.text`).
"""

from __future__ import annotations

from collections.abc import Iterator

from impctl.cli.output.wording import mode_text, sketches_text
from impctl.service.results import (
    ASKED_FOR_NONE,
    NO_SKETCH,
    NOT_USED,
    QueryResult,
    ReuseEntry,
    RewriteResult,
)


def used_lines(result: QueryResult | RewriteResult) -> Iterator[str]:
    """Who answered and why, whose sketch was used, what became of it before, and what costs more
    than it saves."""
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
        # A warning says so, unless the file asked for it.
        if result.reason == ASKED_FOR_NONE:
            yield f"no sketch: {result.reason}"
    elif result.action == "none":
        if not result.left_away:
            yield "sketch was up to date"
    elif result.action == "kept":
        yield "used the sketch stored for these versions; nothing was maintained"
    else:
        yield f"sketch maintained first ({mode_text(result.action)}): {result.reason}"


def _reuse(reuse: ReuseEntry) -> Iterator[str]:
    """The sketch that serves a query with constants of its own, and those that do not."""
    if reuse.query is None:
        yield f"no sketch: {reuse.reason}"
    for entry in reuse.candidates:
        which = sketches_text(entry.sketches) if entry.sketches else ""
        if entry.chosen:
            yield f"sketch of `{entry.query}` ({which}): {entry.reason}"
        else:
            yield f"sketch of `{entry.query}` not used: {entry.reason}"
