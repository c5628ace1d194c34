"""From a place inside a query's SQL text to the place in the workload file.

Law: a place is exact or it is the start of the scalar, never a wrong line. Exact are literal
blocks (`|`) and plain or quoted scalars on one line, escapes and variables included (a place
inside a variable's value is the place of the variable). Folded blocks (`>`) and scalars over
several lines give their start.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from yaml.nodes import ScalarNode

from impctl.errors import Location
from impctl.workload.interpolate import Resolved
from impctl.workload.models import QuerySpec, SqlOrigin, SqlRun, ViewSpec
from impctl.workload.positions import Lines, index_of

_SURROGATES = r"u[Dd][89ABab][0-9A-Fa-f]{2}\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}"
_ESCAPE = re.compile(rf"\\({_SURROGATES}|x[0-9A-Fa-f]{{2}}|u[0-9A-Fa-f]{{4}}|U[0-9A-Fa-f]{{8}}|.)")


def sql_location(spec: QuerySpec | ViewSpec, line: int, column: int) -> Location:
    """Where line and column (1-based) of `spec.sql` stand in the workload file."""
    lines = spec.sql.split("\n")
    row = min(max(line, 1), len(lines)) - 1
    offset = sum(len(text) + 1 for text in lines[:row])
    return offset_location(spec, offset + min(max(column, 1) - 1, len(lines[row])))


def offset_location(spec: QuerySpec | ViewSpec, offset: int) -> Location:
    """Where a character of `spec.sql` stands in the workload file."""
    origin = spec.sql_origin
    if not origin.runs or not origin.pieces:
        return origin.start
    piece = origin.pieces[bisect_right(origin.pieces, offset, key=lambda p: p.offset) - 1]
    source = piece.source + (offset - piece.offset if piece.is_literal else 0)
    run = origin.runs[bisect_right(origin.runs, source, key=lambda r: r.offset) - 1]
    return Location(origin.start.file, run.line, run.column + source - run.offset)


def origin_of(node: ScalarNode, resolved: Resolved, lines: Lines) -> SqlOrigin:
    """How the resolved text of a scalar maps back to the file."""
    runs = tuple(
        SqlRun(offset, place.line, place.column)
        for offset, index in _starts(node, lines.text)
        for place in (lines.at(index),)
    )
    return SqlOrigin(lines.at(index_of(node)), runs, resolved.pieces)


def _starts(node: ScalarNode, text: str) -> list[tuple[int, int]]:
    """Pairs (offset in the value, index in the file) where a run begins; none if not exact."""
    if node.style == "|":
        return _literal_starts(node, text)
    begin, end = index_of(node), int(node.end_mark.index)
    raw = text[begin:end]
    if "\n" in raw or "\r" in raw:
        return []
    match node.style:
        case None:
            return [(0, begin)] if raw == node.value else []
        case "'":
            return _quoted_starts(raw, re.compile("''"), begin)
        case '"':
            return _quoted_starts(raw, _ESCAPE, begin)
        case _:
            return []


def _quoted_starts(raw: str, escape: re.Pattern[str], begin: int) -> list[tuple[int, int]]:
    starts = [(0, begin + 1)]
    shrunk = 1
    for match in escape.finditer(raw, 1, len(raw) - 1):
        # An escape is one character of the value; what follows it starts a run of its own.
        starts.append((match.start() - shrunk, begin + match.start()))
        shrunk += len(match.group()) - 1
        starts.append((match.end() - shrunk, begin + match.end()))
    return starts


def _literal_starts(node: ScalarNode, text: str) -> list[tuple[int, int]]:
    index = text.find("\n", index_of(node)) + 1
    wanted = node.value.split("\n")
    first = next((line for line in wanted if line.strip()), None)
    if index == 0 or first is None:
        return []
    starts: list[tuple[int, int]] = []
    indent: int | None = None
    offset = 0
    for line in wanted:
        end = text.find("\n", index)
        raw = text[index : end if end >= 0 else len(text)].removesuffix("\r")
        if indent is None and line.strip():
            indent = len(raw) - len(line)
        skipped = indent or 0
        if line and raw[skipped:] != line:
            return []
        starts.append((offset, index + min(skipped, len(raw))))
        offset += len(line) + 1
        if end < 0:
            break
        index = end + 1
    return starts
