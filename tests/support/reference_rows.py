"""Rows with what they come from, and the rows that rounds make of others.

Law: rows are equal as DISTINCT holds them equal (NULL equals NULL, 0.0 equals -0.0), and a row that
stands for several comes from all that these come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from impctl.plan.nodes import Attribute, BestOnly
from impctl.types import AccessId, AttributeId
from tests.support.reference_expr import ReferenceFailure, Value, identity, sort_key

Lineage = frozenset[tuple[AccessId, int]]
Row = tuple[tuple[Value, ...], Lineage]
"""Values by position, and what they come from."""

NOTHING: Lineage = frozenset()
MOST_ROUNDS = 200
MOST_ROWS = 5_000
"""Of a bag fixpoint, from which on nobody waits for it; the engine's limit is higher."""


@dataclass(frozen=True)
class Tuple:
    """A row of some node and what it comes from."""

    values: Mapping[AttributeId, Value]
    lineage: Lineage


def key_of(row: Tuple) -> tuple[object, ...]:
    return tuple(identity(value) for _, value in sorted(row.values.items()))


def grouped(rows: Iterable[Tuple]) -> dict[object, list[Tuple]]:
    groups: dict[object, list[Tuple]] = {}
    for row in rows:
        groups.setdefault(key_of(row), []).append(row)
    return groups


def lineage_of(rows: Iterable[Tuple]) -> Lineage:
    return NOTHING.union(*(row.lineage for row in rows))


def distinct(rows: list[Tuple]) -> list[Tuple]:
    return [Tuple(same[0].values, lineage_of(same)) for same in grouped(rows).values()]


def by_levels(
    base: Callable[[], list[Row]], step: Callable[[list[Row]], list[Row]], most: int | None
) -> list[Row]:
    """The rows of the base, those that a step makes of these, and so on until it makes none.

    Raises ReferenceFailure where so many levels (default: 100) do not do, or for many rows.
    """
    result: list[Row] = []
    level = base()
    for _ in range(100 if most is None else most):
        result += level
        if not level:
            # What stands beside the rows in a step is looked at, be there rows or not.
            assert not step(level)
            return result
        if len(result) >= MOST_ROWS:
            raise ReferenceFailure(f"there are {MOST_ROWS} rows and more")
        level = step(level)
    if level:
        raise ReferenceFailure("there are rows in too many levels")
    return result


def least(
    base: Callable[[], list[Row]],
    step: Callable[[list[Row]], list[Row]],
    best: BestOnly | None = None,
) -> list[Row]:
    """The least rows with T = base UNION step(T), each once, begun with none; of what a round
    gives the `best` ones stay.

    Rounds go on until lineages stay, too, so that they are those of all derivations. Raises
    ReferenceFailure where that takes too long.
    """
    rows: dict[object, Row] = {}
    for _ in range(MOST_ROUNDS):
        result: dict[object, Row] = {}
        for values, lineage in [*base(), *step(list(rows.values()))]:
            key = tuple(identity(value) for value in values)
            known = result.get(key, (values, NOTHING))
            result[key] = known[0], known[1] | lineage
        if best is not None:
            result = _best(result, best)
        if {key: row[1] for key, row in result.items()} == {
            key: row[1] for key, row in rows.items()
        }:
            return list(rows.values())
        rows = result
    raise ReferenceFailure(f"rows still come after {MOST_ROUNDS} rounds")


def _best(rows: Mapping[object, Row], best: BestOnly) -> dict[object, Row]:
    """The rows that are best of their group by one of the values."""
    groups: dict[object, list[object]] = {}
    for key, (values, _) in rows.items():
        groups.setdefault(tuple(identity(values[at]) for at in best.keys), []).append(key)
    kept: dict[object, Row] = {}
    for keys in groups.values():
        for value in best.values:
            result = {key: rows[key][0][value.place] for key in keys}
            known = [sort_key(one) for one in result.values() if one is not None]
            first = (max(known) if value.greatest else min(known)) if known else None
            for key, one in result.items():
                is_first = (None if one is None else sort_key(one)) == first
                if is_first or (one is None and best.keeps_null):
                    kept[key] = rows[key]
    return {key: row for key, row in rows.items() if key in kept}


def named(attributes: Sequence[Attribute], rows: Iterable[Row]) -> list[Tuple]:
    """The rows with their values under these columns."""
    return [
        Tuple({a.id: value for a, value in zip(attributes, values, strict=True)}, lineage)
        for values, lineage in rows
    ]


def unnamed(attributes: Sequence[Attribute], rows: Iterable[Tuple]) -> list[Row]:
    """The rows with their values in the order of these columns."""
    return [(tuple(row.values[a.id] for a in attributes), row.lineage) for row in rows]
