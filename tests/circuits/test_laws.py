"""The laws of every operator, over circuits of whole queries.

Batches mean the same as their sum, in any order of the tables; a batch and its negative leave
nothing; what took up a checkpoint goes on as if never stopped; everything deleted is the empty
table.
"""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import DATE, INTEGER, LONG, STRING, Column, Schema
from impctl.plan.nodes import Plan, scans_of
from impctl.rules.optimize import apply_rules
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query
from tests.support.algebra import FIRST_ROWS, QUERIES, rows
from tests.support.random_cases import random_seeds
from tests.support.restored_query import Stored, counts_of, restored

CATALOG = {
    "t": Schema((Column("g", INTEGER), Column("x", LONG), Column("s", STRING), Column("d", DATE))),
    "u": Schema((Column("g", INTEGER), Column("y", LONG))),
}
PARTITIONS = {
    "t": RangePartition("t", "x", LONG, (0, 2)),
    "u": RangePartition("u", "y", LONG, (1,)),
}
SQL = {**QUERIES, **FIRST_ROWS}
every_query = pytest.mark.parametrize("name", SQL)


@cache
def root_of(name: str) -> Plan:
    return apply_rules(parse_query(SQL[name], CATALOG).root)


def compiled(name: str) -> Compiled:
    root = root_of(name)
    sketched = {scan.access: PARTITIONS[scan.table] for scan in scans_of(root)}
    return compile_plan(root, sketched, {})


def loaded(name: str) -> MaintainedQuery:
    session = MaintainedQuery(compiled(name))
    session.load([])
    return session


def tables(seed: int) -> dict[str, pa.Table]:
    rng = random.Random(seed)
    return {"t": rows(rng, 11, is_left=True), "u": rows(rng, 6, is_left=False)}


def changes(result: dict[str, pa.Table], sign: int) -> dict[str, TableChange]:
    return {
        name: TableChange(table, np.full(len(table), sign, dtype=np.int64))
        for name, table in result.items()
    }


@pytest.mark.slow
@every_query
@random_seeds(1, 1, 6)
def test_any_batching_means_the_same(name: str, seed: int) -> None:
    whole, parts = loaded(name), loaded(name)
    result = tables(seed)
    whole.step(changes(result, 1))
    rng = random.Random(seed)
    pieces = [(key, at) for key, table in result.items() for at in range(len(table))]
    rng.shuffle(pieces)
    for key, at in pieces:
        parts.step(changes({key: result[key].slice(at, 1)}, 1))
    assert counts_of(parts) == counts_of(whole)


@every_query
@random_seeds(1, 2, 6)
def test_a_batch_and_its_negative_leave_nothing(name: str, seed: int) -> None:
    session = loaded(name)
    session.step(changes(tables(seed), 1))
    before = counts_of(session)
    more = tables(seed + 100)
    session.step(changes(more, 1))
    session.step(changes(more, -1))
    assert counts_of(session) == before
    both = {name: pa.concat_tables([table, table]) for name, table in more.items()}
    signs = {name: np.repeat([1, -1], len(table)) for name, table in more.items()}
    session.step({name: TableChange(both[name], signs[name].astype(np.int64)) for name in both})
    assert counts_of(session) == before
    session.step(changes({name: table.slice(0, 0) for name, table in more.items()}, 1))
    assert counts_of(session) == before


@pytest.mark.slow
@every_query
@random_seeds(1, 2, 4)
def test_restored_is_never_stopped_and_all_deleted_is_empty(name: str, seed: int) -> None:
    session, empty = loaded(name), counts_of(loaded(name))
    first, later = tables(seed), tables(seed + 50)
    session.step(changes(first, 1))
    fresh = restored(session, Stored(), MaintainedQuery(compiled(name)))
    for one in (session, fresh):
        one.step(changes(later, 1))
    assert counts_of(fresh) == counts_of(session)
    fresh.step(changes(later, -1))
    fresh.step(changes(first, -1))
    assert counts_of(fresh) == empty
