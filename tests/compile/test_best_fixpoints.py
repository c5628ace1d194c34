"""Fixpoints that keep the best row of each group, compared with the slow reference."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product

import pytest

from impctl.compile.session import MaintainedQuery
from impctl.data.vector import INT64_MAX, Ints, Vector
from impctl.engine import trace
from impctl.engine.fixpoint import best_values, relaxation
from impctl.engine.fixpoint.best_values import NotIntegerStepError, ValuedRows
from impctl.engine.fixpoint.fixpoint import BestFixpoint
from impctl.engine.fixpoint.fixpoint import FixpointOperator as EngineFixpoint
from impctl.engine.join import JoinOperator
from impctl.engine.operator import Limits
from impctl.errors import CountBelowZeroError, EvaluationError, UnsupportedError
from impctl.plan.nodes import Fixpoint
from tests.support.carried_queries import (
    Case,
    Drawn,
    Row,
    Stored,
    best_ranked,
    range_id,
    restored,
    rows_kept,
    sketches_of,
)
from tests.support.random_cases import random_cases
from tests.support.reference_plan import bag, evaluate

COLUMNS = {"links": ("a", "b", "w", "f"), "seeds": ("a", "w", "f")}
NODES = 6


def random_row(rng: random.Random, name: str) -> Row:
    values: dict[str, int | None] = {}
    for column in COLUMNS[name]:
        most = {"w": 4, "f": 4}.get(column, NODES)
        values[column] = rng.randrange(most) if rng.random() > 0.06 else None
    return values


DRAWN = Drawn(COLUMNS, random_row)
change_of = DRAWN.change_of

FROM_SEEDS = (
    "WITH RECURSIVE r(n, c) AS (SELECT a, w FROM seeds UNION"
    " SELECT l.b, {} FROM r JOIN links l ON r.n = l.a{}) "
)
CHEAPEST = FROM_SEEDS.format("r.c + l.w", "")
PATHS = (
    "WITH RECURSIVE r(x, y, via, hops, c) AS (SELECT a, b, b, 1L, w + 1L FROM links"
    " WHERE a < 2 AND w IS NOT NULL UNION SELECT r.x, l.b, l.a, r.hops + 1L, r.c + l.w + 1L"
    " FROM r JOIN links l ON r.y = l.a WHERE l.w IS NOT NULL) "
)
BY_PAIR = " FROM r GROUP BY x, y"

QUERIES = {
    "cheapest": CHEAPEST + "SELECT n, min(c) AS c FROM r GROUP BY n",
    "cheapest, bounded": FROM_SEEDS.format("r.c + l.w", " WHERE r.c + l.w < 5")
    + "SELECT n, min(c) AS c FROM r GROUP BY n HAVING min(c) > 1",
    "to one": CHEAPEST + "SELECT min(c) AS c FROM r WHERE n = 3 AND c < 9",
    "over kinds": CHEAPEST
    + "SELECT s.w, min(r.c) AS c FROM r JOIN seeds s ON r.n = s.a GROUP BY s.w",
    "widest": FROM_SEEDS.format("least(r.c, l.w)", "") + "SELECT n, max(c) AS c FROM r GROUP BY n",
    "smoothest": FROM_SEEDS.format("greatest(r.c, l.w)", "")
    + "SELECT n, min(c) AS c FROM r GROUP BY n",
    "components": FROM_SEEDS.format("r.c", "") + "SELECT n, min(c) AS c FROM r GROUP BY n",
    "highest label": FROM_SEEDS.format("r.c", "") + "SELECT n, max(c) AS c FROM r GROUP BY n",
    "least and greatest label": FROM_SEEDS.format("r.c", "")
    + "SELECT n, min(c) AS c, max(c) AS d FROM r GROUP BY n",
    "falling": FROM_SEEDS.format("r.c - l.w", "") + "SELECT n, max(c) AS c FROM r GROUP BY n",
    "pairs": PATHS + "SELECT x, y, min(c) AS c" + BY_PAIR,
    "cost and hops": PATHS + "SELECT x, y, min(c) AS c, min(hops) AS h" + BY_PAIR,
    "cheapest rows": PATHS
    + ", m AS (SELECT x, y, min(c) AS c"
    + BY_PAIR
    + ") SELECT r.x, r.y, r.via, r.hops FROM r JOIN m ON r.x = m.x AND r.y = m.y AND r.c = m.c",
    "two ways": (
        "WITH RECURSIVE r(n, c) AS (SELECT a, w FROM seeds UNION SELECT * FROM ("
        "SELECT l.b, r.c + l.w FROM r JOIN links l ON r.n = l.a UNION ALL"
        " SELECT l.a, r.c + 3L FROM r JOIN links l ON r.n = l.b UNION ALL"
        " SELECT b, w FROM links WHERE a = 5) x) SELECT n, min(c) AS c FROM r GROUP BY n"
    ),
    "no groups": "WITH RECURSIVE r(c) AS (SELECT w FROM seeds UNION SELECT r.c + s.w FROM r"
    " CROSS JOIN seeds s WHERE s.a = 1 AND r.c < 7) SELECT min(c) AS c FROM r",
    "not the dearest": CHEAPEST
    + "SELECT a FROM seeds WHERE a NOT IN (SELECT n FROM r GROUP BY n HAVING min(c) > 3)",
}


def over_sketches(
    case: Case, tables: Mapping[str, Sequence[Row]], sketches: Mapping[str, set[int]]
) -> object:
    """The query's rows over the sketches."""
    table = {scan.access: scan.table for scan in case.core.scans}
    instances = {
        access: [
            index for index, row in enumerate(tables[table[access]]) if range_id(row) in ranges
        ]
        for access, ranges in sketches.items()
    }
    return bag(evaluate(case.ruled.root, tables, instances))


