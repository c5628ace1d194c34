"""Recursive programs by definition: ground rules, their least fixpoint, and what derives what.

Law: a program turns tables into *derivations*, each a head, the rows of the fixpoint that it uses
(its bodies), the rows of tables that it uses (its leaves, by access), and a weight. The fixpoint
is found by trying all of them until nothing comes in any more; `DeleteAndRederive` finds it from
the one before (Gupta, Mumick and Subrahmanian, 1993). Everything is plain sets and loops.
A table's row is (values..., fragment): the last place is where the partition of its sketch looks.
NULL is None: equal to itself as a row, to nothing in a join.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

Value = int | None
Row = tuple[Value, ...]
Tables = Mapping[str, Counter[Row]]


@dataclass(frozen=True)
class Derivation:
    """One way to derive `head`."""

    head: Row
    bodies: tuple[Row, ...]
    leaves: tuple[tuple[int, Row], ...]
    """Access and row; accesses as the program numbers them."""
    weight: int


Rules = Callable[[Tables, frozenset[Row]], Iterable[Derivation]]
"""All derivations over these tables whose bodies are among these rows."""


def least_fixpoint(rules: Rules, tables: Tables) -> frozenset[Row]:
    """All rows that can be derived."""
    rows: frozenset[Row] = frozenset()
    while True:
        more = rows | {derivation.head for derivation in rules(tables, rows)}
        if more == rows:
            return rows
        rows = more


def weights_of(derivations: Iterable[Derivation]) -> Counter[Row]:
    """What the derivations of each row weigh."""
    result: Counter[Row] = Counter()
    for derivation in derivations:
        result[derivation.head] += derivation.weight
    return result


def low_weights(derivations: Iterable[Derivation], ranks: Mapping[Row, int]) -> Counter[Row]:
    """What those derivations of each row weigh whose bodies all have a lower rank."""
    result: Counter[Row] = Counter()
    for derivation in derivations:
        if all(ranks[body] < ranks[derivation.head] for body in derivation.bodies):
            result[derivation.head] += derivation.weight
    return result


def fragments_of(derivations: Iterable[Derivation], cut: Callable[[Row], int]) -> Counter[object]:
    """How often each fragment of each access is used; `cut` gives the fragment of a row."""
    counts: Counter[object] = Counter()
    for derivation in derivations:
        for access, leaf in derivation.leaves:
            counts[access, cut(leaf)] += derivation.weight
    return +counts


class DeleteAndRederive:
    """The fixpoint by deleting too much and deriving again what is left."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.rows: frozenset[Row] = frozenset()

    def step(self, before: Tables, after: Tables) -> frozenset[Row]:
        """The rows over the tables `after`, from those over `before`."""
        kept = {name: before[name] & after[name] for name in before}
        lost = set(self._rules(before, self.rows)) - set(self._rules(kept, self.rows))
        gone = {derivation.head for derivation in lost}
        while True:
            more = gone | {
                derivation.head
                for derivation in self._rules(before, self.rows)
                if gone & set(derivation.bodies)
            }
            if more == gone:
                break
            gone = more
        rows = self.rows - gone
        while True:
            more_rows = rows | {derivation.head for derivation in self._rules(after, rows)}
            if more_rows == rows:
                break
            rows = frozenset(more_rows)
        self.rows = frozenset(rows)
        return self.rows


def by_counting(rules: Rules, tables: Tables, rows: frozenset[Row]) -> frozenset[Row]:
    """What is left of `rows` where a row goes only once nothing derives it: what must fail."""
    while True:
        derived = {derivation.head for derivation in rules(tables, rows)}
        if rows <= derived:
            return rows
        rows &= derived


def _each(table: Counter[Row]) -> Iterator[tuple[Row, int]]:
    return ((row, weight) for row, weight in table.items() if weight)


def _is_equal(one: Value, other: Value) -> bool:
    return one is not None and one == other


