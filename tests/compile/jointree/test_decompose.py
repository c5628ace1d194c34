"""Rooted trees of bags, checked by definition; shapes of queries, checked by their lineage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, combinations, combinations_with_replacement, product
from pathlib import Path
from random import Random

import pytest

from impctl.compile.jointree.decompose import (
    Bag,
    best_rooted,
    branches_of,
    cyclic_cores,
    rooted_at,
    without_ears,
)
from impctl.compile.jointree.graph import NoTree
from impctl.errors import QueryError
from impctl.workload.load import load_workload
from impctl.workload.models import QuerySpec
from tests.compile.jointree import shapes as reference
from tests.compile.jointree.shapes import (
    SNB,
    SYNTHETIC,
    TPCH,
    JoinMaker,
    check,
    core,
    pairs,
    random_tables,
    rejoined,
    shape_text,
    tree_shape,
)
from tests.support.random_cases import random_cases, seen_in
from tests.support.reference_plan import annotate


def bags_of(*texts: str) -> list[Bag]:
    """Bags of classes that are named by letters."""
    return [frozenset(ord(letter) for letter in text) for text in texts]


def subsets(classes: int) -> list[Bag]:
    every = range(classes)
    from_iterable = chain.from_iterable(combinations(every, size) for size in range(classes + 1))
    return [frozenset(one) for one in from_iterable]


def all_hypergraphs(edges: int, classes: int) -> Iterator[tuple[Bag, ...]]:
    for size in range(1, edges + 1):
        yield from combinations_with_replacement(subsets(classes), size)


def random_hypergraphs(count: int, edges: int, classes: int) -> Iterator[tuple[Bag, ...]]:
    rng = Random(7)
    for _ in range(count):
        share = rng.uniform(0.1, 0.7)
        yield tuple(
            frozenset(one for one in range(classes) if rng.random() < share)
            for _ in range(rng.randint(1, edges))
        )


def check_rooted(bags: Sequence[Bag]) -> bool:
    """Check one hypergraph from every root. Returns whether it is acyclic."""
    expected = reference.is_acyclic(bags)
    assert (not without_ears(bags)) == expected
    for root in range(len(bags)):
        tree = rooted_at(root, bags)
        assert tree.root == root
        assert reference.has_running_intersection(bags, tree.parents) == expected
        assert all(
            tree.depths[index] == len(tree.path_to_root(index)) - 1 for index in range(len(bags))
        )
    return expected


def merged(bags: Sequence[Bag], cores: Sequence[frozenset[int]]) -> list[Bag]:
    parts: list[frozenset[int]] = [frozenset({index}) for index in range(len(bags))]
    for cyclic in cores:
        touched = [part for part in parts if part & cyclic]
        parts = [part for part in parts if not part & cyclic]
        parts.append(frozenset().union(*touched))
    return [frozenset().union(*(bags[index] for index in part)) for part in parts]


def check_cores(bags: Sequence[Bag]) -> None:
    """Each round of merging reduces the bags until none are cyclic."""
    left = list(bags)
    while not reference.is_acyclic(left):
        fewer = merged(left, cyclic_cores(left))
        assert len(fewer) < len(left)
        left = fewer
    assert not cyclic_cores(left)


def test_all_small_hypergraphs() -> None:
    result = [check_rooted(bags) for bags in all_hypergraphs(4, 3)]
    assert 0 < sum(result) < len(result)


@pytest.mark.parametrize("size", [(5, 5), (8, 7)])
@pytest.mark.parametrize("count", [250, pytest.param(1500, marks=pytest.mark.slow)])
def test_random_hypergraphs(size: tuple[int, int], count: int) -> None:
    result = [check_rooted(bags) for bags in random_hypergraphs(count, *size)]
    assert 0.05 < 1 - sum(result) / len(result) < 0.9
    for bags in random_hypergraphs(count, *size):
        check_cores(bags)


@pytest.mark.slow
@pytest.mark.long
def test_all_hypergraphs_with_five_edges_over_five_classes() -> None:
    for bags in all_hypergraphs(5, 5):
        check_rooted(bags)
        check_cores(bags)


@pytest.mark.parametrize(
    ("texts", "cores"),
    [
        (("ab", "bc", "cd"), []),
        (("ab", "bc", "ca"), ["012"]),
        (("ab", "bc", "cd", "da"), ["0123"]),
        (("ab", "bc", "ca", "ax"), ["012"]),
        (("ab", "bc", "ca", "cd", "de", "ef", "fd"), ["012", "456"]),
        (("ab", "bc", "ca", "cx", "xy", "xz"), ["012"]),
    ],
)
def test_cyclic_cores_exclude_other_edges(texts: tuple[str, ...], cores: list[str]) -> None:
    """A path, a triangle, a square, tails and a dumbbell, whose middle edge is in no core."""
    result = sorted("".join(map(str, sorted(core))) for core in cyclic_cores(bags_of(*texts)))
    assert result == cores


def test_the_lowest_tree_is_chosen_counting_branches() -> None:
    path = bags_of("a", "ab", "bc", "cd", "d")
    assert best_rooted(range(5), path).root == 2
    assert best_rooted([0, 1], path).root == 1
    assert best_rooted(range(4), bags_of("a", "ab", "bc", "c")).root == 1
    path = bags_of("a", "ab", "b")
    assert best_rooted(range(3), path, [2, 0, 0]).root == 0
    assert best_rooted(range(3), path, [0, 0, 1]).root == 1
    assert best_rooted(range(2), bags_of("a", "a"), [0, 1]).root == 1


def test_parents_of_tied_and_unconnected_bags() -> None:
    star = bags_of("a", "a", "a", "a")
    assert rooted_at(0, star).parents == (None, 0, 0, 0)
    # 1 and 2 share two classes, so the first one is the parent of the other.
    pair = bags_of("a", "ab", "ab")
    assert rooted_at(0, pair).parents == (None, 0, 1)
    assert rooted_at(0, bags_of("a", "a", "b", "")).parents == (None, 0, 0, 0)


def test_children_of_a_virtual_root_have_all_its_classes() -> None:
    bags = bags_of("ab", "abc", "ab", "ad", "d", "")
    tree = rooted_at(0, bags, is_virtual=True)
    assert reference.has_running_intersection(bags, tree.parents)
    assert [index for index, parent in enumerate(tree.parents) if parent == 0] == [1, 2]
    assert rooted_at(0, bags).parents[3] == 0


def test_a_virtual_root_keeps_running_intersection() -> None:
    """For random small hypergraphs and all sets of classes that two bags have."""
    tried = 0
    for bags, root in product(random_hypergraphs(400, 5, 4), subsets(4)):
        if not root or sum(root <= bag for bag in bags) < 2:
            continue
        every = (root, *bags)
        tree = rooted_at(0, every, is_virtual=True)
        is_right = reference.has_running_intersection(every, tree.parents)
        assert is_right == reference.is_acyclic(bags)
        assert all(
            parent != 0 or root <= every[index]
            for index, parent in enumerate(tree.parents)
            if index
        )
        tried += 1
    assert tried > 200


CASES = """\
SELECT r.a FROM s JOIN r ON s.a = r.a GROUP BY r.a HAVING SUM(s.b) > 100
    ring [a](s{a} on a; r{a} on a)
