"""The example of the paper's figures 2 to 5: three peers with a node each, four links.

What crosses: 16 tuples for plain rows and lazily; eagerly the paper has 20, and another order in
which messages arrive merges more or fewer of them. Deleting C to B: the paper says that two
messages suffice for absorption, which is what telling both other peers takes; lazily, peers that
sent a derivation by that link send another one. For deleting and deriving again it prints 16,
without the messages that delete; there are 13 of them here, and 9 that derive.
"""

from __future__ import annotations

import pytest

from benchmarks.peers.network import Kind, Network
from benchmarks.peers.programs import Reach
from benchmarks.peers.simulation import Scheme, Simulation

A, B, C = 0, 1, 2
LINKS = [(A, B), (B, C), (C, A), (C, B)]
ALL = frozenset((one, other) for one in (A, B, C) for other in (A, B, C))


@pytest.mark.parametrize("scheme", [Scheme.DRED, Scheme.RELATIVE_LAZY, Scheme.ABSORPTION_LAZY])
def test_sixteen_tuples_cross(scheme: Scheme) -> None:
    simulation = Simulation(Reach(), scheme, 3)
    cost = simulation.step(LINKS)
    assert cost.messages == 16
    assert simulation.rows() == ALL


def test_eagerly_more_cross() -> None:
    result = {
        Simulation(Reach(), Scheme.ABSORPTION_EAGER, 3, window=1, seed=seed).step(LINKS).messages
        for seed in range(20)
    }
    assert min(result) > 16
    assert {19, 20} & result
    assert Simulation(Reach(), Scheme.RELATIVE_EAGER, 3, window=1).step(LINKS).messages > 20


def test_provenance_is_that_of_figure_2() -> None:
    """Its last step, as diagrams drawn by hand, of 12 bytes a node."""
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
        (Scheme.RELATIVE_EAGER, 2, 2),
        (Scheme.RELATIVE_LAZY, 3, 6),
        (Scheme.ABSORPTION_EAGER, 2, 2),
        (Scheme.ABSORPTION_LAZY, 3, 6),
    ],
)
def test_a_deleted_link_that_nothing_hangs_on(scheme: Scheme, least: int, most: int) -> None:
    simulation = Simulation(Reach(), scheme, 3)
    simulation.step(LINKS)
    cost = simulation.step((), [(C, B)])
    assert simulation.rows() == ALL
    assert least <= cost.messages <= most


def test_deleting_and_deriving_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[Kind] = []
    send = Network.send

    def noted(self: Network, source: int, target: int, message, carried: int = 0) -> None:  # type: ignore[no-untyped-def]
        if source != target:
            kinds.append(message.kind)
        send(self, source, target, message, carried)

    simulation = Simulation(Reach(), Scheme.DRED, 3)
    simulation.step(LINKS)
    monkeypatch.setattr(Network, "send", noted)
    simulation.step((), [(C, B)])
    assert [kinds.count(kind) for kind in (Kind.FACT_GONE, Kind.ROW_LOST, Kind.ROW)] == [1, 12, 9]
    assert len(kinds) == 22