@pytest.mark.parametrize("name", QUERIES)
@random_cases(2, 3, 12)
def test_sketches_and_rows_match_the_reference(name: str, cases: range) -> None:
    case = DRAWN.case(QUERIES[name])
    assert all(n.best for n in case.core.walk() if isinstance(n, Fixpoint))
    for seed in cases:
        with_answer = seed % 2 == 0
        rng = random.Random(f"{name} {seed}")
        tables = DRAWN.some_tables(rng, {"links": 9, "seeds": 2})
        compiled = partial(case.compiled, with_answer=with_answer)
        for query in DRAWN.carried(rng, tables, compiled, 6, (1, 1, 3, 6), Limits(rounds=300)):
            sketches = case.expected(tables)
            assert sketches_of(query) == sketches, seed
            if with_answer:
                rows_now = bag(evaluate(case.ruled.root, tables))
                assert rows_kept(query, case.ruled) == rows_now, seed
                assert over_sketches(case, tables, sketches) == rows_now, seed


def ranked(query: MaintainedQuery) -> list[tuple[int | None, int | None, int, int]]:
    """Node, cost, rank and low of all stored rows."""
    return [(*row.values(), rank, low) for row, rank, low in best_ranked(fixpoint_of(query).rows)]


def best_of(query: MaintainedQuery) -> list[tuple[int | None, int | None]]:
    """Node and cost."""
    return sorted((row[:2] for row in ranked(query)), key=repr)


def test_having_on_best_values_needs_all_best_rows() -> None:
    """1 -> 2 costs 5 or 1, 1 -> 3 costs 4. Only node 3 passes `HAVING MIN(c) > 3`. Without the row
    of cost 1, node 2 would pass with 5, so the sketch needs it."""
    case, query = query_of(
        "WITH RECURSIVE r(n, c) AS (SELECT b, w FROM links WHERE a = 1 UNION SELECT l.b, r.c + l.w"
        " FROM r JOIN links l ON r.n = l.a) SELECT n, min(c) AS c FROM r GROUP BY n HAVING min(c)>3"
    )
    rows = [{**row(1, b, w), "f": f} for b, w, f in ((2, 5, 0), (2, 1, 1), (3, 4, 2))]
    query.step({"links": change_of("links", rows, [1, 1, 1])})
    base, step = (scan.access for scan in case.core.scans)
    assert sketches_of(query) == {base: {1, 2}, step: set()}
    assert evaluate(case.query.root, {"links": rows[1:]}) == [(3, 4)]
    assert len(evaluate(case.query.root, {"links": rows[::2]})) == 2


def test_negative_cycles_hit_the_limit() -> None:
    _, query = query_of(QUERIES["cheapest"])
    query.circuit.end_by(Limits(rounds=50))
    links, seeds = [row(1, 2, 1), row(2, 1, -1), row(2, 1, -2)], [row(1, 0, 0)]
    query.step(
        {"links": change_of("links", links[:2], [1, 1]), "seeds": change_of("seeds", seeds, [1])}
    )
    assert best_of(query) == [(1, 0), (2, 1)]
    with pytest.raises(UnsupportedError, match="exceeds its limit of 50 rounds") as caught:
        query.step({"links": change_of("links", links[2:], [1])})
    assert "a cycle that keeps improving the value" in str(caught.value.hint)


