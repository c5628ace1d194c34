"""Random joins in a circle, and what they join by trying every combination of rows.

A case has inputs over few tables of columns k0 to k2 and f (what is sketched); several inputs may
read one table. Slow and obviously right.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from impctl.data.schema import DOUBLE, INTEGER, LONG, STRING, SqlType
from impctl.data.vector import from_arrow
from impctl.engine.batch import Batch
from impctl.engine.jointree.cyclic import Circle, Probed
from impctl.engine.tags import RowTags

Row = tuple[Any, ...]
Joined = Counter[tuple[Any, ...]]
KEYS = 3
_ARROW = {LONG: pa.int64(), INTEGER: pa.int32(), STRING: pa.string(), DOUBLE: pa.float64()}


@dataclass(frozen=True)
class CircleCase:
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
        fragments = np.array([row[KEYS] for row, _ in rows], dtype=np.int32)
        weights = np.array([weight for _, weight in rows], dtype=np.int64)
        return Batch(columns, weights, (RowTags(fragments),))

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
        values: dict[int, list[Any]] = {}
        for row, one in zip(rows, self.circle.inputs, strict=True):
            for class_, place in one.classes:
                values.setdefault(class_, []).append(row[place])
        return all(
            len({_same(value) for value in held}) == 1
            and (held[0] is not None or self.circle.null_safe[class_])
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
            lists.append(spelled.fragments[start:end].tolist())
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


def random_circle_row(random_: random.Random, case: CircleCase, table: int) -> Row:
    """Few values, so that rows meet; NULL among them."""
    values: dict[SqlType, list[Any]] = {
        STRING: [None, "", "a", "a", "b"],
        DOUBLE: [None, 0.0, -0.0, float("nan"), 1.5],
    }
    row = [random_.choice(values.get(kind, [None, 0, 1, 1, 2])) for kind in case.kinds[table]]
    return (*row, random_.randrange(4))


def random_circle_changes(
    random_: random.Random, case: CircleCase, tables: Sequence[Counter[Row]]
) -> list[tuple[int, Row, int]]:
    """A batch over all tables: rows that come, go, do both, or come again."""
    changes: list[tuple[int, Row, int]] = []
    if random_.random() < 0.06:
        return [(t, row, -n) for t, rows in enumerate(tables) for row, n in rows.items() if n]
    for at, rows in enumerate(tables):
        there = Counter(rows)
        for _ in range(random_.choice([0, 1, 2, 3])):
            known = [row for row, n in there.items() if n > 0]
            if known and random_.random() < 0.4:
                row = random_.choice(known)
                gone = random_.randint(1, there[row])
                there[row] -= gone
                changes.append((at, row, -gone))
            elif sum(there.values()) < 7:
                row = random_circle_row(random_, case, at)
                row = random_.choice([*known, row]) if random_.random() < 0.2 else row
                copies = random_.choice([1, 1, 2])
                there[row] += copies
                changes.append((at, row, copies))
        if random_.random() < 0.2:
            row = random_circle_row(random_, case, at)
            changes += [(at, row, 1), (at, row, -1)]
    random_.shuffle(changes)
    return changes
