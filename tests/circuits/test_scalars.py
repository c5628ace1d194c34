"""Rows that scalars select come to what a join with the scalars' row comes to.

After every step the rows that leave the circuit and the counts at its root equal those of a circuit
that keeps both sides of the join: whichever way the scalars move, whatever comes and goes beside
them in one step, and whether the scalars are known while the circuit is filled or only at its end.
What is read of the table are the rows alone that statistics as exact as can be leave.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest

from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.flows import AsRecorded, Chooser, Strategy
from impctl.compile.session import MaintainedQuery
from impctl.engine.batch import Batch
from impctl.engine.join import SelectByScalars
from impctl.plan.nodes import attributes_of, scans_of
from tests.circuits.test_groups_read import (
    CATALOG,
    PARTITIONS,
    STEPS,
    Heard,
    Tables,
    arrow,
    partners_of,
    root_of,
    row_of,
    said,
    whole_table_of,
)
from tests.support.random_cases import random_cases
from tests.support.restored_query import Stored, counts_of, restored

QUERIES = {
    "latest": "SELECT g, SUM(x), COUNT(*) FROM t WHERE x = (SELECT MAX(x) FROM t) GROUP BY g",
    "first": "SELECT g, SUM(x), COUNT(*) FROM t WHERE x = (SELECT MIN(x) FROM t) GROUP BY g",
    "among": "SELECT g, COUNT(*) FROM t WHERE x IN (SELECT MAX(y) FROM u) GROUP BY g",
    "some_days": "SELECT s, COUNT(*) FROM t WHERE x >= (SELECT MAX(x) FROM t) - 1 GROUP BY s",
    "within": "SELECT s, COUNT(*) FROM t WHERE x > (SELECT MAX(y) - 2 FROM u) GROUP BY s",
    "between": "SELECT g, COUNT(*) FROM t WHERE x BETWEEN (SELECT MIN(y) FROM u) AND "
    "(SELECT MAX(g) FROM t) GROUP BY g",
    "either": "SELECT g, COUNT(*) FROM t WHERE x = (SELECT MAX(x) FROM t) OR "
    "n = (SELECT MIN(n) FROM t) GROUP BY g",
    "not_equal": "SELECT g, COUNT(*) FROM t WHERE x <> (SELECT MAX(y) FROM u) GROUP BY g",
    "null_safe": "SELECT x, COUNT(*) FROM t WHERE g <=> (SELECT MAX(g) FROM u) GROUP BY x",
    "null_is_a_value": "SELECT x, COUNT(*) FROM t WHERE g < COALESCE((SELECT MAX(g) FROM u), 9) "
    "GROUP BY x",
    "average": "SELECT g, COUNT(*) FROM t WHERE x > (SELECT AVG(x) FROM t) GROUP BY g",
    "with_a_bound": "SELECT g, COUNT(*) FROM t WHERE x + 0.171D > "
    "(SELECT SUM(CAST(x AS DOUBLE) / 3) FROM t) GROUP BY g",
    "doubles": "SELECT g, COUNT(*) FROM t WHERE f = (SELECT MAX(f) FROM t) GROUP BY g",
    "decimals": "SELECT g, COUNT(*) FROM t WHERE n < (SELECT MAX(n) FROM t) GROUP BY g",
    "text": "SELECT g, COUNT(*) FROM t WHERE s = (SELECT MAX(s) FROM t) GROUP BY g",
    "limited": "SELECT g, COUNT(*) FROM t WHERE x = (SELECT x FROM t ORDER BY x DESC LIMIT 1) "
    "GROUP BY g",
    "at_most_one": "SELECT g, COUNT(*) FROM t WHERE x IN (SELECT MAX(x) m FROM t HAVING m > 2) "
    "GROUP BY g",
    "nested": "SELECT g, COUNT(*) FROM t WHERE x = (SELECT MAX(x) FROM t WHERE x < "
    "(SELECT MAX(x) FROM t)) GROUP BY g",
    "beside_conditions": "SELECT s, SUM(k) FROM (SELECT s, x + 1 k, g FROM t WHERE g > 0) "
    "WHERE k = (SELECT MAX(x) FROM t) GROUP BY s",
    "joined": "SELECT u.y, COUNT(*) FROM t JOIN u ON t.g = u.g WHERE x = (SELECT MAX(x) FROM t) "
    "GROUP BY u.y",
    "both_joined": "SELECT u.y, COUNT(*) FROM t JOIN u ON t.g = u.g WHERE "
    "x >= (SELECT MIN(y) FROM u) AND y <= (SELECT MAX(x) FROM t) GROUP BY u.y",
    "read_on": "SELECT m, COUNT(*) FROM t, (SELECT MAX(y) m FROM u) WHERE x >= m GROUP BY m",
    "having": "SELECT g, COUNT(*) c FROM t WHERE x = (SELECT MAX(x) FROM t) GROUP BY g "
    "HAVING COUNT(*) > (SELECT MIN(y) FROM u)",
}


def compiled(sql: str, chooser: Chooser, *, of_all: bool = True) -> Compiled:
    """With `of_all` the rows of every access carry fragments, else those of the first alone."""
    root = root_of(sql)
    scans = scans_of(root) if of_all else scans_of(root)[:1]
    return compile_plan(root, {scan.access: PARTITIONS[scan.table] for scan in scans}, {}, chooser)


def filled(result: Compiled, tables: Tables, rng: random.Random) -> MaintainedQuery:
    """The circuit over the tables as they are, filled in turn or by rows as they happen to come."""
    session = MaintainedQuery(result)
    session.read_by(partners_of(result, tables))
    if rng.random() < 0.5:
        turns = session.turns(lambda table: rng.random())
        session.load_in_turn(turns, lambda turn: [arrow(turn.table, tables.held[turn.table])])
        return session
    rows = [(name, row) for name in result.tables for row in tables.held[name]]
    rng.shuffle(rows)
    session.load((name, arrow(name, [row])) for name, row in rows)
    return session


def put_out(session: MaintainedQuery, heard: Heard, sql: str) -> Counter[object]:
    """The rows of the query that came and went in a step, with their fragments."""
    batch = heard.batches.get(len(tuple(session.circuit)) - 1)
    if batch is None or not len(batch):
        return Counter()
    # Above sums of doubles no values are told, and the circuit ends below.
    names = {one.id for one in attributes_of(root_of(sql))} & batch.columns.keys()
    columns = {name: batch.columns[name] for name in names}
    return said(Batch(columns, batch.weights, batch.tags))


def one_case(sql: str, seed: int) -> int:
    """How many rows of the query came and went, over all steps."""
    rng = random.Random(seed)
    tables = Tables(rng, {t: [row_of(rng, t) for _ in range(rng.randint(0, 12))] for t in CATALOG})
    of_all = seed % 2 == 0
    kept = compiled(sql, AsRecorded(), of_all=of_all)
    mine = compiled(sql, AsRecorded(is_to_fill=True), of_all=of_all)
    recorded = AsRecorded(from_files=mine.sides_by(Strategy.FILES))
    session, twin = filled(mine, tables, rng), filled(kept, tables, rng)
    assert counts_of(session) == counts_of(twin), (sql, seed)
    stored, count = Stored(), 0
    for _ in range(STEPS):
        heard, theirs = Heard(session), Heard(twin)
        changes = tables.changed()
        for one in (session, twin):
            one.step(changes, partial(whole_table_of, tables))
        came = put_out(session, heard, sql)
        assert came == put_out(twin, theirs, sql), (sql, seed)
        assert counts_of(session) == counts_of(twin), (sql, seed)
        count += len(came)
        if rng.random() < 0.5:
            again = compiled(sql, recorded, of_all=of_all)
            session = restored(session, stored, MaintainedQuery(again))
            session.read_by(partners_of(again, tables))
    return count


@random_cases(3, 12, 400)
@pytest.mark.parametrize("name", QUERIES)
def test_what_scalars_select_is_what_is_joined_with_them(name: str, cases: Sequence[int]) -> None:
    assert sum(one_case(QUERIES[name], seed) for seed in cases) > 0


@pytest.mark.parametrize("name", QUERIES)
def test_no_row_of_what_scalars_select_is_kept(name: str) -> None:
    result = compiled(QUERIES[name], AsRecorded(is_to_fill=True))
    selected = [one for one in result.sides if one.side.startswith("scalars")]
    assert {one.strategy for one in selected} == {Strategy.FILES}
    read = {side.name for join in result.distant for side in join.sides}
    assert {one.side for one in selected} == read
    # A budget has no choice to make of it.
    assert not any(one.readers for one in selected)


KEPT = {
    "each_group": "SELECT g FROM (SELECT g, MAX(x) m FROM t GROUP BY g) "
    "WHERE m = (SELECT MAX(x) FROM t)",
    "several": "SELECT t.x FROM t JOIN u ON t.g = u.g WHERE t.x + u.y > (SELECT MAX(x) FROM t)",
    "first_row": "SELECT x FROM t WHERE x IN (SELECT x FROM t ORDER BY x DESC LIMIT 1)",
    "any_number": "SELECT x FROM t WHERE x IN (SELECT y FROM u)",
    "by_group": "SELECT x FROM t WHERE x = (SELECT MAX(y) FROM u WHERE u.g = t.g)",
}


@pytest.mark.parametrize("name", KEPT)
def test_what_else_is_joined_is_kept(name: str) -> None:
    result = compiled(KEPT[name], AsRecorded(is_to_fill=True))
    assert not any(isinstance(one, SelectByScalars) for one in result.circuit)


def test_scalars_come_before_what_they_select() -> None:
    nested = compiled(QUERIES["nested"], AsRecorded(is_to_fill=True))
    turns = [[nested.sources[at].access for at in turn] for turn in nested.turns()]
    assert turns == [["t#3"], ["t#2"], ["t#1"]]
    assert [len(turn) for turn in compiled(QUERIES["nested"], AsRecorded()).turns()] == [3]
