"""Tables for large joins, the same for the same arguments: keys with so many rows of each, in no
order; graphs whose degrees follow a power law; a social network, in which time goes one way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.bench.large_joins.partners import partners_table
from impctl.bench.large_joins.power_law import power_law_graph
from impctl.bench.large_joins.social import FEWEST_MESSAGES, social_tables
from impctl.errors import UsageError


@pytest.mark.parametrize("key", ["a", "c"])
def test_every_key_has_as_many_rows_and_the_last_what_is_left(key: str) -> None:
    rows = partners_table(205, 20, 1)
    counts = Counter(rows.column(key).to_pylist())
    assert counts == {**dict.fromkeys(range(10), 20), 10: 5}
    assert rows.column("id").to_pylist() == list(range(205))


def test_ids_and_keys_tell_nothing_of_each_other() -> None:
    rows = partners_table(5000, 50, 1).to_pydict()
    for one, other in (("id", "a"), ("id", "c"), ("a", "c")):
        assert abs(np.corrcoef(rows[one], rows[other])[0, 1]) < 0.08


def test_the_seed_decides() -> None:
    assert partners_table(100, 7, 1).equals(partners_table(100, 7, 1))
    assert not partners_table(100, 7, 1).equals(partners_table(100, 7, 2))


@pytest.mark.parametrize(("rows", "partners"), [(0, 1), (10, 0)])
def test_no_rows_or_no_partners_are_refused(rows: int, partners: int) -> None:
    with pytest.raises(UsageError):
        partners_table(rows, partners, 1)


@pytest.mark.parametrize(("edges", "nodes"), [(1, 2), (3, 3), (45, 10), (5000, 700)])
def test_no_edge_twice_and_none_to_itself(edges: int, nodes: int) -> None:
    graph = power_law_graph(edges, nodes, 2.2, 3)
    pairs = list(zip(graph.column("src").to_pylist(), graph.column("dst").to_pylist(), strict=True))
    assert len(set(pairs)) == len(pairs) == edges
    assert all(src != dst for src, dst in pairs)
    assert {node for pair in pairs for node in pair} <= set(range(nodes))
    assert graph.column("id").to_pylist() == list(range(edges))


def test_a_smaller_exponent_has_larger_hubs_at_both_ends() -> None:
    def most(exponent: float, end: str) -> int:
        ends = power_law_graph(20_000, 3000, exponent, 1).column(end).to_numpy()
        return int(np.bincount(ends).max())

    assert most(2.2, "src") > 2 * most(3.0, "src") > 4 * 7
    graph = power_law_graph(20_000, 3000, 2.2, 1)
    degrees = [np.bincount(graph.column(end).to_numpy(), minlength=3000) for end in ("src", "dst")]
    assert np.corrcoef(*degrees)[0, 1] > 0.9, "who has many followers follows many"
    hub = int(degrees[0].argmax())
    ids = graph.filter(np.asarray(graph.column("src")) == hub).column("id").to_numpy()
    assert abs(ids.mean() - 10_000) < 2000, "a hub's edges come at any time"


def test_hubs_that_know_everybody_do_so_at_any_time() -> None:
    graph = power_law_graph(2000, 70, 2.2, 1)
    degrees = np.bincount(graph.column("src").to_numpy())
    ids = graph.filter(np.asarray(graph.column("src")) == int(degrees.argmax())).column("id")
    assert len(ids) > 60
    assert abs(ids.to_numpy().mean() - 1000) < 250


def test_a_value_is_its_ends_and_keeps_a_share_of_them() -> None:
    graph = power_law_graph(20_000, 3000, 2.2, 1).to_pydict()
    of_ends = dict(zip(graph["dst"], graph["value"], strict=True))
    assert all(of_ends[dst] == of for dst, of in zip(graph["dst"], graph["value"], strict=True))
    assert 0.08 < sum(value < 100 for value in of_ends.values()) / len(of_ends) < 0.12


def test_the_seed_decides_on_a_graph() -> None:
    assert power_law_graph(50, 20, 2.5, 1).equals(power_law_graph(50, 20, 2.5, 1))
    assert not power_law_graph(50, 20, 2.5, 1).equals(power_law_graph(50, 20, 2.5, 2))


@pytest.mark.parametrize(
    ("edges", "nodes", "exponent"), [(46, 10, 2.0), (0, 10, 2.0), (5, 10, 1.0), (5, 10, np.nan)]
)
def test_what_is_no_such_graph_is_refused(edges: int, nodes: int, exponent: float) -> None:
    with pytest.raises(UsageError):
        power_law_graph(edges, nodes, exponent, 1)


def values(table: pa.Table, name: str) -> Any:
    return table.column(name).to_numpy()


@pytest.mark.parametrize("messages", [FEWEST_MESSAGES, 5000])
def test_all_numbers_name_rows(messages: int) -> None:
    found = social_tables(messages, 1)
    assert len(found["message"]) == messages
    ends = [
        ("knows", "person1", "person"),
        ("knows", "person2", "person"),
        ("message", "creator", "person"),
        ("message_tag", "message", "message"),
        ("message_tag", "tag", "tag"),
    ]
    for table, column, named in ends:
        held = values(found[table], column)
        assert held.min() >= 0
        assert held.max() < len(found[named])
        assert len(set(held.tolist())) > 1
    for table in found.values():
        assert values(table, "id").tolist() == list(range(len(table)))


def test_time_goes_one_way() -> None:
    found = social_tables(5000, 1)
    for table in ("knows", "message", "message_tag"):
        assert (np.diff(values(found[table], "day")) >= 0).all()
    replies = found["message"].column("reply_of").to_pylist()
    assert all(reply is None or reply < at for at, reply in enumerate(replies))
    assert 0.28 < sum(reply is None for reply in replies) / len(replies) < 0.39
    tagged = found["message_tag"]
    assert (
        values(found["message"], "day")[values(tagged, "message")] == values(tagged, "day")
    ).all()
    pairs = set(
        zip(values(tagged, "message").tolist(), values(tagged, "tag").tolist(), strict=True)
    )
    assert len(pairs) == len(tagged)


def test_the_seed_decides_on_a_network() -> None:
    one, again, other = (social_tables(400, seed) for seed in (1, 1, 2))
    assert all(one[name].equals(again[name]) for name in one)
    assert not one["message"].equals(other["message"])


def test_too_few_messages_are_refused() -> None:
    with pytest.raises(UsageError):
        social_tables(FEWEST_MESSAGES - 1, 1)