def test_deleting_a_missing_row_fails() -> None:
    _, query = query_of(QUERIES["cheapest"])
    with pytest.raises(CountBelowZeroError):
        query.step({"seeds": change_of("seeds", [row(1, 0, 0)], [-1])})


def test_only_best_rows_are_kept() -> None:
    """A thousand links to one node leave one row."""
    _, query = query_of(QUERIES["cheapest"])
    links = [row(1, 2, cost) for cost in range(1000)]
    query.step({"links": change_of("links", links, [1] * 1000)})
    query.step({"seeds": change_of("seeds", [row(1, 0, 0)], [1])})
    assert best_of(query) == [(1, 0), (2, 0)]
    query.step({"links": change_of("links", links[:500], [-1] * 500)})
    assert best_of(query) == [(1, 0), (2, 500)]


def _stepped(name: str, *changes: Mapping[str, Sequence[tuple[int | None, ...]]]) -> list[object]:
    """Nodes and values that are stored after steps of insertions."""
    _, query = query_of(QUERIES[name])
    for change in changes:
        batch = {}
        for table, rows in change.items():
            named = [dict(zip(COLUMNS[table], (*row, 0), strict=True)) for row in rows]
            batch[table] = change_of(table, named, [1] * len(rows))
        query.step(batch)
    return best_of(query)


def test_null_may_lead_to_a_better_value() -> None:
    """greatest(NULL, 3) is 3."""
    seeds = [(1, None), (1, 5)]
    links = {"links": [(1, 2, 3)]}
    for changes in (
        ({"seeds": seeds, **links},),
        ({"seeds": seeds[1:], **links}, {"seeds": seeds[:1]}),
    ):
        assert _stepped("smoothest", *changes) == [(1, 5), (1, None), (2, 3)]


def test_equal_values_derive_from_the_better_row() -> None:
    """The greatest cost of the path is 7 whether it begins with 5 or 3."""
    links = [(1, 2, 7), (2, 3, 1)]
    result = _stepped("smoothest", {"links": links, "seeds": [(1, 5)]}, {"seeds": [(1, 3)]})
    assert result == [(1, 3), (2, 7), (3, 7)]


def test_beaten_rows_are_not_in_the_lineage() -> None:
    """2 costs 3 before 1 is followed, and leads to 3 at the same cost, which derives itself."""
    case, query = query_of(QUERIES["smoothest"])
    seeds = [{"a": 1, "w": 0, "f": 0}, {"a": 2, "w": 3, "f": 2}]
    tables = {"links": [row(1, 2, 1), row(2, 3, 3), row(3, 3, 0)], "seeds": seeds}
    query.load(DRAWN.whole(tables))
    assert best_of(query) == [(1, 0), (2, 1), (3, 3)]
    sketches = sketches_of(query)
    assert sketches["seeds#1"] == {0}
    assert sketches == case.expected(tables)


@pytest.mark.parametrize(("name", "last"), [("components", 2**63 - 1), ("highest label", -(2**63))])
def test_null_is_not_an_extreme_value(name: str, last: int) -> None:
    result = _stepped(name, {"seeds": [(1, last), (1, None), (2, None)]})
    assert result == [(1, last), (2, None)]


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
    (trace, "_MOST_BATCHES", 2),
)
"""Thresholds for many rows or keys, lowered so that small tables exceed them."""


def fixpoint_of(query: MaintainedQuery) -> BestFixpoint:
    (result,) = (one for one in query.circuit if isinstance(one, BestFixpoint))
    return result


def query_of(sql: str) -> tuple[Case, MaintainedQuery]:
    case = DRAWN.case(sql)
    return case, MaintainedQuery(case.compiled(with_answer=False))


@pytest.mark.parametrize("name", [*VALUED, *OTHERS, *OF_OTHERS])
def test_which_queries_are_followed_by_value(name: str) -> None:
    fixpoint = fixpoint_of(query_of({**QUERIES, **OTHERS, **VALUED}[name])[1])
    assert (fixpoint._valued is not None) == (name in VALUED)


def test_decreasing_steps_have_no_best_rows() -> None:
    # The result grows when the value falls.
    _, query = query_of(FROM_SEEDS.format("l.w - r.c", "") + MIN)
    (result,) = (one for one in query.circuit if isinstance(one, BestFixpoint | EngineFixpoint))
    assert isinstance(result, EngineFixpoint)


