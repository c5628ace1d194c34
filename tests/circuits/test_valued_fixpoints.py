"""Best rows followed as keys with a value each: what is taken for that, and that nothing differs.

Law tested: whether a step is followed so, is not, or is given up anywhere in it and begun again by
the operators, rows, derivations, ranks and what they count, the join's rows, best values and
fragments are those of a recount over the tables. On circles, ties, costs of 0, duplicates, several
sources, and now and then NULL; state is stored and taken up in between.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from impctl.compile.session import MaintainedQuery
from impctl.data.vector import INT64_MAX, Ints, Vector
from impctl.engine.fixpoint import best_values, relaxation
from impctl.engine.fixpoint.best_values import NotThisWayError, ValuedRows
from impctl.engine.fixpoint.fixpoint import BestFixpoint, Fixpoint
from impctl.engine.fixpoint.relaxation import OneByOne
from impctl.engine.join import Join
from impctl.engine.operator import Limits
from impctl.engine.trace import RowIndex
from impctl.errors import EvaluationError
from tests.circuits.test_best_fixpoints import CHEAPEST, DRAWN, FROM_SEEDS, QUERIES, Case, change_of
from tests.support.carried_queries import Row, best_ranked
from tests.support.random_cases import random_cases
from tests.support.restored_query import Stored, restored, sketches_of

MIN, MAX = (f"SELECT n, {best}(c) AS c FROM r GROUP BY n" for best in ("min", "max"))
VALUED = {
    "cheapest": CHEAPEST + MIN,
    "falling": FROM_SEEDS.format("r.c - l.w", "") + MAX,
    "components": FROM_SEEDS.format("r.c", "") + MIN,
    "highest label": FROM_SEEDS.format("r.c", "") + MAX,
    "hops": FROM_SEEDS.format("1L + r.c", "") + MIN,
    "fees": FROM_SEEDS.format("r.c + l.w + 2", "") + MIN,
    "fees first": FROM_SEEDS.format("l.w + r.c + 2", "") + MIN,
    "losses": FROM_SEEDS.format("r.c - 1L - l.w", "") + MAX,
    "the table first": (
        "WITH RECURSIVE r(n, c) AS (SELECT a, w FROM seeds UNION SELECT l.b, r.c + l.w"
        " FROM links l JOIN r ON r.n = l.a) " + MIN
    ),
    "value first": (
        "WITH RECURSIVE r(c, n) AS (SELECT w, a FROM seeds UNION SELECT r.c + l.w, l.b"
        " FROM r JOIN links l ON r.n = l.a) " + MIN
    ),
}
STEPS: dict[str, Callable[[int, int], int]] = {
    "falling": lambda c, w: c - w,
    "components": lambda c, _: c,
    "highest label": lambda c, _: c,
    "hops": lambda c, _: c + 1,
    "fees": lambda c, w: c + w + 2,
    "fees first": lambda c, w: c + w + 2,
    "losses": lambda c, w: c - 1 - w,
}
OTHERS = {
    "two columns": FROM_SEEDS.format("r.c + l.w + l.f", "") + MIN,
    "a condition": FROM_SEEDS.format("r.c + l.w", " WHERE l.f < r.n") + MIN,
    "both ways": FROM_SEEDS.format("r.c + l.w", " AND l.b = r.n") + MIN,
}
OF_OTHERS = ("widest", "smoothest", "pairs", "cost and hops", "two ways", "cheapest, bounded")

THRESHOLDS = (
    (relaxation, "_AT_ONCE", 1),
    (best_values, "_MANY_ROWS", 2),
    (best_values, "_DENSE", 0),
    (best_values, "_FEW", 1),
    (best_values, "_MOST_WAITING", 2),
)
"""What many rows or keys are, brought down to where tables here are large."""


def fixpoint_of(query: MaintainedQuery) -> BestFixpoint:
    (result,) = (one for one in query.circuit if isinstance(one, BestFixpoint))
    return result


def query_of(sql: str) -> tuple[Case, MaintainedQuery]:
    case = Case(sql)
    return case, MaintainedQuery(case.compiled(with_answer=False))


@pytest.mark.parametrize("name", VALUED)
def test_what_goes_on_from_a_value_is_taken_for_that(name: str) -> None:
    assert fixpoint_of(query_of(VALUED[name])[1])._valued is not None


@pytest.mark.parametrize("name", [*OTHERS, *OF_OTHERS])
def test_what_does_more_is_not(name: str) -> None:
    assert fixpoint_of(query_of({**QUERIES, **OTHERS}[name])[1])._valued is None


def test_where_less_is_not_better_there_are_no_best_rows() -> None:
    # What is taken from grows as the value falls.
    _, query = query_of(FROM_SEEDS.format("l.w - r.c", "") + MIN)
    (result,) = (one for one in query.circuit if isinstance(one, BestFixpoint | Fixpoint))
    assert isinstance(result, Fixpoint)


class Given:
    """What a step was followed by: counts, and where to give up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rng: random.Random, way: str) -> None:
        self.followed = 0
        self.given_up = 0
        self.begun_one_by_one = 0
        """Steps that were begun so and then followed at once."""
        self._left = 10**9
        self._rng, self._way = rng, way
        of, keep = ValuedRows.slots_of, relaxation.ValuedChanges.keep
        settle = OneByOne.settle

        def some_of(rows: ValuedRows, keys: Ints) -> Ints:
            self._left -= 1
            if self._left < 0:
                self.given_up += 1
                raise NotThisWayError
            return of(rows, keys)

        def kept(changes: relaxation.ValuedChanges) -> object:
            self._left = 10**9
            self.followed += 1
            return keep(changes)

        def settled(*args: Any) -> Ints | None:
            result = settle(*args)
            self.begun_one_by_one += result is None
            return result

        for module, name, few in THRESHOLDS:
            if rng.random() < 0.6:
                monkeypatch.setattr(module, name, few)
        monkeypatch.setattr(ValuedRows, "slots_of", some_of)
        monkeypatch.setattr(relaxation.ValuedChanges, "keep", kept)
        monkeypatch.setattr(OneByOne, "settle", settled)

    def begin(self, query: MaintainedQuery) -> None:
        """A step follows."""
        fixpoint = fixpoint_of(query)
        if self._way == "never":
            fixpoint._valued = None
        fixpoint.few = {"at once": -1, "one by one": 10**9}.get(
            self._way, self._rng.choice((0, 1, 2, 3, 8))
        )
        if self._way == "given up":
            self._left = self._rng.choice((0, 1, 2, 4, 10**9))