SELECT r.a FROM s JOIN r ON s.a = r.a
    bits s{a}(r{a} on a)
SELECT r.a, SUM(s.b) FROM s JOIN r ON s.a = r.a GROUP BY r.a
    bits s{a}(r{a} on a)
SELECT r.a, SUM(s.b) AS v FROM s JOIN r ON s.a = r.a GROUP BY r.a ORDER BY v LIMIT 3
    ring [a](s{a} on a; r{a} on a)
SELECT r.a FROM s JOIN r ON s.a = r.a ORDER BY r.b LIMIT 3
    not_at_the_top: r.b
SELECT r.b FROM s JOIN r ON s.a = r.a GROUP BY r.b HAVING SUM(s.b) > 100
    ring r{a,b}(s{a} on a)
SELECT r.b, s.b FROM s JOIN r ON s.a = r.a GROUP BY r.b, s.b HAVING COUNT(*) > 100
    one_bag: r.b
SELECT s.c FROM r JOIN s ON r.b = s.b JOIN t ON s.c = t.c GROUP BY s.c HAVING SUM(t.d) > 20
    ring [c](s{b,c}(r{b} on b) on c; t{c} on c)
SELECT s.d FROM r JOIN s ON r.b = s.b JOIN t ON s.c = t.c GROUP BY s.d HAVING SUM(t.d) > 20
    ring s{b,c,d}(r{b} on b; t{c} on c)
