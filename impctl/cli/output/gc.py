"""What `gc` removed, as lines of text: one per thing, then their sum.

Law: a line starts with what happened, so that a dry run reads as what would happen.
Out of scope: JSON (`cli.output.json`).
"""

from __future__ import annotations

from collections.abc import Iterator

from impctl.app.results.amounts import size_text
from impctl.app.results.collected import GcEntry, GcResult
from impctl.plural import count_text


def gc_lines(result: GcResult) -> Iterator[str]:
    """A line per entry and one for all."""
    done = "would remove" if result.foreseen else "removed"
    for entry in result.entries:
        word = done if entry.removed or result.foreseen else "left"
        yield f"{word} {_what(entry)}, {size_text(entry.bytes)}"
    kept = f"each query keeps its latest {count_text(result.keep, 'sketch version')}"
    if result.entries:
        yield f"{done} {size_text(result.bytes)} in all; {kept}"
    else:
        yield f"nothing to remove; {kept}"


def _what(entry: GcEntry) -> str:
    match entry.kind:
        case "versions":
            return f"{count_text(entry.count, 'old sketch version')} of {entry.name}"
        case "partitions":
            return f"{count_text(entry.count, 'partition')} that no sketch uses"
        case "file":
            return f"state that no run refers to: {entry.name}"
        case _:
            return f"scratch of a run that was killed: {entry.name}"
