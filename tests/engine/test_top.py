"""The first rows of random bags, against sorting everything, kept whole or bounded."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import LONG, STRING
from impctl.data.vector import Vector, from_arrow
from impctl.engine.batch import Batch
from impctl.engine.extremes import OrderKey
from impctl.engine.tags import RowTags
from impctl.engine.topk import Cut, Limit, Top
from impctl.errors import CountBelowZeroError
from tests.support.random_cases import random_cases

Row = tuple[int | None, str | None, int | None]
COLUMNS = (("g", LONG), ("s", STRING), ("x", LONG))
ORDERS = {
    "one": (OrderKey("x", False, True),),
    "down, nulls last": (OrderKey("x", True, False), OrderKey("s", False, False)),
    "text with one prefix": (OrderKey("s", False, False), OrderKey("x", True, True)),
}


def batch(rows: Sequence[Row], weights: Sequence[int]) -> Batch:
    """Rows whose fragment is their x, so that the same row always carries the same."""
    parts = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    columns = {
        name: from_arrow(pa.array(part, pa.string() if kind == STRING else pa.int64()), kind)
        for (name, kind), part in zip(COLUMNS, parts, strict=True)
    }
    fragments = np.array([0 if row[2] is None else row[2] + 3 for row in rows], dtype=np.int32)
    return Batch(columns, np.array(weights, dtype=np.int64), (RowTags(fragments),))


def standing(row: Row, order: Sequence[OrderKey]) -> list[tuple[int, object]]:
    """What sorts as the order does: NULL by its place, descending values turned round."""
    result: list[tuple[int, object]] = []
    for key in order:
        value = row[{"s": 1, "x": 2}[key.column]]
        if value is None:
            result.append((0 if key.nulls_first else 2, 0))
        elif key.descending:
            result.append((1, -value))  # type: ignore[operator]  # only numbers are
        else:
            result.append((1, value))
    return result


def expected(
    rows: Counter[Row], order: Sequence[OrderKey], limit: Limit, *, grouped: bool
) -> Counter[tuple[object, ...]]:
    """How often each standing is among the first rows, and with which ranks."""
    groups: dict[object, list[Row]] = {}
    for row in rows.elements():
        groups.setdefault(row[0] if grouped else None, []).append(row)
    result: Counter[tuple[object, ...]] = Counter()
    for group, members in groups.items():
        standings = sorted((standing(row, order) for row in members), key=repr)
        standings.sort(key=lambda parts: [(place, value) for place, value in parts])
        distinct = [one for at, one in enumerate(standings) if at == 0 or one != standings[at - 1]]
        for at, one in enumerate(standings):
            ranks = {
                Cut.ROW: at + 1,
                Cut.RANK: standings.index(one) + 1,
                Cut.DENSE: distinct.index(one) + 1,
            }
            if limit.offset < ranks[limit.cut] <= limit.size:
                result[group, repr(one), ranks[limit.cut]] += 1
    return result


def shown(
    output: Counter[tuple[Row, int]], order: Sequence[OrderKey], *, grouped: bool
) -> Counter[tuple[object, ...]]:
    counts: Counter[tuple[object, ...]] = Counter()
    for (row, rank), weight in output.items():
        counts[row[0] if grouped else None, repr(standing(row, order)), rank] += weight
    return +counts


def rows_of(change: Batch) -> list[tuple[tuple[Row, int], int]]:
    if len(change) == 0:
        return []
    parts = [change.columns[name].to_arrow().to_pylist() for name in ("g", "s", "x", "rank")]
    rows = [((g, s, x), rank) for g, s, x, rank in zip(*parts, strict=True)]
    return list(zip(rows, change.weights.tolist(), strict=True))


@pytest.mark.slow
@random_cases(1, 2, 4)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(
    "limit",
    [Limit(3, Cut.ROW), Limit(5, Cut.ROW, 2), Limit(2, Cut.RANK), Limit(2, Cut.DENSE)],
    ids=lambda limit: f"{limit.cut} {limit.size} {limit.offset}",
)
def test_it_is_what_sorting_everything_gives(
    limit: Limit, name: str, grouped: bool, cases: range
) -> None:
    """Kept whole, and in small buffers."""
    order = ORDERS[name]
    form = partial(
        Top, "t", COLUMNS, order, limit, 1, partition=("g",) if grouped else (), rank="rank"
    )
    for seed in cases:
        rng = random.Random(seed)
        held: Counter[Row] = Counter()
        tops = {buffer: form(buffer=buffer) for buffer in (None, 1, 4)}
        outputs: dict[int | None, Counter[tuple[Row, int]]] = {buffer: Counter() for buffer in tops}
        for top in tops.values():
            top.refill_from(lambda keys, held=held: whole(held))  # type: ignore[misc]  # bound now
        for _ in range(8):
            change = batch(*random_change(rng, held))
            wanted = expected(held, order, limit, grouped=grouped)
            for buffer, top in tops.items():
                output = outputs[buffer]
                for row, weight in rows_of(top.step(change)):
                    output[row] += weight
                assert all(weight >= 0 for weight in output.values())
                assert shown(output, order, grouped=grouped) == wanted, (seed, buffer, held)


def whole(held: Counter[Row]) -> Batch:
    rows = list(held.elements())
    return batch(rows, [1] * len(rows))


def random_change(rng: random.Random, held: Counter[Row]) -> tuple[list[Row], list[int]]:
    """Some rows in, some out, the best ones rather; `held` is brought up to date."""
    changed: list[Row] = []
    weights: list[int] = []
    for _ in range(rng.randint(0, 6)):
        present = sorted(held.elements(), key=repr)
        if present and rng.random() < 0.55:
            row = rng.choice(present[:4] if rng.random() < 0.5 else present[-4:])
            weight = -rng.randint(1, held[row])
        else:
            texts = (None, "a long prefix 1", "a long prefix 2", "b")
            row = (rng.choice((None, 0, 1)), rng.choice(texts), rng.choice((None, *range(-2, 5))))
            weight = rng.choice((1, 1, 2, 3))
        held[row] += weight
        if held[row] == 0:
            del held[row]
        changed.append(row)
        weights.append(weight)
    return changed, weights


def test_deleting_what_was_never_there_is_an_error() -> None:
    top = Top("t", COLUMNS, ORDERS["one"], Limit(2, Cut.RANK), 1)
    top.step(batch([(1, "a", 1)], [1]))
    with pytest.raises(CountBelowZeroError, match="never contained"):
        top.step(batch([(1, "a", 1)], [-2]))


def test_a_change_beyond_the_border_says_nothing() -> None:
    top = Top("t", COLUMNS, ORDERS["one"], Limit(2, Cut.ROW), 1)
    top.step(batch([(1, "a", 1), (1, "a", 2), (1, "a", 3)], [1, 1, 1]))
    assert len(top.step(batch([(1, "b", 5), (1, "a", 3)], [1, -1]))) == 0
    assert isinstance(top.step(batch([(1, "b", 0)], [1])).columns["x"], Vector)