SELECT r.d FROM r JOIN s ON r.b = s.b JOIN t ON s.c = t.c GROUP BY r.d HAVING SUM(t.d) > 20
    ring r{b,d}(s{b,c}(t{c} on c) on b)
SELECT r.a FROM r, s, t WHERE r.a = s.a AND s.b = t.b AND t.c = r.c GROUP BY r.a HAVING COUNT(*) > 3
    ring r+s+t{a}
SELECT r.a FROM r, s, t, u WHERE r.a = s.a AND s.b = t.b AND t.c = r.c AND u.d = r.d GROUP BY u.e,
r.a HAVING COUNT(*) > 3
    ring r+s+t+u{e,a}
SELECT 1 FROM r, s HAVING COUNT(*) > 3
    ring r{}(s{} on -)
SELECT r.b FROM r JOIN s ON r.a = s.a JOIN t ON t.b < s.b GROUP BY r.b HAVING COUNT(*) > 3
    ring r{a,b}(s+t{a} on a)
SELECT r.b FROM r JOIN s ON r.a = s.a WHERE NOT EXISTS (SELECT 1 FROM t JOIN u ON t.c = u.c WHERE
t.a = r.c AND u.b > 3) GROUP BY r.b HAVING COUNT(*) > 3
    ring r{a,c,b}(s{a} on a; anti t{c,a}(u{c} on c) on a)
SELECT r.b FROM r LEFT JOIN s ON r.a = s.a JOIN t ON t.c = r.c GROUP BY r.b HAVING COUNT(s.b) > 3
    ring r{c,a,b}(t{c} on c; left s{a} on a)
SELECT r.b FROM r LEFT JOIN s ON r.a = s.a AND s.b > 3 GROUP BY r.b HAVING SUM(COALESCE(s.b, 1)) > 3
    one_bag: s ON r.a = s.a AND s.b > 3
SELECT r.b FROM r LEFT JOIN s ON r.a = s.a AND r.c > 2 JOIN t ON t.c = r.c GROUP BY r.b HAVING
COUNT(*) > 3
    ring r+s{c,b}(t{c} on c)
SELECT r.b FROM s RIGHT JOIN r ON r.a = s.a GROUP BY r.b HAVING COUNT(s.b) > 3
    ring r{a,b}(left s{a} on a)
SELECT s.c FROM r LEFT JOIN s ON r.a = s.a GROUP BY s.c HAVING COUNT(*) > 3
    one_bag: s ON r.a = s.a
SELECT r.b FROM r WHERE r.a IN (SELECT a FROM s) GROUP BY r.b HAVING COUNT(*) > 3
    ring r{a,b}(semi s{a} on a)
SELECT r.b FROM r WHERE r.a IN (SELECT a FROM s GROUP BY a HAVING COUNT(*) > 2) GROUP BY r.b HAVING
COUNT(*) > 3
    ring r{a,b}(semi s{a} on a)
SELECT r.b FROM r WHERE r.a NOT IN (SELECT a FROM s) GROUP BY r.b HAVING COUNT(*) > 3
    one_bag: r.a NOT IN (SELECT a FROM s)
SELECT r.b FROM r JOIN t ON r.a = t.a WHERE r.a NOT IN (SELECT a FROM s) GROUP BY r.b HAVING
COUNT(*) > 3
    ring r+s{a,b}(t{a} on a)
SELECT r.b FROM r FULL JOIN s ON r.a = s.a GROUP BY r.b HAVING COUNT(*) > 3
    one_bag: s ON r.a = s.a
