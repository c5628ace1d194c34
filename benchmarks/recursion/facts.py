"""The tables that a recursive query reads, as facts of the program that peers keep for it.

Tables are known by their columns: links have `src`, `dst` and `cost`; of regions, sensors that are
near each other have those too, seeds `region` and `sensor`, triggered ones `sensor` and `at`.
Law: facts are those of the table that changes, in an order drawn by a seed; seeds of regions come
first, since nothing is in a region without them, and are never deleted.
Out of scope: what the query's text says of these tables: it is the same query for people to read.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

import pyarrow as pa
from msgspec import Struct

from benchmarks.figures import SuiteCase
from benchmarks.peers.programs import COST, HOPS, Fact, Paths, Program, Reach, Regions
from impctl.errors import UnsupportedError
from impctl.tables.rows import read_rows

REACH, REGIONS, PATHS = "reach", "regions", "paths"
NONE, SINGLE, MULTI = "none", "single", "multi"

_MINIMISED = {NONE: (), SINGLE: (COST,), MULTI: (COST, HOPS)}


class Facts(Struct, frozen=True):
    """A program, and the facts that come first and those that come and go."""

    program: Program
    first: tuple[Fact, ...]
    others: tuple[Fact, ...]

    def drawn(self, seed: int) -> list[Fact]:
        """The others in an order by the seed."""
        result = list(self.others)
        random.Random(seed).shuffle(result)
        return result


def facts_of(case: SuiteCase, program: str, selection: str) -> Facts:
    """The program over the tables that the case's query reads; UnsupportedError without them."""
    tables = list(_tables(case))
    if program == REGIONS:
        triggered = _with(case, tables, ("sensor", "at"))
        regions = Regions(
            _grouped(_with(case, tables, ("src", "dst"))),
            _grouped(_with(case, tables, ("sensor", "region"))),
        )
        first = tuple((sensor,) for sensor, time in triggered if time == 0)
        return Facts(regions, first, tuple((sensor,) for sensor, time in triggered if time != 0))
    if program == REACH:
        return Facts(Reach(), (), tuple(sorted({*_with(case, tables, ("src", "dst"))})))
    links = _with(case, tables, ("src", "dst", "cost"))
    return Facts(Paths(_MINIMISED[selection]), (), tuple(sorted({*links})))


def _tables(case: SuiteCase) -> Iterable[pa.Table]:
    for name in case.named_tables():
        snapshot = case.ctx.tables.snapshot(name)
        yield read_rows(snapshot, snapshot.schema.names)


def _with(case: SuiteCase, tables: Sequence[pa.Table], columns: Sequence[str]) -> list[Fact]:
    """The rows of the first table that has these columns."""
    for table in tables:
        if {*columns} <= {*table.column_names}:
            return list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))
    listed = ", ".join(f"`{name}`" for name in columns)
    raise UnsupportedError(
        f"Query `{case.query.name}` reads no table with the columns {listed}",
        code="not_a_network",
        hint="use a table of example `network` in its text",
        location=case.query.location,
    )


def _grouped(pairs: Iterable[Fact]) -> dict[int, tuple[int, ...]]:
    result = defaultdict(list)
    for key, value in pairs:
        result[key].append(value)
    return {key: tuple(sorted(values)) for key, values in result.items()}