class FollowedSteps:
    """Counts steps followed by value, and makes some of them give up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rng: random.Random, mode: str) -> None:
        self.followed = 0
        self.given_up = 0
        self._left = 10**9
        self._rng, self._mode = rng, mode
        key_slots, keep = ValuedRows.key_slots, relaxation.ValuedChanges.keep

        def limited_key_slots(rows: ValuedRows, keys: Ints) -> Ints:
            self._left -= 1
            if self._left < 0:
                self.given_up += 1
                raise NotIntegerStepError
            return key_slots(rows, keys)

        def counted_keep(changes: relaxation.ValuedChanges) -> object:
            self._left = 10**9
            self.followed += 1
            return keep(changes)

        for module, name, few in THRESHOLDS:
            if rng.random() < 0.6:
                monkeypatch.setattr(module, name, few)
        monkeypatch.setattr(ValuedRows, "key_slots", limited_key_slots)
        monkeypatch.setattr(relaxation.ValuedChanges, "keep", counted_keep)

    def begin(self, query: MaintainedQuery) -> None:
        """Call before each step."""
        if self._mode == "never":
            fixpoint_of(query)._valued = None
        if self._mode == "given up":
            self._left = self._rng.choice((0, 1, 2, 4, 10**9))


def random_links(rng: random.Random, nodes: int, most: int, nulls: float) -> list[Row]:
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
    """Key, value and rank of the body of all derivations."""
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


def check(name: str, query: MaintainedQuery, tables: dict[str, list[Row]]) -> None:
    """Compare the whole state with a recount."""
    fixpoint = fixpoint_of(query)
    stored = fixpoint.rows
    key, value = stored.grouped.keys[0], stored.grouped.values[0][0]
    ranked = best_ranked(stored)
    rows = [(row[key], row[value], rank) for row, rank, _ in ranked]
    # NULL rows may derive from other NULL rows, which is not checked here.
    known = [row for row in rows if row[1] is not None]
    result = list(derivations(name, tables, known))
    best = max if "max(" in VALUED[name] else min
    values: dict[int, int] = {}
    for head, derived, _ in result:
        if derived is not None:
            values[head] = best(derived, values.get(head, derived))
    assert {head: derived for head, derived, _ in known} == values
    assert len(rows) == len({head for head, _, _ in rows}) == fixpoint._count
    rank = {head: row_rank for head, _, row_rank in known}
    low: Counter[int] = Counter()
    for head, derived, body in result:
        low[head] += derived is not None and derived == values[head] and body < rank[head]
    assert all(low[head] for head in rank)
    reported_low = {row[key]: low for row, _, low in ranked}
    assert {head: low[head] for head in rank} == {head: reported_low[head] for head in rank}
    if len(known) == len(rows):
        every: Counter[tuple[int, int | None]] = Counter()
        whole = stored.derived.whole()
        for pair, weight in zip(
            _pairs(fixpoint, whole.columns) if len(whole) else [], whole.weights, strict=True
        ):
            every[pair] += weight
        assert every == Counter((head, derived) for head, derived, _ in result)
    assert sorted(join_rows(fixpoint), key=repr) == sorted(rows, key=repr)


def join_rows(fixpoint: BestFixpoint) -> list[tuple[int | None, ...]]:
    """The fixpoint's rows in the index of the join."""
    (join,) = (one for one in fixpoint._step if isinstance(one, JoinOperator))
    (index,) = (one for one in join.indexes if any("rank" in name for name, _ in one.columns))
    rows = index.whole()
    if not len(rows):
        return []
    assert (rows.weights == 1).all()
    *columns, rank = (rows.columns[name].to_arrow().to_pylist() for name, _ in index.columns)
    key = next(position for position, (name, _) in enumerate(index.columns) if name.endswith(".n"))
    return list(zip(columns[key], columns[1 - key], rank, strict=True))


@pytest.mark.parametrize("mode", ["by value", "never", "given up"])
@random_cases(1, 2, 10)
def test_state_matches_a_recount(monkeypatch: pytest.MonkeyPatch, cases: range, mode: str) -> None:
    given_up = 0
    for name, seed in product(VALUED, cases):
        with monkeypatch.context() as patch:
            given_up += recounted(patch, name, seed, mode)
    assert (given_up > 0) == (mode == "given up")


