"""Bounds of queries are held where state within the budget can; else what would do is told."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random

import pytest

from impctl.app.maintaining.due.costs import LEAST_MARGIN
from impctl.app.maintaining.keeping.bounds import (
    BOUND_IMPOSSIBLE,
    Bound,
    bounds_of,
    chosen_within,
    late_runs,
    unheld_text,
)
from impctl.circuits.keeping.choice import StateChoice, choose
from impctl.circuits.keeping.evaluated import Modes, evaluate, per_day
from impctl.circuits.keeping.graph import Graph, KindOfChange, Mode, Node, Piece, Work
from impctl.workload.load import load_workload
from tests.circuits.keeping.drawn import tree
from tests.support.random_cases import random_seeds


def frequent_and_rare(seed: int) -> Graph:
    """A side that a frequent change asks for and one that a rare one does; room for one of them."""
    rng = Random(seed)
    kinds = (KindOfChange(frozenset("r"), 100.0), KindOfChange(frozenset("s"), 1.0))

    def side(name: str, asked_by: int) -> Piece:
        read = tuple(float(rng.randint(100, 900)) if at == asked_by else 0.0 for at in range(2))
        return Piece(name=name, sizes={Mode.KEPT: 10, Mode.READ: 1}, read=read, source=(name,))

    scans = tuple(Node(work=Work.SCAN, table=name) for name in "rs")
    join = Node(work=Work.JOIN, inputs=(0, 1), pieces=(side("left", 1), side("right", 0)))
    return Graph((*scans, join, Node(work=Work.ROWS, inputs=(2,))), kinds)


def modes_in(choice: StateChoice) -> dict[str, Modes]:
    return {name: one.modes for name, one in choice.queries.items()}


@random_seeds(5, 13, 20)
def test_a_rare_change_gets_its_state_where_a_bound_needs_it(seed: int) -> None:
    graphs = {"q": frequent_and_rare(seed)}
    plain = choose(graphs, 11)
    assert plain.queries["q"].modes == {"left": Mode.READ, "right": Mode.KEPT}
    bound = {"q": Bound(1.0, "fresh_within 1ms")}
    costs = evaluate(graphs["q"], plain.queries["q"].modes).per_kind
    assert late_runs(graphs, modes_in(plain), bound, (1.0, 0.06)) == [("q", 1)]
    # Only one of the two can be held; the frequent one would be late then.
    held, unheld = chosen_within(graphs, 11, bound, (0.0, 0.06))
    assert held.queries["q"].modes == {"left": Mode.KEPT, "right": Mode.READ}
    assert not unheld
    # Told is what comes of it by how often changes come, not by how often they were thought to.
    assert held.ms_per_day == per_day(graphs["q"], held.queries["q"].modes)
    assert "s changes once a day" in held.queries["q"].pieces["left"].reason
    for chances in ((1.0, 0.05), (1.0, 0.0)):
        again, nothing = chosen_within(graphs, 11, bound, chances)
        assert again.queries["q"].modes == plain.queries["q"].modes
        assert not nothing
    both, (one,) = chosen_within(graphs, 11, bound, (1.0, 0.06))
    assert both.queries["q"].modes == plain.queries["q"].modes, "as many late, and less work"
    assert (one.query, one.tables, one.ms) == ("q", ("s",), costs[1])
    assert (one.enough, one.enough_ms) == (11, 0.0)


@pytest.mark.slow
@random_seeds(12, 36, 150)
def test_what_is_chosen_holds_what_the_plain_choice_does_and_tells_enough(seed: int) -> None:
    rng = Random(seed)
    graph = tree(rng, 5)
    graphs = {"q": graph}
    most = sum(max(piece.sizes.values()) for piece in graph.pieces)
    budget = rng.randint(0, most)
    plain = choose(graphs, budget)
    costs = evaluate(graph, plain.queries["q"].modes).per_kind
    bound = Bound(LEAST_MARGIN * max(costs) * rng.choice([0.01, 0.3, 0.9, 1.0, 1.1]), "b")
    chances = [rng.choice([0.0, 0.05, 0.06, 1.0]) for _ in graph.kinds]
    found, unheld = chosen_within(graphs, budget, {"q": bound}, chances)

    def late(modes: Modes) -> list[int]:
        took = evaluate(graph, modes).per_kind
        each = zip(took, chances, strict=True)
        return [at for at, (ms, chance) in enumerate(each) if chance > 0.05 and 1.5 * ms > bound.ms]

    mine, before = late(found.queries["q"].modes), late(plain.queries["q"].modes)
    assert [("q", kind) for kind in mine] == late_runs(
        graphs, modes_in(found), {"q": bound}, chances
    )
    assert len(mine) <= len(before)
    assert found.exceeds == plain.exceeds
    assert found.bytes <= max(budget, plain.bytes)
    assert bool(unheld) == bool(mine)
    every = [
        dict(zip((p.name for p in graph.pieces), modes, strict=True))
        for modes in product(*(piece.modes for piece in graph.pieces))
    ]
    for one in unheld:
        doing = [modes for modes in every if not set(late(modes)) & set(mine)]
        assert one.ms == max(evaluate(graph, found.queries["q"].modes).per_kind[k] for k in mine)
        if one.enough is None:
            assert not doing
        else:
            # So many bytes do; fewer may, where a choice with less work in all takes more of them.
            assert min(map(graph.bytes_of, doing)) <= one.enough <= most


def test_no_choice_is_made_for_what_no_state_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    from impctl.app.maintaining.keeping import bounds

    made = []

    def counted(*arguments: object, **named: object) -> StateChoice:
        made.append(named)
        return choose(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(bounds, "choose", counted)
    graph = frequent_and_rare(1)
    (*below, root) = graph.nodes
    slow = Graph((*below, Node(work=Work.ROWS, inputs=root.inputs, delta=(9.0, 9.0))), graph.kinds)
    _, (one,) = chosen_within({"q": slow}, 11, {"q": Bound(13.0, "fresh_within 13ms")}, (1, 1))
    assert (len(made), one.enough) == (1, None)
    assert "with all of it" in unheld_text(one, 0)
    made.clear()
    chosen_within({"q": slow}, 2, {"q": Bound(14.0, "fresh_within 14ms")}, (1, 1))
    assert len(made) == 11, "ten times anew, where no choice fits"


def test_the_text_says_what_would_do() -> None:
    _, (one,) = chosen_within(
        {"q": frequent_and_rare(1)}, 11, {"q": Bound(1.0, "fresh_within 1ms")}, (1, 1)
    )
    text = unheld_text(one, 4_989)
    assert "`q` may miss fresh_within 1ms: when s changes" in text
    assert "with 5 kB of state for all queries" in text
    assert text.endswith(f"[{BOUND_IMPOSSIBLE}]")


def test_the_shorter_bound_of_a_query_counts(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(
        "version: 1\ntables: {t: {path: t}}\nqueries:\n"
        '  a: {sql: "SELECT x FROM t", trigger: {every: 1h, ready_within: 5s}}\n'
        '  b: {sql: "SELECT x FROM t", trigger: {fresh_within: 10m}}\n'
        '  c: {sql: "SELECT x FROM t"}\n'
        '  d: {sql: "SELECT x FROM t", trigger: commit}\n'
    )
    specs = load_workload(tmp_path / "w.yaml", {}).queries.values()
    assert {name: one.ms for name, one in bounds_of(specs).items()} == {"a": 5_000, "b": 600_000}
