"""What `gc` removed, as lines of text: one per thing, then their sum.

Law: a line starts with what happened, so that a dry run reads as what would happen.
Out of scope: JSON (`cli.output.json`).
"""

from __future__ import annotations

from collections.abc import Iterator

from impctl.errors import count_text
from impctl.service.results import GcEntry, GcResult
from impctl.service.text import size_text


def gc_lines(result: GcResult) -> Iterator[str]:
    """A line per entry and one for all."""
    done = "would delete" if result.foreseen else "deleted"
    for entry in result.entries:
        word = done if entry.removed or result.foreseen else "not deleted:"
        yield f"{word} {_what(entry)}, {size_text(entry.bytes)}"
    kept = f"each query keeps its latest {count_text(result.keep, 'sketch version')}"
    if result.entries:
        yield f"{done} {size_text(result.bytes)} in total; {kept}"
    else:
        yield f"nothing to delete; {kept}"


def _what(entry: GcEntry) -> str:
    match entry.kind:
        case "versions":
            return f"{count_text(entry.count, 'old sketch version')} of {entry.name}"
        case "partitions":
            return f"{count_text(entry.count, 'partition')} that no sketch uses"
        case "file":
            return f"unused state: {entry.name}"
        case _:
            return f"files of an interrupted run: {entry.name}"
