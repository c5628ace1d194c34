"""The explanation of a query: its plan as a tree with a remark or two below each operator.

Law: an operator's own words are never mixed with what is said about it; a place in the file is
shown where something stands in the way. Out of scope: JSON; the other results (`cli.output.text`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from impctl.cli.output.wording import expected_text, mode_text
from impctl.cli.output.wrapped import wrapped
from impctl.errors import count_text
from impctl.service.results import (
    AnsweredEntry,
    AnswerEntry,
    BuffersEntry,
    CandidateEntry,
    ExplainResult,
    GroupsEntry,
    JoinSideEntry,
    PlanEntry,
    TreeEntry,
)
from impctl.service.text import plain, size_text

_DEEPEST = 12
"""Levels of a plan that are indented; deeper ones would leave no room for words."""


def explain_lines(result: ExplainResult, width: int | None) -> list[str]:
    """The lines of one query."""
    lines = _summary(result, width)
    if result.plan:
        kept = "" if result.state_bytes is None else f", state {size_text(result.state_bytes)}"
        lines.append(f"  plan{kept}")
    for entry in result.plan:
        indent = "    " + "  " * min(entry.depth, _DEEPEST)
        named = plain(f"{entry.operator} {entry.detail}".rstrip())
        lines += wrapped(named, width, indent, indent + "    ")
        for remark in _remarks(entry, result):
            lines += wrapped(plain(remark), width, f"{indent}  - ", f"{indent}    ")
    for text in answer_texts(result.answer, result.answered):
        lines += _under(text, width, "  ")
    if result.joins:
        lines.append("  sides of joins")
    for side in result.joins:
        lines += _under(_side(side), width, "    ")
    if any(one.mode != "kept" for one in result.groups):
        lines.append("  groups")
        for one in result.groups:
            lines += _under(_groups(one), width, "    ")
    if any(one.chosen for one in result.buffers):
        lines.append("  first rows and values")
        for first in result.buffers:
            lines += _under(_buffers(first), width, "    ")
    for tree in result.trees:
        lines += _under(_tree(tree), width, "  ")
        for line, node in zip(tree.drawn, tree.nodes, strict=True):
            named = line.lstrip(" ")
            indent = "    " + " " * (len(line) - len(named))
            held = "" if node.bytes is None else f"; {size_text(node.bytes)}"
            lines += wrapped(plain(named) + held, width, indent, indent + "    ")
    if result.attributes:
        lines.append("  attributes")
    return lines + attribute_lines(result.attributes, width, "    ")


def _summary(result: ExplainResult, width: int | None) -> list[str]:
    """How the query is maintained, and what each of its sketches skips."""
    head = f"{result.query}: {mode_text(result.mode)} (policy {result.policy})"
    lines = [*wrapped(plain(head), width), *_under(result.reason, width, "  ")]
    for entry in result.attributes:
        if entry.chosen and (expected := entry.expected) is not None:
            share = 1 - expected.files / max(expected.files_total, 1)
            skipped = f"skips {share:.0%}" if share else "skips none"
            read = f"{expected_text(expected)} of {entry.table}, {size_text(expected.bytes)}"
            text = f"with the sketch: {read} ({skipped})"
            lines += _under(text, width, "  ")
    return lines


def attribute_lines(
    candidates: Sequence[CandidateEntry], width: int | None, indent: str = "  "
) -> list[str]:
    """Attributes looked at for a sketch: safe or not, chosen or not, and why."""
    said: dict[str, list[str]] = {}
    for entry in candidates:
        named = said.setdefault(_judgement(entry), [])
        which = f" ({entry.occurrence})" if entry.occurrence else ""
        named.append(f"{entry.table}{which}.{entry.attribute}")
    lines = []
    for judgement, named in said.items():
        lines += _under(f"{', '.join(dict.fromkeys(named))} {judgement}", width, indent)
    return lines


def _judgement(entry: CandidateEntry) -> str:
    """What is said of an attribute; several of which the same is said share a line."""
    safe = "safe" if entry.safe else "not safe"
    chosen = ", chosen" if entry.chosen else ""
    said = f"{safe}{chosen}: {entry.reason}" if entry.reason else f"{safe}{chosen}"
    if entry.safe and not entry.chosen and entry.reason.startswith("safe"):
        said = entry.reason
    if entry.expected is not None:
        said += f"; {expected_text(entry.expected)}, {size_text(entry.expected.bytes)}"
        if entry.expected.upkeep:
            said += f", state {size_text(entry.expected.upkeep)}"
    return said


def _remarks(entry: PlanEntry, result: ExplainResult) -> Iterator[str]:
    """How it is maintained and why; then what is left out early."""
    if entry.how:
        why = f": {entry.why}" if entry.why else ""
        state = f"; state {size_text(entry.state_bytes)}" if entry.state_bytes else ""
        is_blocking = entry.why == result.reason and entry.place is not None
        place = f" ({entry.place})" if is_blocking else ""
        yield f"{entry.how}{why}{state}{place}"
    yield from entry.pushed


_ANSWERED = {
    "state": "from its materialized result",
    "engine": "by the engine",
    "spark": "by Spark",
}


def answer_texts(answer: AnswerEntry | None, answered: AnsweredEntry | None) -> list[str]:
    """Whether the answer is kept, where it is to be, and who answers the query."""
    texts = [] if answer is None else [_kept_answer(answer)]
    by = [] if answered is None else [f"answered {_ANSWERED[answered.by]}: {answered.reason}"]
    return [*texts, *by]


def _kept_answer(answer: AnswerEntry) -> str:
    """Whether the answer is kept, and what that takes."""
    if not answer.kept:
        return f"result not materialized: {answer.reason}"
    if not answer.row_bytes:
        size = "its join tree lists the rows, without extra state"
    elif answer.state_bytes is not None:
        size = f"{size_text(answer.state_bytes)} stored"
    else:
        rows = "" if answer.most_rows is None else f", {count_text(answer.most_rows, 'row')}"
        size = f"about {size_text(answer.row_bytes)} per row{rows}"
    columns = ", ".join(answer.columns)
    of_columns = f" (columns {columns})" if columns else ""
    return f"result materialized{of_columns}: {size}; `query` returns it without reading tables"


def _side(side: JoinSideEntry) -> str:
    size = "" if side.bytes is None else f", at most {size_text(side.bytes)}"
    tables = ", ".join(side.tables) or "computed rows"
    how = f"{side.strategy}, rebuilt" if side.mode == "rebuilt" else side.strategy
    return f"{side.side} ({tables}): {how}, {side.reason}{size}"


def _groups(entry: GroupsEntry) -> str:
    tables = ", ".join(entry.tables) or "computed rows"
    return f"{entry.name} ({tables}): {entry.mode}, {entry.reason}"


def _buffers(entry: BuffersEntry) -> str:
    """`top0 (t): bounded to the best 8, 12 kB, t changes once a day, ...`."""
    tables = ", ".join(entry.tables) or "computed rows"
    mode = entry.mode if entry.buffer is None else f"{entry.mode} to the best {entry.buffer:,}"
    size = "" if entry.state_bytes is None else f"{size_text(entry.state_bytes)}, "
    return f"{entry.name} ({tables}): {mode}, {size}{entry.reason}"


def _tree(tree: TreeEntry) -> str:
    place = "" if tree.place is None else f" ({tree.place})"
    what = {"ring": ", of counts and sums", "bits": ", of existing rows"}.get(tree.mode, "")
    return f"join tree{what}: {tree.reason}{place}"


def _under(text: str, width: int | None, indent: str) -> list[str]:
    return wrapped(plain(text), width, indent, indent + "  ") if text else []