def some_links(rng: random.Random, nodes: int, most: int, nulls: float) -> list[Row]:
    return [
        {
            "a": rng.randrange(nodes),
            "b": rng.randrange(nodes),
            "w": None if rng.random() < nulls else rng.choice((0, 0, 1, 1, 2, 5)),
            "f": rng.randrange(4),
        }
        for _ in range(most)
    ]


def derivations(
    name: str, tables: dict[str, list[Row]], inside: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[int, int | None, int]]:
    """Key, value and rank of the body, of all that is derived."""
    step = STEPS.get(name, lambda c, w: c + w)
    for row in tables["seeds"]:
        yield row["a"], row["w"], -1  # type: ignore[misc]
    for key, value, rank in inside:
        for row in tables["links"]:
            if row["a"] != key:
                continue
            has_none = row["w"] is None and step(0, 5) != step(0, 6)
            yield row["b"], None if has_none else step(value, row["w"] or 0), rank  # type: ignore[misc]


def _pairs(fixpoint: BestFixpoint, columns: Mapping[str, Vector]) -> list[tuple[int, int | None]]:
    """Key and value of rows."""
    grouped = fixpoint.rows.grouped
    names = (grouped.keys[0], grouped.values[0][0])
    return list(zip(*(columns[name].to_arrow().to_pylist() for name in names), strict=True))