def recounted(monkeypatch: pytest.MonkeyPatch, name: str, seed: int, mode: str) -> int:
    """Returns how many steps gave up."""
    rng = random.Random(f"{name} {seed} {mode}")
    followed_steps = FollowedSteps(monkeypatch, rng, mode)
    case, query = query_of(VALUED[name])
    query.circuit.end_by(Limits(rounds=300))
    nodes, nulls = rng.choice(((4, 0.0), (12, 0.0), (12, 0.02), (30, 0.0)))
    links = random_links(rng, nodes, rng.choice((nodes, 2 * nodes, 3 * nodes)), nulls)
    seeds: list[Row] = [{"a": rng.randrange(nodes), "w": rng.randrange(3), "f": 0} for _ in "ab"]
    tables = {"links": links, "seeds": seeds}
    followed_steps.begin(query)
    query.load(DRAWN.whole(tables))
    check(name, query, tables)
    assert sketches_of(query) == case.expected(tables)
    stored = Stored()
    turns = rng.choice((4, 5, 7, 16))
    for turn in range(turns):
        changes = {}
        for table, rows in tables.items():
            if table == "seeds" and rng.random() < 0.7:
                continue
            most = rng.choice((1, 1, 2, 6))
            inserted = random_links(rng, nodes, rng.randint(0, most), nulls)
            # Duplicates, and copies of existing rows.
            inserted += inserted[:1] + rng.sample(rows, min(len(rows), rng.randint(0, 1)))
            deleted = rng.sample(rows, min(len(rows), rng.randint(0, most)))
            for row in deleted:
                rows.remove(row)
            if table == "seeds":
                inserted = [{**row, "w": rng.randrange(4)} for row in inserted if not nulls][:2]
            rows += inserted
            weights = [1] * len(inserted) + [-1] * len(deleted)
            changes[table] = change_of(table, inserted + deleted, weights)
        followed_steps.begin(query)
        query.step(changes)
        check(name, query, tables)
        if turn % 3 == 0 or turn == turns - 1:
            # The reference takes half of the time.
            assert sketches_of(query) == case.expected(tables)
        if turn % 6 == 3:
            query = restored(query, stored, MaintainedQuery(case.compiled(with_answer=False)))
            query.circuit.end_by(Limits(rounds=300))
    if mode == "never":
        assert not followed_steps.followed
    elif mode != "given up":
        assert followed_steps.followed >= (turns // 4 if nulls else turns + 1), (name, seed)
    return followed_steps.given_up


def row(a: int, b: int, w: int) -> Row:
    return {"a": a, "b": b, "w": w, "f": 0}


@pytest.mark.parametrize("more", [-1, 1 << 60])
def test_negative_and_huge_links_use_the_operators(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """A negative cycle would be followed up to the limit."""
    followed_steps = FollowedSteps(monkeypatch, random.Random(1), "by value")
    case, query = query_of(VALUED["cheapest"])
    tables = {"links": [row(1, 2, 5), row(2, 3, more)], "seeds": [row(1, 0, 0)]}
    query.load(DRAWN.whole(tables))
    # The links from 2 are read when the value of 2 changes.
    for link in (row(1, 4, 1), row(1, 2, 3)):
        tables["links"].append(link)
        followed_steps.begin(query)
        query.step({"links": change_of("links", [link], [1])})
        check("cheapest", query, tables)
        assert sketches_of(query) == case.expected(tables)
        assert followed_steps.followed == 1


@pytest.mark.parametrize(("added", "best", "sign"), [("r.c - l.w", MIN, -1), ("r.c + l.w", MAX, 1)])
@pytest.mark.parametrize("more", [2, -2])
def test_only_worsening_links_are_followed_by_value(
    monkeypatch: pytest.MonkeyPatch, added: str, best: str, sign: int, more: int
) -> None:
    """Links that improve values are left to the operators."""
    followed_steps = FollowedSteps(monkeypatch, random.Random(1), "by value")
    _, query = query_of(FROM_SEEDS.format(added, "") + best)
    query.load(DRAWN.whole({"links": [row(2, 3, more)], "seeds": [row(1, 0, 10)]}))
    followed_steps.begin(query)
    followed_steps.followed = 0
    query.step({"links": change_of("links", [row(1, 2, more)], [1])})
    fixpoint = fixpoint_of(query)
    step = sign * more
    rows = dict(_pairs(fixpoint, fixpoint.output().columns))
    assert rows == {1: 10, 2: 10 + step, 3: 10 + 2 * step}
    assert followed_steps.followed == (more < 0)


def test_overflow_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    followed_steps = FollowedSteps(monkeypatch, random.Random(1), "by value")
    _, query = query_of(VALUED["cheapest"])
    query.load(DRAWN.whole({"links": [row(2, 3, INT64_MAX)], "seeds": [row(1, 0, 0)]}))
    followed_steps.begin(query)
    with pytest.raises(EvaluationError) as raised:
        query.step({"links": change_of("links", [row(1, 2, 3)], [1])})
    assert raised.value.code == "arithmetic_overflow"