def reach(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """r(n) <- seeds(n); r(n) <- r(m), links(m, n)."""
    for row, weight in _each(tables["seeds"]):
        yield Derivation(row[:1], (), ((0, row),), weight)
    for row, weight in _each(tables["links"]):
        for body in rows:
            if _is_equal(body[0], row[0]):
                yield Derivation(row[1:2], (body,), ((1, row),), weight)


def right_linear(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """r(x, y) <- links(x, y); r(x, y) <- links(x, z), r(z, y)."""
    for row, weight in _each(tables["links"]):
        yield Derivation(row[:2], (), ((0, row),), weight)
        for body in rows:
            if _is_equal(row[1], body[0]):
                yield Derivation((row[0], body[1]), (body,), ((1, row),), weight)


def left_linear(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """r(x, y) <- links(x, y); r(x, y) <- r(x, z), links(z, y)."""
    for row, weight in _each(tables["links"]):
        yield Derivation(row[:2], (), ((0, row),), weight)
        for body in rows:
            if _is_equal(body[1], row[0]):
                yield Derivation((body[0], row[1]), (body,), ((1, row),), weight)


def two_keys(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """r(x, y) <- links(x, y); r(y, x) <- r(x, y), links(x, y)."""
    for row, weight in _each(tables["links"]):
        yield Derivation(row[:2], (), ((0, row),), weight)
        for body in rows:
            if _is_equal(body[0], row[0]) and _is_equal(body[1], row[1]):
                yield Derivation((body[1], body[0]), (body,), ((1, row),), weight)


def closure(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """r(x, y) <- links(x, y); r(x, y) <- r(x, z), r(z, y)."""
    for row, weight in _each(tables["links"]):
        yield Derivation(row[:2], (), ((0, row),), weight)
    for left in rows:
        for right in rows:
            if _is_equal(left[1], right[0]):
                yield Derivation((left[0], right[1]), (left, right), (), 1)


def same_generation(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """s(x, y) <- seeds(x), seeds(y) of one row; s(x, y) <- links(x, a), s(a, b), links(y, b)."""
    for row, weight in _each(tables["seeds"]):
        yield Derivation((row[0], row[0]), (), ((0, row),), weight)
    for up, weight in _each(tables["links"]):
        for down, other in _each(tables["links"]):
            for body in rows:
                if _is_equal(up[1], body[0]) and _is_equal(body[1], down[1]):
                    leaves = ((1, up), (2, down))
                    yield Derivation((up[0], down[0]), (body,), leaves, weight * other)


def two_branches(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """r(n) <- seeds(n); r(n) <- r(m), links(m, n); r(n) <- links(_, n), n = 1: without a body."""
    yield from reach(tables, rows)
    for row, weight in _each(tables["links"]):
        if row[1] == 1:
            yield Derivation(row[1:2], (), ((2, row),), weight)


def both_ways(tables: Tables, rows: frozenset[Row]) -> Iterator[Derivation]:
    """r(n) <- seeds(n); r(n) <- r(m), links(m, n); r(n) <- r(m), links(n, m)."""
    yield from reach(tables, rows)
    for row, weight in _each(tables["links"]):
        for body in rows:
            if _is_equal(body[0], row[1]):
                yield Derivation(row[:1], (body,), ((2, row),), weight)


class Beyond(Exception):
    """There are rows in too many levels, or too many rows."""


def levels_of(
    rules: Rules, tables: Tables, most_levels: int, most_rows: int
) -> tuple[list[Counter[Row]], list[Derivation]]:
    """The rows of every level with their weights, and what derives them, each with its own.

    Of one level each derives the next, by rules of one body. Beyond where there are rows beyond
    `most_levels`, or `most_rows` of them.
    """
    base = list(rules(tables, frozenset()))
    derivations = list(base)
    levels = [weights_of(base)]
    while levels[-1]:
        if len(levels) > most_levels:
            raise Beyond("levels")
        if sum(level.total() for level in levels) >= most_rows:
            raise Beyond("rows")
        last = levels[-1]
        result = [
            replace(one, weight=one.weight * last[one.bodies[0]])
            for one in rules(tables, frozenset(last))
            if one.bodies
        ]
        derivations += result
        levels.append(weights_of(result))
    return levels[:-1], derivations


BAGS: Mapping[str, Rules] = {
    "reach": reach,
    "right-linear": right_linear,
    "same generation": same_generation,
    "both ways": both_ways,
}
"""Those in which every row is derived from one."""

PROGRAMS: Mapping[str, Rules] = {
    "reach": reach,
    "right-linear": right_linear,
    "left-linear": left_linear,
    "two keys": two_keys,
    "closure": closure,
    "same generation": same_generation,
    "two branches": two_branches,
}
