"""The tables of a network as a request shapes them (`bench.networks`).

Law: a list of links that is given is taken as it is; whoever asks for one without giving it has a
network of a power law in its place. The file that IMPCTL_CRIMES names comes with `--source` where
nobody wrote that: it is nobody's list of links.
Out of scope: writing tables (`app.measuring.generate`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from impctl.app.workbench.envvars import CRIMES
from impctl.app.workbench.settings import GenerateRequest
from impctl.bench.networks.alarms import alarm_tables
from impctl.bench.networks.circles import circle_links
from impctl.bench.networks.communities import community_links
from impctl.bench.networks.edge_list import listed_links
from impctl.bench.networks.sensors import sensor_tables
from impctl.bench.networks.shapes import (
    TREE_NODES,
    Shape,
    chain_links,
    forest_links,
    grid_links,
    power_law_links,
    random_links,
    worked_example_links,
)
from impctl.bench.networks.transit_stub import DENSE, transit_stub_links

_SMALL = {Shape.TRANSIT_STUB: 400, Shape.SENSORS: 100}
"""Rows of the networks of the paper."""
_USUAL = 1_000_000
_LINKS_OF_NODE = 5
_LEAST_IN_FILE = 1_000


def network_tables(request: GenerateRequest) -> Mapping[str, pa.Table]:
    """The tables by name; a network of links alone has one, without a name."""
    shape = Shape.TRANSIT_STUB if request.shape is None else Shape(request.shape)
    given = list_given(request.source)
    if given is not None:
        return {"": listed_links(given)}
    rows = _SMALL.get(shape, _USUAL) if request.rows is None else request.rows
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