SELECT r.a FROM r JOIN s ON r.a = s.a UNION SELECT t.a FROM t JOIN u ON t.a = u.a
    bits r{a}(s{a} on a) | bits t{a}(u{a} on a)
SELECT x.a FROM (SELECT a, b + 1 AS k FROM r) x JOIN s ON x.k = s.a GROUP BY x.a HAVING SUM(s.b) > 1
    ring r{k,a}(s{a} on a)
SELECT r.a FROM r JOIN s ON r.b + 1 = s.a GROUP BY r.a HAVING SUM(s.b) > 1
    ring r{b + 1,a}(s{a} on a)
SELECT r.a FROM r JOIN s ON r.b <=> s.b GROUP BY r.a HAVING SUM(s.c) > 1
    ring r{b,a}(s{b} on b?)
SELECT r.a FROM r JOIN s ON r.b <=> s.b JOIN t ON t.b = s.b GROUP BY r.a HAVING SUM(s.c) > 1
    ring r{b,a}(s{b} on b; t{b} on b)
SELECT r.d FROM r JOIN s ON r.a = s.a AND r.b = s.a GROUP BY r.d HAVING SUM(s.c) > 1
    ring r{a,d}(s{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a JOIN t ON r.b = t.a AND t.a = s.a GROUP BY r.d HAVING SUM(s.c)
> 1
    ring r{b,d}(s{a} on a; t{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING SUM(s.c * r.b) > 1
    one_bag: s.c * r.b
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING COUNT(DISTINCT s.c) > 1
    call: COUNT(DISTINCT s.c)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING COUNT(DISTINCT r.c) > 1
    ring r{a,d,c}(s{a} on a)
SELECT r.a FROM r JOIN s ON r.a = s.a GROUP BY r.a HAVING SUM(DISTINCT s.c) > 1
    ring s{a,c}(r{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING COUNT(DISTINCT s.a) > 1
    ring r{a,d}(s{a} on a)
SELECT r.d FROM r LEFT JOIN s ON r.a = s.a GROUP BY r.d HAVING COUNT(DISTINCT s.c) > 1
    call: COUNT(DISTINCT s.c)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MAX(r.name) > 'a'
    ring r{a,d,name}(s{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MAX(s.name) > 'a'
    call: MAX(s.name)
SELECT r.a FROM r JOIN s ON r.a = s.a GROUP BY r.a HAVING MIN(s.name) = ''
    ring s{a,name}(r{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MIN_BY(r.b, r.c) > 1
    ring r{a,d,b,c}(s{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MIN_BY(r.b, s.a) > 1
    ring r{a,d,b}(s{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MIN_BY(r.b, s.c) > 1
    call: MIN_BY(r.b, s.c)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MAX_BY(s.b, s.c) > 1
    call: MAX_BY(s.b, s.c)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MAX_BY(r.rate, r.c) > 1
    call: MAX_BY(r.rate, r.c)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MAX_BY(r.c, r.rate) > 1
    ring r{a,d,c,rate}(s{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MEDIAN(s.c) > 1
    call: MEDIAN(s.c)
SELECT r.d FROM r JOIN (SELECT a, SUM(rate) AS x FROM s GROUP BY a) q ON r.rate = q.x GROUP BY r.d
HAVING COUNT(*) > 1
    one_bag: r.rate = q.x
SELECT r.d, COUNT(*) FROM r JOIN s ON r.a = s.a WHERE (r.b = 1 AND s.b = 2) OR (r.b = 2 AND s.b = 1)
GROUP BY r.d HAVING COUNT(*) > 1
    one_bag: (r.b = 1 AND s.b = 2) OR (r.b = 2 AND s.b = 1)
SELECT a FROM r WHERE b > 1 GROUP BY a HAVING COUNT(*) > 2
    one_table: b > 1
SELECT n, COUNT(*) FROM (SELECT r.a, COUNT(s.b) AS n FROM r LEFT JOIN s ON r.a = s.a GROUP BY r.a)
GROUP BY n HAVING COUNT(*) > 5
    not_at_the_top: r.a
SELECT r.a, r.b FROM r JOIN s ON r.a = s.a AND r.b = s.b JOIN t ON t.a = r.a GROUP BY r.a, r.b
HAVING COUNT(*) > 3
    ring [b,a](r{b,a}(t{a} on a) on b,a; s{b,a} on b,a)
SELECT r.a FROM r JOIN s ON r.a = s.a JOIN t ON t.a = r.a AND t.b = s.b GROUP BY r.a HAVING COUNT(*)
> 3
    ring [a](r{a} on a; s{a,b}(t{a,b} on a,b) on a)
"""


@pytest.mark.parametrize(("sql", "expected"), pairs(CASES))
def test_tree_shapes(sql: str, expected: str) -> None:
    """`bag{kept}(child on key)`, `[kept]` a virtual root, `?` NULL equal to NULL; without a tree
    the reason and the responsible part of the text."""
    assert shape_text(sql) == expected


def one_case(seed: int, counts: Counter[str]) -> None:
    rng = Random(seed)
    sql = JoinMaker(rng).sql()
    tables = random_tables(rng)
    try:
        root = core(sql)
    except QueryError as error:
        counts[f"unread: {error.message}"[:60]] += 1
        return
    assert branches_of(root) == (root,)
    shape = tree_shape(root)
    if isinstance(shape, NoTree):
        counts[shape.reason] += 1
        return
    check(shape)
    expected = annotate(root, tables)
    result = annotate(rejoined(root, shape), tables)
    assert result.lineage == expected.lineage, (seed, sql)
    if shape.aggregate is not None:
        assert len(result.rows) == len(expected.rows), (seed, sql)
    counts[shape.mode] += 1
    counts["virtual"] += shape.root.rows is None
    counts["lineage"] += bool(expected.lineage)
    for node in shape.nodes[:-1]:
        counts[f"{node.edge} edge"] += 1
        counts["merged bag"] += len(node.accesses) > 1
        counts["null-safe key"] += any(node.null_safe)
        counts["key of several columns"] += len(node.key) > 1


@random_cases(0, 49, 1_200, also="0-39 45 51 59 64 65 110 123 171 175 183 184 198")
def test_lineage_of_shapes(cases: Sequence[int]) -> None:
    counts = seen_in(cases, one_case)
    assert counts["ring"] > len(cases) // 4, counts
    for kind in ("bits", "virtual", "semi edge", "anti edge", "left edge", "merged bag"):
        assert counts[kind] > len(cases) // 130, (kind, counts)
    assert counts["null-safe key"] > len(cases) // 130
    assert counts["key of several columns"] > len(cases) // 130
    assert counts["lineage"] > len(cases) // 8


WORKLOADS = Path(__file__).parents[3] / "workloads"
CATALOGS = {"tpch": TPCH, "joins": SYNTHETIC}

SHIPPED = {
    "tpch/q1": "one_table",
    "tpch/q3": "ring orders{o_custkey,o_orderkey,o_orderdate,o_shippriority}(customer{c_custkey} "
    "on c_custkey; lineitem{l_orderkey} on l_orderkey)",
    "tpch/q4": "ring orders{o_orderkey,o_orderpriority}(semi lineitem{l_orderkey} on l_orderkey)",
    "tpch/q5": "ring nation{n_nationkey,n_regionkey,n_name}(customer+orders+lineitem+supplier{"
    "c_nationkey} on c_nationkey; region{r_regionkey} on r_regionkey)",
    "tpch/q6": "one_table",
    "tpch/q7": "one_bag",
    "tpch/q8": "ring orders{o_orderkey,o_custkey,year(o_orderdate)}(lineitem{"
    "l_partkey,l_suppkey,l_orderkey}(part{p_partkey} on p_partkey; supplier{"
    "s_suppkey,s_nationkey}(nation#2{n_nationkey} on n_nationkey) on s_suppkey) on l_orderkey; "
    "customer{c_custkey,c_nationkey}(nation{n_nationkey,n_regionkey}(region{r_regionkey} on "
    "r_regionkey) on n_nationkey) on c_custkey)",
    "tpch/q9": "ring supplier+lineitem+orders+nation{l_partkey,s_suppkey,n_name,year("
    "o_orderdate)}(part{p_partkey} on p_partkey; partsupp{ps_partkey,ps_suppkey} on "
    "ps_partkey,ps_suppkey)",
    "tpch/q10": "ring customer+nation{"
    "c_custkey,c_name,c_acctbal,c_phone,n_name,c_address,c_comment}(orders{o_custkey,o_orderkey}("
    "lineitem{l_orderkey} on l_orderkey) on o_custkey)",
    "tpch/q12": "ring lineitem{l_orderkey,l_shipmode}(orders{o_orderkey} on o_orderkey)",
    "tpch/q14": "bits lineitem{l_partkey}(part{p_partkey} on p_partkey)",
    "tpch/q15": "not_at_the_top",
    "tpch/q18": "ring customer+orders{o_orderkey,c_name,c_custkey,o_orderdate,o_totalprice}("
    "lineitem{l_orderkey} on l_orderkey; semi lineitem#2{l_orderkey} on l_orderkey)",
    "tpch/q19": "one_bag",
    "tpch/q2": "not_at_the_top",
    "tpch/q13": "not_at_the_top",
    "tpch/q16": "call",
    "tpch/q17": "bits lineitem+lineitem#4{l_partkey}(part{p_partkey} on p_partkey)",
    "tpch/q20": "bits supplier{s_nationkey,s_suppkey}(nation{n_nationkey} on n_nationkey; semi "
    "partsupp+lineitem#3{ps_partkey,ps_suppkey}(semi part{p_partkey} on p_partkey) on ps_suppkey)",
    "tpch/q21": "ring supplier{s_suppkey,s_nationkey,s_name}(lineitem+lineitem#2+lineitem#3{"
    "l_suppkey,l_orderkey}(orders{o_orderkey} on o_orderkey) on l_suppkey; nation{n_nationkey} on "
    "n_nationkey)",
    "tpch/q22": "ring customer+customer#2{c_custkey,substring(c_phone, 1, 2)}(anti orders{"
    "o_custkey} on o_custkey)",
    "joins/one_01": "ring r{id,a}(s{a} on a)",
    "joins/one_05": "ring r{id,a}(s{a} on a)",
    "joins/one_10": "ring r{id,a}(s{a} on a)",
    "joins/many_01": "ring [a](s{a} on a; r{a} on a)",
    "joins/many_05": "ring [a](s{a} on a; r{a} on a)",
    "joins/many_10": "ring [a](s{a} on a; r{a} on a)",
}
NETWORK = """\
SELECT 1 FROM edge e1 JOIN edge e2 ON e1.dst = e2.src JOIN edge e3 ON e2.dst = e3.src
    bits edge#2{src,dst}(edge{dst} on dst; edge#3{src} on src)
SELECT e1.src FROM edge e1 JOIN edge e2 ON e1.dst = e2.src JOIN edge e3 ON e2.dst = e3.src JOIN edge
e4 ON e3.dst = e4.src
    bits edge#2{src,dst}(edge{dst} on dst; edge#3{src,dst}(edge#4{src} on src) on src)
SELECT e1.src, COUNT(*) FROM edge e1 JOIN edge e2 ON e1.dst = e2.src JOIN edge e3 ON e2.dst = e3.src
GROUP BY e1.src HAVING COUNT(*) > 10
    ring edge{dst,src}(edge#2{src,dst}(edge#3{src} on src) on src)
SELECT e1.src, COUNT(*) FROM edge e1, edge e2, edge e3, edge e4 WHERE e1.src = e2.src AND e2.src =
e3.src AND e3.src = e4.src GROUP BY e1.src HAVING COUNT(*) > 10
    ring [src](edge{src} on src; edge#2{src} on src; edge#3{src} on src; edge#4{src} on src)
SELECT 1 FROM edge e1, edge e2, edge e3 WHERE e1.dst = e2.src AND e2.dst = e3.src AND e3.dst =
e1.src
    bits edge+edge#2+edge#3{}
SELECT e7.src FROM edge e1, edge e2, edge e3, edge e4, edge e5, edge e6, edge e7 WHERE e1.dst =
e2.src AND e2.dst = e3.src AND e3.dst = e1.src AND e4.dst = e5.src AND e5.dst = e6.src AND e6.dst =
e4.src AND e7.src = e1.src AND e7.dst = e4.src
    bits edge#7{src,dst}(edge+edge#2+edge#3{src} on src; edge#4+edge#5+edge#6{src} on src)
SELECT 1 FROM edge e1, edge e2, edge e3, edge e4 WHERE e1.dst = e2.src AND e2.dst = e3.src AND
e3.dst = e4.src AND e4.dst = e1.src
    bits edge+edge#2+edge#3+edge#4{}
SELECT 1 FROM edge e1, edge e2, edge e3, edge e4 WHERE e1.src = e2.src AND e1.dst = e3.src AND
e2.dst = e4.src
    bits edge{src,dst}(edge#2{src,dst}(edge#4{src} on src) on src; edge#3{src} on src)
SELECT p_id, COUNT(*) FROM person, knows, message WHERE p_id = k_from AND k_to = creator GROUP BY
p_id HAVING COUNT(*) > 100
    ring [p_id](person{p_id} on p_id; knows{k_from,k_to}(message{creator} on creator) on k_from)
SELECT t_name, COUNT(*) FROM person, message, message_tag, tag WHERE creator = p_id AND mt_message =
m_id AND t_id = mt_tag GROUP BY t_name ORDER BY 2 DESC LIMIT 10
    ring tag{t_id,t_name}(message_tag{mt_message,mt_tag}(message{creator,m_id}(person{p_id} on p_id)
    on m_id) on mt_tag)
SELECT city, SUM(length) FROM person, knows, message WHERE p_id = k_from AND k_to = creator GROUP BY
city HAVING SUM(length) > 5000
    ring person{p_id,city}(knows{k_from,k_to}(message{creator} on creator) on k_from)
SELECT t1.t_name, t2.t_name, COUNT(*) FROM message_tag a, message_tag b, tag t1, tag t2 WHERE
a.mt_message = b.mt_message AND a.mt_tag = t1.t_id AND b.mt_tag = t2.t_id GROUP BY t1.t_name,
t2.t_name HAVING COUNT(*) > 3
    one_bag: t1.t_name
SELECT p_id FROM person WHERE EXISTS (SELECT 1 FROM knows, message WHERE k_from = p_id AND k_to =
creator) AND NOT EXISTS (SELECT 1 FROM message WHERE creator = p_id)
    bits person{p_id}(semi knows{k_to,k_from}(message{creator} on creator) on k_from; anti
    message#2{creator} on creator)
SELECT p_id, COUNT(m_id) FROM person LEFT JOIN message ON creator = p_id JOIN knows ON k_from = p_id
GROUP BY p_id HAVING COUNT(m_id) < 3
    ring [p_id](person{p_id}(left message{creator} on creator) on p_id; knows{k_from} on k_from)
"""


@cache
def queries(workload: str) -> Mapping[str, QuerySpec]:
    return load_workload(WORKLOADS / f"{workload}.yaml", {}).queries


@pytest.mark.parametrize(("name", "expected"), SHIPPED.items())
def test_shipped_queries(name: str, expected: str) -> None:
    """Without a tree, only the reason is compared."""
    workload, _, query = name.partition("/")
    result = shape_text(queries(workload)[query].sql, CATALOGS[workload])
    assert result.partition(":")[0] == expected


def test_all_workload_queries_are_in_the_table() -> None:
    """Except those that repeat a query with another strategy."""
    names = {
        f"{workload}/{name}"
        for workload in CATALOGS
        for name in queries(workload)
        if not name.endswith(("_spark", "_unfiltered"))
    }
    assert names == SHIPPED.keys()


@pytest.mark.parametrize(("sql", "expected"), pairs(NETWORK))
def test_social_networks(sql: str, expected: str) -> None:
    """Paths, stars, cycles, a dumbbell; queries of messages and tags."""
    assert shape_text(sql, SNB) == expected
