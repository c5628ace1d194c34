"""Links out of somebody's list: a Parquet file, or text with two or three columns.

In text a line is a link: two nodes and perhaps a cost, parted by blanks, tabs or commas; lines that
begin with `#` or `%` say nothing, and a first line of names above numbers is passed over. Names of
nodes that are no whole numbers are numbered in their order. In Parquet the first two columns are
nodes, a third one of whole numbers the cost.

Law: links twice there are there once, those from a node to itself stay out; without costs all are
1, and costs must be above 0.
Out of scope: fetching a list from anywhere.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from impctl.bench.networks.shapes import Integers, links_table
from impctl.errors import UsageError

_PARTED = re.compile(r"[,;\s]+")
_SILENT = ("#", "%")


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
    found = [column.combine_chunks() for column in table.columns[:3]]
    return found if len(found) < 3 or pa.types.is_integer(found[2].type) else found[:2]


def _of_text(file: Path) -> list[pa.Array]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _no_list(file, "it cannot be read as text") from error
    said = [line.strip() for line in lines if line.strip() and not line.strip().startswith(_SILENT)]
    rows = [_PARTED.split(line) for line in said]
    if rows and _is_header(rows):
        rows = rows[1:]
    if not rows or min(map(len, rows)) < 2:
        raise _no_list(file, "its lines have fewer than two columns")
    width = min(3, *map(len, rows))
    return [pa.array([row[at] for row in rows]) for at in range(width)]


def _is_header(rows: list[list[str]]) -> bool:
    """Names above numbers."""
    return len(rows) > 1 and not any(map(str.isdigit, rows[0])) and rows[1][0].isdigit()


def _nodes(src: pa.Array, dst: pa.Array) -> tuple[Integers, Integers]:
    """Numbered from 0 on, in the order of their numbers or names."""
    ends = _ends(src, dst)
    if ends.null_count:
        raise UsageError("A list of links has a NULL for a node", hint="leave such lines out")
    order = pc.unique(ends).sort()
    found = pc.index_in(ends, order).to_numpy().astype(np.int64)
    return found[: len(src)], found[len(src) :]


def _ends(src: pa.Array, dst: pa.Array) -> pa.Array:
    """Both, as whole numbers where all of them are such, else as texts."""
    try:
        return pa.concat_arrays([nodes.cast(pa.int64()) for nodes in (src, dst)])
    except pa.ArrowException:
        return pa.concat_arrays([nodes.cast(pa.string()) for nodes in (src, dst)])


def _costs(column: pa.Array, file: Path) -> Integers:
    try:
        found: Integers = column.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(np.int64)
    except (pa.ArrowException, ValueError) as error:
        raise _no_list(file, "its third column has other costs than whole numbers") from error
    if column.null_count or found.min() < 1:
        raise _no_list(file, "a cost is not above 0")
    return found


def _no_list(file: Path, reason: str) -> UsageError:
    return UsageError(
        f"No list of links can be read from {file}: {reason}",
        hint="give text with two nodes a line and perhaps a cost, or Parquet with such columns",
    )
