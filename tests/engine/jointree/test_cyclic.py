"""Cyclic joins by look-ups: after every batch the joined rows equal brute force."""

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
    """A cyclic join and, for each input, the table that it reads."""

    circle: Circle
    tables: tuple[int, ...]
    kinds: tuple[tuple[SqlType, ...], ...]

    def batches(self, changes: Sequence[tuple[int, Row, int]]) -> list[Batch | None]:
        """Changes (table, row, weight) as the batches of all inputs."""
        result: list[Batch | None] = []
        for index, table in enumerate(self.tables):
            rows = [(row, weight) for one, row, weight in changes if one == table]
            result.append(self._batch(index, rows) if rows else None)
        return result

    def _batch(self, index: int, rows: Sequence[tuple[Row, int]]) -> Batch:
        columns = {
            name: from_arrow(pa.array([row[position] for row, _ in rows], _ARROW[kind]), kind)
            for position, (name, kind) in enumerate(self.circle.inputs[index].columns)
        }
        ranges = np.array([row[KEYS] for row, _ in rows], dtype=np.int32)
        weights = np.array([weight for _, weight in rows], dtype=np.int64)
        return Batch(columns, weights, (RowTags(ranges),))

    def joined(self, tables: Sequence[Counter[Row]]) -> Joined:
        """All joined rows: their output columns and ranges, with the number of copies."""
        result: Joined = Counter()
        inputs = [[(row, n) for row, n in tables[table].items() if n] for table in self.tables]
        for rows in product(*inputs):
            if self._meets([row for row, _ in rows]):
                copies = int(np.prod([n for _, n in rows], dtype=np.int64))
                result[self._output_row([row for row, _ in rows])] += copies
        return result

    def _meets(self, rows: Sequence[Row]) -> bool:
        values: dict[int, set[Any]] = {}
        for row, one in zip(rows, self.circle.inputs, strict=True):
            for class_, position in one.classes:
                values.setdefault(class_, set()).add(_same(row[position]))
        return all(
            len(found) == 1 and (found != {None} or self.circle.null_safe[class_])
            for class_, found in values.items()
        )

    def _output_row(self, rows: Sequence[Row]) -> tuple[Any, ...]:
        named = {
            name: row[position]
            for row, one in zip(rows, self.circle.inputs, strict=True)
            for position, (name, _) in enumerate(one.columns)
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
    """Make equal keys identical: -0.0 becomes 0.0, and NaN a text."""
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value


def random_circle(seed: int) -> CircleCase:
    """Three or four inputs, each joined with the previous one, and the first with the last."""
    random_ = random.Random(seed)
    size = random_.choice([3, 3, 4])
    tables = tuple(random_.randrange(random_.choice([1, 2, size])) for _ in range(size))
    kind = random_.choice([LONG, LONG, STRING, DOUBLE])
    kinds = tuple(
        tuple(random_.choice([LONG, INTEGER]) if kind == LONG else kind for _ in range(KEYS))
        for _ in range(size)
    )
    # One class between each input and the next; sometimes one more, shared by several.
    classes = [[index, (index - 1) % size] for index in range(size)]
    if random_.random() < 0.4:
        for index in random_.sample(range(size), random_.randint(2, size)):
            classes[index].append(size)
    inputs, stores = [], {table: index for index, table in enumerate(dict.fromkeys(tables))}
    for index in range(size):
        positions = random_.sample(range(KEYS), len(classes[index]))
        columns = tuple(
            (f"i{index}.k{position}", kinds[tables[index]][position]) for position in range(KEYS)
        )
        pairs = tuple(sorted(zip(classes[index], positions, strict=True)))
        inputs.append(Probed(columns, pairs, 1, stores[tables[index]]))
    count = 1 + max(class_ for one in classes for class_ in one)
    names = [name for one in inputs for name, _ in one.columns]
    outputs = tuple(sorted(random_.sample(names, random_.randint(0, len(names)))))
    null_safe = tuple(random_.random() < 0.3 for _ in range(count))
    return CircleCase(Circle(tuple(inputs), null_safe, outputs), tables, kinds)


def random_circle_row(case: CircleCase, random_: random.Random, table: int) -> Row:
    """Few distinct values, including NULL, so that rows join."""
    values: dict[SqlType, list[Any]] = {
        STRING: [None, "", "a", "a", "b"],
        DOUBLE: [None, 0.0, -0.0, float("nan"), 1.5],
    }
    row = [random_.choice(values.get(kind, [None, 0, 1, 1, 2])) for kind in case.kinds[table]]
    return (*row, random_.randrange(4))


STEPS = 6


class Followed:
    """A probe and its tables; `restart` reloads it from stored state."""

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
        output = self.case.rows_in(self.probe.step(*self.case.batches(changes)))
        self.found.update(output)
        self._count(changes)
        return output

    def _count(self, changes: list[tuple[int, Row, int]]) -> None:
        for table, row, weight in changes:
            self.tables[table][row] += weight

    def check(self) -> int:
        expected = self.case.joined(self.tables)
        assert {row: n for row, n in self.found.items() if n} == expected
        whole = self.case.rows_in(self.probe.output())
        assert {row: n for row, n in whole.items() if n} == expected
        return sum(expected.values())

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
        circle.fill([rows[start : start + 3] for start in range(0, len(rows), 3)])
    else:
        circle.step(rows)
    counts = Counter(joined=circle.check(), shared=len(set(case.tables)) < len(case.tables))
    for _ in range(STEPS):
        some_row = partial(random_circle_row, case)
        circle.step(random_changes(random_, circle.tables, some_row))
        if seed % 3 == 0:
            circle.restart()
        counts["joined"] += circle.check()
    return counts


@random_cases(16, 24, 4_000)
def test_joined_rows_equal_brute_force(cases: range, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    for seed in cases:
        monkeypatch.setattr(cyclic, "LOT", (1, 2, 1_000_000)[seed % 3])
        counts += run(seed)
    assert counts["joined"] > len(cases) * 6
    assert counts["shared"] > len(cases) // 4


def triangle(*, null_safe: bool = False, stores: tuple[int, int, int] = (0, 0, 0)) -> CircleCase:
    """Edges from k0 to k1 of one table or three: a to b, b to c, c to a."""
    inputs = tuple(
        Probed(
            tuple((f"i{index}.k{position}", LONG) for position in range(3)),
            tuple(sorted([(index, 0), ((index + 1) % 3, 1)])),
            1,
            stores[index],
        )
        for index in range(3)
    )
    circle = Circle(inputs, (null_safe,) * 3, ("i0.k0", "i1.k0", "i2.k0"))
    return CircleCase(circle, stores, ((LONG, LONG, LONG),) * 3)


def edge(source: int | None, target: int | None, range_id: int = 0) -> Row:
    return (source, target, None, range_id)


def test_all_accesses_of_one_table_change_at_once() -> None:
    circle = Followed(triangle())
    output = circle.step([(0, edge(1, 2, 5), 1), (0, edge(2, 3, 6), 1), (0, edge(3, 1, 7), 2)])
    assert output == {(1, 2, 3, 5, 6, 7): 2, (2, 3, 1, 6, 7, 5): 2, (3, 1, 2, 7, 5, 6): 2}
    output = circle.step([(0, edge(2, 3, 6), -1), (0, edge(2, 3, 4), 1)])
    assert sum(output.values()) == 0
    assert len(output) == 6
    circle.check()


def test_rows_that_cancel_are_dropped() -> None:
    """Changes of two accesses in one step join with each other."""
    circle = Followed(triangle())
    circle.step([(0, edge(key, key), 1) for key in range(3)])
    changes = [(0, edge(1, 1, 9), 1), (0, edge(2, 2), -1)]
    output = circle.probe.step(*circle.case.batches(changes))
    rows = circle.case.rows_in(output)
    assert len(output) == len(rows)
    assert all(rows.values())


def test_null_joins_only_by_null_safe_equality() -> None:
    rows = [(0, edge(None, 1), 1), (0, edge(1, 2), 1), (0, edge(2, None), 1)]
    plain, safe = Followed(triangle()), Followed(triangle(null_safe=True))
    assert plain.step(rows) == {}
    assert len(safe.step(rows)) == 3
    plain.check()
    safe.check()


def test_rows_of_a_table_are_stored_once_for_all_accesses() -> None:
    def names_of(stores: tuple[int, int, int]) -> list[str]:
        probe = Probe("probe0", triangle(stores=stores).circle)
        return sorted(keeper.name for keeper in probe.arrangements())

    assert names_of((0, 0, 0)) == ["probe0.0.by0", "probe0.0.by0_1", "probe0.0.by1"]
    assert len(names_of((0, 1, 2))) == 9


def test_each_row_probes_the_smaller_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub with many edges in and out: they are not all read for a new edge."""
    circle = Followed(triangle())
    hub, many = 0, 50
    circle.step([(0, edge(hub, end), 1) for end in range(1, many)])
    circle.step([(0, edge(end, hub), 1) for end in range(1, many)])
    sizes: list[int] = []
    extended = cyclic._extended

    def counted(partial: cyclic.Partial, index: int, view: cyclic.Arriving) -> cyclic.Partial:
        result = extended(partial, index, view)
        sizes.append(len(result))
        return result

    monkeypatch.setattr(cyclic, "_extended", counted)
    assert len(circle.step([(0, edge(1, 2), 1)])) == 3
    assert circle.step([(0, edge(hub, 3), 1), (0, edge(4, hub), 1)]) == {}
    assert sum(sizes) < many / 2


def test_unconnected_inputs_and_unequal_store_columns_fail() -> None:
    one, alone, wider = (
        Probed(tuple((name, LONG) for name in names), ((class_, 0),), 0, store)
        for names, class_, store in (("a", 0, 0), ("b", 1, 1), ("bc", 0, 0))
    )
    with pytest.raises(InvariantError, match="connected"):
        Probe("probe0", Circle((one, alone), (False, False), ()))
    with pytest.raises(InvariantError, match="same rows"):
        Probe("probe0", Circle((one, wider), (False,), ()))
