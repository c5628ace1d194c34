"""Sides that were to be read, but turn out small while they come, are kept: as if chosen so."""

from __future__ import annotations

import random

import numpy as np
import pytest

from impctl.compile.flows import AsRecorded, BySize, SideFacts, Strategy
from impctl.data.schema import LONG
from impctl.data.vector import Vector
from impctl.engine.batch import Batch
from impctl.engine.join import Join, Side
from impctl.engine.lookups import DistantRows
from impctl.engine.tags import RowTags
from impctl.engine.trace import RowIndex

COLUMNS = (("k", LONG), ("v", LONG))
ROW = 36
"""Bytes that a row of these columns is taken for."""


def batch(rng: random.Random, rows: int, name: str = "") -> Batch:
    values = {f"{name}{at}": [rng.randrange(5) for _ in range(rows)] for at, _ in COLUMNS}
    columns = {at: Vector(LONG, np.array(one, dtype=np.int64)) for at, one in values.items()}
    tag = RowTags(np.array([rng.randrange(3) for _ in range(rows)], dtype=np.int32))
    return Batch(columns, np.ones(rows, dtype=np.int64), (tag,))


def filling(room: int) -> DistantRows:
    side = DistantRows("s", COLUMNS, ("k",), 1, is_held=True, room=room)
    side.fill(True)
    return side


def add(side: DistantRows, rows: Batch) -> None:
    side.add(rows, side.codes_of(rows))


@pytest.mark.parametrize("rows", [9, 10, 11])
def test_what_nothing_asks_for_is_held_while_there_is_room(rows: int) -> None:
    rng, side = random.Random(rows), filling(room=10 * ROW)
    side.let_go()
    for _ in range(rows):
        add(side, batch(rng, 1))
    assert (side.at_hand is not None) == (rows <= 10)
    if side.at_hand is not None:
        assert len(side.at_hand.whole()) <= rows
        assert int(side.at_hand.whole().weights.sum()) == rows


def test_what_is_asked_for_is_held_whatever_it_takes_and_kept_up_to_twice_the_room() -> None:
    rng, side = random.Random(1), filling(room=10 * ROW)
    add(side, batch(rng, 20))
    assert side.at_hand is not None
    add(side, batch(rng, 1))
    assert side.at_hand is None
    key = np.array([0, 1, 2, 3, 4])
    assert int(side.find(key, [Vector(LONG, key)]).rows.weights.sum()) == 21
    side.let_go()
    side.fill(False)
    assert side.at_hand is None


def test_without_room_nothing_is_kept() -> None:
    side = filling(room=0)
    add(side, batch(random.Random(2), 1))
    assert side.at_hand is None


@pytest.mark.parametrize("seed", range(20))
def test_a_join_that_kept_goes_on_as_one_that_was_to_keep(seed: int) -> None:
    rng = random.Random(seed)
    left, right = (tuple((f"{s}{name}", kind) for name, kind in COLUMNS) for s in "lr")

    def join(*, reads: bool) -> Join:
        room = 1 << 20 if reads else 0
        sides = [Side(c, (c[0][0],), 1, reads, True, reads, room) for c in (left, right)]
        return Join("j", sides[0], sides[1], [False])

    read, kept = join(reads=True), join(reads=False)
    for one in (read, kept):
        one.fill(True)
    for _ in range(4):
        change = (batch(rng, rng.randint(0, 9), "l"), batch(rng, rng.randint(0, 9), "r"))
        assert sums(read.step(*change)) == sums(kept.step(*change))
        if rng.random() < 0.3:
            read.ended([True, True])
            break
    names = read.keep_at_hand()
    for one in (read, kept):
        one.fill(False)
    assert list(names) == ["j.left", "j.right"]
    assert read.reads == ()
    assert read.form == kept.form
    assert read.can_output
    assert [type(one) for one in read.indexes] == [RowIndex, RowIndex]
    change = (batch(rng, 5, "l"), batch(rng, 5, "r"))
    assert sums(read.step(*change)) == sums(kept.step(*change))
    assert sums(read.output()) == sums(kept.output())


def sums(rows: Batch) -> dict[tuple[object, ...], int]:
    result: dict[tuple[object, ...], int] = {}
    columns = [rows.columns[name].values.tolist() for name in sorted(rows.columns)]
    tags = [tag.sets().fragments.tolist() for tag in rows.tags] if len(rows) else []
    for *key, weight in zip(*columns, *tags, rows.weights.tolist(), strict=True):
        result[tuple(key)] = result.get(tuple(key), 0) + weight
    return {key: weight for key, weight in result.items() if weight}


def test_only_what_the_budget_reads_has_room() -> None:
    facts = SideFacts("s", ("t",), 100, (Strategy.FILES,))
    open_ = BySize(None, {"t": 1_000}.__getitem__, from_files=1_000)
    assert open_.choose(facts).strategy is Strategy.FILES
    assert open_.choose(facts).room == 2_000
    assert BySize(None, {"t": 5}.__getitem__, from_files=1_000).choose(facts).room == 0
    assert (
        BySize(Strategy.FILES, {"t": 1_000}.__getitem__, from_files=1_000).choose(facts).room == 0
    )
    assert AsRecorded(from_files=("s",)).choose(facts).room == 0
