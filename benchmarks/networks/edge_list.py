"""Links out of somebody's list: a Parquet file, or text with two or three columns.

In text a line is a link: two nodes and perhaps a cost, parted as the first line is: by tabs, commas
or semicolons, around which blanks and quotes say nothing, else by blanks. Lines that begin with `#`
or `%` say nothing, and a first line of names above numbers, or of names that are usual above nodes,
is passed over. A text may be packed (`.gz`, `.bz2`). Names of nodes that are no whole numbers are
numbered in their order. In Parquet the first two columns are nodes, a third one of whole numbers
the cost.

Law: links twice there are there once, those from a node to itself stay out; without costs all are
1, and costs must be above 0. What is wrong in a text is told with its line.
Out of scope: fetching a list from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.networks.shapes import Integers, links_table
from impctl.errors import UsageError

_SILENT = ("#", "%")
_SEPARATORS = ("\t", ",", ";")
_PACKED = (".gz", ".bz2")
_USUAL_NAMES = frozenset(
    ("src", "dst", "source", "target", "from", "to", "fromnodeid", "tonodeid", "node1", "node2")
)

_MOST = (1 << 63) - 1

_Line = tuple[int, list[str]]
"""The number of a line, from 1 on, and its values."""


def listed_links(file: Path) -> pa.Table:
    """The links of a file; UsageError for what is no list of links."""
    columns = _of_parquet(file) if file.suffix == ".parquet" else _of_text(file)
    src, dst = _nodes(columns[0], columns[1])
    cost = np.ones(len(src), dtype=np.int64) if len(columns) < 3 else _costs(columns[2], file)
    keep = np.flatnonzero(src != dst)
    pairs = np.stack([src[keep], dst[keep]], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    chosen = keep[np.sort(first)]
    if not len(chosen):
        raise _no_list(file, "it has no link between two nodes")
    return links_table(src[chosen], dst[chosen], cost[chosen])


def _of_parquet(file: Path) -> list[pa.Array]:
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise _no_list(file, str(error).splitlines()[0]) from error
    if table.num_columns < 2:
        raise _no_list(file, "it has fewer than two columns")
    result = [column.combine_chunks() for column in table.columns[:3]]
    return result if len(result) < 3 or pa.types.is_integer(result[2].type) else result[:2]


def _of_text(file: Path) -> list[pa.Array]:
    lines = list(_values(_text(file)))
    if len(lines) > 1 and _is_header(lines[0][1], lines[1][1]):
        lines = lines[1:]
    if not lines:
        raise _no_list(file, "it has no line with a link")
    short = next((number for number, values in lines if len(values) < 2), None)
    if short is not None:
        raise _no_list(file, f"line {short} has fewer than two columns")
    width = min(3, *(len(values) for _, values in lines))
    columns = [pa.array([values[index] for _, values in lines]) for index in range(width)]
    if width == 3:
        wrong = next((line for line in lines if not _is_cost(line[1][2])), None)
        if wrong is not None:
            number, (*_, cost) = wrong[0], wrong[1][:3]
            raise _no_list(file, f"line {number} has a cost that is not a number above 0: {cost}")
    return columns


def _text(file: Path) -> str:
    try:
        with pa.input_stream(str(file), compression="detect") as stream:
            return str(stream.read().decode("utf-8-sig"))
    except (OSError, pa.ArrowException) as error:
        action = "unpacked" if file.suffix in _PACKED and file.is_file() else "read"
        raise _no_list(file, f"it cannot be {action}") from error
    except UnicodeDecodeError as error:
        raise _no_list(file, "it cannot be read as text") from error


def _values(text: str) -> Iterator[_Line]:
    """The lines that say something."""
    separator: str | None = None
    is_first = True
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.strip()
        if content and not content.startswith(_SILENT):
            if is_first:
                separator = next((one for one in _SEPARATORS if one in content), None)
                is_first = False
            yield number, [value.strip().strip('"').strip() for value in content.split(separator)]


def _is_header(first: list[str], second: list[str]) -> bool:
    """Names above numbers, or names as columns of nodes have them."""
    if {name.lower() for name in first[:2]} <= _USUAL_NAMES:
        return True
    return not any(map(str.isdigit, first)) and second[0].isdigit()


def _is_cost(value: str) -> bool:
    return value.isascii() and value.isdigit() and 0 < int(value) <= _MOST


def _nodes(src: pa.Array, dst: pa.Array) -> tuple[Integers, Integers]:
    """Numbered from 0 on, in the order of their numbers or names."""
    ends = _ends(src, dst)
    if ends.null_count:
        raise UsageError("A list of links has a NULL for a node", hint="remove such lines")
    order = pc.unique(ends).sort()
    result = pc.index_in(ends, order).to_numpy().astype(np.int64)
    return result[: len(src)], result[len(src) :]


def _ends(src: pa.Array, dst: pa.Array) -> pa.Array:
    """Both, as whole numbers where all of them are such, else as texts."""
    try:
        return pa.concat_arrays([nodes.cast(pa.int64()) for nodes in (src, dst)])
    except pa.ArrowException:
        return pa.concat_arrays([nodes.cast(pa.string()) for nodes in (src, dst)])


def _costs(column: pa.Array, file: Path) -> Integers:
    try:
        result: Integers = column.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(np.int64)
    except (pa.ArrowException, ValueError) as error:
        raise _no_list(file, "its third column has costs that are not whole numbers") from error
    if column.null_count or result.min() < 1:
        raise _no_list(file, "a cost is not above 0")
    return result


def _no_list(file: Path, reason: str) -> UsageError:
    return UsageError(
        f"No list of links can be read from {file}: {reason}",
        hint="give text with two nodes and an optional cost (a whole number) per line, "
        "optionally packed (.gz), or Parquet with such columns",
    )
