"""Joins in a circle by look-ups: after every batch the joined rows are those of brute force."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import Struct

from impctl.data.schema import DOUBLE, INTEGER, LONG, STRING, SqlType
from impctl.data.vector import from_arrow
from impctl.engine.batch import Batch
from impctl.engine.jointree import cyclic
from impctl.engine.jointree.cyclic import Circle, Probe, Probed
from impctl.engine.tags import RowTags
from impctl.errors import InvariantError
from tests.support.circuits import Runs, load_all, save_all
from tests.support.join_trees import random_changes
from tests.support.random_cases import random_cases

Row = tuple[Any, ...]
Joined = Counter[tuple[Any, ...]]
KEYS = 3
_ARROW = {LONG: pa.int64(), INTEGER: pa.int32(), STRING: pa.string(), DOUBLE: pa.float64()}


class CircleCase(Struct, frozen=True):
    """A circle and, for each input, the table that it reads."""

    circle: Circle
    tables: tuple[int, ...]
    kinds: tuple[tuple[SqlType, ...], ...]

    def batches(self, changes: Sequence[tuple[int, Row, int]]) -> list[Batch | None]:
        """Changes (table, row, weight) as the batches of all inputs."""
        result: list[Batch | None] = []
        for at, table in enumerate(self.tables):
            rows = [(row, weight) for one, row, weight in changes if one == table]
            result.append(self._batch(at, rows) if rows else None)
        return result

    def _batch(self, at: int, rows: Sequence[tuple[Row, int]]) -> Batch:
        columns = {
            name: from_arrow(pa.array([row[place] for row, _ in rows], _ARROW[kind]), kind)
            for place, (name, kind) in enumerate(self.circle.inputs[at].columns)
        }
        ranges = np.array([row[KEYS] for row, _ in rows], dtype=np.int32)
        weights = np.array([weight for _, weight in rows], dtype=np.int64)
        return Batch(columns, weights, (RowTags(ranges),))

    def joined(self, tables: Sequence[Counter[Row]]) -> Joined:
        """All joined rows: their output columns and fragments, with how many copies."""
        result: Joined = Counter()
        held = [[(row, n) for row, n in tables[table].items() if n] for table in self.tables]
        for rows in product(*held):
            if self._meets([row for row, _ in rows]):
                copies = int(np.prod([n for _, n in rows], dtype=np.int64))
                result[self._told([row for row, _ in rows])] += copies
        return result

    def _meets(self, rows: Sequence[Row]) -> bool:
        values: dict[int, set[Any]] = {}
        for row, one in zip(rows, self.circle.inputs, strict=True):
            for class_, place in one.classes:
                values.setdefault(class_, set()).add(_same(row[place]))
        return all(
            len(held) == 1 and (held != {None} or self.circle.null_safe[class_])
            for class_, held in values.items()
        )

    def _told(self, rows: Sequence[Row]) -> tuple[Any, ...]:
        named = {
            name: row[place]
            for row, one in zip(rows, self.circle.inputs, strict=True)
            for place, (name, _) in enumerate(one.columns)
        }
        shown = (_same(named[name]) for name in self.circle.outputs)
        return (*shown, *(row[KEYS] for row in rows))

    def rows_in(self, batch: Batch) -> Joined:
        """The rows of a batch in the same form."""
        result: Joined = Counter()
        if not len(batch):
            return result
        lists = [batch.columns[name].to_arrow().to_pylist() for name in self.circle.outputs]
        for tag in batch.tags:
            spelled = tag.sets()
            assert np.diff(spelled.offsets).tolist() == [1] * len(batch)
            start, end = int(spelled.offsets[0]), int(spelled.offsets[-1])
            lists.append(spelled.ranges[start:end].tolist())
        for *row, weight in zip(*lists, batch.weights.tolist(), strict=True):
            result[tuple(map(_same, row))] += weight
        return result


def _same(value: Any) -> Any:
    """Values that are equal as keys, as one: -0.0 is 0.0, NaN is itself."""
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value


def random_circle(seed: int) -> CircleCase:
    """Three or four inputs, each next to the one before it, and the last one to the first."""
    random_ = random.Random(seed)
    size = random_.choice([3, 3, 4])
    tables = tuple(random_.randrange(random_.choice([1, 2, size])) for _ in range(size))
    kind = random_.choice([LONG, LONG, STRING, DOUBLE])
    kinds = tuple(
        tuple(random_.choice([LONG, INTEGER]) if kind == LONG else kind for _ in range(KEYS))
        for _ in range(size)
    )
    # The class between an input and the next one; now and then one more that some have.
    classes = [[at, (at - 1) % size] for at in range(size)]
    if random_.random() < 0.4:
        for at in random_.sample(range(size), random_.randint(2, size)):
            classes[at].append(size)
    inputs, stores = [], {table: at for at, table in enumerate(dict.fromkeys(tables))}
    for at in range(size):
        places = random_.sample(range(KEYS), len(classes[at]))
        columns = tuple((f"i{at}.k{place}", kinds[tables[at]][place]) for place in range(KEYS))
        own = tuple(sorted(zip(classes[at], places, strict=True)))
        inputs.append(Probed(columns, own, 1, stores[tables[at]]))
    count = 1 + max(class_ for one in classes for class_ in one)
    names = [name for one in inputs for name, _ in one.columns]
    outputs = tuple(sorted(random_.sample(names, random_.randint(0, len(names)))))
    null_safe = tuple(random_.random() < 0.3 for _ in range(count))
    return CircleCase(Circle(tuple(inputs), null_safe, outputs), tables, kinds)


def random_circle_row(case: CircleCase, random_: random.Random, table: int) -> Row:
    """Few values, so that rows meet; NULL among them."""
    values: dict[SqlType, list[Any]] = {
        STRING: [None, "", "a", "a", "b"],
        DOUBLE: [None, 0.0, -0.0, float("nan"), 1.5],
    }
    row = [random_.choice(values.get(kind, [None, 0, 1, 1, 2])) for kind in case.kinds[table]]
    return (*row, random_.randrange(4))


STEPS = 6


class Followed:
    """A probe beside its tables, stopped and taken up again where that is asked."""

    def __init__(self, case: CircleCase) -> None:
        self.case = case
        self.probe = Probe("probe0", case.circle)
        self.tables: list[Counter[Row]] = [Counter() for _ in range(1 + max(case.tables))]
        self.found: Joined = Counter()
        self._stored: Runs = {}

    def fill(self, batches: list[list[tuple[int, Row, int]]]) -> None:
        self.probe.fill(True)
        for changes in batches:
            assert self.probe.step(*self.case.batches(changes)) is None
            self._count(changes)
        for batch in self.probe.filled():
            self.found.update(self.case.rows_in(batch))
        self.probe.fill(False)

    def step(self, changes: list[tuple[int, Row, int]]) -> Joined:
        told = self.case.rows_in(self.probe.step(*self.case.batches(changes)))
        self.found.update(told)
        self._count(changes)
        return told

    def _count(self, changes: list[tuple[int, Row, int]]) -> None:
        for table, row, weight in changes:
            self.tables[table][row] += weight

    def check(self) -> int:
        wanted = self.case.joined(self.tables)
        assert {row: n for row, n in self.found.items() if n} == wanted
        whole = self.case.rows_in(self.probe.output())
        assert {row: n for row, n in whole.items() if n} == wanted
        return sum(wanted.values())

    def restart(self) -> None:
        fresh = Probe("probe0", self.case.circle)
        save_all(self.probe.arrangements(), self._stored)
        load_all(fresh.arrangements(), self._stored)
        self.probe = fresh


def run(seed: int) -> Counter[str]:
    case, random_ = random_circle(seed), random.Random(seed + 1)
    circle = Followed(case)
    rows = [
        (table, random_circle_row(case, random_, table), random_.choice([1, 1, 2]))
        for table in range(len(circle.tables))
        for _ in range(random_.choice([0, 2, 4]))
    ]
    random_.shuffle(rows)
    if seed % 2:
        circle.fill([rows[at : at + 3] for at in range(0, len(rows), 3)])
    else:
        circle.step(rows)
    said = Counter(joined=circle.check(), shared=len(set(case.tables)) < len(case.tables))
    for _ in range(STEPS):
        some_row = partial(random_circle_row, case)
        circle.step(random_changes(random_, circle.tables, some_row))
        if seed % 3 == 0:
            circle.restart()
        said["joined"] += circle.check()
    return said


@random_cases(16, 24, 4_000)
def test_joined_rows_equal_brute_force(cases: range, monkeypatch: pytest.MonkeyPatch) -> None:
    said: Counter[str] = Counter()
    for seed in cases:
        monkeypatch.setattr(cyclic, "LOT", (1, 2, 1_000_000)[seed % 3])
        said += run(seed)
    assert said["joined"] > len(cases) * 6
    assert said["shared"] > len(cases) // 4


def triangle(*, null_safe: bool = False, stores: tuple[int, int, int] = (0, 0, 0)) -> CircleCase:
    """Edges from k0 to k1 of a table, or three: a to b, b to c, c to a."""
    inputs = tuple(
        Probed(
            tuple((f"i{at}.k{place}", LONG) for place in range(3)),
            tuple(sorted([(at, 0), ((at + 1) % 3, 1)])),
            1,
            stores[at],
        )
        for at in range(3)
    )
    circle = Circle(inputs, (null_safe,) * 3, ("i0.k0", "i1.k0", "i2.k0"))
    return CircleCase(circle, stores, ((LONG, LONG, LONG),) * 3)


def edge(source: int | None, target: int | None, range_id: int = 0) -> Row:
    return (source, target, None, range_id)


def test_all_accesses_of_one_table_change_at_once() -> None:
    circle = Followed(triangle())
    told = circle.step([(0, edge(1, 2, 5), 1), (0, edge(2, 3, 6), 1), (0, edge(3, 1, 7), 2)])
    assert told == {(1, 2, 3, 5, 6, 7): 2, (2, 3, 1, 6, 7, 5): 2, (3, 1, 2, 7, 5, 6): 2}
    told = circle.step([(0, edge(2, 3, 6), -1), (0, edge(2, 3, 4), 1)])
    assert sum(told.values()) == 0
    assert len(told) == 6
    circle.check()


def test_rows_that_cancel_are_left_out() -> None:
    """What comes and goes in two accesses at once meets itself."""
    circle = Followed(triangle())
    circle.step([(0, edge(at, at), 1) for at in range(3)])
    changes = [(0, edge(1, 1, 9), 1), (0, edge(2, 2), -1)]
    out = circle.probe.step(*circle.case.batches(changes))
    told = circle.case.rows_in(out)
    assert len(out) == len(told)
    assert all(told.values())


def test_null_joins_only_where_all_equalities_say_so() -> None:
    rows = [(0, edge(None, 1), 1), (0, edge(1, 2), 1), (0, edge(2, None), 1)]
    plain, safe = Followed(triangle()), Followed(triangle(null_safe=True))
    assert plain.step(rows) == {}
    assert len(safe.step(rows)) == 3
    plain.check()
    safe.check()


def test_rows_of_one_table_are_kept_once_for_all_its_accesses() -> None:
    def sets_of(stores: tuple[int, int, int]) -> list[str]:
        probe = Probe("probe0", triangle(stores=stores).circle)
        return sorted(keeper.name for keeper in probe.arrangements())

    assert sets_of((0, 0, 0)) == ["probe0.0.by0", "probe0.0.by0_1", "probe0.0.by1"]
    assert len(sets_of((0, 1, 2))) == 9


def test_each_row_asks_the_input_that_offers_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One hub with many edges out of it and into it: no edge beside it is looked at for it."""
    circle = Followed(triangle())
    hub, many = 0, 50
    circle.step([(0, edge(hub, at), 1) for at in range(1, many)])
    circle.step([(0, edge(at, hub), 1) for at in range(1, many)])
    looked: list[int] = []
    extended = cyclic._extended

    def counted(partial: cyclic.Partial, at: int, view: cyclic.Arriving) -> cyclic.Partial:
        result = extended(partial, at, view)
        looked.append(len(result))
        return result

    monkeypatch.setattr(cyclic, "_extended", counted)
    assert len(circle.step([(0, edge(1, 2), 1)])) == 3
    assert circle.step([(0, edge(hub, 3), 1), (0, edge(4, hub), 1)]) == {}
    assert sum(looked) < many / 2


def test_inputs_are_connected_and_of_one_store_have_the_same_columns() -> None:
    one, alone, wider = (
        Probed(tuple((name, LONG) for name in names), ((class_, 0),), 0, store)
        for names, class_, store in (("a", 0, 0), ("b", 1, 1), ("bc", 0, 0))
    )
    with pytest.raises(InvariantError, match="connected"):
        Probe("probe0", Circle((one, alone), (False, False), ()))
    with pytest.raises(InvariantError, match="same rows"):
        Probe("probe0", Circle((one, wider), (False,), ()))
