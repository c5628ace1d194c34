"""Bags hung on a root, and their cyclic cores, against definitions, on all small hypergraphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, combinations_with_replacement, product
from random import Random

import pytest

from impctl.compile.jointree.decompose import (
    Bag,
    Hung,
    Rooted,
    best_rooted,
    cyclic_cores,
    full_weight,
    is_acyclic,
    rooted_at,
    without_ears,
)
from tests.support import reference_hypergraph as reference


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


def check(bags: Sequence[Bag]) -> bool:
    """One hypergraph, from every root; whether it is acyclic."""
    expected = reference.is_acyclic(bags)
    assert is_acyclic(bags) == expected
    assert (not without_ears(bags)) == expected
    for root in range(len(bags)):
        tree = rooted_at(root, bags)
        assert tree.root == root
        assert (tree.weight == full_weight(bags)) == expected
        assert reference.has_running_intersection(bags, tree.parents) == expected
        assert all(tree.depths[at] == len(tree.path_to_root(at)) - 1 for at in range(len(bags)))
    return expected


def merged(bags: Sequence[Bag], cores: Sequence[frozenset[int]]) -> list[Bag]:
    parts: list[frozenset[int]] = [frozenset({at}) for at in range(len(bags))]
    for core in cores:
        touched = [part for part in parts if part & core]
        parts = [part for part in parts if not part & core]
        parts.append(frozenset().union(*touched))
    return [frozenset().union(*(bags[at] for at in part)) for part in parts]


def check_cores(bags: Sequence[Bag]) -> None:
    """Each round of merging leaves fewer bags, and the last one none that are cyclic."""
    left = list(bags)
    while not reference.is_acyclic(left):
        fewer = merged(left, cyclic_cores(left))
        assert len(fewer) < len(left)
        left = fewer
    assert not cyclic_cores(left)


def test_all_small_hypergraphs() -> None:
    result = [check(bags) for bags in all_hypergraphs(4, 3)]
    assert 0 < sum(result) < len(result)


@pytest.mark.parametrize("size", [(5, 5), (8, 7)])
@pytest.mark.parametrize("count", [250, pytest.param(1500, marks=pytest.mark.slow)])
def test_random_hypergraphs(size: tuple[int, int], count: int) -> None:
    result = [check(bags) for bags in random_hypergraphs(count, *size)]
    assert 0.05 < 1 - sum(result) / len(result) < 0.9
    for bags in random_hypergraphs(count, *size):
        check_cores(bags)


@pytest.mark.slow
@pytest.mark.long
def test_all_hypergraphs_with_five_edges_over_five_classes() -> None:
    for bags in all_hypergraphs(5, 5):
        check(bags)
        check_cores(bags)


def test_a_class_of_all_three_makes_a_triangle_acyclic() -> None:
    assert is_acyclic(bags_of("ab", "bc", "ca", "abc"))
    assert not is_acyclic(bags_of("ab", "bc", "ca"))


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
def test_cores_leave_the_rest_alone(texts: tuple[str, ...], cores: list[str]) -> None:
    """A triangle, a square, one with a tail, a dumbbell: the edge between is in neither."""
    result = sorted("".join(map(str, sorted(core))) for core in cyclic_cores(bags_of(*texts)))
    assert result == cores


def parents(tree: Rooted) -> list[int | None]:
    return list(tree.parents)


def test_the_least_high_tree_is_taken() -> None:
    path = bags_of("a", "ab", "bc", "cd", "d")
    assert best_rooted(range(5), path).root == 2
    assert best_rooted([0, 1], path).root == 1


def test_of_trees_of_one_height_changes_have_the_shortest_way() -> None:
    path = bags_of("a", "ab", "bc", "c")
    assert best_rooted(range(4), path).root == 1
    assert best_rooted(range(4), path, [0, 0, 5, 0]).root == 2
    assert best_rooted(range(4), path, [0, 6, 5, 0]).root == 1


def test_what_hangs_on_a_bag_counts() -> None:
    path = bags_of("a", "ab", "b")
    tail = Hung((1, 2), (0, 0))
    assert best_rooted(range(3), path, (), [tail, Hung(), Hung()]).root == 0
    one = [Hung(), Hung(), Hung((1,), (9,))]
    assert best_rooted(range(3), path, (), one).root == 2
    two = bags_of("a", "a")
    assert best_rooted(range(2), two, (), [Hung(), Hung((1,), (9,))]).root == 1


def test_ties_go_to_the_nearest_parent_then_to_what_changes_most() -> None:
    star = bags_of("a", "a", "a", "a")
    assert parents(rooted_at(0, star)) == [None, 0, 0, 0]
    # 1 and 2 share two classes with each other, so the one that comes first has the other below.
    pair = bags_of("a", "ab", "ab")
    assert parents(rooted_at(0, pair)) == [None, 0, 1]
    assert parents(rooted_at(0, pair, [0, 1, 2])) == [None, 2, 0]


def test_bags_without_a_shared_class_hang_by_weight_0() -> None:
    tree = rooted_at(0, bags_of("a", "a", "b", ""))
    assert (tree.weight, full_weight(bags_of("a", "a", "b", ""))) == (1, 1)
    assert parents(tree) == [None, 0, 0, 0]


def test_on_a_virtual_root_hang_bags_with_all_its_classes_only() -> None:
    bags = bags_of("ab", "abc", "ab", "ad", "d", "")
    tree = rooted_at(0, bags, is_virtual=True)
    assert reference.has_running_intersection(bags, tree.parents)
    assert [at for at, parent in enumerate(tree.parents) if parent == 0] == [1, 2]
    assert parents(rooted_at(0, bags))[3] == 0


def test_a_virtual_root_costs_no_running_intersection() -> None:
    """On all small hypergraphs and all sets of classes that two bags have."""
    tried = 0
    for bags, root in product(random_hypergraphs(400, 5, 4), subsets(4)):
        if not root or sum(root <= bag for bag in bags) < 2:
            continue
        every = (root, *bags)
        tree = rooted_at(0, every, is_virtual=True)
        assert (tree.weight == full_weight(every)) == reference.is_acyclic(bags)
        assert all(parent != 0 or root <= every[at] for at, parent in enumerate(tree.parents) if at)
        tried += 1
    assert tried > 200
