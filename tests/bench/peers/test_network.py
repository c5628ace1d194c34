"""Channels keep their order, only what crosses is counted, and limits end a step."""

from __future__ import annotations

import pytest

from impctl.bench.peers.network import CutOff, Kind, Limits, Message, Network
from impctl.bench.peers.programs import Paths, Reach
from impctl.bench.peers.simulation import Scheme, Simulation


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_channel_is_first_in_first_out(seed: int | None) -> None:
    network = Network(3, Limits(), seed)
    for number in range(60):
        network.send(number % 3, number // 3 % 3, Message(Kind.ROW, (number % 3, number)))
    came: dict[tuple[int, int], list[int]] = {}
    order = []
    while (arrived := network.arrived()) is not None:
        target, message = arrived
        came.setdefault((message.row[0], target), []).append(message.row[1])
        order.append(message.row[1])
    assert sorted(order) == list(range(60))
    assert all(numbers == sorted(numbers) for numbers in came.values())
    assert (order == sorted(order)) == (seed is None)


def test_bytes_of_what_crosses() -> None:
    network = Network(2, Limits())
    network.send(0, 1, Message(Kind.ROW, (1, 2)), 24)
    network.send(1, 1, Message(Kind.ROW, (1, 2)), 24)
    network.send(1, 0, Message(Kind.GONE, (), 5), 4)
    assert (network.messages, network.bytes) == (2, (1 + 16 + 24) + (1 + 4))


def test_one_peer_sends_nothing() -> None:
    for scheme in Scheme:
        cost = Simulation(Reach(), scheme, 1).step([(0, 1), (1, 2), (2, 0)])
        assert (cost.messages, cost.bytes) == (0, 0)


def circle(nodes: int) -> list[tuple[int, int, int]]:
    return [(node, (node + 1) % nodes, 1) for node in range(nodes)]


def test_paths_without_end_are_given_up_and_paths_that_end_are_all_there() -> None:
    scheme = Scheme.ABSORPTION_LAZY
    limits = Limits(messages=2000)
    with pytest.raises(CutOff, match="2,000 messages"):
        Simulation(Paths(()), scheme, 2, limits=limits).step(circle(4))
    ended = Simulation(Paths(()), scheme, 2, limits=limits)
    ended.step([(0, 1, 1), (1, 2, 1), (0, 2, 5), (2, 3, 1)])
    assert ended.answer() == {
        (0, 1, 1, 1),
        (1, 2, 1, 1),
        (0, 2, 5, 1),
        (0, 2, 2, 2),
        (2, 3, 1, 1),
        (1, 3, 2, 2),
        (0, 3, 3, 3),
        (0, 3, 6, 2),
    }


def test_time_and_nodes_are_limits_too() -> None:
    links = [(a, b) for a in range(30) for b in range(30) if a != b and (a * b) % 3 != 1]
    with pytest.raises(CutOff, match="after 0 s"):
        Simulation(Reach(), Scheme.DRED, 4, limits=Limits(seconds=0)).step(links)
    limits = Limits(nodes=500)
    with pytest.raises(CutOff, match="500 nodes"):
        Simulation(Reach(), Scheme.ABSORPTION_EAGER, 4, limits=limits).step(links)


def test_rows_alone_do_not_keep_best_paths() -> None:
    with pytest.raises(ValueError, match="not best"):
        Simulation(Paths((2,)), Scheme.DRED, 2)


def test_paths_that_are_beaten_are_not_sent() -> None:
    """A dear link beside a cheap way: whoever hears of the way first never sends the link on."""
    links = [(9, 0, 1), (0, 1, 1), (1, 2, 1), (0, 2, 9)]
    costs = {}
    for columns in ((), (2,), (2, 3)):
        simulation = Simulation(Paths(columns), Scheme.ABSORPTION_LAZY, 10)
        simulation.step(links[1:])
        costs[columns] = simulation.step(links[:1]).messages
    # The link itself, and to 0's successors: both ways to 2, the cheap one alone, both again.
    assert costs == {(): 4, (2,): 3, (2, 3): 4}


@pytest.mark.parametrize("last", [(0, 2, 9), (9, 0, 1)])
def test_what_is_beaten_is_kept_where_it_came_alone(last: tuple[int, int, int]) -> None:
    """A dear link: it and its row at its start, and nothing for whoever has a link to there."""
    links = [(0, 1, 1), (1, 2, 1), (9, 0, 1), (0, 2, 9)]
    sizes = []
    for dear in (False, True):
        simulation = Simulation(Paths((2,)), Scheme.ABSORPTION_LAZY, 10)
        for link in [*(one for one in links if one != last), last]:
            if dear or link != (0, 2, 9):
                simulation.step([link])
        sizes.append(10 * simulation.state_bytes())
    fact, row, variable, node = 3 * 8, 4 * 8, 4, 12
    assert sizes[1] - sizes[0] == pytest.approx(2 * (fact + variable) + row + node)


def test_rows_that_tie_are_all_best() -> None:
    rows = [(0, 1, 5, 2), (0, 1, 5, 3), (0, 1, 7, 2), (0, 1, 7, 3)]
    assert set(Paths((2,)).best(rows)) == {*rows[:2]}
    assert set(Paths((3,)).best(rows)) == {rows[0], rows[2]}
    assert set(Paths((2, 3)).best(rows)) == {*rows[:3]}
