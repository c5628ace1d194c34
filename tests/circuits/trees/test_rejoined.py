"""A shape means its plan: joined again along its edges it has the plan's rows and lineage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from impctl.compile.jointree.decompose import branches_of
from impctl.compile.jointree.graph import NoTree
from impctl.compile.jointree.shape import tree_shape
from impctl.errors import QueryError
from tests.circuits.trees.drawn import check, core
from tests.circuits.trees.random_joins import JoinMaker, random_tables
from tests.support.random_cases import random_cases, seen_in
from tests.support.reference_plan import annotate
from tests.support.rejoined_tree import rejoined


def one_case(seed: int, seen: Counter[str]) -> None:
    rng = Random(seed)
    sql = JoinMaker(rng).sql()
    tables = random_tables(rng)
    try:
        root = core(sql)
    except QueryError as error:
        seen[f"unread: {error.message}"[:60]] += 1
        return
    assert branches_of(root) == (root,)
    changed = {name: rng.randint(0, 3) for name in tables}
    shape = tree_shape(root, changed)
    if isinstance(shape, NoTree):
        seen[shape.reason] += 1
        return
    check(shape)
    wanted = annotate(root, tables)
    result = annotate(rejoined(root, shape), tables)
    assert result.lineage == wanted.lineage, (seed, sql)
    if shape.aggregate is not None:
        assert len(result.rows) == len(wanted.rows), (seed, sql)
    seen[shape.mode] += 1
    seen["virtual"] += shape.root.is_virtual
    seen["lineage"] += bool(wanted.lineage)
    for node in shape.nodes[:-1]:
        seen[f"{node.edge} edge"] += 1
        seen["merged bag"] += len(node.accesses) > 1
        seen["null-safe key"] += any(node.null_safe)
        seen["key of several columns"] += len(node.key) > 1


@random_cases(0, 150, 1_200, also="0-39 45 51 59 64 65 110 123 171 175 183 184 198")
def test_shapes_joined_again(cases: Sequence[int]) -> None:
    seen = seen_in(cases, one_case)
    assert seen["ring"] > len(cases) // 4, seen
    for what in ("bits", "virtual", "semi edge", "anti edge", "left edge", "merged bag"):
        assert seen[what] > len(cases) // 130, (what, seen)
    assert seen["null-safe key"] > len(cases) // 130
    assert seen["key of several columns"] > len(cases) // 130
    assert seen["lineage"] > len(cases) // 8
