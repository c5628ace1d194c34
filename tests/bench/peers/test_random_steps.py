"""Every scheme has the right rows after every step, whatever comes first on the network."""

from __future__ import annotations

import random

import pytest

from impctl.bench.peers.answers import answer_of
from impctl.bench.peers.network import CutOff, Limits
from impctl.bench.peers.programs import Fact, Program
from impctl.bench.peers.simulation import Scheme, Simulation
from tests.bench.peers.programs_by_hand import drawn_program
from tests.support.random_cases import random_cases

KINDS = ("reach", "regions", "cheapest", "best")


def simulations(program: Program, rng: random.Random) -> dict[Scheme, Simulation]:
    return {
        scheme: Simulation(
            program,
            scheme,
            rng.choice((1, 2, 3, 5)),
            window=rng.choice((1, 3, 50)),
            seed=rng.choice((None, rng.randrange(1000))),
        )
        for scheme in Scheme
        if not (program.prunes and scheme is Scheme.DRED)
    }


@pytest.mark.parametrize("kind", KINDS)
@random_cases(fast=2, check=6, total=120)
def test_answers_are_those_by_hand(kind: str, cases: range) -> None:
    for trial in cases:
        rng = random.Random(f"{kind} {trial}")
        program, answer, drawn = drawn_program(kind, rng)
        schemes = simulations(program, rng)
        facts: set[Fact] = set()
        for step in range(10):
            go = rng.sample(sorted(facts), min(len(facts), rng.choice((0, 1, 1, 2, 4))))
            come = [drawn() for _ in range(rng.choice((0, 1, 1, 3, 6)))]
            # What goes may come back at once, and then it is another one.
            come += go[:1] if rng.random() < 0.3 else []
            facts = (facts - {*go}) | {*come}
            expected = answer(facts)
            assert answer_of(program, facts) == expected, (trial, step)
            for scheme, simulation in schemes.items():
                simulation.step(come, go)
                assert simulation.facts == facts
                assert simulation.answer() == expected, (trial, step, scheme)


@pytest.mark.parametrize("scheme", [s for s in Scheme if s is not Scheme.DRED])
def test_what_is_deleted_leaves_no_provenance(scheme: Scheme) -> None:
    rng = random.Random(str(scheme))
    links = sorted({(rng.randrange(6), rng.randrange(6)) for _ in range(14)})
    program, _, _ = drawn_program("reach", rng)
    simulation = Simulation(program, scheme, 3, seed=2)
    simulation.step(links)
    assert simulation.provenance_bytes() > 0 < simulation.state_bytes()
    simulation.step((), links)
    assert simulation.rows() == frozenset()
    assert simulation.provenance_bytes() == simulation.state_bytes() == 0


def test_a_link_that_comes_again_is_sent_again() -> None:
    """The paper's operator takes it for known: what it sent never shrinks."""
    program, answer, _ = drawn_program("reach", random.Random(1))
    for scheme, simulation in simulations(program, random.Random(1)).items():
        links = [(0, 1), (1, 2)]
        simulation.step(links)
        for _ in range(3):
            simulation.step((), [(1, 2)])
            assert simulation.answer() == {(0, 1)}, scheme
            simulation.step([(1, 2)])
            assert simulation.answer() == answer(links), scheme


@pytest.mark.parametrize("scheme", [Scheme.ABSORPTION_EAGER, Scheme.ABSORPTION_LAZY])
def test_diagrams_that_nobody_holds_make_room(
    scheme: Scheme, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody holds, or is on its way, stays what it is."""
    rng = random.Random(3)
    links = sorted({(rng.randrange(6), rng.randrange(6)) for _ in range(14)})
    program, answer, _ = drawn_program("reach", rng)
    limits = Limits(nodes=300)

    def ran() -> None:
        simulation = Simulation(program, scheme, 5, window=2, limits=limits, seed=4)
        for turn in range(12):
            gone = links[turn % 5 :: 5]
            simulation.step(links)
            assert simulation.answer() == answer(links)
            simulation.step((), gone)
            assert simulation.answer() == answer([*{*links} - {*gone}])

    with pytest.raises(CutOff, match="nodes"):
        ran()
    monkeypatch.setattr("impctl.bench.peers.simulation._FREE_EVERY", 1)
    ran()
