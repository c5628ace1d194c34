"""What sketches left out and what they cost, as lines of text.

Law: what was counted comes before what is estimated. Out of scope: JSON (`cli.output.json`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from impctl.errors import count_text
from impctl.service.results import COSTS_MORE, NOT_USED_YET, GainResult
from impctl.service.text import duration_text, plain, size_text


def gain_lines(result: GainResult) -> list[str]:
    """The lines of one query."""
    since = "" if result.since is None else f" since {result.since:%Y-%m-%d %H:%MZ}"
    last = "" if result.last_use is None else f", last use {result.last_use:%Y-%m-%d %H:%M:%SZ}"
    counted = count_text(result.uses, "use")
    if result.kept_answers:
        answers = f"{count_text(result.kept_answers, 'answer')} from the materialized result"
        counted = f"{counted}, {answers}" if result.uses else answers
    head = f"{result.query}: {counted}{since}{last}"
    return [plain(text) for text in (head, *_details(result))]


def total_lines(results: Sequence[GainResult]) -> list[str]:
    """All queries together, in two lines."""
    uses = sum(result.uses for result in results)
    answers = sum(result.kept_answers for result in results)
    plain_bytes = sum(result.bytes_plain + result.answers_bytes for result in results)
    skipped = sum(result.bytes_left_out + result.answers_bytes for result in results)
    upkeep = sum(result.upkeep_ms for result in results)
    saved = sum(result.saved_ms for result in results)
    counted = (
        f"{count_text(len(results), 'query', 'queries')}: {count_text(uses, 'use')} of sketches, "
        f"{count_text(answers, 'answer')} from materialized results"
    )
    return [
        counted,
        f"skipped {size_text(skipped)} of {size_text(plain_bytes)} "
        f"({skipped / max(plain_bytes, 1):.0%}); saved about {duration_text(saved)}, upkeep took "
        f"{duration_text(upkeep)}",
    ]


def _details(result: GainResult) -> Iterator[str]:
    if result.uses:
        files = result.files_plain - result.files
        rows = result.rows_plain - result.rows
        share = result.bytes_left_out / max(result.bytes_plain, 1)
        yield (
            f"skipped {size_text(result.bytes_left_out)} of {size_text(result.bytes_plain)} "
            f"({share:.0%}), {count_text(files, 'file')}, {count_text(rows, 'row')}, beyond what "
            "the query's own conditions skip"
        )
    if result.kept_answers:
        yield f"its materialized result saved reading about {size_text(result.answers_bytes)}"
    if result.uses > result.used:
        yield f"sketch not used in {count_text(result.uses - result.used, 'use')}"
    upkeep = f"{count_text(result.upkeep_runs, 'run')}, {duration_text(result.upkeep_ms)}"
    is_used = result.uses or result.kept_answers
    saved = f"; saved about {duration_text(result.saved_ms)}" if is_used else ""
    yield f"upkeep: {upkeep}{saved}"
    if result.verdict == COSTS_MORE:
        yield f"costs more than it saves: {result.hint}"
    elif result.verdict == NOT_USED_YET and result.hint:
        yield f"not used: {result.hint}"
