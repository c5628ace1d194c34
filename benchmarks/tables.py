"""Writes the tables of the suites that impctl itself has no use for.

Equal requests give equal rows. The rows come from `layout`, `large_joins` and `networks`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.large_joins.partners import partners_table
from benchmarks.large_joins.power_law import USUAL_EXPONENT, power_law_graph
from benchmarks.large_joins.social import social_tables
from benchmarks.layout import Order, layout_files
from benchmarks.networks.communities import circle_links, community_links
from benchmarks.networks.edge_list import listed_links
from benchmarks.networks.sensors import alarm_tables, sensor_tables
from benchmarks.networks.shapes import (
    TREE_NODES,
    Shape,
    chain_links,
    forest_links,
    grid_links,
    power_law_links,
    random_links,
    worked_example_links,
)
from benchmarks.networks.transit_stub import DENSE, transit_stub_links
from impctl.measure.files import DEFAULT_ROWS
from impctl.service.context import Reporter
from impctl.service.settings import CRIMES
from impctl.tables.write.maintenance import create_laid_out_table, create_table

if TYPE_CHECKING:
    from benchmarks.data import DataRequest

_FILES = 16
_GROUP_ROWS = 100
_EDGES_OF_NODE = 7
_LINKS_OF_NODE = 5
_LEAST_IN_FILE = 1_000
_SMALL = {Shape.TRANSIT_STUB: 400, Shape.SENSORS: 100}
"""Rows of the networks of the paper."""


def write_layout(request: DataRequest, folder: Path, reporter: Reporter) -> None:
    """A table in files of one order."""
    rows = request.rows or DEFAULT_ROWS
    groups = request.groups or max(rows // _GROUP_ROWS, 1)
    order = Order(request.order or Order.RANDOM)
    files = layout_files(rows, groups, order, request.files or _FILES, request.seed)
    create_laid_out_table(str(_announced(folder / request.name, reporter)), files)


def write_partners(request: DataRequest, folder: Path, reporter: Reporter) -> None:
    """A table whose keys have many rows each."""
    rows = request.rows or DEFAULT_ROWS
    keys = request.groups or max(rows // _GROUP_ROWS, 1)
    table = partners_table(rows, max(rows // keys, 1), request.seed)
    _write(folder, {request.name: table}, reporter)


def write_graph(request: DataRequest, folder: Path, reporter: Reporter) -> None:
    """The edges of a graph with a power law."""
    edges = request.rows or DEFAULT_ROWS
    nodes = request.groups or edges // _EDGES_OF_NODE
    exponent = USUAL_EXPONENT if request.exponent is None else request.exponent
    table = power_law_graph(edges, nodes, exponent, request.seed)
    _write(folder, {request.name: table}, reporter)


def write_social(request: DataRequest, folder: Path, reporter: Reporter) -> None:
    """Five tables below the table's name."""
    tables = social_tables(request.rows or DEFAULT_ROWS, request.seed)
    _write(folder / request.name, tables, reporter)


def write_network(request: DataRequest, folder: Path, reporter: Reporter) -> None:
    """One table of links, or several below its name."""
    tables = network_tables(request)
    if tables.keys() == {""}:
        _write(folder, {request.name: tables[""]}, reporter, request.files)
    else:
        _write(folder / request.name, tables, reporter, request.files)


def _write(
    folder: Path, tables: Mapping[str, pa.Table], reporter: Reporter, files: int | None = None
) -> None:
    """Each table written as it is, or in order and in so many files."""
    for name, table in tables.items():
        path = str(_announced(folder / name, reporter))
        if files is None:
            create_table(path, table)
        else:
            create_laid_out_table(path, in_files(table, files))


def _announced(path: Path, reporter: Reporter) -> Path:
    reporter.step(f"writing {path}")
    return path


def network_tables(request: DataRequest) -> Mapping[str, pa.Table]:
    """The tables by name; a network of links alone has one, without a name."""
    shape = Shape.TRANSIT_STUB if request.shape is None else Shape(request.shape)
    source = None if request.source is None else Path(request.source)
    if source is not None:
        return {"": listed_links(source)}
    rows = _SMALL.get(shape, DEFAULT_ROWS) if request.rows is None else request.rows
    if shape is Shape.SENSORS:
        return sensor_tables(rows, request.seed)
    if shape is Shape.ALARMS:
        return alarm_tables(rows, request.seed)
    return {"": _links(shape, rows, request.groups, request.seed)}


def in_files(table: pa.Table, files: int) -> Iterator[pa.Table]:
    """The rows by where they start or stand, in at most so many parts of equal size.

    A part has 1,000 rows at least, if there are as many.
    """
    by = "src" if "src" in table.column_names else table.column_names[0]
    by = "sensor" if "sensor" in table.column_names else by
    ordered = table.sort_by(by)
    count = min(files, max(len(table) // _LEAST_IN_FILE, 1))
    ends = [len(table) * part // count for part in range(count + 1)]
    return (ordered.slice(start, end - start) for start, end in pairwise(ends))


def list_given(source: Path | None) -> Path | None:
    """The file of links that somebody gave; None where it is only the crimes data."""
    if source is None or str(source) == os.environ.get(CRIMES):
        return None
    return source


def _links(shape: Shape, rows: int, groups: int | None, seed: int) -> pa.Table:
    nodes = max(rows // _LINKS_OF_NODE, 2) if groups is None else groups
    match shape:
        case Shape.TRANSIT_STUB:
            return transit_stub_links(rows, rows // DENSE if groups is None else groups, seed)
        case Shape.GRID:
            return grid_links(rows, seed)
        case Shape.CHAIN:
            return chain_links(rows, seed)
        case Shape.FOREST:
            return forest_links(rows, TREE_NODES if groups is None else groups, seed)
        case Shape.COMMUNITIES:
            return community_links(rows, nodes, seed)
        case Shape.CIRCLES:
            return circle_links(rows, nodes, seed)
        case Shape.WORKED_EXAMPLE:
            return worked_example_links()
        case Shape.RANDOM:
            return random_links(rows, nodes, seed)
        case _:
            return power_law_links(rows, nodes, seed)