def check(name: str, case: Case, query: MaintainedQuery, tables: dict[str, list[Row]]) -> None:
    """All that is kept, against a recount."""
    fixpoint = fixpoint_of(query)
    held = fixpoint.rows
    key, value = held.grouped.keys[0], held.grouped.values[0][0]
    ranked = best_ranked(held)
    rows = [(row[key], row[value], rank) for row, rank, _ in ranked]
    # What is NULL may stand on more that is NULL, which is not followed here.
    known = [row for row in rows if row[1] is not None]
    result = list(derivations(name, tables, known))
    best = max if "max(" in VALUED[name] else min
    values: dict[int, int] = {}
    for head, made, _ in result:
        if made is not None:
            values[head] = best(made, values.get(head, made))
    assert {head: made for head, made, _ in known} == values
    assert len(rows) == len({head for head, _, _ in rows}) == fixpoint._count
    rank = {head: at for head, _, at in known}
    low: Counter[int] = Counter()
    for head, made, body in result:
        low[head] += made is not None and made == values[head] and body < rank[head]
    assert all(low[head] for head in rank)
    told = {row[key]: low for row, _, low in ranked}
    assert {head: low[head] for head in rank} == {head: told[head] for head in rank}
    if len(known) == len(rows):
        every: Counter[tuple[int, int | None]] = Counter()
        whole = held.derived.whole()
        for pair, weight in zip(
            _pairs(fixpoint, whole.columns) if len(whole) else [], whole.weights, strict=True
        ):
            every[pair] += weight
        assert every == Counter((head, made) for head, made, _ in result)
    assert sorted(own_rows(fixpoint), key=repr) == sorted(rows, key=repr)
    assert sketches_of(query) == case.expected(tables)


def own_rows(fixpoint: BestFixpoint) -> list[tuple[int | None, ...]]:
    """The join's rows of the fixpoint."""
    (join,) = (one for one in fixpoint._step if isinstance(one, Join))
    (index,) = (one for one in join.indexes if any("rank" in name for name, _ in one.columns))
    assert isinstance(index, RowIndex)
    rows = index.whole()
    if not len(rows):
        return []
    assert bool((rows.weights == 1).all())
    *own, rank = (rows.columns[name].to_arrow().to_pylist() for name, _ in index.columns)
    key = next(at for at, (name, _) in enumerate(index.columns) if name.endswith(".n"))
    return list(zip(own[key], own[1 - key], rank, strict=True))


@pytest.mark.parametrize("way", ["at once", "one by one", "some of either", "never", "given up"])
@random_cases(1, 3, 10)
def test_all_that_is_kept_is_that_of_a_recount(
    monkeypatch: pytest.MonkeyPatch, cases: range, way: str
) -> None:
    given_up = 0
    for name, seed in product(VALUED, cases):
        with monkeypatch.context() as patch:
            given_up += recounted(patch, name, seed, way)
    assert (given_up > 0) == (way == "given up")


