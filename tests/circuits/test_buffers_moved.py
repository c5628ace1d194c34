"""Pieces of state that are bounded, kept again and read between any two batches: the counts at the
root are always those of a circuit that keeps everything, and so is what is kept again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial

import pytest

from impctl.compile.buffers import Buffers
from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.flows import AsRecorded
from impctl.compile.session import MaintainedQuery, buffer_groups, hand_over
from impctl.engine.aggregate import Aggregate
from impctl.engine.topk import Top
from impctl.plan.nodes import scans_of
from tests.circuits.test_bounded import SQL, Tables, change, root_of, some_rows
from tests.circuits.test_laws import PARTITIONS
from tests.support.random_cases import random_cases, seen_in
from tests.support.reference_partners import ReferencePartners
from tests.support.restored_query import Stored, counts_of, restored

MOVED = (
    *("least", "both_ends", "computed_key", "sets", "rolled", "joined", "top", "per_group"),
    *("per_own", "numbered", "numbered_joined", "ranked_second", "ranked_densely", "ranked_groups"),
)
"""Queries with groups whose buffers are a choice."""


def compiled(name: str, buffers: Mapping[str, int], read: Iterable[str] = ()) -> Compiled:
    root = root_of(name)
    sketched = {scan.access: PARTITIONS[scan.table] for scan in scans_of(root)}
    sides = AsRecorded(from_files=tuple(read))
    return compile_plan(root, sketched, {}, sides, buffers=Buffers(of_piece=buffers))


def some_choice(rng: random.Random, name: str) -> Compiled:
    whole = compiled(name, {})
    buffers = {one.piece: rng.choice((1, 1, 2, 3)) for one in whole.buffers if rng.random() < 0.6}
    readable = [one.side for one in whole.groupings if one.readers]
    return compiled(name, buffers, [side for side in readable if rng.random() < 0.25])


def handed_over(
    session: MaintainedQuery, form: Compiled, stored: Stored, tables: Tables
) -> MaintainedQuery:
    """The session in the other circuit, by way of what a store would hold."""
    rows = {name: table.to_pylist() for name, table in tables.found.items()}
    partitions = {one.access: PARTITIONS[one.table] for one in form.sources}
    before, after = (ReferencePartners(one, partitions, rows) for one in (session.compiled, form))
    fresh = restored(session, stored, MaintainedQuery(form))
    session.read_by(before)
    hand_over(session, fresh, before.whole, tables.read)
    fresh.read_by(after)
    return fresh


def moves(before: Compiled, after: Compiled) -> list[str]:
    now, then = ({one.piece: one.size for one in form.buffers} for form in (before, after))
    return [
        "bounded" if then[piece] else "kept again"
        for piece in now
        if bool(now[piece]) != bool(then[piece])
    ]


def compared(name: str, seed: int, seen: Counter[str]) -> None:
    rng = random.Random(seed)
    tables = Tables({"t": some_rows(rng, 80, is_left=True), "u": some_rows(rng, 12, is_left=False)})
    whole, moving = MaintainedQuery(compiled(name, {})), MaintainedQuery(compiled(name, {}))
    for session in (whole, moving):
        session.load(tables.found.items())
    stored = Stored()
    for _ in range(8):
        if rng.random() < 0.6:
            form = some_choice(rng, name)
            seen.update(moves(moving.compiled, form))
            seen["refilled"] += moving.refilled()[0]
            moving = handed_over(moving, form, stored, tables)
        changes = {}
        for table in tables.found:
            after, changes[table] = change(rng, tables.found[table], is_left=table == "t")
            tables.found[table] = after
        whole.step(changes)
        rows = {one: table.to_pylist() for one, table in tables.found.items()}
        partitions = {one.access: PARTITIONS[one.table] for one in moving.compiled.sources}
        moving.read_by(ReferencePartners(moving.compiled, partitions, rows))
        moving.step(changes, tables.read)
        assert counts_of(moving) == counts_of(whole), (name, seed)
        assert moving.fragments() == whole.fragments()
    # Kept whole again, it is the state of one that always was, and goes on without a table.
    moving = handed_over(moving, compiled(name, {}), stored, tables)
    assert pieces(moving) == pieces(whole), (name, seed)


def pieces(session: MaintainedQuery) -> dict[str, object]:
    """What lies in the state of groups and of first rows, whatever the runs and numbers."""
    result: dict[str, object] = {}
    for operator in session.circuit:
        if isinstance(operator, Aggregate):
            run = operator._groups.whole()
            numbers = None if run is None else run.values.get("group")
            if run is None or numbers is None:
                continue
            places = {
                int(number): int(code) for number, code in zip(numbers, run.codes, strict=True)
            }
            assert not [column for column in run.values if column.startswith("edge")]
            for keeper in operator._extremes.arrangements():
                owners, ranks, counts = keeper.all_of(numbers)
                keys = [places[int(numbers[owner])] for owner in owners]
                result[keeper.name] = sorted(
                    zip(keys, ranks.tolist(), counts.tolist(), strict=True)
                )
        elif isinstance(operator, Top):
            rows = operator._rows.whole()
            columns = [rows.columns[column].to_arrow().to_pylist() for column in rows.columns]
            weights = rows.weights.tolist()
            result[operator.piece] = sorted(map(repr, zip(*columns, weights, strict=True)))
    return result


@pytest.mark.slow
@random_cases(1, 2, 40, all_when_long=True)
@pytest.mark.parametrize("name", MOVED)
def test_whatever_is_bounded_when(name: str, cases: range) -> None:
    seen = seen_in(cases, partial(compared, name))
    assert seen["bounded"] > 0
    assert seen["kept again"] > 0


def test_these_are_the_queries_with_a_choice() -> None:
    chosen = [n for n in SQL if any(not one.pinned for one in compiled(n, {}).buffers)]
    assert {*MOVED, "extremes"} == {*chosen}
    (over_join,) = compiled("over_join", {"top0": 2}).buffers
    assert over_join.pinned.startswith("only the query")
    assert over_join.size is None
    (rows,) = compiled("rows", {"top0": 2}).buffers
    assert rows.pinned.startswith("its rows are one group")
    assert rows.size is None


@pytest.mark.parametrize("name", MOVED)
def test_groups_of_first_rows_are_counted_and_of_values_alone_tell_themselves(name: str) -> None:
    """That of all rows is among grouping sets, which has values, and no keys to count."""
    whole = MaintainedQuery(compiled(name, {}))
    whole.load([("t", some_rows(random.Random(1), 40, is_left=True))])
    first = {one.piece for one in whole.compiled.buffers if not one.pinned and not one.is_values}
    assert buffer_groups(whole).keys() == first


def test_what_is_bounded_takes_as_much_as_if_it_always_was() -> None:
    rng = random.Random(3)
    tables = Tables({"t": some_rows(rng, 400, is_left=True)})
    for name, piece in (("least", "aggregate0"), ("numbered", "top0")):
        whole = MaintainedQuery(compiled(name, {}))
        whole.load(tables.found.items())
        always = MaintainedQuery(compiled(name, {piece: 2}))
        always.load(tables.found.items())
        groups = buffer_groups(whole)
        shed = handed_over(whole, always.compiled, {}, tables)
        assert counts_of(shed) == counts_of(always)
        assert shed.state_bytes() <= always.state_bytes() < whole.state_bytes() / 3
        # Groups are counted where nothing else tells how many there are.
        assert groups == ({piece: 4} if piece == "top0" else {})
        assert buffer_groups(shed) == groups
