"""All schemes of peers have the right rows after every step; the example of the paper's figures."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from benchmarks.peers.answers import answer_of
from benchmarks.peers.network import CutOff, Kind, Limits, Network
from benchmarks.peers.programs import Fact, Paths, Program, Reach, Regions, Row
from benchmarks.peers.simulation import Scheme, Simulation
from tests.support.random_cases import random_cases

COST, HOPS = 2, 3


def random_program(kind: str, rng: random.Random) -> tuple[Program, Callable[[], Fact]]:
    """Return a program of that kind over a few nodes, and a function that draws its facts."""
    nodes = range(rng.choice((3, 5, 7)))

    def node() -> int:
        return rng.choice(nodes)

    if kind == "reach":
        return Reach(), lambda: (node(), node())
    if kind == "regions":
        pairs = [(a, b) for a in nodes for b in nodes if a < b and rng.random() < 0.4]
        both = {*pairs, *((b, a) for a, b in pairs)}
        near = {a: tuple(b for b in nodes if (a, b) in both) for a in nodes}
        return Regions(near, {0: (0,), node(): (1, 2)}), lambda: (node(),)
    columns = (COST,) if kind == "cheapest" else (COST, HOPS)
    return Paths(columns), lambda: (node(), node(), rng.choice((1, 1, 2, 5)))


KINDS = ("reach", "regions", "cheapest", "best")


def simulations(program: Program, rng: random.Random) -> dict[Scheme, Simulation]:
    result = {}
    for scheme in Scheme:
        if not (program.prunes and scheme is Scheme.DRED):
            peers, window = rng.choice((1, 2, 3, 5)), rng.choice((1, 3, 50))
            seed = rng.choice((None, rng.randrange(1000)))
            result[scheme] = Simulation(program, scheme, peers, window=window, seed=seed)
    return result


@pytest.mark.parametrize("kind", KINDS)
@random_cases(fast=2, check=6, total=120)
def test_all_schemes_are_right_after_every_step(kind: str, cases: range) -> None:
    for trial in cases:
        rng = random.Random(f"{kind} {trial}")
        program, draw_fact = random_program(kind, rng)
        schemes = simulations(program, rng)
        facts: set[Fact] = set()
        for step in range(10):
            deleted = rng.sample(sorted(facts), min(len(facts), rng.choice((0, 1, 1, 2, 4))))
            inserted = [draw_fact() for _ in range(rng.choice((0, 1, 1, 3, 6)))]
            # A deleted fact may be inserted again in the same step, as a new one.
            inserted += deleted[:1] if rng.random() < 0.3 else []
            facts = (facts - {*deleted}) | {*inserted}
            expected = answer_of(program, facts)
            for scheme, simulation in schemes.items():
                simulation.step(inserted, deleted)
                assert simulation.facts == facts
                assert simulation.answer() == expected, (trial, step, scheme)


LEAST = {(0, 1, COST, 2), (0, 2, COST, 1), (2, 1, COST, 1)}


@pytest.mark.parametrize(
    ("program", "facts", "answer"),
    [
        (Reach(), [(0, 1), (1, 2), (3, 3)], {(0, 1), (0, 2), (1, 2), (3, 3)}),
        (
            Paths((COST,)),
            [(0, 1, 5), (0, 2, 1), (2, 1, 1)],
            {(0, 1, 2, 2), (0, 2, 2, 1), (2, 1, 2, 1)},
        ),
        (Regions({0: (1,), 1: (0, 2), 2: (1,)}, {0: (7,)}), [(0,), (2,)], {(0, 7), (1, 7)}),
    ],
)
def test_answers_of_examples(program: Program, facts: list[Fact], answer: set[Row]) -> None:
    assert answer_of(program, facts) == answer


@pytest.mark.parametrize("scheme", [s for s in Scheme if s is not Scheme.DRED])
def test_deletions_leave_no_provenance(scheme: Scheme) -> None:
    rng = random.Random(str(scheme))
    links = sorted({(rng.randrange(6), rng.randrange(6)) for _ in range(14)})
    program, _ = random_program("reach", rng)
    simulation = Simulation(program, scheme, 3, seed=2)
    simulation.step(links)
    assert simulation.provenance_bytes() > 0 < simulation.state_bytes()
    simulation.step((), links)
    assert simulation.rows() == frozenset()
    assert simulation.provenance_bytes() == simulation.state_bytes() == 0


@pytest.mark.parametrize("scheme", [Scheme.ABSORPTION_EAGER, Scheme.ABSORPTION_LAZY])
def test_unused_diagrams_are_freed(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    """Diagrams in use, or in messages, do not change."""
    rng = random.Random(3)
    links = sorted({(rng.randrange(6), rng.randrange(6)) for _ in range(14)})
    program, _ = random_program("reach", rng)
    limits = Limits(nodes=300)

    def run_steps() -> None:
        simulation = Simulation(program, scheme, 5, window=2, limits=limits, seed=4)
        for turn in range(12):
            deleted = links[turn % 5 :: 5]
            simulation.step(links)
            assert simulation.answer() == answer_of(program, links)
            simulation.step((), deleted)
            assert simulation.answer() == answer_of(program, {*links} - {*deleted})

    with pytest.raises(CutOff, match="nodes"):
        run_steps()
    monkeypatch.setattr("benchmarks.peers.simulation._FREE_EVERY", 1)
    run_steps()


A, B, C = 0, 1, 2
LINKS = [(A, B), (B, C), (C, A), (C, B)]
ALL = frozenset((src, dst) for src in (A, B, C) for dst in (A, B, C))


@pytest.mark.parametrize("scheme", [Scheme.DRED, Scheme.RELATIVE_LAZY, Scheme.ABSORPTION_LAZY])
def test_sixteen_messages(scheme: Scheme) -> None:
    simulation = Simulation(Reach(), scheme, 3)
    cost = simulation.step(LINKS)
    assert cost.messages == 16
    assert simulation.rows() == ALL


def test_provenance_matches_figure_2() -> None:
    """Its last step, as hand-drawn diagrams, with 12 bytes per node."""
    simulation = Simulation(Reach(), Scheme.ABSORPTION_EAGER, 3)
    simulation.step(LINKS)
    one_of_each = {"AA": 3, "AB": 1, "AC": 2, "BA": 2, "BC": 1, "CA": 1}
    # p4 or p1 p3: p1, p3 and p4. p2 p4 or p1 p2 p3: p1, p2 with p4 alone and with p3 or p4.
    several = {"CB": 3, "BB": 5, "CC": 5}
    nodes = sum(one_of_each.values()) + sum(several.values())
    assert simulation.provenance_bytes() == pytest.approx(12 * nodes / 9)


@pytest.mark.parametrize(
    ("scheme", "least", "most"),
    [
        (Scheme.DRED, 22, 22),
        *((scheme, 2, 2) for scheme in (Scheme.RELATIVE_EAGER, Scheme.ABSORPTION_EAGER)),
        *((scheme, 3, 6) for scheme in (Scheme.RELATIVE_LAZY, Scheme.ABSORPTION_LAZY)),
    ],
)
def test_deleting_a_redundant_link(scheme: Scheme, least: int, most: int) -> None:
    simulation = Simulation(Reach(), scheme, 3)
    simulation.step(LINKS)
    cost = simulation.step((), [(C, B)])
    assert simulation.rows() == ALL
    assert least <= cost.messages <= most


def test_deleting_and_deriving_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[Kind] = []
    send = Network.send

    def recorded(self: Network, source: int, target: int, message, carried: int = 0) -> None:  # type: ignore[no-untyped-def]
        if source != target:
            kinds.append(message.kind)
        send(self, source, target, message, carried)

    simulation = Simulation(Reach(), Scheme.DRED, 3)
    simulation.step(LINKS)
    monkeypatch.setattr(Network, "send", recorded)
    simulation.step((), [(C, B)])
    assert [kinds.count(kind) for kind in (Kind.FACT_GONE, Kind.ROW_LOST, Kind.ROW)] == [1, 12, 9]
    assert len(kinds) == 22