def recounted(monkeypatch: pytest.MonkeyPatch, name: str, seed: int, way: str) -> int:
    """How many steps were given up, of a few or of many."""
    rng = random.Random(f"{name} {seed} {way}")
    given = Given(monkeypatch, rng, way)
    case, query = query_of(VALUED[name])
    query.circuit.end_by(Limits(rounds=300))
    nodes, nulls = rng.choice(((4, 0.0), (12, 0.0), (12, 0.02), (30, 0.0)))
    links = some_links(rng, nodes, rng.choice((nodes, 2 * nodes, 3 * nodes)), nulls)
    seeds: list[Row] = [{"a": rng.randrange(nodes), "w": rng.randrange(3), "f": 0} for _ in "ab"]
    tables = {"links": links, "seeds": seeds}
    given.begin(query)
    query.load(DRAWN.whole(tables))
    check(name, case, query, tables)
    stored = Stored()
    turns = rng.choice((4, 5, 7, 16))
    for turn in range(turns):
        changes = {}
        for table, rows in tables.items():
            if table == "seeds" and rng.random() < 0.7:
                continue
            most = rng.choice((1, 1, 2, 6))
            came = some_links(rng, nodes, rng.randint(0, most), nulls)
            # Some of them twice, some again what is there.
            came += came[:1] + rng.sample(rows, min(len(rows), rng.randint(0, 1)))
            gone = rng.sample(rows, min(len(rows), rng.randint(0, most)))
            for row in gone:
                rows.remove(row)
            if table == "seeds":
                came = [{**row, "w": rng.randrange(4)} for row in came if not nulls][:2]
            rows += came
            weights = [1] * len(came) + [-1] * len(gone)
            changes[table] = change_of(table, came + gone, weights)
        given.begin(query)
        query.step(changes)
        check(name, case, query, tables)
        if turn % 6 == 3:
            query = restored(query, stored, MaintainedQuery(case.compiled(with_answer=False)))
            query.circuit.end_by(Limits(rounds=300))
    if way == "never":
        assert not given.followed
    elif way != "given up":
        assert given.followed > (turns // 4 if nulls else turns), (name, seed)
        assert not given.begun_one_by_one or nulls or way == "some of either"
    return given.given_up


def row(a: int, b: int, w: int) -> Row:
    return {"a": a, "b": b, "w": w, "f": 0}


@pytest.mark.parametrize("way", ["at once", "one by one"])
@pytest.mark.parametrize("more", [-1, 1 << 60])
def test_links_that_take_away_or_go_far_are_left_to_the_operators(
    monkeypatch: pytest.MonkeyPatch, way: str, more: int
) -> None:
    """A circle that takes away would be followed for as long as there are limits."""
    given = Given(monkeypatch, random.Random(way), way)
    case, query = query_of(VALUED["cheapest"])
    tables = {"links": [row(1, 2, 5), row(2, 3, more)], "seeds": [row(1, 0, 0)]}
    query.load(DRAWN.whole(tables))
    # What leads on from 2 is asked for where 2 itself has another value.
    for link in (row(1, 4, 1), row(1, 2, 3)):
        tables["links"].append(link)
        given.begin(query)
        query.step({"links": change_of("links", [link], [1])})
        check("cheapest", case, query, tables)
        assert given.followed == 1


@pytest.mark.parametrize("way", ["at once", "one by one"])
@pytest.mark.parametrize(("added", "best", "sign"), [("r.c - l.w", MIN, -1), ("r.c + l.w", MAX, 1)])
@pytest.mark.parametrize("more", [2, -2])
def test_what_makes_values_better_or_worse_is_told_by_its_sign(
    monkeypatch: pytest.MonkeyPatch, way: str, added: str, best: str, sign: int, more: int
) -> None:
    """Links that make them better are left to the operators, those that make them worse are not."""
    given = Given(monkeypatch, random.Random(way), way)
    _, query = query_of(FROM_SEEDS.format(added, "") + best)
    query.load(DRAWN.whole({"links": [row(2, 3, more)], "seeds": [row(1, 0, 10)]}))
    given.begin(query)
    given.followed = 0
    query.step({"links": change_of("links", [row(1, 2, more)], [1])})
    fixpoint = fixpoint_of(query)
    step = sign * more
    rows = dict(_pairs(fixpoint, fixpoint.output().columns))
    assert rows == {1: 10, 2: 10 + step, 3: 10 + 2 * step}
    assert given.followed == (more < 0)


@pytest.mark.parametrize("way", ["at once", "one by one"])
def test_what_goes_beyond_all_numbers_is_an_error(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    given = Given(monkeypatch, random.Random(way), way)
    _, query = query_of(VALUED["cheapest"])
    query.load(DRAWN.whole({"links": [row(2, 3, INT64_MAX)], "seeds": [row(1, 0, 0)]}))
    given.begin(query)
    with pytest.raises(EvaluationError) as raised:
        query.step({"links": change_of("links", [row(1, 2, 3)], [1])})
    assert raised.value.code == "arithmetic_overflow"
